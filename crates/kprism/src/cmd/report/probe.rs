// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report probe`: what probes collected and counted: the text, JSON and CSV of [`kprism_report::probe`].

use std::io::Write;

use anyhow::Result;
use kprism_probe::stream::Item;
use kprism_profile::units::grouped;
use kprism_report::header::account_text;
use kprism_report::probe as view;
use kprism_session::probe::{self, Loaded};
use kprism_store::Run;
use serde_json::Value;

use crate::cmd::output::{FormArgs, Io, ROWS, Shown, print_json};
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
    report(&run, &args.pids, &args.form.shown(ROWS, io.style), io.out)
}

/// Counts, and the first records of these processes and threads.
pub fn report(run: &Run, tasks: &[u32], shown: &Shown<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let mut loaded = Loaded::open(run)?;
    loaded.tasks = tasks.to_vec();
    let (description, named) = (&loaded.description, |item: &Item, value| loaded.named(item, value));
    if shown.csv {
        return csv(&loaded, shown.rows, out);
    }
    let manifest = run.manifest()?;
    let account = loaded.account(&manifest);
    if shown.json {
        let mut rows = Vec::new();
        loaded.each(|hit, values| {
            rows.push(view::object(&description.probes[usize::from(hit.probe)], hit, &values));
            Ok(shown.rows == 0 || rows.len() < shown.rows)
        })?;
        let nothing = rows.is_empty() && !description.has_counted();
        print_json(&view::to_json(description, rows, &account, shown.rows, &named), out)?;
        return Ok(if nothing { Outcome::NothingMatched } else { Outcome::Done });
    }
    let last = manifest.options.get("last").and_then(Value::as_u64);
    writeln!(out, "{}", view::header(description, shown.rows, last, &named))?;
    let (mut lines, mut more) = (0, 0_u64);
    loaded.each(|hit, values| {
        if shown.rows > 0 && lines >= shown.rows {
            more += 1;
            return Ok(true);
        }
        lines += 1;
        write!(out, "{}", view::line(&description.probes[usize::from(hit.probe)], hit, &values))?;
        Ok(true)
    })?;
    if more > 0 {
        writeln!(out, "… {} more records (--limit 0 shows all)", grouped(more))?;
    }
    write!(out, "\n{}", account_text(Some(&account), shown.style))?;
    Ok(if lines == 0 && !description.has_counted() { Outcome::NothingMatched } else { Outcome::Done })
}

/// One row a record, or a count.
fn csv(loaded: &Loaded, limit: usize, out: &mut dyn Write) -> Result<Outcome> {
    let description = &loaded.description;
    if description.probes.iter().all(|probe| probe.record_bytes == 0) {
        write!(out, "{}", view::counts_csv(description, &|item, value| loaded.named(item, value)))?;
        return Ok(if description.has_counted() { Outcome::Done } else { Outcome::NothingMatched });
    }
    let names = probe::names(loaded);
    write!(out, "{}", view::csv_head(&names))?;
    let mut rows = 0;
    loaded.each(|hit, values| {
        rows += 1;
        let probe = &description.probes[usize::from(hit.probe)];
        write!(out, "{}", view::csv_line(probe, hit, &values, &names))?;
        Ok(limit == 0 || rows < limit)
    })?;
    if limit == 0 || rows < limit {
        out.flush()?;
        loaded.whole()?;
    }
    Ok(if rows == 0 { Outcome::NothingMatched } else { Outcome::Done })
}
