// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report probe`: what probes collected and counted: the text, JSON and CSV of [`kprism_report::probe`].

use std::path::PathBuf;

use anyhow::Result;
use kprism_export::probes::{page, show};
use kprism_store::Run;

use crate::cmd::output::{FormArgs, Io, ROWS, write_file};
use crate::exit::Outcome;

/// Options of `kprism report probe`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    form: FormArgs,
    /// Only records of this process or thread id (can be repeated)
    #[arg(long = "task", value_name = "PID")]
    pids: Vec<u32>,
    /// Write hits, values and counts as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "csv", "limit"])]
    html: Option<PathBuf>,
}

/// Shows it.
pub fn run(args: &Args, io: &mut Io<'_>) -> Result<Outcome> {
    let run = Run::open(io.input)?;
    if let Some(file) = &args.html {
        let (page, empty) = page(&run, &args.pids, io.progress)?;
        write_file(file, page, io.progress)?;
        return Ok(Outcome::of_rows(empty));
    }
    let shown = args.form.shown(ROWS, io.style);
    Ok(Outcome::of_rows(show(&run, &args.pids, &shown, io.progress, io.out)?))
}
