// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events by name and task, of a trace that holds no calls of functions: those of the function tracer, of kprobes, of a few
//! tracepoints.
//!
//! Input: events of ftrace. Output: how often each occurred, first and last.

use std::collections::HashMap;

use kprism_ftrace::show::Describe;
use kprism_ftrace::{Data, Event, UNKNOWN_PID};

use crate::ftrace::Collector;

/// Occurrences of an event in a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Name of the event.
    pub event: String,
    /// Thread id; 0 if it is not known.
    pub pid: u32,
    /// Name of the task.
    pub comm: String,
    /// Number of events.
    pub count: u64,
    /// Time of the first one, in ns.
    pub first_ns: u64,
    /// Time of the last one, in ns.
    pub last_ns: u64,
}

/// Counts events.
#[derive(Debug, Default)]
pub struct Tally(HashMap<(String, u32), Seen>);

impl Tally {
    /// Adds an event. `collector` knows the names of tasks.
    pub fn add(&mut self, collector: &Collector<'_>, event: &Event<'_>, describe: Describe<'_>) {
        let Some(name) = name(event, describe) else { return };
        let Event { ns, cpu, pid, .. } = *event;
        let of = self.0.entry((name, pid)).or_insert_with(|| Seen { first_ns: ns, ..Seen::default() });
        of.count += 1;
        (of.first_ns, of.last_ns) = (of.first_ns.min(ns), of.last_ns.max(ns));
        if of.comm.is_empty() {
            of.comm = match pid {
                0 => format!("swapper/{cpu}"),
                UNKNOWN_PID => "?".into(),
                _ => collector.comm(pid).map_or_else(|| format!("<{pid}>"), str::to_owned),
            };
        }
    }

    /// The events, most frequent first.
    pub fn finish(self) -> Vec<Seen> {
        let mut rows: Vec<((String, u32), Seen)> = self.0.into_iter().collect();
        rows.sort_by(|(a, x), (b, y)| y.count.cmp(&x.count).then_with(|| a.cmp(b)));
        let pid = |pid: u32| if pid == UNKNOWN_PID { 0 } else { pid };
        rows.into_iter().map(|((event, number), of)| Seen { event, pid: pid(number), ..of }).collect()
    }
}

/// The name of an event.
fn name(event: &Event<'_>, describe: Describe<'_>) -> Option<String> {
    match &event.data {
        Data::Switch { .. } => Some("sched_switch".into()),
        Data::IrqEnter => Some("interrupt".into()),
        Data::Lost { .. } | Data::Stack(_) | Data::IrqExit | Data::Entry { .. } | Data::Exit(_) => None,
        Data::Raw { id, .. } => {
            let mut said = Vec::new();
            if !describe(event, &mut said) {
                return Some(format!("event {id} (no format)"));
            }
            let end = said.iter().position(|&byte| byte == b':').unwrap_or(said.len());
            Some(String::from_utf8_lossy(&said[..end]).into_owned())
        }
        Data::Text(text) => {
            // The function tracer's: `vfs_read <-ksys_read`.
            let end = text.find(": ").or_else(|| text.find(" <-")).unwrap_or(text.len());
            Some(text[..end].trim_end_matches(':').to_owned())
        }
    }
}
