// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of threads over time.
//!
//! In: records of names (COMM) and births (FORK) in any order. Out: names in order of time. A thread that was born without a
//! name of its own has that of the thread that made it, as in perf (`thread__fork` in tools/perf/util/thread.c).

use std::collections::BTreeMap;

use kprism_perfdata::Record;

/// A thread: (thread id, process id).
pub(crate) type Thread = (u32, u32);

/// The id in records of a task that has exited (`perf_event_pid_type` in kernel/events/core.c): a thread that ends leaves the CPU
/// when it has no id any more. The idle task's is 0.
pub(super) const NOBODY: u32 = u32::MAX;

/// A name given to a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub ns: u64,
    pub thread: Thread,
    pub comm: String,
}

/// Time, thread, process, name.
impl From<Name> for (u64, u32, u32, String) {
    fn from(Name { ns, thread: (tid, pid), comm }: Name) -> Self {
        (ns, tid, pid, comm)
    }
}

/// The records so far.
#[derive(Debug, Default)]
pub(super) struct Comms(Vec<Change>);

#[derive(Debug)]
struct Change {
    ns: u64,
    thread: Thread,
    to: To,
}

#[derive(Debug)]
enum To {
    Name(String),
    /// The name of this thread at that time.
    NameOf(u32),
}

impl Comms {
    /// Adds a record, if it is about a name. -1 is no thread, but every one that has exited.
    pub fn add(&mut self, ns: u64, record: Record<'_>) {
        let (thread, to) = match record {
            Record::Comm { pid, tid, comm, .. } => ((tid, pid), To::Name(comm)),
            Record::Fork { pid, tid, ptid, .. } => ((tid, pid), To::NameOf(ptid)),
            _ => return,
        };
        if thread.0 != NOBODY {
            self.0.push(Change { ns, thread, to });
        }
    }

    /// The names, of which each counts from its time on.
    pub fn names(mut self) -> Vec<Name> {
        self.0.sort_by_key(|change| change.ns);
        let mut own: BTreeMap<u32, String> = BTreeMap::new();
        let named = |Change { ns, thread, to }: Change| {
            let comm = match to {
                To::Name(comm) => Some(comm),
                To::NameOf(parent) => own.get(&parent).cloned(),
            };
            // A number that is used again: the name of the thread that had it before is nobody's any more.
            let Some(comm) = comm else {
                own.remove(&thread.0);
                return None;
            };
            own.insert(thread.0, comm.clone());
            Some(Name { ns, thread, comm })
        };
        self.0.into_iter().filter_map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comm(tid: u32, name: &str) -> Record<'static> {
        Record::Comm { pid: 1, tid, exec: false, comm: name.into() }
    }

    fn fork(tid: u32, ptid: u32) -> Record<'static> {
        Record::Fork { pid: 1, ppid: 1, tid, ptid, time: 1, existed: false }
    }

    fn names(records: Vec<(u64, Record<'static>)>) -> Vec<(u64, u32, String)> {
        let mut comms = Comms::default();
        records.into_iter().for_each(|(ns, record)| comms.add(ns, record));
        comms.names().into_iter().map(|name| (name.ns, name.thread.0, name.comm)).collect()
    }

    #[test]
    fn a_thread_has_the_name_that_its_parent_has_at_its_birth() {
        let told = names(vec![
            (9, fork(3, 2)),
            (5, comm(2, "before")),
            (7, comm(2, "then")),
            (11, comm(2, "after")),
        ]);
        let expected = [(5, 2, "before"), (7, 2, "then"), (9, 3, "then"), (11, 2, "after")];
        assert_eq!(told, expected.map(|(ns, tid, name)| (ns, tid, name.to_owned())));
    }

    #[test]
    fn a_number_that_is_used_again_passes_on_no_name_of_the_dead() {
        // 2 ends. Its number is given to a thread whose parent has no known name, and which makes 3.
        let told = names(vec![(1, comm(2, "dead")), (5, fork(2, 8)), (7, fork(3, 2))]);
        assert_eq!(told, [(1, 2, "dead".to_owned())]);
    }

    #[test]
    fn nobody_has_no_name() {
        assert!(names(vec![(1, comm(NOBODY, "x")), (2, fork(NOBODY, 2))]).is_empty());
    }
}
