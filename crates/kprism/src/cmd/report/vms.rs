// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report vms`: virtual machines of a host's recording.

use anyhow::Result;
use kprism_report::header::head;
use kprism_report::shape;
use kprism_report::vms::Cpus;
use kprism_session::vms::of_run;
use kprism_store::Run;

use crate::cmd::output::{Io, OutputArgs, ROWS, print_json};
use crate::exit::Outcome;

/// Options of `kprism report vms`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    /// A row for each entry and exit instead
    #[arg(long)]
    each: bool,
}

pub fn run(args: &Args, io: &mut Io<'_>) -> Result<Outcome> {
    let run = Run::open(io.input)?;
    let found = of_run(&run, io.progress)?;
    let cpus = Cpus { all: &found.cpus, in_ns: found.in_ns };
    let manifest = run.manifest()?;
    let account = manifest.with_recording(cpus.account());
    io.progress.shown(&account);
    let mut table = if args.each { cpus.changes() } else { cpus.places() };
    let shown = args.output.shown(ROWS, io.style);
    let outcome = Outcome::of_rows(shown.arrange(&mut table)?);
    if shown.csv {
        io.out.write_all(table.to_csv().as_bytes())?;
    } else if shown.json {
        let mut value = shape::report(shape::run(Some(&manifest), Some(&account)), &table);
        value["cpus"] = cpus.each_cpu();
        print_json(&value, io.out)?;
    } else {
        write!(
            io.out,
            "{}{}\n{}\n",
            head(Some(&account), shown.style),
            table.to_text(shown.style),
            cpus.remarks().join("\n")
        )?;
    }
    Ok(outcome)
}
