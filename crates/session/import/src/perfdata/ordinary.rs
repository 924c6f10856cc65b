// SPDX-License-Identifier: MIT OR Apache-2.0
//! Says what a perf.data without Intel PT holds, and what reads it.
//!
//! **In:** the attributes and records. **Out:** text for people: the events with their numbers of samples, and the tool. Most
//! perf.data are samples, so that is no damaged trace, and nothing to be recorded otherwise.

use std::path::Path;

use kprism_perfdata::attr::kind;
use kprism_perfdata::record::sample;
use kprism_perfdata::{Attr, Event, Header, Record};
use kprism_profile::units::counted;

/// Events that are named; the rest is counted.
const NAMED: usize = 6;

/// `PERF_RECORD_STAT` in tools/lib/perf/include/perf/event.h.
const STAT: u32 = 76;

/// Describes the recording at `path`. `trace` is the type of another trace than Intel PT's, if there is one.
pub(super) fn describe(
    path: &Path,
    header: &Header<'_>,
    events: &[Event<'_>],
    trace: Option<u32>,
    notes: &[String],
) -> String {
    let mut parts = Vec::new();
    if let Some(kind) = trace {
        parts.push(format!("a trace of {}", other_trace(kind)));
    }
    let counts = events.iter().filter(|e| matches!(e.record, Record::Other(STAT))).count();
    let samples = samples(header, events);
    let total: u64 = samples.iter().sum();
    let mut named: Vec<String> = Vec::new();
    let mut rest = (0, 0);
    for (place, (attr, count)) in header.attrs.iter().zip(&samples).enumerate() {
        // A dummy event carries records about tasks. It has no samples, nor have events that perf stat counted.
        if *count == 0 && (is_dummy(attr) || counts > 0) {
            continue;
        }
        if named.len() == NAMED {
            rest = (rest.0 + 1, rest.1 + count);
            continue;
        }
        let stacks = if attr.sample_type & sample::CALLCHAIN != 0 { ", with call stacks" } else { "" };
        named.push(format!("{} ({count}{stacks})", name(attr, place, header)));
    }
    if rest.0 > 0 {
        named.push(format!("{} more events ({})", rest.0, rest.1));
    }
    if counts > 0 {
        parts.push(counted(counts as u64, "counts of perf stat"));
    }
    if !named.is_empty() {
        parts.push(format!("samples of {}", named.join(", ")));
    }
    if parts.is_empty() {
        parts.push(format!("{} records, and no events", events.len()));
    }
    let reader = match trace {
        Some(2) => "perf script --itrace=b",
        Some(3) => "perf script, built with OpenCSD",
        Some(4) => "perf report --itrace or perf script",
        Some(_) => "perf report -D",
        None if counts > 0 => "perf stat report",
        None if total == 0 => "perf report --header-only and perf script --show-task-events",
        None => "perf report and perf script",
    };
    let input = path.display();
    let mut text =
        format!("no Intel PT in this perf.data, but {}; see: {reader} -i {input}", parts.join("; "));
    if !notes.is_empty() {
        text += &format!(" ({})", notes.join("; "));
    }
    text
}

/// Number of samples of each event.
fn samples(header: &Header<'_>, events: &[Event<'_>]) -> Vec<u64> {
    let mut counts = vec![0; header.attrs.len()];
    for event in events.iter().filter(|e| matches!(e.record, Record::Sample(_))) {
        let place = event.attr.unwrap_or(0);
        counts.get_mut(place).into_iter().for_each(|count| *count += 1);
    }
    counts
}

fn is_dummy(attr: &Attr) -> bool {
    attr.kind == kind::SOFTWARE && attr.config == kprism_perfdata::attr::DUMMY
}

/// The name of an event: as recorded, else by its number (include/uapi/linux/perf_event.h).
fn name(attr: &Attr, place: usize, header: &Header<'_>) -> String {
    let by_id = header.names.iter().find(|(id, _)| attr.ids.contains(id)).map(|(_, name)| name);
    if let Some(name) = by_id.or_else(|| header.in_order.get(place)) {
        return name.clone();
    }
    const HARDWARE: [&str; 10] = [
        "cycles",
        "instructions",
        "cache-references",
        "cache-misses",
        "branches",
        "branch-misses",
        "bus-cycles",
        "stalled-cycles-frontend",
        "stalled-cycles-backend",
        "ref-cycles",
    ];
    const SOFTWARE: [&str; 12] = [
        "cpu-clock",
        "task-clock",
        "page-faults",
        "context-switches",
        "cpu-migrations",
        "minor-faults",
        "major-faults",
        "alignment-faults",
        "emulation-faults",
        "dummy",
        "bpf-output",
        "cgroup-switches",
    ];
    let number = usize::try_from(attr.config).unwrap_or(usize::MAX);
    let known = match attr.kind {
        0 => HARDWARE.get(number),
        kind::SOFTWARE => SOFTWARE.get(number),
        _ => None,
    };
    match (known, attr.kind) {
        (Some(name), _) => (*name).to_owned(),
        (None, kind::TRACEPOINT) => format!("tracepoint {}", attr.config),
        (None, 3) => format!("cache event {:#x}", attr.config),
        (None, kind::RAW) => format!("r{:x}", attr.config),
        (None, 5) => "a breakpoint".to_owned(),
        (None, pmu) => format!("event {:#x} of PMU {pmu}", attr.config),
    }
}

/// Name of a trace that is not Intel PT's (`enum auxtrace_type` in tools/perf/util/auxtrace.h).
fn other_trace(kind: u32) -> String {
    let name = match kind {
        2 => "Intel BTS",
        3 => "Arm CoreSight",
        4 => "Arm SPE",
        5 => "s390's sampling facility",
        6 => "HiSilicon PTT",
        7 => "VPA dispatches",
        _ => return format!("type {kind}"),
    };
    name.to_owned()
}
