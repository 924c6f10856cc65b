// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports of a profile, of durations and of TLB misses.

use std::io::Write;

use anyhow::{Context, Result, bail};
use kprism_profile::units::printable;
use kprism_profile::{Filter, NO_PARENT, Profile};
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

/// What a format needs of a profile to be more than an empty file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nothing: it has the run's facts, too.
    Run,
    /// Calling contexts, weighed by instructions or time.
    Weighed,
    /// Calling contexts.
    Contexts,
    /// The table of the subject, or the tree.
    Table,
}

/// Opens the run for a format that honours these options, too, and writes it.
fn of_profile(
    request: &Request<'_>,
    needs: Needs,
    out: &mut dyn Write,
    write: impl FnOnce(&Opened, &mut dyn Write) -> Result<bool>,
) -> Result<Written> {
    let progress = request.progress;
    let is_table = needs == Needs::Table;
    if is_table {
        let run = Run::open(request.input)?;
        let asked = match request.subject {
            Subject::Durations => Some(Instrument::Durations),
            Subject::Probe => Some(Instrument::Probe),
            _ => None,
        };
        if let Some(instrument) = asked.filter(|&instrument| !run.holds(instrument)) {
            return Err(held::missing(&run, instrument));
        }
    }
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
    if let Some(why) = nothing_for(needs, request.subject, &opened) {
        bail!("{}: {why}", opened.run.dir().display());
    }
    let mut empty = false;
    request.to_file(out, |out| {
        empty = write(&opened, out)?;
        Ok(())
    })?;
    Ok(Written::of_rows(empty))
}

/// Why a file would have nothing in it: the run does not hold what it is written of. `None` if it does.
fn nothing_for(needs: Needs, subject: Subject, of: &Opened) -> Option<String> {
    let Opened { profile, manifest, weight, of_durations, .. } = of;
    let table = (needs == Needs::Table).then_some(subject);
    let weighed = needs == Needs::Weighed || table == Some(Subject::Tree);
    let contexts =
        weighed || needs == Needs::Contexts || matches!(table, Some(Subject::Functions | Subject::Durations));
    if weighed && *weight == Weight::Instructions && *of_durations {
        return Some("holds durations of functions, which count no instructions: --by time".to_owned());
    }
    if weighed && *weight == Weight::Time && !manifest.clock.counts() {
        return Some("has no times, only instructions: --by instructions".to_owned());
    }
    if contexts && profile.nodes.iter().all(|node| node.parent == NO_PARENT) {
        return Some(format!(
            "holds a {} in which no function ran: nothing can be written of its calls; see: kprism script",
            if *of_durations { "recording of durations" } else { "flow of instructions" }
        ));
    }
    match table {
        Some(Subject::Delta) if profile.deltas.is_empty() => Some(
            "holds a flow of instructions, but no intervals between markers: its kernel did not run, or its markers are not known"
                .to_owned(),
        ),
        Some(Subject::Syscalls) if profile.funcs.iter().all(|func| !func.kernel) => Some(
            "holds a flow of programs alone: system calls are seen in the kernel, which was not recorded".to_owned(),
        ),
        _ => None,
    }
}

pub(crate) fn timeline(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    kprism_session::durations::kept_calls(&Run::open(request.input)?)?;
    of_profile(request, Needs::Run, out, |of, mut out| {
        let switches = switches(&of.run)?;
        // A single call's timeline has the call alone.
        if request.call.callee.is_some() {
            perfetto::write(&of.profile, &switches, &[], &mut out)?;
            return Ok(false);
        }
        let moments = moments(&of.run, &of.manifest, request.progress)?;
        let has_streams = of.run.code_dict().exists();
        if !of.of_durations && !has_streams {
            request.progress.note("the run has no streams: the timeline has what its tables hold");
        }
        if of.of_durations || !has_streams {
            perfetto::write(&of.profile, &switches, &moments, &mut out)?;
            return Ok(false);
        }
        let timeline = perfetto::Timeline::begin(&of.profile, &switches, &moments, &mut out)?;
        timeline::beside(&of.run, &[], timeline, request.progress)?;
        Ok(false)
    })
}

pub(crate) fn stacks(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, Needs::Weighed, out, |of, mut out| {
        Ok(folded::write(&of.profile, &request.filter, of.weight, &mut out)? == 0)
    })
}

pub(crate) fn profile(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, Needs::Contexts, out, |of, mut out| {
        // One call of a run of durations is not taken out of it: its times are those of the profile.
        let times = of.of_durations.then(|| load_times(&of.run, &of.profile)).transpose()?;
        let (filter, command) = (&request.filter, of.manifest.command.join(" "));
        pprof::write(&of.profile, times.as_ref(), filter, &command, &mut out)?;
        Ok(!filter.tasks(&of.profile).contains(&true))
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
        _ if request.call.callee.is_some() => None,
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
    of_profile(request, Needs::Run, out, |of, out| {
        out.write_all(report_page(&of.run, &of.manifest, &of.profile, request.progress)?.as_bytes())?;
        Ok(false)
    })
}

pub(crate) fn table_csv(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, Needs::Table, out, |of, out| {
        let table = match of.of_durations && request.subject != Subject::Tree {
            true => Some(of_durations(of, &request.filter)?.0),
            false => table(request.subject, &of.profile, &request.filter),
        };
        let table = table.context("this subject is no table: a tree can be written as .json or .folded")?;
        out.write_all(table.to_csv().as_bytes())?;
        Ok(is_empty(request.subject, &table))
    })
}

pub(crate) fn table_json(request: &Request<'_>, out: &mut dyn Write) -> Result<Written> {
    of_profile(request, Needs::Table, out, |of, out| {
        let filter = &request.filter;
        let mut empty = false;
        let value = if of.of_durations && request.subject != Subject::Tree {
            let (table, header) = of_durations(of, filter)?;
            empty = is_empty(request.subject, &table);
            shape::report(header, &table)
        } else {
            let header = Header::new(&of.manifest, &of.profile).to_json();
            match table(request.subject, &of.profile, filter) {
                Some(table) => {
                    empty = is_empty(request.subject, &table);
                    shape::report(header, &table)
                }
                None => {
                    let tree = tree::by_comm(&of.profile, filter);
                    let whole = Options { weight: of.weight, min_percent: 0.0, max_depth: usize::MAX };
                    let (tree, hidden) = calltree::to_json(&of.profile, &tree, &whole, 0);
                    json!({"run": header, "tree": tree, "hidden": hidden})
                }
            }
        };
        serde_json::to_writer(&mut *out, &value)?;
        writeln!(out)?;
        Ok(empty)
    })
}

/// True if nothing matched. That no place failed to be decoded is a result.
fn is_empty(subject: Subject, table: &Table) -> bool {
    subject != Subject::Errors && table.rows.is_empty()
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

#[cfg(test)]
mod tests {
    use kprism_profile::{FrameKind, Func, Node, Task};
    use kprism_store::{NO_CLOCK, RunKind};

    use super::*;

    fn opened(of_durations: bool, kernel: bool) -> Opened {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        let node = |parent, calls| Node { parent, func: 0, kind: FrameKind::Call, calls, insns: 5, ns: 5 };
        let (root, call) = (node(NO_PARENT, 0), node(0, 1));
        let profile = Profile {
            funcs: vec![Func { name: "work".into(), kernel, ..Func::default() }],
            tasks: vec![Task { root: 0, ..Task::default() }],
            nodes: vec![root, call],
            ..Profile::default()
        };
        let weight = if of_durations { Weight::Time } else { Weight::Instructions };
        Opened { run, profile, manifest: Manifest::new(RunKind::Import, 1), of_durations, weight }
    }

    #[test]
    fn what_is_not_held_is_refused_and_what_is_held_is_written() {
        let of = opened(false, false);
        let refused = |needs, subject, of: &Opened| nothing_for(needs, subject, of).is_some();
        assert!(!refused(Needs::Weighed, Subject::Functions, &of));
        assert!(!refused(Needs::Table, Subject::Errors, &of));
        assert!(refused(Needs::Table, Subject::Syscalls, &of));
        assert!(!refused(Needs::Table, Subject::Syscalls, &opened(false, true)));
        assert!(refused(Needs::Table, Subject::Delta, &of));
        let mut timeless = opened(false, false);
        timeless.manifest.clock.name = NO_CLOCK.into();
        assert!(!refused(Needs::Weighed, Subject::Functions, &timeless));
        timeless.weight = Weight::Time;
        assert!(refused(Needs::Weighed, Subject::Functions, &timeless));
        let mut durations = opened(true, true);
        durations.weight = Weight::Instructions;
        assert!(refused(Needs::Weighed, Subject::Functions, &durations));
        assert!(!refused(Needs::Contexts, Subject::Functions, &durations));
        let mut nothing = opened(false, true);
        nothing.profile.nodes.truncate(1);
        for needs in [Needs::Weighed, Needs::Contexts, Needs::Table] {
            assert!(refused(needs, Subject::Functions, &nothing), "{needs:?}");
        }
        assert!(!refused(Needs::Run, Subject::Functions, &nothing));
    }
}
