// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the call stacks of all tasks during a [`replay`](crate::replay). Input: its events. Output: calls that begin
//! and end, to a [`Calls`].
//!
//! The rules are those of the profile's stacks (`stack.rs` within a chunk, `causes.rs` across chunks). Here events come
//! one by one and every stack is complete. So no stack has an unknown base, and each rule is one case.

use std::collections::VecDeque;

use crate::decode::event::{Event, EventKind, NO_FUNC, flag};
use crate::replay::TracePosition;
use crate::stack::chunk::{SPACE, resumes};
use crate::stack::frames::{Found, Frame, NO_RETURN, is_kernel, search};
use crate::stack::stitch::MAX_FORKS;
use kprism_profile::FrameKind;

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
}

/// Stack of a task that created another, kept for the child.
struct Forked {
    ip: u64,
    space: u64,
    tgid: u32,
    stack: Vec<Frame>,
}

/// The stacks of all tasks.
#[derive(Default)]
pub struct Stacks {
    threads: Vec<Thread>,
    /// Address space of each lane.
    spaces: Vec<u64>,
    /// The current event is about kernel code.
    kernel: bool,
    forks: VecDeque<Forked>,
}

impl Stacks {
    /// The task executes instructions; see [`Listener::run`](crate::replay::Listener::run).
    #[inline]
    pub fn run(&mut self, at: &TracePosition<'_>, insns: u32) {
        let thread = self.thread(at);
        thread.insns += u64::from(insns);
        thread.cpu += at.after(insns) - at.ns();
    }

    /// Time passed without instructions; see [`Listener::rest`](crate::replay::Listener::rest).
    pub fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        self.thread(at).cpu += ns;
    }

    /// The functions on the task's stack, outermost first.
    pub fn functions(&self, task: usize) -> impl Iterator<Item = u32> {
        self.threads.get(task).into_iter().flat_map(|t| t.stack.iter().map(|f| f.func))
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
        }
        let space = self.spaces[at.lane];
        self.thread(at);
        self.kernel = is_kernel(event.ip);
        match event.kind {
            EventKind::Call => {
                self.push(at, event.func, FrameKind::Call, event.ip, true, calls);
                self.body(at, event);
            }
            EventKind::Ret => self.ret(at, event, calls),
            EventKind::Tail => self.jump(at, event, calls),
            EventKind::Syscall => self.enter(at, event, FrameKind::Syscall, space, calls),
            EventKind::Async if event.flags & flag::EXCEPTION != 0 => {
                self.enter(at, event, FrameKind::Exception, space, calls);
            }
            EventKind::Async => self.enter(at, event, FrameKind::Interrupt, space, calls),
            EventKind::Exit => self.exit(at, event, space, calls),
            EventKind::Space => self.spaces[at.lane] = event.ip & SPACE,
            EventKind::Start | EventKind::Resume => self.resume(at, event, calls),
            EventKind::Switch => {}
            EventKind::Stop | EventKind::Count | EventKind::Mark | EventKind::Push => return,
        }
        // A task seen for the first time was already in the function in which it runs.
        if self.threads[at.task].stack.is_empty() && event.kind != EventKind::Space {
            self.push(at, event.func, FrameKind::Resumed, NO_RETURN, false, calls);
        }
    }

    fn push(
        &mut self,
        at: &TracePosition<'_>,
        func: u32,
        kind: FrameKind,
        ret_ip: u64,
        counts: bool,
        calls: &mut impl Calls,
    ) {
        let thread = &mut self.threads[at.task];
        let depth = thread.stack.len();
        thread.stack.push(Frame {
            ret_ip,
            start_ns: at.ns(),
            start_insns: thread.insns,
            start_cpu: thread.cpu,
            aux: 0,
            node: 0,
            func,
            home: func,
            body: NO_FUNC,
            kind,
            kernel: self.kernel,
            ends: [NO_FUNC; 2],
        });
        calls.begin(at, Begin { func, depth, kind, counts });
    }

    fn pop(&mut self, at: &TracePosition<'_>, calls: &mut impl Calls) {
        let thread = &mut self.threads[at.task];
        let Some(frame) = thread.stack.pop() else { return };
        calls.end(
            at,
            End {
                func: frame.func,
                body: (frame.body != NO_FUNC).then_some(frame.body),
                depth: thread.stack.len(),
                kind: frame.kind,
                start_ns: frame.start_ns,
                on_cpu_ns: thread.cpu - frame.start_cpu,
                insns: thread.insns - frame.start_insns,
            },
        );
    }

    fn truncate(&mut self, at: &TracePosition<'_>, len: usize, calls: &mut impl Calls) {
        while self.threads[at.task].stack.len() > len {
            self.pop(at, calls);
        }
    }

    /// The CPU enters the kernel.
    fn enter(
        &mut self,
        at: &TracePosition<'_>,
        e: &Event,
        kind: FrameKind,
        space: u64,
        calls: &mut impl Calls,
    ) {
        self.push(at, e.func, kind, e.ip, true, calls);
        if let Some(top) = self.threads[at.task].stack.last_mut() {
            top.aux = space;
            top.kernel = true;
        }
    }

    /// The first call of a system call's body names the system call.
    fn body(&mut self, at: &TracePosition<'_>, event: &Event) {
        if event.flags & flag::SYSCALL_BODY == 0 {
            return;
        }
        let stack = &mut self.threads[at.task].stack;
        let Some(index) = stack.iter().rposition(Frame::is_entry) else { return };
        let entry = &mut stack[index];
        if entry.kind == FrameKind::Syscall && entry.body == NO_FUNC {
            entry.body = event.func;
        }
        if event.flags & flag::FORK != 0 {
            self.fork(at);
        }
    }

    /// A return: from the top frame, from several frames at once, or a jump made with a return instruction.
    fn ret(&mut self, at: &TracePosition<'_>, event: &Event, calls: &mut impl Calls) {
        match search(&self.threads[at.task].stack, |f| f.ret_ip == event.ip && !f.is_entry()) {
            Found::At(index) => self.truncate(at, index, calls),
            _ => self.jump(at, event, calls),
        }
    }

    /// A jump to another function: a tail call, a jump into the middle of a function that is on the stack, or a jump
    /// back from a part that the compiler placed elsewhere.
    fn jump(&mut self, at: &TracePosition<'_>, event: &Event, calls: &mut impl Calls) {
        let inner = event.flags & flag::INNER != 0;
        let stack = &mut self.threads[at.task].stack;
        if inner
            && event.flags & flag::DIRECT == 0
            && let Found::At(index) = search(stack, |f| f.func == event.func && !f.is_entry())
        {
            return self.truncate(at, index + 1, calls);
        }
        match stack.last_mut() {
            None => {
                let known = event.flags & flag::ENTRY != 0;
                let kind = if known { FrameKind::Tail } else { FrameKind::Resumed };
                self.push(at, event.func, kind, NO_RETURN, known, calls);
            }
            Some(top) if top.func == event.func => {}
            Some(top) if inner && top.home == event.func && !top.is_entry() => top.func = event.func,
            Some(top) => {
                let top = *top;
                self.tail(at, top, event, calls);
            }
        }
        if event.flags & flag::ENTRY != 0 {
            self.body(at, event);
        }
    }

    /// Replaces the top frame's function. A kernel entry stays on the stack: only `iret` leaves it, whatever jumps came
    /// before.
    fn tail(&mut self, at: &TracePosition<'_>, top: Frame, event: &Event, calls: &mut impl Calls) {
        let counts = event.flags & flag::INNER == 0;
        if top.is_entry() {
            self.push(at, event.func, FrameKind::Tail, NO_RETURN, counts, calls);
            return;
        }
        self.pop(at, calls);
        let kind = if top.kind == FrameKind::Signal { top.kind } else { FrameKind::Tail };
        self.push(at, event.func, kind, top.ret_ip, counts, calls);
        if let Some(new) = self.threads[at.task].stack.last_mut() {
            (new.home, new.aux, new.kernel) = (top.home, top.aux, top.kernel);
        }
    }

    /// The flow is known again after a gap. Frames that still fit stay.
    fn resume(&mut self, at: &TracePosition<'_>, event: &Event, calls: &mut impl Calls) {
        let stack = &self.threads[at.task].stack;
        if event.flags & (flag::ENTRY | flag::INNER) == 0 && !stack.is_empty() {
            // Without symbols, nothing says which frames still fit.
            return;
        }
        // Tracing was switched on at a function's first instruction; see `causes.rs`.
        let switched = event.kind == EventKind::Start && event.link != Event::AT_PSB;
        let enters = switched && event.flags & flag::ENTRY != 0;
        if let Some(index) = stack.iter().rposition(|f| f.func == event.func) {
            if !enters || self.threads[at.task].insns == stack[index].start_insns {
                return self.truncate(at, index + 1, calls);
            }
            self.truncate(at, index, calls);
        } else if !is_kernel(event.ip) {
            self.leave_kernel(at, calls);
        }
        let kind = if enters { FrameKind::Call } else { FrameKind::Resumed };
        self.push(at, event.func, kind, NO_RETURN, enters, calls);
    }

    /// Drops the kernel's frames, down to user code.
    fn leave_kernel(&mut self, at: &TracePosition<'_>, calls: &mut impl Calls) {
        let keep = self.threads[at.task].stack.iter().rposition(|f| !f.kernel).map_or(0, |i| i + 1);
        self.truncate(at, keep, calls);
    }

    /// Leaves the kernel, or an interrupt of kernel code.
    fn exit(&mut self, at: &TracePosition<'_>, event: &Event, space: u64, calls: &mut impl Calls) {
        let user = !is_kernel(event.ip);
        let stack = &self.threads[at.task].stack;
        // The innermost entry. If that one came from the kernel and this return goes to user mode, an entry further
        // down.
        let Some(index) = stack.iter().rposition(|f| f.is_entry() && !(user && is_kernel(f.ret_ip))) else {
            if !user {
                return self.jump(at, event, calls);
            }
            self.leave_kernel(at, calls);
            if self.threads[at.task].stack.is_empty() {
                self.first_user_code(at, event, space, calls);
            }
            return;
        };
        let entry = stack[index];
        self.truncate(at, index, calls);
        if resumes(&entry, event.ip) {
            return;
        }
        if !user {
            // A fault with a fix-up continues elsewhere, mostly in the same function.
            return self.jump(at, event, calls);
        }
        if entry.aux != space {
            // The address space changed: the task executes a new program.
            self.truncate(at, 0, calls);
            return self.push(at, event.func, FrameKind::Call, NO_RETURN, true, calls);
        }
        let interrupted = |f: &Frame| {
            f.kind == FrameKind::Signal && (f.aux == event.ip || f.aux.wrapping_sub(2) == event.ip)
        };
        if let Some(index) = self.threads[at.task].stack.iter().rposition(interrupted) {
            return self.truncate(at, index, calls);
        }
        if event.flags & flag::INNER != 0 {
            return self.jump(at, event, calls);
        }
        self.push(at, event.func, FrameKind::Signal, NO_RETURN, true, calls);
        if let Some(top) = self.threads[at.task].stack.last_mut() {
            top.aux = entry.ret_ip;
        }
    }

    /// The running task creates another. Keeps the stack that the child will start with.
    fn fork(&mut self, at: &TracePosition<'_>) {
        let stack = &self.threads[at.task].stack;
        let Some(index) = stack.iter().rposition(|f| f.kind == FrameKind::Syscall) else { return };
        let (ip, space) = (stack[index].ret_ip, stack[index].aux);
        let tgid = at.tasks[at.task].tgid;
        self.forks.push_back(Forked { ip, space, tgid, stack: stack[..index].to_vec() });
        if self.forks.len() > MAX_FORKS {
            self.forks.pop_front();
        }
    }

    /// First user code of a new task. The child of a fork continues in a copy of its parent's stack, a thread in the
    /// function that created it.
    fn first_user_code(&mut self, at: &TracePosition<'_>, event: &Event, space: u64, calls: &mut impl Calls) {
        if let Some(i) = self.forks.iter().position(|f| f.ip == event.ip)
            && let Some(forked) = self.forks.remove(i)
        {
            let shared = forked.space == space || forked.tgid == at.tasks[at.task].tgid;
            let from = if shared { forked.stack.len().saturating_sub(1) } else { 0 };
            for frame in &forked.stack[from..] {
                self.push(at, frame.func, FrameKind::Resumed, frame.ret_ip, false, calls);
            }
        }
        if self.threads[at.task].stack.is_empty() {
            let known = event.flags & flag::ENTRY != 0;
            let kind = if known { FrameKind::Call } else { FrameKind::Resumed };
            self.push(at, event.func, kind, NO_RETURN, known, calls);
        }
    }
}
