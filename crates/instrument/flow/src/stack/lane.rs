// SPDX-License-Identifier: MIT OR Apache-2.0
//! One CPU while its chunks are stitched: its current chunk, and the task switches of its sideband.

use kprism_image::sideband::Switch;

use crate::stack::chunk::{Cause, Chunk, Off, Span, Tracing};
use crate::stack::switches::has_no_place;

/// One CPU's chunks that are not stitched yet, and the sideband of that CPU.
pub(crate) struct Lane<'a> {
    pub cpu: u16,
    pub switches: Vec<&'a Switch>,
    /// The task that runs before the first switch, if known: (pid, tgid, comm).
    pub first: Option<(u32, u32, String)>,
    /// The current chunk; `None` while the next one is decoded.
    pub chunk: Option<Chunk>,
    /// No more chunks will come.
    pub over: bool,
    /// Next span of the chunk.
    pub span: usize,
    pub task: usize,
    pub next_switch: usize,
    /// Instructions before the current chunk.
    pub insns: u64,
    /// State of tracing at the end of the last chunk.
    pub tracing: Tracing,
    /// The time at which the flow last stopped before the current chunk.
    pub off: Off,
    /// Last report of time before the current chunk, ns.
    pub reported: u64,
}

impl<'a> Lane<'a> {
    pub fn new(cpu: u16, switches: Vec<&'a Switch>, first: Option<(u32, u32, String)>) -> Self {
        Self {
            cpu,
            switches,
            first,
            chunk: None,
            over: false,
            span: 0,
            task: 0,
            next_switch: 0,
            insns: 0,
            tracing: Tracing::Off,
            off: Off::default(),
            reported: 0,
        }
    }

    /// The next span of the current chunk.
    pub fn next(&self) -> Option<&Span> {
        self.chunk.as_ref()?.spans.get(self.span)
    }

    /// Time of the next event of this lane, as far as known; ns.
    pub fn due(&self) -> Option<u64> {
        let span = self.next()?;
        Some(self.unseen(span).map_or(span.start_ns, |switch| switch.t))
    }

    /// Returns the next switch if it happened before `span` while the flow was unknown. Switches that the image places
    /// in the stream do not depend on the flow.
    pub fn unseen(&self, span: &Span) -> Option<&'a Switch> {
        let Cause::Resume { .. } = span.cause else { return None };
        let on = span.tracing.after(self.tracing) == Tracing::On;
        let next = self.switches.get(self.next_switch).filter(|_| !on)?;
        (next.t < span.start_ns && next.offset.is_none()).then_some(next)
    }

    /// The chunk is stitched.
    pub fn pass(&mut self, chunk: &Chunk) {
        self.insns += chunk.insns;
        self.tracing = chunk.tracing.after(self.tracing);
        self.off = chunk.off.unwrap_or(self.off);
        self.reported = self.reported.max(chunk.reported);
    }

    /// At the end: the number of records without a place in the flow.
    pub fn without_place(&self) -> u64 {
        let until = match self.tracing {
            Tracing::On | Tracing::AtPsb => self.reported,
            Tracing::AsBefore | Tracing::Off | Tracing::NoCode | Tracing::Lost => self.off.reported,
        };
        let rest = self.switches.get(self.next_switch..).unwrap_or_default();
        rest.iter().filter(|switch| has_no_place(switch, until)).count() as u64
    }
}
