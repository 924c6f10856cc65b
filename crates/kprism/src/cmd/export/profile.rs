// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of a profile and of TLB misses.

use std::io::Write;

use anyhow::{Context, Result, bail};
use kprism_profile::{Filter, Profile};
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::{Table, deltas, folded, perfetto, pprof, tables, tree};
use kprism_session::{flow, held, perfdata};
use kprism_store::{Instrument, Manifest, Run, load_times};
use serde_json::json;

use super::request::{Request, Subject};
use crate::cmd::output::Shown;
use crate::cmd::report::flow::By;
use crate::cmd::report::{durations, page as report_page, tlb};
use crate::exit::Outcome;

/// The table of a subject; the tree is none.
fn table(subject: Subject, profile: &Profile, filter: &Filter) -> Option<Table> {
    match subject {
        Subject::Functions => Some(tables::functions(profile, filter)),
        Subject::Syscalls => Some(tables::syscalls(profile, filter)),
        Subject::Tasks => Some(tables::tasks(profile, filter)),
        Subject::Errors => Some(tables::errors(profile)),
        Subject::Delta => Some(deltas::summary(profile)),
        Subject::Tree
        | Subject::Boot
        | Subject::Cover
        | Subject::Durations
        | Subject::Probe
        | Subject::Tlb => None,
    }
}

/// A run opened, of which the profile is written.
struct Opened {
    run: Run,
    profile: Profile,
    manifest: Manifest,
    of_durations: bool,
    weight: Weight,
}

/// Opens the run for a format that honours these options, too, and writes it.
fn of_profile(
    request: &Request<'_>,
    (view, more): (&str, &str),
    out: &mut dyn Write,
    write: impl FnOnce(&Opened, &mut dyn Write) -> Result<()>,
) -> Result<Outcome> {
    const ONE: &str = "input output syscall call";
    let Request { args, given, progress } = request;
    given.only(view, &[ONE, more])?;
    let (run, profile, manifest) = flow::open(&args.input, progress)?;
    let of_durations = run.holds(Instrument::Durations);
    if of_durations && profile.funcs.is_empty() {
        bail!(
            "{}: holds no calls of functions; its events, if there are any: kprism script",
            run.dir().display()
        );
    }
    let is_table = more.starts_with("subject");
    let has_it_too = matches!(args.subject, Subject::Functions | Subject::Durations | Subject::Tree);
    if of_durations && is_table && !has_it_too {
        return Err(held::lacks(&run, Instrument::Flow));
    }
    let profile = args.one.call().narrow(&run, profile, &args.select.filter(), progress)?;
    progress.clear();
    let otherwise = if of_durations { By::Time } else { By::Instructions };
    let weight = args.by.unwrap_or(otherwise).into();
    let opened = Opened { run, profile, manifest, of_durations, weight };
    request.to_file(out, |out| write(&opened, out))?;
    Ok(Outcome::Done)
}

pub fn timeline(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a timeline of all tasks", ""), out, |of, mut out| {
        Ok(perfetto::write(&of.profile, &switches(&of.run)?, &mut out)?)
    })
}

pub fn stacks(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("folded stacks", "pids comms by"), out, |of, mut out| {
        Ok(folded::write(&of.profile, &request.args.select.filter(), of.weight, &mut out)?)
    })
}

pub fn profile(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a profile for pprof", "pids comms"), out, |of, mut out| {
        // One call of a run of durations is not taken out of it: its times are those of the profile.
        let times = of.of_durations.then(|| load_times(&of.run, &of.profile)).transpose()?;
        let (filter, command) = (request.args.select.filter(), of.manifest.command.join(" "));
        Ok(pprof::write(&of.profile, times.as_ref(), &filter, &command, &mut out)?)
    })
}

pub fn page(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    of_profile(request, ("a page of all views and tasks", ""), out, |of, out| {
        Ok(out.write_all(report_page::html(&of.run, &of.manifest, &of.profile)?.as_bytes())?)
    })
}

pub fn table_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let args = request.args;
    let honoured = match args.subject {
        Subject::Errors | Subject::Delta => "subject",
        _ => "subject pids comms",
    };
    of_profile(request, ("this table", honoured), out, |of, out| {
        let filter = args.select.filter();
        let table = match of.of_durations && args.subject != Subject::Tree {
            true => Some(durations::whole(&of.run, &of.manifest, &of.profile, &filter)?.0),
            false => table(args.subject, &of.profile, &filter),
        };
        let table = table.context("this subject is no table: a tree can be written as .json or .folded")?;
        Ok(out.write_all(table.to_csv().as_bytes())?)
    })
}

pub fn table_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let args = request.args;
    let (view, honoured) = match args.subject {
        Subject::Errors | Subject::Delta => ("this table", "subject"),
        Subject::Tree => ("the tree", "subject pids comms by"),
        _ => ("this table", "subject pids comms"),
    };
    of_profile(request, (view, honoured), out, |of, out| {
        let filter = args.select.filter();
        let value = if of.of_durations && args.subject != Subject::Tree {
            let (table, header) = durations::whole(&of.run, &of.manifest, &of.profile, &filter)?;
            json!({"run": header, "rows": table.to_json()})
        } else {
            let header = Header::new(&of.manifest, &of.profile).to_json();
            match table(args.subject, &of.profile, &filter) {
                Some(table) => json!({"run": header, "rows": table.to_json()}),
                None => {
                    let tree = tree::by_comm(&of.profile, &filter);
                    let whole = Options { weight: of.weight, min_percent: 0.0, max_depth: usize::MAX };
                    json!({"run": header, "tree": calltree::to_json(&of.profile, &tree, &whole)})
                }
            }
        };
        serde_json::to_writer(&mut *out, &value)?;
        Ok(writeln!(out)?)
    })
}

pub fn for_perf(request: &Request<'_>, _: &mut dyn Write) -> Result<Outcome> {
    let Request { args, given, progress } = request;
    given.only("a .perf.data", &["input", "output"])?;
    perfdata::export(&args.input, &args.output, progress).map(|()| Outcome::Done)
}

pub fn misses_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    misses(request, true, out)
}

pub fn misses_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Outcome> {
    misses(request, false, out)
}

/// A view of TLB misses, all its rows.
fn misses(request: &Request<'_>, json: bool, out: &mut dyn Write) -> Result<Outcome> {
    let Request { args, progress, .. } = request;
    let view = tlb::View {
        name: Some(args.name.as_deref().unwrap_or("objects")),
        select: &args.select,
        counters: None,
    };
    let shown = Shown { json, csv: !json, ..Shown::default() };
    if request.is_stdout() {
        return tlb::show(&args.input, &view, &shown, progress, out);
    }
    let mut text = Vec::new();
    let outcome = tlb::show(&args.input, &view, &shown, progress, &mut text)?;
    std::fs::write(&args.output, text).with_context(|| args.output.display().to_string())?;
    progress.say(&format!("wrote {}", args.output.display()));
    Ok(outcome)
}

/// Context switches, for the timeline of CPUs; none where the run has no sideband.
fn switches(run: &Run) -> Result<Vec<perfetto::Switch>> {
    Ok(perfetto::read_switches(run.sideband_text()?.as_slice())?)
}
