// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tasks whose calls a recording with a threshold was asked for.
//!
//! The kernel looks at whose a call is when it is entered, and with a threshold it records no entries: calls of everybody
//! come out (6.12, kernel/trace/trace_functions_graph.c, `trace_graph_thresh_return`). In: what was asked for, and the
//! events as they come, forks among them. Out: whether an event is of a task that was to be traced.

use std::collections::HashSet;
use std::path::Path;

use kprism_ftrace::format::Format;
use kprism_ftrace::{Data, Event};
use kprism_tracefs::{Recording, Scope};

/// Tasks that are traced so far.
pub(super) struct Wanted {
    tasks: HashSet<u32>,
    fork: Option<Fork>,
    /// Calls of others.
    pub others: u64,
}

/// Offsets of the numbers in a record of `sched_process_fork`.
struct Fork {
    id: u16,
    parent: usize,
    child: usize,
    /// The machine is big-endian.
    big: bool,
}

impl Wanted {
    /// Of the recording whose streams are here; nothing if everybody's calls are wanted.
    ///
    /// # Errors
    /// Some tasks' calls were wanted, and the recording does not say whose they are.
    pub fn of(streams: &Path, formats: &[Format], big: bool) -> Result<Option<Self>, &'static str> {
        let recording = streams.parent().and_then(Path::parent).and_then(|run| Recording::load(run).ok());
        // Pages from elsewhere: of whom was not asked here.
        let Some(recording) = recording else { return Ok(None) };
        if recording.settings.longer_than.is_none() || recording.settings.scope == Scope::All {
            return Ok(None);
        }
        let mut tasks: HashSet<u32> = recording.traced.iter().copied().collect();
        // An older recorder noted the command alone.
        if let (Scope::Command, Some(pid)) = (&recording.settings.scope, recording.pid) {
            tasks.insert(pid);
        }
        let fork = formats.iter().find(|f| f.name == "sched_process_fork").and_then(|format| {
            let at =
                |name: &str| format.field(name).filter(|field| field.size == 4).map(|field| field.offset);
            Some(Fork { id: format.id, parent: at("parent_pid")?, child: at("child_pid")?, big })
        });
        // Without forks, children would be left out.
        match tasks.is_empty() || fork.is_none() {
            true => Err(
                "calls of other tasks are in it: with a threshold the kernel keeps everybody's, and this recording \
                         does not say whose were asked for",
            ),
            false => Ok(Some(Wanted { tasks, fork, others: 0 })),
        }
    }

    /// Hears an event: is it to be taken?
    pub fn takes(&mut self, event: &Event<'_>) -> bool {
        match (&event.data, &self.fork) {
            (Data::Raw { id, bytes }, Some(fork)) if *id == fork.id => {
                let of = if fork.big { u32::from_be_bytes } else { u32::from_le_bytes };
                let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(of);
                if let (Some(parent), Some(child)) = (number(fork.parent), number(fork.child))
                    && self.tasks.contains(&parent)
                {
                    self.tasks.insert(child);
                }
                true
            }
            (Data::Entry { .. } | Data::Exit(_), _) if !self.tasks.contains(&event.pid) => {
                self.others += u64::from(matches!(event.data, Data::Exit(_)));
                false
            }
            _ => true,
        }
    }
}
