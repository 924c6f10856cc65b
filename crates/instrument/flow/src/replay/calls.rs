// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the call stacks of all tasks during a [`replay`](crate::replay). Input: its events. Output: calls that begin
//! and end, to a [`Calls`].
//!
//! The rules are those of `stack/rules.rs`. Every stack is complete, so each rule is one case.

use crate::decode::event::{Event, EventKind, NO_FUNC, flag};
use crate::replay::TracePosition;
use crate::stack::frames::{Frame, NO_RETURN, Now, is_kernel};
use crate::stack::guessed::Guessed;
use crate::stack::parked::{Parked, Stack};
use crate::stack::rules::{self, Arrival, Forks, TaskStack};
use kprism_image::x86::address::task_space;
pub use kprism_profile::Ending;
use kprism_profile::{FrameKind, Unended};

/// A call that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The function entered.
    pub func: u32,
    /// Number of calls around it.
    pub depth: usize,
    /// The kind of its entry.
    pub kind: FrameKind,
    /// True if it counts as a call: it was not under way before, and is no jump into its middle.
    pub counts: bool,
    /// True if the listener has seen it begin, and leave its stack, before: the program comes back to that stack.
    pub again: bool,
}

/// A call that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The function left.
    pub func: u32,
    /// For a system call, the function that is its body, if one was seen.
    pub body: Option<u32>,
    /// Number of calls around it.
    pub depth: usize,
    /// The kind of its entry.
    pub kind: FrameKind,
    /// Time of entry, ns.
    pub start_ns: u64,
    /// The part of its duration that its task spent on a CPU, ns.
    pub on_cpu_ns: u64,
    /// Instructions that its task executed in it and in its callees.
    pub insns: u64,
    /// Why it is off the stack. A call that is left may go on later ([`Begin::again`]). None is [`Ending::Open`]: the listener
    /// knows which calls are under way at the end.
    pub ending: Ending,
}

/// Receives calls, in the order in which they begin and end.
pub trait Calls {
    /// A call begins.
    fn begin(&mut self, at: &TracePosition<'_>, call: Begin);
    /// A call ends.
    fn end(&mut self, at: &TracePosition<'_>, call: End);
}

#[derive(Debug, Default)]
struct Thread {
    stack: Vec<Frame>,
    insns: u64,
    cpu: u64,
    /// Time until which it was followed, ns.
    ran_ns: u64,
}

/// The stacks of all tasks.
#[derive(Default)]
pub struct Stacks {
    threads: Vec<Thread>,
    /// Address space of each lane.
    spaces: Vec<u64>,
    /// True of each lane whose flow stopped before.
    stopped: Vec<bool>,
    forks: Forks,
    parked: Parked,
    unended: Unended,
}

impl Stacks {
    /// The task executes instructions; see [`Listener::run`](crate::replay::Listener::run).
    #[inline]
    pub fn run(&mut self, at: &TracePosition<'_>, insns: u32) {
        let thread = self.thread(at);
        thread.insns += u64::from(insns);
        thread.ran_ns = at.after(insns);
        thread.cpu += thread.ran_ns - at.ns();
    }

    /// Time passed without instructions; see [`Listener::rest`](crate::replay::Listener::rest).
    pub fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        self.thread(at).cpu += ns;
    }

    /// The functions on the task's stack, outermost first.
    pub fn functions(&self, task: usize) -> impl Iterator<Item = u32> {
        self.threads.get(task).into_iter().flat_map(|t| t.stack.iter().map(|f| f.func))
    }

    /// What was guessed so far.
    pub fn guessed(&self) -> Guessed {
        Guessed {
            orphans: self.forks.orphans,
            borrowed: self.parked.borrowed,
            unsure: self.parked.unsure,
            ..Guessed::default()
        }
    }

    /// The calls so far that went off their stack without an end.
    pub fn unended(&self) -> Unended {
        self.unended
    }

    /// The position's task ran while nothing was recorded: none of its calls is known to go on, nor any of the stacks that its
    /// process left.
    fn forget(&mut self, at: &TracePosition<'_>, calls: &mut impl Calls) {
        self.thread(at);
        AtEvent { stacks: self, at, calls, ending: Ending::Untraced }.truncate(0);
        self.parked.forget(at.tasks[at.task].tgid);
    }

    #[inline]
    fn thread(&mut self, at: &TracePosition<'_>) -> &mut Thread {
        if at.task >= self.threads.len() {
            self.threads.resize_with(at.task + 1, Thread::default);
        }
        &mut self.threads[at.task]
    }

    /// Applies an event to the stacks.
    pub fn event(&mut self, at: &TracePosition<'_>, event: &Event, calls: &mut impl Calls) {
        if at.lane >= self.spaces.len() {
            self.spaces.resize(at.lane + 1, 0);
            self.stopped.resize(at.lane + 1, false);
        }
        self.thread(at);
        self.stopped[at.lane] |= event.kind == EventKind::Stop;
        let is_between = self.stopped[at.lane];
        let Event { ip, func, flags, .. } = *event;
        let arrival = Arrival { ip, func, flags, space: self.spaces[at.lane], counts_inside: false };
        // Where the flow is known again, calls are off the stack that ended before.
        let ending = match event.kind {
            EventKind::Start | EventKind::Resume => Ending::Untraced,
            // Where programs alone are traced, what a task did since it ran last was not traced.
            EventKind::Switch => Ending::Untraced,
            _ => Ending::Seen,
        };
        if matches!(event.kind, EventKind::Start | EventKind::Resume | EventKind::Switch) {
            for &(task, until) in at.unrecorded {
                // One that was followed on another CPU since is known.
                if self.threads.get(task).is_some_and(|thread| thread.ran_ns <= until) {
                    self.forget(&TracePosition { task, ..*at }, calls);
                }
            }
        }
        let stack = &mut AtEvent { stacks: self, at, calls, ending };
        match event.kind {
            EventKind::Call => {
                stack.push(&arrival, func, FrameKind::Call, ip, true);
                rules::body(stack, &arrival);
            }
            EventKind::Ret | EventKind::Tail if flags & flag::STACK != 0 => {
                rules::pivot(stack, &arrival, event.kind == EventKind::Ret);
            }
            EventKind::Ret => rules::ret(stack, &arrival),
            EventKind::Tail => rules::jump(stack, &arrival),
            EventKind::Syscall => stack.enter_kernel(&arrival, FrameKind::Syscall),
            EventKind::Async if flags & flag::EXCEPTION != 0 => {
                stack.enter_kernel(&arrival, FrameKind::Exception)
            }
            EventKind::Async => stack.enter_kernel(&arrival, FrameKind::Interrupt),
            EventKind::Exit => rules::exit(stack, &arrival),
            EventKind::Space => self.spaces[at.lane] = task_space(ip),
            EventKind::Start | EventKind::Resume => {
                let is_switched_on = event.kind == EventKind::Start && event.link != Event::AT_PSB;
                let is_found = !at.unrecorded.is_empty() && is_between;
                rules::resume(stack, &arrival, is_switched_on || is_found);
            }
            // Where programs alone are traced, a task goes on in the middle of its code.
            EventKind::Switch if func != NO_FUNC && !is_kernel(ip) => rules::resume(stack, &arrival, false),
            EventKind::Switch => {}
            EventKind::Stop | EventKind::Count | EventKind::Mark | EventKind::Push => return,
        }
        // A task seen for the first time was already in the function in which it runs.
        let is_known = event.kind != EventKind::Space && func != NO_FUNC;
        if is_known && self.threads[at.task].stack.is_empty() {
            let stack = &mut AtEvent { stacks: self, at, calls, ending };
            stack.push(&arrival, func, FrameKind::Resumed, NO_RETURN, false);
        }
    }
}

/// The running task's stack at an event.
struct AtEvent<'s, 'p, C> {
    stacks: &'s mut Stacks,
    at: &'s TracePosition<'p>,
    calls: &'s mut C,
    /// That of the calls that are taken off the stack.
    ending: Ending,
}

impl<C: Calls> AtEvent<'_, '_, C> {
    /// The CPU enters the kernel.
    fn enter_kernel(&mut self, at: &Arrival, kind: FrameKind) {
        self.push(at, at.func, kind, at.ip, true);
        if let Some(top) = self.frames().last_mut() {
            top.aux = at.space;
            top.kernel = true;
        }
    }
}

impl<C: Calls> TaskStack for AtEvent<'_, '_, C> {
    fn frames(&mut self) -> &mut Vec<Frame> {
        &mut self.stacks.threads[self.at.task].stack
    }

    fn push(&mut self, at: &Arrival, func: u32, kind: FrameKind, ret_ip: u64, counts: bool) {
        let thread = &mut self.stacks.threads[self.at.task];
        let depth = thread.stack.len();
        let now = Now { ns: self.at.ns(), insns: thread.insns, cpu: thread.cpu };
        // A replay has no calling contexts.
        let node = 0;
        thread.stack.push(Frame::begin(node, func, kind, ret_ip, is_kernel(at.ip), now));
        self.calls.begin(self.at, Begin { func, depth, kind, counts, again: false });
    }

    fn pop(&mut self) {
        let thread = &mut self.stacks.threads[self.at.task];
        let Some(frame) = thread.stack.pop() else { return };
        self.stacks.unended.add(self.ending);
        self.calls.end(
            self.at,
            End {
                func: frame.func,
                body: (frame.body != NO_FUNC).then_some(frame.body),
                depth: thread.stack.len(),
                kind: frame.kind,
                start_ns: frame.start_ns,
                // A stack that another task left may have run more than this task ever did.
                on_cpu_ns: thread.cpu.wrapping_sub(frame.start_cpu),
                insns: thread.insns.wrapping_sub(frame.start_insns),
                ending: self.ending,
            },
        );
    }

    fn insns(&self) -> u64 {
        self.stacks.threads[self.at.task].insns
    }

    fn tgid(&self) -> u32 {
        self.at.tasks[self.at.task].tgid
    }

    fn forks(&mut self) -> &mut Forks {
        &mut self.stacks.forks
    }

    fn parked(&mut self) -> &mut Parked {
        &mut self.stacks.parked
    }

    /// The listener sees the calls end, and begin again when the program comes back to them.
    fn leave(&mut self) -> Stack {
        let (task, thread) = (self.at.task, &self.stacks.threads[self.at.task]);
        let stack =
            Stack { task, insns: thread.insns, cpu: thread.cpu, frames: thread.stack.clone(), at: None };
        let ending = std::mem::replace(&mut self.ending, Ending::Left);
        self.truncate(0);
        self.ending = ending;
        stack
    }

    fn enter(&mut self, _at: &Arrival, stack: Stack) {
        let thread = &mut self.stacks.threads[self.at.task];
        let (insns, cpu) = (thread.insns, thread.cpu);
        for mut frame in stack.frames {
            // What ran since then is not of these calls.
            frame.start_insns = insns.wrapping_sub(stack.insns.wrapping_sub(frame.start_insns));
            frame.start_cpu = cpu.wrapping_sub(stack.cpu.wrapping_sub(frame.start_cpu));
            frame.again = true;
            let Frame { func, kind, .. } = frame;
            let depth = self.frames().len();
            self.frames().push(frame);
            self.calls.begin(self.at, Begin { func, depth, kind, counts: false, again: true });
        }
    }

    fn task(&self) -> usize {
        self.at.task
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Task;

    const CODE: u64 = 0x40_1000;

    #[derive(Default)]
    struct Heard(Vec<(u32, Ending)>);

    impl Calls for Heard {
        fn begin(&mut self, _: &TracePosition<'_>, _: Begin) {}

        fn end(&mut self, _: &TracePosition<'_>, call: End) {
            self.0.push((call.func, call.ending));
        }
    }

    fn event(kind: EventKind, func: u32, flags: u8) -> Event {
        Event { kind, flags, insns: 0, func, link: 0, ip: CODE }
    }

    /// A call is under way where a window ends. In the next one the program is in its caller.
    #[test]
    fn a_call_that_a_gap_ends_is_told_from_one_that_returned() {
        let tasks = [Task::default()];
        let at = TracePosition::begin(&tasks, &[(0, u64::MAX)]);
        let (mut stacks, mut heard) = (Stacks::default(), Heard::default());
        for event in [
            event(EventKind::Start, 1, flag::INNER),
            event(EventKind::Call, 2, flag::ENTRY),
            event(EventKind::Ret, 1, flag::INNER),
            event(EventKind::Call, 3, flag::ENTRY),
            event(EventKind::Start, 1, flag::INNER),
        ] {
            stacks.event(&at, &event, &mut heard);
        }
        let untraced = [3, 1].map(|func| (func, Ending::Untraced));
        assert_eq!(heard.0, [&[(2, Ending::Seen)], &untraced[..]].concat());
        assert_eq!(stacks.unended(), Unended { untraced: 2, left: 0 });
    }

    /// Where programs alone are traced, a task that was off its CPU goes on in the caller.
    #[test]
    fn a_call_that_ended_while_its_task_was_not_traced_is_no_return() {
        let tasks = [Task::default()];
        let at = TracePosition::begin(&tasks, &[]);
        let (mut stacks, mut heard) = (Stacks::default(), Heard::default());
        for event in [
            event(EventKind::Start, 1, flag::INNER),
            event(EventKind::Call, 2, flag::ENTRY),
            event(EventKind::Switch, 1, flag::INNER),
        ] {
            stacks.event(&at, &event, &mut heard);
        }
        assert_eq!(heard.0, [(2, Ending::Untraced)]);
    }
}
