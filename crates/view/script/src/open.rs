// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of which no end was seen: they are under way when the recording ends, or the program left their stack and did not come back.
//!
//! Input: calls as they begin and end. Output, at the end: those that remain. A listing that writes a line when a call ends would
//! leave them out, and nobody would know that they were made.

use std::collections::BTreeMap;

use kprism_flow::replay::Task;
use kprism_flow::replay::calls::{Begin, End};
use kprism_profile::FrameKind;

/// A call that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    /// The function entered.
    pub func: u32,
    /// For a system call, the function that is its body, if it was entered.
    pub body: Option<u32>,
    /// Number of calls around it.
    pub depth: usize,
    /// The kind of its entry.
    pub kind: FrameKind,
    /// Time of entry, ns.
    pub start_ns: u64,
    /// True if the program came back to its stack: its entry is among [`OpenCalls::left`].
    again: bool,
}

/// A task as it was seen last, with its calls.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Its ids and name.
    pub task: Task,
    /// The stream in which it ran last.
    pub lane: usize,
    /// The CPU on which it ran last.
    pub cpu: u16,
    /// The calls on its stack, outermost first.
    pub calls: Vec<Open>,
    /// Number of renames of tasks when its name was copied.
    names: Option<u32>,
}

/// Identity of a call whose stack was left: time of entry, depth, function. A stack keeps them if another task goes on with it.
type Key = (u64, usize, u32);

/// All calls that have no end yet.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls {
    /// By task, in the order of their appearance.
    tasks: Vec<Seen>,
    /// Calls whose stack was left in them, with the task that left it. Equal ones count each for itself.
    left: BTreeMap<Key, Vec<(usize, Open)>>,
}

impl OpenCalls {
    /// The task with this number runs.
    pub fn runs(&mut self, index: usize, task: &Task, names: u32, lane: usize, cpu: u16) {
        let seen = self.task(index);
        (seen.lane, seen.cpu) = (lane, cpu);
        if seen.names != Some(names) {
            seen.names = Some(names);
            seen.task.clone_from(task);
        }
    }

    /// A call of this task begins at this time.
    pub fn begin(&mut self, index: usize, ns: u64, call: &Begin) {
        let Begin { func, depth, kind, again, .. } = *call;
        let calls = &mut self.task(index).calls;
        calls.truncate(depth);
        calls.push(Open { func, body: None, depth, kind, start_ns: ns, again });
    }

    /// A function of this task is the body of the system call in which the task is.
    pub fn body(&mut self, index: usize, func: u32) {
        let is_entry = |call: &&mut Open| {
            matches!(call.kind, FrameKind::Syscall | FrameKind::Interrupt | FrameKind::Exception)
        };
        if let Some(entry) = self.task(index).calls.iter_mut().rev().find(is_entry)
            && entry.kind == FrameKind::Syscall
        {
            entry.body = entry.body.or(Some(func));
        }
    }

    /// A call of this task goes off its stack.
    pub fn end(&mut self, index: usize, call: &End) {
        let calls = &mut self.task(index).calls;
        // The calls above it are off already, unless they went without a word.
        calls.truncate(call.depth + 1);
        let again = calls.len() > call.depth && calls.pop().is_some_and(|open| open.again);
        if !again {
            return;
        }
        let key = (call.start_ns, call.depth, call.func);
        if let Some(alike) = self.left.get_mut(&key) {
            alike.pop();
            if alike.is_empty() {
                self.left.remove(&key);
            }
        }
    }

    /// The program left the stack of a call, which is off it ([`OpenCalls::end`]). `depth` is that of the listing.
    pub fn leave(&mut self, index: usize, call: &End, depth: usize) {
        let End { func, body, kind, start_ns, .. } = *call;
        let open = Open { func, body, depth, kind, start_ns, again: false };
        self.left.entry((start_ns, call.depth, func)).or_default().push((index, open));
    }

    /// The tasks with the calls that are under way, without those to which the program came back; and the calls whose stack was
    /// left, with the numbers of their tasks, in the order of their entries.
    pub fn into_parts(self) -> (Vec<Seen>, Vec<(usize, Open)>) {
        let mut tasks = self.tasks;
        tasks.iter_mut().for_each(|seen| seen.calls.retain(|call| !call.again));
        (tasks, self.left.into_values().flatten().collect())
    }

    fn task(&mut self, index: usize) -> &mut Seen {
        if index >= self.tasks.len() {
            self.tasks.resize_with(index + 1, Seen::default);
        }
        &mut self.tasks[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_profile::Ending;

    fn begin(func: u32, depth: usize, again: bool) -> Begin {
        Begin { func, depth, kind: FrameKind::Call, counts: !again, again }
    }

    fn end(func: u32, depth: usize, start_ns: u64, ending: Ending) -> End {
        let kind = FrameKind::Call;
        End { func, body: None, depth, kind, start_ns, on_cpu_ns: 0, insns: 0, ending }
    }

    #[test]
    fn calls_that_did_not_end_remain() {
        let mut open = OpenCalls::default();
        open.runs(0, &Task { pid: 7, tgid: 7, comm: "a".to_owned() }, 0, 1, 3);
        open.begin(0, 10, &begin(1, 0, false));
        open.begin(0, 20, &begin(2, 1, false));
        open.begin(0, 30, &begin(3, 2, false));
        open.end(0, &end(3, 2, 30, Ending::Seen));
        let (tasks, left) = open.into_parts();
        let calls: Vec<_> = tasks[0].calls.iter().map(|call| (call.func, call.start_ns)).collect();
        assert_eq!((calls, left.len()), (vec![(1, 10), (2, 20)], 0));
        assert_eq!((tasks[0].task.pid, tasks[0].lane, tasks[0].cpu), (7, 1, 3));
    }

    #[test]
    fn a_stack_that_was_left_is_one_call_whether_the_program_came_back_or_not() {
        let mut open = OpenCalls::default();
        let leave = |open: &mut OpenCalls, func, start_ns| {
            let call = end(func, 0, start_ns, Ending::Left);
            open.end(0, &call);
            open.leave(0, &call, 0);
        };
        open.begin(0, 10, &begin(1, 0, false));
        leave(&mut open, 1, 10);
        open.begin(0, 20, &begin(2, 0, false));
        leave(&mut open, 2, 20);
        // The first goes on, is left again, goes on again, and ends.
        open.begin(0, 30, &begin(1, 0, true));
        leave(&mut open, 1, 10);
        open.begin(0, 40, &begin(1, 0, true));
        open.end(0, &end(1, 0, 10, Ending::Seen));
        // The second goes on, and is under way at the end.
        open.begin(0, 50, &begin(2, 0, true));
        let (tasks, left) = open.into_parts();
        assert!(tasks[0].calls.is_empty());
        let left: Vec<_> = left.iter().map(|(task, call)| (*task, call.func, call.start_ns)).collect();
        assert_eq!(left, [(0, 2, 20)]);
    }

    #[test]
    fn a_system_call_under_way_has_the_name_of_its_body() {
        let mut open = OpenCalls::default();
        let entry = Begin { kind: FrameKind::Syscall, ..begin(1, 0, false) };
        open.begin(0, 10, &entry);
        open.begin(0, 20, &begin(2, 1, false));
        open.body(0, 2);
        open.body(0, 3);
        assert_eq!(open.into_parts().0[0].calls[0].body, Some(2));
    }
}
