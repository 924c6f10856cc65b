// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report probe`, `kprism script probe` and `kprism export` of a run with probes: what they collected.
//!
//! In: options. Out: the text, JSON and CSV of [`kprism_report::probe`], or a file for another tool.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_probe::stream::Item;
use kprism_profile::units::grouped;
use kprism_report::header::account_text;
use kprism_report::probe as view;
use kprism_store::Run;
use serde_json::Value;

use super::export::Request;
use super::output::Shown;
use super::output::print_json;
use super::script;
use crate::exit::Outcome;
use kprism_session::probe::{self, Loaded};

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

/// A line for each record.
pub fn script(run: &Run, args: &script::Args, out: &mut dyn Write) -> Result<Outcome> {
    let mut loaded = Loaded::open(run)?;
    if args.limit == Some(0) {
        return Ok(Outcome::Done);
    }
    loaded.tasks = args.tasks.pids.clone();
    let mut shown = 0;
    loaded.each(|hit, values| {
        let at = hit.time_ns;
        let cpu = args.cpus.is_empty() || args.cpus.contains(&hit.cpu);
        let within = at >= args.from.unwrap_or(0) && args.to.is_none_or(|to| at < to);
        if !(cpu && within) {
            return Ok(true);
        }
        shown += 1;
        let probe = &loaded.description.probes[usize::from(hit.probe)];
        if args.json {
            serde_json::to_writer(&mut *out, &view::object(probe, hit, &values))?;
            writeln!(out)?;
        } else {
            write!(out, "{}", view::line(probe, hit, &values))?;
        }
        Ok(args.limit.is_none_or(|most| shown < most))
    })?;
    if args.limit.is_none_or(|most| shown < most) {
        out.flush()?;
        loaded.whole()?;
    }
    Ok(if shown == 0 { Outcome::NothingMatched } else { Outcome::Done })
}

/// Writes the records for another tool by `write`, which returns their number and a hint on how to read the file.
fn export(
    request: &Request<'_>,
    write: impl FnOnce(&Loaded, &Path) -> Result<(u64, String)>,
) -> Result<Outcome> {
    let Request { args, progress, .. } = request;
    let mut loaded = Loaded::open(&Run::open(&args.input)?)?;
    loaded.tasks = args.select.pids.clone();
    let (records, hint) = write(&loaded, &args.output)?;
    progress.say(&format!("wrote {}{hint}", args.output.display()));
    loaded.whole()?;
    Ok(if records == 0 { Outcome::NothingMatched } else { Outcome::Done })
}

pub fn parquet(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    export(request, |loaded, path| {
        let (columns, rows) = probe::columns(loaded)?;
        kprism_store::save_records(path, &columns)?;
        Ok((rows as u64, String::new()))
    })
}

pub fn ctf(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    export(request, |loaded, path| {
        Ok((probe::ctf(loaded, path)?, format!("; see: babeltrace2 {}", path.display())))
    })
}

pub fn gdb(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    export(request, |loaded, path| {
        let frames = probe::gdb(loaded, path, request.progress)?;
        Ok((frames, format!("; in GDB: target tfile {}", path.display())))
    })
}

pub fn csv_file(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    text_file(request, false, out)
}

pub fn json_file(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    text_file(request, true, out)
}

/// The report as CSV or JSON, in a file.
fn text_file(request: &Request<'_>, json: bool, out: &mut dyn Write) -> Result<Outcome> {
    let Request { args, progress, .. } = request;
    let (run, path) = (Run::open(&args.input)?, &args.output);
    let shown = Shown { json, csv: !json, ..Shown::default() };
    if request.is_stdout() {
        return report(&run, &args.select.pids, &shown, out);
    }
    let loaded = Loaded::open(&run)?;
    let name = || path.display().to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).with_context(name)?);
    let outcome = report(&run, &args.select.pids, &shown, &mut file)?;
    file.flush().with_context(name)?;
    progress.say(&format!("wrote {}", name()));
    loaded.whole()?;
    Ok(outcome)
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
