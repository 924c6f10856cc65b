// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of probes: as text, JSON and CSV, as a page, and for other tools.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_probe::stream::Item;
use kprism_profile::Profile;
use kprism_profile::units::grouped;
use kprism_report::header::{account_text, conditions, head, part};
use kprism_report::perfetto::Timeline;
use kprism_report::{Shown, probe as view};
use kprism_session::Progress;
use kprism_session::probe::{self, Loaded};
use kprism_store::Run;

use crate::request::{Request, Written};

/// Says that a file of records has no hits that were counted while recording.
///
/// # Errors
/// The run has nothing but such counts: the file would be empty.
fn without_counts(loaded: &Loaded, progress: &Progress) -> Result<()> {
    let description = &loaded.description;
    if !description.has_counted() {
        return Ok(());
    }
    if description.probes.iter().all(|probe| probe.record_bytes == 0) {
        bail!(
            "hits were counted while recording, no records were kept: export the counts as .json, .csv or .html"
        );
    }
    progress.note(
        "counts by keys are not in this file: kprism report probe shows them, .json and .html have them",
    );
    Ok(())
}

/// Writes the records for another tool by `write`, which returns their number and a hint on how to read the file.
fn export(
    request: &Request<'_>,
    write: impl FnOnce(&Loaded, &Path) -> Result<(u64, String)>,
) -> Result<Written> {
    let progress = request.progress;
    let mut loaded = Loaded::open(&Run::open(request.input)?)?;
    without_counts(&loaded, progress)?;
    loaded.tasks = request.filter.pids.clone();
    progress.found(&loaded.account_now()?);
    let (records, hint) = write(&loaded, request.output)?;
    progress.say(&format!("wrote {}{hint}", request.output.display()));
    loaded.whole()?;
    Ok(Written::of_rows(records == 0))
}

pub(crate) fn parquet(request: &Request<'_>, _: &mut dyn Write) -> Result<Written> {
    export(request, |loaded, path| {
        let (columns, rows) = probe::columns(loaded)?;
        kprism_store::save_records(path, &columns)?;
        Ok((rows as u64, String::new()))
    })
}

pub(crate) fn ctf(request: &Request<'_>, _: &mut dyn Write) -> Result<Written> {
    export(request, |loaded, path| {
        Ok((probe::ctf(loaded, path)?, format!("; see: babeltrace2 {}", path.display())))
    })
}

pub(crate) fn gdb(request: &Request<'_>, _: &mut dyn Write) -> Result<Written> {
    export(request, |loaded, path| {
        let frames = probe::gdb(loaded, path, request.progress)?;
        Ok((frames, format!("; in GDB: target tfile {}", path.display())))
    })
}

/// A timeline: each record with its values, and a counter for each number.
pub(crate) fn timeline(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    let run = Run::open(request.input)?;
    without_counts(&Loaded::open(&run)?, request.progress)?;
    request.to_file(out, |mut out| {
        let timeline = Timeline::begin(&Profile::default(), &[], &[], &mut out)?;
        crate::timeline::beside(&run, &request.filter.pids, timeline, request.progress)
    })?;
    Ok(Written::default())
}

pub(crate) fn csv_file(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    text_file(request, false, out)
}

pub(crate) fn json_file(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    text_file(request, true, out)
}

/// The report as CSV or JSON, in a file.
fn text_file(request: &Request<'_>, json: bool, out: &mut dyn Write) -> Result<Written> {
    let progress = request.progress;
    let (run, path) = (Run::open(request.input)?, request.output);
    let loaded = Loaded::open(&run)?;
    // A table of records has none of the counts; one of counts alone is a table of them.
    if !json && loaded.description.probes.iter().any(|probe| probe.record_bytes > 0) {
        without_counts(&loaded, progress)?;
    }
    let shown = Shown { json, csv: !json, ..Shown::default() };
    if request.is_stdout() {
        return Ok(Written::of_rows(show(&run, &request.filter.pids, &shown, progress, out)?));
    }
    let name = || path.display().to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).with_context(name)?);
    let empty = show(&run, &request.filter.pids, &shown, progress, &mut file)?;
    file.flush().with_context(name)?;
    progress.say(&format!("wrote {}", name()));
    loaded.whole()?;
    Ok(Written::of_rows(empty))
}

/// Writes counts, and the first records of these processes and threads (all if empty). Returns true if there are none.
///
/// # Errors
/// The run holds no records of probes, or damaged ones.
pub fn show(
    run: &Run,
    tasks: &[u32],
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<bool> {
    let mut loaded = Loaded::open(run)?;
    loaded.tasks = tasks.to_vec();
    let (description, named) = (&loaded.description, |item: &Item, value| loaded.named(item, value));
    let manifest = run.manifest()?;
    let account = loaded.account(&manifest);
    // The records as they are now: the run's account is of the time when they were recorded.
    if !shown.csv {
        progress.shown(&account);
    } else {
        progress.found(&account);
        return csv(&loaded, shown.rows, out);
    }
    if shown.json {
        let (mut rows, mut hidden) = (Vec::new(), 0);
        loaded.each(|hit, values| {
            match shown.rows == 0 || rows.len() < shown.rows {
                true => rows.push(view::object(&description.probes[usize::from(hit.probe)], hit, &values)),
                false => hidden += 1,
            }
            Ok(true)
        })?;
        let nothing = rows.is_empty() && !description.has_counted();
        serde_json::to_writer_pretty(
            &mut *out,
            &view::to_json(description, (rows, hidden), (&manifest, &account), shown.rows, &named),
        )?;
        writeln!(out)?;
        return Ok(nothing);
    }
    let last = manifest.option_facts().last;
    write!(out, "{}{}", part(&manifest.recorded_part(), shown.style), head(Some(&account), shown.style))?;
    write!(out, "{}", conditions(&manifest.conditions(None), shown.style))?;
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
    write!(out, "{}", account_text(Some(&account), shown.style))?;
    Ok(lines == 0 && !description.has_counted())
}

/// One HTML file with counts, and records of these processes and threads (all if empty). Also returns true if it has none.
///
/// # Errors
/// As [`show`].
pub fn page(run: &Run, tasks: &[u32], progress: &Progress) -> Result<(String, bool)> {
    let mut loaded = Loaded::open(run)?;
    loaded.tasks = tasks.to_vec();
    let manifest = run.manifest()?;
    let account = loaded.account(&manifest);
    progress.shown(&account);
    let description = &loaded.description;
    let total = loaded.records();
    let mut rows = view::page::Rows::new(description, total);
    loaded.each(|hit, values| {
        rows.add(description, hit, &values);
        Ok(true)
    })?;
    let places: Vec<&str> = description.probes.iter().map(|probe| probe.place.as_str()).collect();
    let title = match manifest.command.is_empty() {
        true => places.join(", "),
        false => manifest.command.join(" "),
    };
    let page = view::page::render(
        &view::page::Input {
            title: &title,
            description,
            last: manifest.option_facts().last,
            account: &account,
            named: &|item: &Item, value| loaded.named(item, value),
            guest: &manifest.conditions(None),
        },
        rows,
    );
    Ok((page.context("HTML page")?, total == 0 && !description.has_counted()))
}

/// One row a record, or a count.
fn csv(loaded: &Loaded, limit: usize, out: &mut dyn Write) -> Result<bool> {
    let description = &loaded.description;
    if description.probes.iter().all(|probe| probe.record_bytes == 0) {
        write!(out, "{}", view::counts_csv(description, &|item, value| loaded.named(item, value)))?;
        return Ok(!description.has_counted());
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
    Ok(rows == 0)
}
