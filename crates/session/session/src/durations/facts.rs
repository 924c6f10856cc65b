// SPDX-License-Identifier: MIT OR Apache-2.0
//! Findings of a reader of a trace of functions beside the calls: in, what it comes across; out, the counts of its
//! account and its notes.

use std::collections::BTreeMap;

use kprism_ftrace::{Data, Event, Exit};
use kprism_profile::Counts;

/// Findings beside the calls.
#[derive(Default)]
pub(super) struct Facts {
    pub source: &'static str,
    pub clock: String,
    pub events: u64,
    /// These are calls: the recorder wrote no events.
    pub of_calls: bool,
    /// Events that the kernel overwrote or dropped, by its own count, if that is there.
    pub overwritten: Option<u64>,
    /// Calls of tasks that were not asked for, left out, where they were told apart.
    pub others: Option<u64>,
    /// Calls that the tracer had no room to follow: a text's own count, and what each task's returns tell.
    pub overruns: (u64, BTreeMap<u32, u64>),
    pub kernel: String,
    pub notes: Vec<String>,
    /// Places that were passed over, and the first of them.
    pub faults: u64,
    pub fault_places: Vec<String>,
    /// Formats that could not be read.
    pub formats: Vec<String>,
    /// The trace has no durations: those that are shown as 0 were not measured.
    pub unmeasured: Option<&'static str>,
    /// The recorder left out events, by its settings, and did not count them.
    pub unrecorded: Option<&'static str>,
    /// Facts that the trace does not tell, and what was taken instead.
    pub guesses: Vec<String>,
}

impl Facts {
    /// A fact that the trace does not tell.
    pub fn guess(&mut self, note: String) {
        self.guesses.push(note.clone());
        self.notes.push(note);
    }

    /// Parts of the file that are missing or were not understood: a note each.
    pub fn damaged(&mut self, notes: &[String]) {
        self.faults += notes.len() as u64;
        self.fault_places.extend_from_slice(notes);
        self.notes.extend_from_slice(notes);
    }

    /// Adds to what the kernel counted.
    pub fn overwrote(&mut self, more: u64) {
        self.overwritten = Some(self.overwritten.unwrap_or(0).saturating_add(more));
    }

    /// The kernel's count has what it overwrote after the last page that was read, the pages have what they say of
    /// themselves: the greater one is told, everywhere. Where neither says anything, nobody knows.
    pub fn lost_events(&self, counts: &Counts) -> Option<u64> {
        match self.overwritten {
            None if counts.lost == 0 => None,
            counted => Some(counted.unwrap_or(0).max(counts.lost)),
        }
    }

    /// A task's returns repeat the sum so far.
    pub fn count(&mut self, event: &Event<'_>) {
        if let Data::Exit(Exit { overrun, .. }) = event.data
            && overrun > 0
        {
            let most = self.overruns.1.entry(event.pid).or_default();
            *most = overrun.max(*most);
        }
    }

    pub fn too_deep(&self) -> u64 {
        self.overruns.1.values().fold(self.overruns.0, |sum, n| sum.saturating_add(*n))
    }

    /// The unit of `events`.
    pub fn unit(&self) -> &'static str {
        if self.of_calls { "calls" } else { "events" }
    }
}
