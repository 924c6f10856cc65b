// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report probe`: what probes collected and counted: the text, JSON and CSV of [`kprism_report::probe`].

use anyhow::Result;
use kprism_export::probes::show;
use kprism_store::Run;

use crate::cmd::output::{FormArgs, Io, ROWS};
use crate::exit::Outcome;

/// Options of `kprism report probe`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    form: FormArgs,
    /// Only records of this process or thread id (can be repeated)
    #[arg(long = "task", value_name = "PID")]
    pids: Vec<u32>,
}

/// Shows it.
pub fn run(args: &Args, io: &mut Io<'_>) -> Result<Outcome> {
    let run = Run::open(io.input)?;
    Ok(Outcome::of_rows(show(&run, &args.pids, &args.form.shown(ROWS, io.style), io.out)?))
}
