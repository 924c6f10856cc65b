// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receivers of a trace's events, beside the collector of durations.

use kprism_durations::ftrace::Collector;
use kprism_ftrace::Event;
use kprism_ftrace::show::Describe;

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
