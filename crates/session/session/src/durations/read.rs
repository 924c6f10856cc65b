// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's trace, in the form that its recorder left.
//!
//! In: `streams/ftrace` or `streams/bpf`. Out: [`Measured`], and facts on the reading.

use anyhow::{Context, Result};
use kprism_durations::Measured;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::Event;
use kprism_ftrace::dat::Dat;
use kprism_ftrace::show::Describe;
use kprism_store::Run;

use super::facts::Facts;
use super::{bpf, dat, perf, raw, text};
use crate::files::{read, read_if_there};

/// Takes each event after the collector, with the writer of its text; returns false to end the reading.
pub type Visitor<'e> = &'e mut dyn FnMut(&mut Collector<'_>, &Event<'_>, Describe<'_>) -> bool;

/// The consumer of a trace, beside the collector of durations.
pub enum Consumer<'e> {
    /// No other: sums are enough.
    None,
    /// Calls whose entries are not there are kept.
    Rebuilt,
    /// Every event.
    Events(Visitor<'e>),
}

impl Consumer<'_> {
    pub(super) fn prepare(&self, collector: &mut Collector<'_>) {
        match self {
            Consumer::None => {}
            Consumer::Rebuilt => collector.keep_rebuilt(),
            Consumer::Events(_) => collector.keep_log(),
        }
    }

    /// Takes an event; `false` ends the reading.
    #[inline]
    pub(super) fn event(
        &mut self,
        collector: &mut Collector<'_>,
        event: &Event<'_>,
        describe: Describe<'_>,
    ) -> bool {
        collector.event(event);
        match self {
            Consumer::Events(visit) => visit(collector, event, describe),
            _ => true,
        }
    }
}

/// Reads it.
pub(super) fn read_trace(run: &Run, facts: &mut Facts, consumer: &mut Consumer<'_>) -> Result<Measured> {
    let dir = run.ftrace();
    facts.clock = "local".into();
    let kallsyms = read_if_there(&run.kallsyms())?;
    let (dat, txt) = (dir.join("trace.dat"), dir.join("trace.txt"));
    let of_perf = dir.join("perf.data");
    let mut measured = if dat.is_file() {
        let bytes = read(&dat)?;
        let dat = Dat::parse(&bytes).with_context(|| dat.display().to_string())?;
        dat::measure(&dat, &kallsyms, facts, consumer)
    } else if txt.is_file() {
        text::measure(&read(&txt)?, facts, consumer)
    } else if of_perf.is_file() {
        perf::measure(&read(&of_perf)?, &kallsyms, facts, consumer)
            .with_context(|| of_perf.display().to_string())?
    } else if dir.is_dir() {
        raw::measure(&dir, &kallsyms, facts, consumer)?
    } else {
        bpf::measure(run, &kallsyms, facts, consumer)?
    };
    let counts = &mut measured.times.counts;
    counts.lost = facts.lost_events(counts).unwrap_or(0);
    Ok(measured)
}
