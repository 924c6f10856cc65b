// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of several CPUs in order of time, on one clock.

use std::collections::BTreeMap;

use kprism_durations::ftrace::Collector;
use kprism_ftrace::dat::TscToNs;
use kprism_ftrace::format::Format;
use kprism_ftrace::show::Shown;
use kprism_ftrace::stream::{Stream, Streams};
use kprism_ftrace::{Data, Event, Exit};
use kprism_image::symbols::Symbols;
use kprism_profile::units::grouped;

use super::consumer::Consumer;
use super::facts::Facts;
use super::names::place;
use super::wanted::Wanted;

/// Counts what was not understood, and notes the first place.
pub(super) fn faults(faults: &kprism_ftrace::Faults, place: &str, facts: &mut Facts) {
    facts.faults += faults.count;
    let places =
        faults.first.iter().map(|fault| format!("{place} {}: expected {}", fault.at, fault.expected));
    facts.fault_places.extend(places.take(4));
    if let Some(first) = faults.first.first() {
        let more = if faults.count > 1 { format!(" ({} such places)", faults.count) } else { String::new() };
        facts.notes.push(format!("{place} {}: expected {}{more}", first.at, first.expected));
    }
}

/// Merges the CPUs' events and counts them. Returns the CPUs' streams.
pub(super) fn collect<'a>(
    cpus: Vec<Stream<'a>>,
    (names, formats, symbols): (&[String], (&[Format], bool), &Symbols),
    time: &Time,
    mut wanted: Option<Wanted>,
    collector: &mut Collector<'_>,
    (facts, consumer): (&mut Facts, &mut Consumer<'_>),
) -> Vec<Stream<'a>> {
    consumer.prepare(collector);
    let shown = Shown::new(formats.0, formats.1);
    let named = |address: u64| place(symbols, address);
    let describe = |event: &Event<'_>, out: &mut Vec<u8>| match &event.data {
        Data::Raw { id, bytes } => shown.write(*id, bytes, &named, out),
        _ => false,
    };
    let mut last = BTreeMap::new();
    let mut merged = Streams::new(cpus);
    while let Some(mut event) = merged.next() {
        time.apply(&mut event, &mut last);
        facts.count(&event);
        if let Some(wanted) = wanted.as_mut()
            && !wanted.takes(&event)
        {
            continue;
        }
        if !consumer.event(collector, &event, &describe) {
            break;
        }
    }
    facts.others = wanted.as_ref().map(|wanted| wanted.others);
    if let Some(Wanted { others, .. }) = wanted
        && others > 0
    {
        facts.notes.push(format!(
            "{} calls of other tasks left out: with a threshold the kernel keeps those too",
            grouped(others)
        ));
    }
    let cpus = merged.into_streams();
    for (cpu, name) in cpus.iter().zip(names) {
        facts.events += cpu.counts().events;
        faults(&cpu.counts().faults, &format!("{name}: offset"), facts);
    }
    cpus
}

/// Clocks of ftrace that count nanoseconds: those with `in_ns` in `trace_clocks` (kernel/trace/trace.c). All others count something
/// else: x86-tsc, ppc-tb, s390's TOD, counter, uptime.
const IN_NS: [&str; 7] = ["local", "global", "perf", "mono", "mono_raw", "boot", "tai"];

/// Conversion of a trace's times to ns.
pub(super) enum Time {
    /// They are ns, and functions are timed with the same clock.
    Same,
    /// They are ns of another clock than function graph's own, which is `local`.
    Other { tsc: Option<TscToNs>, offset: i64 },
    /// They are no ns: those of returns are taken.
    Returns,
}

impl Time {
    pub(super) fn new(clock: &str, tsc: Option<TscToNs>, offset: i64, facts: &mut Facts) -> Self {
        match clock {
            "local" if offset == 0 => Time::Same,
            "" => {
                facts.guess("the recording does not tell its clock: taken for `local`, in ns".into());
                facts.clock = "local".into();
                if offset == 0 { Time::Same } else { Time::Other { tsc, offset } }
            }
            _ if IN_NS.contains(&clock) || tsc.is_some() => Time::Other { tsc, offset },
            _ => {
                facts.guess(format!(
                    "clock {clock} cannot be converted to ns: functions' own times are taken"
                ));
                facts.clock = "local".into();
                Time::Returns
            }
        }
    }

    fn apply(&self, event: &mut Event<'_>, last: &mut BTreeMap<u32, u64>) {
        match self {
            Time::Same => {}
            Time::Other { tsc, offset } => {
                let ns = tsc.map_or(event.ns, |tsc| tsc.ns(event.ns));
                event.ns = ns.saturating_add_signed(*offset);
                if let Data::Exit(Exit { call_ns: Some(call), ret_ns: Some(ret), .. }) = &mut event.data {
                    let took = ret.saturating_sub(*call);
                    (*call, *ret) = (event.ns.saturating_sub(took), event.ns);
                }
            }
            Time::Returns => {
                let ns = last.entry(event.cpu).or_insert(0);
                if let Data::Exit(Exit { ret_ns: Some(ret), .. }) = &event.data {
                    *ns = *ret;
                }
                event.ns = *ns;
            }
        }
    }
}
