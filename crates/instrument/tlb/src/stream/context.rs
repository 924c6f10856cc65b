// SPDX-License-Identifier: MIT OR Apache-2.0
//! The task and the address space to which events of a stream belong: events that change them come before.

use super::{Alloc, Event, Miss, Reader, StreamError};

/// The current task and address space of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// CR3 without its low 12 bits.
    pub space: u64,
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Time of the last event with one, ns.
    pub ns: u64,
    /// Weight of a miss; 0 means 1. See [`Context::weight`].
    pub each: u64,
}

impl Context {
    /// Number of misses that one recorded miss stands for. It exceeds 1 where misses were sampled.
    pub fn weight(&self) -> u64 {
        self.each.max(1)
    }

    /// Updates the context by an event.
    pub fn follow(&mut self, event: &Event) {
        match *event {
            Event::Space(cr3) => self.space = cr3 & !0xfff,
            Event::Weight(weight) => self.each = weight,
            Event::Task { pid, tgid } => (self.pid, self.tgid) = (pid, tgid),
            Event::Miss(Miss { ns, .. }) | Event::Alloc(Alloc { ns, .. }) | Event::Free { ns, .. } => {
                self.ns = ns
            }
            Event::Touch { .. }
            | Event::Invalidate(_)
            | Event::Flush
            | Event::Fault(_)
            | Event::FaultEnd
            | Event::Entry(_) => {}
        }
    }
}

/// Calls `each` for every miss of a stream, with its context.
///
/// # Errors
/// The stream is damaged. Misses before the damage were passed on.
pub fn for_each(reader: Reader<'_>, mut each: impl FnMut(&Context, &Miss)) -> Result<(), StreamError> {
    let mut context = Context::default();
    for event in reader {
        let event = event?;
        context.follow(&event);
        if let Event::Miss(miss) = event {
            each(&context, &miss);
        }
    }
    Ok(())
}
