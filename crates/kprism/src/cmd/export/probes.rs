// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of what probes collected.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_session::probe::{self, Loaded};
use kprism_store::Run;

use super::request::Request;
use crate::cmd::output::Shown;
use crate::cmd::report::probe::report;
use crate::exit::Outcome;

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
