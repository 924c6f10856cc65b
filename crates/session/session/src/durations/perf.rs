// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tracepoints of a perf.data.

use std::path::Path;

use anyhow::{Context, Result};
use kprism_durations::Measured;
use kprism_ftrace::show::Shown;
use kprism_ftrace::{Data, Event, side};
use kprism_import::perfdata::{Files, trace};
use kprism_profile::units::grouped;

use super::consumer::Consumer;
use super::facts::Facts;
use super::names::{collector, finish, place, symbols};

/// Reads it: a file, or perf's folder.
pub(super) fn measure(
    path: &Path,
    kallsyms: &[u8],
    facts: &mut Facts,
    consumer: &mut Consumer<'_>,
) -> Result<Measured> {
    let files = Files::open(path)?;
    let trace = trace::read(&files).with_context(|| path.display().to_string())?;
    facts.source = "perf.data";
    facts.clock.clone_from(&trace.clock);
    facts.kernel.clone_from(&trace.release);
    facts.damaged(&trace.dat.notes);
    facts.damaged(&trace.notes);
    if trace.broken > 0 {
        facts.faults += trace.broken;
        facts.notes.push(format!(
            "{} samples have no whole record, or no task, time or CPU: passed over",
            grouped(trace.broken)
        ));
    }
    if !trace.sampled.is_empty() {
        facts.unrecorded = Some("events between samples");
        facts.notes.push(format!("perf took samples only of {}", trace.sampled.join(", ")));
    }
    if trace.others > 0 {
        facts.notes.push(format!("{} samples are of no tracepoint: passed over", grouped(trace.others)));
    }
    let names = if kallsyms.is_empty() { &trace.dat.kallsyms } else { kallsyms };
    let symbols = symbols(names, facts);
    let decoder = trace.dat.decoder();
    let shown = Shown::new(&trace.dat.formats, trace.dat.big);
    let named = |address: u64| place(&symbols, address);
    let says = |event: &Event<'_>, out: &mut Vec<u8>| match &event.data {
        Data::Raw { id, bytes } => shown.write(*id, bytes, &named, out),
        _ => false,
    };
    let mut collector = collector(&symbols, true);
    collector.name_tasks(side::by_pid(&trace.dat.cmdlines));
    collector.group_tasks(trace.groups());
    consumer.prepare(&mut collector);
    // perf writes a record for what it lost: none is none lost.
    facts.overwrote(0);
    let mut names = trace.names.iter().peekable();
    for event in trace.events(&decoder) {
        while let Some((_, tid, pid, comm)) = names.next_if(|name| name.0 <= event.ns) {
            collector.rename_task(*tid, *pid, comm);
        }
        facts.count(&event);
        match event.data {
            Data::Lost { count } => facts.overwrote(count.unwrap_or(0)),
            _ => facts.events += 1,
        }
        if !consumer.event(&mut collector, &event, &says) {
            break;
        }
    }
    Ok(finish(collector, &symbols))
}
