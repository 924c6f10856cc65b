// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that a run holds as one CTF 1.8 trace (diamon.org/ctf), for babeltrace2 and Trace Compass.
//!
//! In: the moments of a run, in order of time. Out: a folder with a stream for each CPU, one for what has no CPU, and `metadata`.
//! Streams are written while the run is read, a packet at a time; the metadata comes last, as it describes the events that came.
//!
//! Events have the names and fields of LTTng where LTTng has such an event ([`event`] chooses them), so that the analyses of
//! Trace Compass find them.

mod event;
mod streams;

use std::fs;
use std::io::Write;

use anyhow::{Context, Result, bail};
use kprism_session::moments::{self, Kind, Wanted};
use kprism_store::{Instrument, Manifest, Run};

use crate::request::{Request, Written};
use event::Names;
use streams::Streams;

/// Interval by which TLB misses are counted, ns.
const TLB_NS: u64 = 100_000;

/// Writes the run of the request as a folder of CTF.
///
/// # Errors
/// The run has no flow, a file of it is not what it should be, or the folder is not empty or cannot be written.
pub(crate) fn of_run(request: &Request<'_>, _: &mut dyn Write) -> Result<Written> {
    let (run, path, progress) = (Run::open(request.input)?, request.output, request.progress);
    let name = || path.display().to_string();
    if !run.holds(Instrument::Flow) || run.holds(Instrument::Durations) {
        bail!(
            "{}: a .ctf is written of a flow, or of what probes collected, and this run has neither; calls of durations: \
             kprism export -o FILE.perfetto-trace",
            run.dir().display()
        );
    }
    if !run.code_dict().exists() {
        bail!(
            "{}: the run has no streams, only tables: a .ctf is written from the streams",
            run.dir().display()
        );
    }
    // As of a file, the folder that it goes into has to be there.
    if !path.is_dir() {
        fs::create_dir(path).with_context(name)?;
    }
    if fs::read_dir(path).with_context(name)?.next().is_some() {
        bail!("{}: is not empty", name());
    }
    let recorded = moments::events(&run)?.map(|events| events.recorded.events).unwrap_or_default();
    let wanted = Wanted {
        kinds: Kind::ALL.iter().map(|(kind, ..)| *kind).collect(),
        tlb_ns: TLB_NS,
        ..Wanted::default()
    };
    let mut names = Names::new(&recorded);
    let mut streams = Streams::new(path);
    let mut failed = None;
    let summary = moments::each(&run, &wanted, progress, &mut |moment| {
        failed = streams.push(moment.ns, moment.cpu, names.of(moment)).err();
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error).with_context(name);
    }
    let events = streams.finish(&head(&run.manifest()?)).with_context(name)?;
    summary.notes.iter().for_each(|note| progress.note(note));
    if names.switches_lack_a_state() {
        progress.note(
            "a flow does not tell why a task left its CPU, so prev_state and priorities are 0: record with \
             --event sched:sched_switch, which tells it",
        );
    }
    progress.say(&format!("wrote {}; see: babeltrace2 {}", name(), name()));
    match summary.account {
        Some(account) if events > 0 => Ok(Written::with(account)),
        _ => Ok(Written::of_rows(events == 0)),
    }
}

/// Facts on the run for the metadata: Trace Compass takes a trace of the domain `kernel` as one of a kernel, and chooses the names
/// of events by the tracer.
fn head(manifest: &Manifest) -> Vec<(&'static str, String)> {
    let mut head = vec![
        ("domain", "kernel".to_owned()),
        ("tracer_name", "lttng-modules".to_owned()),
        ("written_by", format!("kprism {}", env!("CARGO_PKG_VERSION"))),
        ("sysname", "Linux".to_owned()),
        ("command", kprism_profile::units::quoted(&manifest.command)),
    ];
    head.extend(manifest.kernel.as_ref().map(|kernel| ("kernel_release", kernel.release.clone())));
    head
}
