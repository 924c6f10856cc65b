// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of a profile, of durations and of TLB misses.

use std::io::Write;

use anyhow::{Context, Result, bail};
use kprism_profile::units::printable;
use kprism_profile::{Filter, Profile};
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::header::Header;
use kprism_report::html::{self, Budget};
use kprism_report::{Shown, Table, deltas, durations, folded, lanes, perfetto, pprof, shape, tables, tree};
use kprism_script::events;
use kprism_session::{Progress, flow, held, open_profile, perfdata};
use kprism_store::{Entry, Instrument, Manifest, Run, load_times};
use serde_json::{Value, json};

use crate::request::{Request, Subject, Written};
use crate::{misses, page_lanes, pages, timeline};

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
    is_table: bool,
    out: &mut dyn Write,
    write: impl FnOnce(&Opened, &mut dyn Write) -> Result<()>,
) -> Result<Written> {
    let progress = request.progress;
    let (run, profile, manifest) = open_profile(request.input, progress)?;
    let of_durations = run.holds(Instrument::Durations);
    if is_table && request.subject == Subject::Boot {
        bail!(
            "initcalls are no table of an export: `kprism report boot --json` has them all, and -o FILE.html is their chart"
        );
    }
    if of_durations && profile.funcs.is_empty() {
        bail!(
            "{}: holds no calls of functions; its events, if there are any: kprism script",
            run.dir().display()
        );
    }
    let has_it_too = matches!(request.subject, Subject::Functions | Subject::Durations | Subject::Tree);
    if of_durations && is_table && !has_it_too {
        return Err(held::missing(&run, Instrument::Flow));
    }
    let profile = request.call.narrow(&run, profile, &request.filter, progress)?;
    progress.clear();
    let otherwise = if of_durations { Weight::Time } else { Weight::Instructions };
    let weight = request.weight.unwrap_or(otherwise);
    let opened = Opened { run, profile, manifest, of_durations, weight };
    request.to_file(out, |out| write(&opened, out))?;
    Ok(Written::default())
}

pub(crate) fn timeline(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    kprism_session::durations::kept_calls(&Run::open(request.input)?)?;
    of_profile(request, false, out, |of, mut out| {
        let switches = switches(&of.run)?;
        // A single call's timeline has the call alone.
        if request.call.syscall.is_some() {
            return Ok(perfetto::write(&of.profile, &switches, &[], &mut out)?);
        }
        let moments = moments(&of.run, &of.manifest, request.progress)?;
        let has_streams = of.run.code_dict().exists();
        if !of.of_durations && !has_streams {
            request.progress.note("the run has no streams: the timeline has what its tables hold");
        }
        if of.of_durations || !has_streams {
            return Ok(perfetto::write(&of.profile, &switches, &moments, &mut out)?);
        }
        let timeline = perfetto::Timeline::begin(&of.profile, &switches, &moments, &mut out)?;
        timeline::beside(&of.run, &[], timeline, request.progress)
    })
}

pub(crate) fn stacks(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, false, out, |of, mut out| {
        Ok(folded::write(&of.profile, &request.filter, of.weight, &mut out)?)
    })
}

pub(crate) fn profile(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, false, out, |of, mut out| {
        // One call of a run of durations is not taken out of it: its times are those of the profile.
        let times = of.of_durations.then(|| load_times(&of.run, &of.profile)).transpose()?;
        let (filter, command) = (&request.filter, of.manifest.command.join(" "));
        Ok(pprof::write(&of.profile, times.as_ref(), filter, &command, &mut out)?)
    })
}

/// The page of the subject's instrument, or of that which the run holds.
pub(crate) fn page(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    let asked = match request.subject {
        Subject::Tlb => Some(Instrument::Tlb),
        Subject::Probe => Some(Instrument::Probe),
        Subject::Boot => Some(Instrument::Boot),
        Subject::Cover => Some(Instrument::Cover),
        // Only a flow has these.
        Subject::Tree | Subject::Tasks | Subject::Syscalls => None,
        _ if request.call.syscall.is_some() => None,
        _ => pages::other(&Run::open(request.input)?),
    };
    if let Some(instrument) = asked {
        if request.view.is_some() {
            bail!("the page of TLB misses has all views: leave NAME out");
        }
        let page = pages::of(request.input, instrument, request.progress)?;
        request.to_file(out, |out| Ok(out.write_all(page.as_bytes())?))?;
        return Ok(Written::default());
    }
    of_profile(request, false, out, |of, out| {
        Ok(out.write_all(report_page(&of.run, &of.manifest, &of.profile, request.progress)?.as_bytes())?)
    })
}

pub(crate) fn table_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, true, out, |of, out| {
        let table = match of.of_durations && request.subject != Subject::Tree {
            true => Some(of_durations(of, &request.filter)?.0),
            false => table(request.subject, &of.profile, &request.filter),
        };
        let table = table.context("this subject is no table: a tree can be written as .json or .folded")?;
        Ok(out.write_all(table.to_csv().as_bytes())?)
    })
}

pub(crate) fn table_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, true, out, |of, out| {
        let filter = &request.filter;
        let value = if of.of_durations && request.subject != Subject::Tree {
            let (table, header) = of_durations(of, filter)?;
            shape::report(header, &table)
        } else {
            let header = Header::new(&of.manifest, &of.profile).to_json();
            match table(request.subject, &of.profile, filter) {
                Some(table) => shape::report(header, &table),
                None => {
                    let tree = tree::by_comm(&of.profile, filter);
                    let whole = Options { weight: of.weight, min_percent: 0.0, max_depth: usize::MAX };
                    let (tree, hidden) = calltree::to_json(&of.profile, &tree, &whole, 0);
                    json!({"run": header, "tree": tree, "hidden": hidden})
                }
            }
        };
        serde_json::to_writer(&mut *out, &value)?;
        Ok(writeln!(out)?)
    })
}

/// The table of all functions of a recording of durations, and the facts on the run.
fn of_durations(of: &Opened, filter: &Filter) -> Result<(Table, Value)> {
    let times = load_times(&of.run, &of.profile)?;
    let cost = of.manifest.durations.tracing_cost;
    let mut header = durations::header_json(&Header::new(&of.manifest, &of.profile), &times.counts);
    header["tracing_cost"] = json!(cost);
    Ok((durations::functions(&of.profile, &times, filter, cost.as_ref()), header))
}

/// The report of a run as one HTML page.
///
/// # Errors
/// The run's times cannot be read.
pub fn report_page(run: &Run, manifest: &Manifest, profile: &Profile, progress: &Progress) -> Result<String> {
    report_page_with(run, manifest, profile, Vec::new(), progress)
}

/// The same with annotated functions of a flow in it.
///
/// # Errors
/// As [`report_page`].
pub fn report_page_with(
    run: &Run,
    manifest: &Manifest,
    profile: &Profile,
    sources: Vec<Value>,
    progress: &Progress,
) -> Result<String> {
    let budget = Budget::default();
    if run.holds(Instrument::Durations) {
        let times = load_times(run, profile)?;
        return html::render_durations(manifest, profile, &times, &budget).context("HTML report");
    }
    let sideband = run.sideband_text()?;
    let beside = lanes::Sources {
        switches: perfetto::read_switches(sideband.as_slice())?,
        marks: lanes::read_marks(sideband.as_slice()),
        moments: moments(run, manifest, progress)?,
        others: page_lanes::beside(run, profile, progress)?,
    };
    let lanes = lanes::of_flow(profile, beside);
    let page = html::render_flow(manifest, profile, lanes, sources, &budget).context("HTML report")?;
    if let [first, others @ ..] = &page.sources_omitted[..] {
        let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        progress.note(&format!(
            "the sources of {}{more} had no room in the page (5 MB): kprism view shows them",
            printable(first)
        ));
    }
    Ok(page.html)
}

pub(crate) fn for_perf(request: &Request<'_>, _: &mut dyn Write) -> Result<Written> {
    perfdata::export(request.input, request.output, request.progress).map(Written::with)
}

pub(crate) fn misses_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    misses_of(request, true, out)
}

pub(crate) fn misses_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    misses_of(request, false, out)
}

/// A view of TLB misses, all its rows.
fn misses_of(request: &Request<'_>, json: bool, out: &mut dyn Write) -> Result<Written> {
    let progress = request.progress;
    let name = Some(request.view.unwrap_or("objects"));
    let view = misses::View { name, filter: &request.filter, counters: None };
    let shown = Shown { json, csv: !json, ..Shown::default() };
    if request.is_stdout() {
        let (empty, account) = misses::show(request.input, &view, &shown, progress, out)?;
        return Ok(Written { empty, account: Some(account) });
    }
    let mut text = Vec::new();
    let (empty, account) = misses::show(request.input, &view, &shown, progress, &mut text)?;
    std::fs::write(request.output, text).with_context(|| request.output.display().to_string())?;
    progress.say(&format!("wrote {}", request.output.display()));
    Ok(Written { empty, account: Some(account) })
}

/// Events that packets state beside the flow. The flow is only replayed for them if its account counted some.
fn moments(run: &Run, manifest: &Manifest, progress: &Progress) -> Result<Vec<perfetto::Moment>> {
    let account = manifest.accounts.get(&Instrument::Flow);
    let is_event = |entry: &Entry| entry.unit.ends_with(" events") && entry.count.is_some_and(|n| n > 0);
    if !account.is_some_and(|account| account.entries.iter().any(is_event)) {
        return Ok(Vec::new());
    }
    Ok(events::moments(&flow::load(run, progress)?, progress))
}

/// Context switches, for the timeline of CPUs; none where the run has no sideband.
fn switches(run: &Run) -> Result<Vec<perfetto::Switch>> {
    Ok(perfetto::read_switches(run.sideband_text()?.as_slice())?)
}
