// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of threads over time.
//!
//! In: records of names (COMM) and births (FORK) in any order. Out: names in order of time. A thread that was born without a
//! name of its own has that of the thread that made it, as in perf (`thread__fork` in tools/perf/util/thread.c).

use std::collections::BTreeMap;

use kprism_perfdata::Record;

/// The records so far.
#[derive(Debug, Default)]
pub(super) struct Comms(Vec<Change>);

#[derive(Debug)]
struct Change {
    ns: u64,
    tid: u32,
    pid: u32,
    to: To,
}

#[derive(Debug)]
enum To {
    Name(String),
    /// The name of this thread at that time.
    NameOf(u32),
}

impl Comms {
    /// Adds a record, if it is about a name.
    pub fn add(&mut self, ns: u64, record: Record<'_>) {
        let (tid, pid, to) = match record {
            Record::Comm { pid, tid, comm, .. } => (tid, pid, To::Name(comm)),
            Record::Fork { pid, tid, ptid, .. } => (tid, pid, To::NameOf(ptid)),
            _ => return,
        };
        self.0.push(Change { ns, tid, pid, to });
    }

    /// Time, thread, process, name.
    pub fn names(mut self) -> Vec<(u64, u32, u32, String)> {
        self.0.sort_by_key(|change| change.ns);
        let mut own: BTreeMap<u32, String> = BTreeMap::new();
        let named = |Change { ns, tid, pid, to }: Change| {
            let name = match to {
                To::Name(name) => name,
                To::NameOf(parent) => own.get(&parent)?.clone(),
            };
            own.insert(tid, name.clone());
            Some((ns, tid, pid, name))
        };
        self.0.into_iter().filter_map(named).collect()
    }
}
