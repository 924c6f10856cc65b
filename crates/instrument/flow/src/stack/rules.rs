// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules by which the complete stack of a task changes: returns, jumps, gaps, exits from the kernel, forks.
//!
//! Two keep such stacks: the stitcher, which applies them to the events that a chunk could not decide
//! ([`super::causes`]), and a replay, to every event ([`crate::replay::calls`]). A chunk does not know the frames below
//! it. It decides with the same searches of [`super::frames`], and leaves an event that reaches below to the stitcher.

use std::collections::{HashMap, VecDeque};

use crate::decode::event::flag;
use crate::stack::frames::{
    Found, Frame, NO_RETURN, is_kernel, jumped_into, left_entry, restarts_at, returned_to,
};
use crate::stack::parked::{Parked, Stack, Taken};
use kprism_profile::FrameKind;

/// Stacks kept for children that have not run yet. Beyond this the oldest is dropped.
const MAX_FORKS: usize = 256;

/// An address that the flow reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub ip: u64,
    /// The function there, and the [`flag`] bits of the arrival.
    pub func: u32,
    pub flags: u8,
    /// Address space of the CPU.
    pub space: u64,
    /// A jump into the middle of a function that is not on the stack counts as a call. It does in a profile, if no return
    /// instruction made it; in a replay it never does.
    pub counts_inside: bool,
}

impl Arrival {
    fn is_entry(&self) -> bool {
        self.flags & flag::ENTRY != 0
    }

    fn is_inside(&self) -> bool {
        self.flags & flag::INNER != 0
    }
}

/// Stack of a task that created another, kept for the child.
#[derive(Debug)]
pub(crate) struct Forked {
    /// Address of the child's first return to user mode.
    ip: u64,
    space: u64,
    tgid: u32,
    stack: Vec<Frame>,
}

/// The stacks of all tasks that created others.
#[derive(Debug, Default)]
pub(crate) struct Forks {
    waiting: VecDeque<Forked>,
    /// Stacks dropped, by the address at which their child begins.
    dropped: HashMap<u64, u64>,
    /// Tasks that began after the stack kept for them was dropped: their callers are not known.
    pub orphans: u64,
}

/// The complete stack of one task, with the counters of its owner.
pub(crate) trait TaskStack {
    /// The calls in progress, outermost first.
    fn frames(&mut self) -> &mut Vec<Frame>;

    /// Begins a call, which is counted if `counts`.
    fn push(&mut self, at: &Arrival, func: u32, kind: FrameKind, ret_ip: u64, counts: bool);

    /// Ends the innermost call.
    fn pop(&mut self);

    /// Ends calls until `len` are left. Their ends were not traced.
    fn pop_untraced(&mut self, len: usize) {
        self.truncate(len);
    }

    /// The function just pushed was entered at its beginning or by a jump: a mark may begin.
    fn entered(&mut self, _at: &Arrival) {}

    /// Instructions that the task executed so far.
    fn insns(&self) -> u64;

    /// The task's process id.
    fn tgid(&self) -> u32;

    fn forks(&mut self) -> &mut Forks;

    fn parked(&mut self) -> &mut Parked;

    /// Takes all calls off the stack, which the program leaves.
    fn leave(&mut self) -> Stack;

    /// Puts the calls of a stack that was left onto the empty one.
    fn enter(&mut self, at: &Arrival, stack: Stack);

    /// The task's number.
    fn task(&self) -> usize;

    /// Ends calls until `len` are left.
    fn truncate(&mut self, len: usize) {
        while self.frames().len() > len {
            self.pop();
        }
    }
}

/// A return: from the top frame, from several frames at once, or a jump made with a return instruction.
pub(crate) fn ret(stack: &mut impl TaskStack, at: &Arrival) {
    match returned_to(stack.frames(), at.ip) {
        Found::At(index) => stack.truncate(index),
        Found::Nothing if returned_elsewhere(stack, at) => {}
        Found::BehindEntry | Found::Nothing if returned_to_unseen(stack, at) => {}
        Found::BehindEntry | Found::Nothing => jump(stack, at),
    }
}

/// A return from the outermost function that the trace knows: its caller was called before the trace began, or in a gap. Returns
/// false if it is no such return.
fn returned_to_unseen(stack: &mut impl TaskStack, at: &Arrival) -> bool {
    let is_outermost = |top: &Frame| {
        top.ret_ip == NO_RETURN
            && !top.is_entry()
            && top.kind != FrameKind::Signal
            && ![top.func, top.home_func].contains(&at.func)
    };
    if !at.is_inside() || !stack.frames().last().is_some_and(is_outermost) {
        return false;
    }
    stack.pop();
    stack.push(at, at.func, FrameKind::Resumed, NO_RETURN, false);
    true
}

/// A return that no call of the stack expects, but one of a stack that the program left: an earlier choice between such
/// stacks was wrong. Returns false if none expects it.
fn returned_elsewhere(stack: &mut impl TaskStack, at: &Arrival) -> bool {
    if stack.parked().is_empty() || is_kernel(at.ip) {
        return false;
    }
    let tgid = stack.tgid();
    let Some(taken) = stack.parked().take(tgid, at.ip) else { return false };
    stack.parked().unsure += u64::from(taken.others || taken.alike);
    let task = stack.task();
    let left = stack.leave();
    // It is left as it was before the wrong choice.
    let left = stack.parked().guessed(task).unwrap_or(left);
    stack.parked().leave(tgid, left);
    go_on(stack, at, taken);
    true
}

/// The empty stack goes on as this one. What was called where it was left ends.
fn go_on(stack: &mut impl TaskStack, at: &Arrival, taken: Taken) {
    stack.enter(at, taken.stack);
    stack.truncate(taken.keep);
}

/// `longjmp`: a jump into the middle of a function, on this stack or on one that the program left. Returns false if it is this
/// one, or no stack on which the function is open is known.
fn jumped_elsewhere(stack: &mut impl TaskStack, at: &Arrival) -> bool {
    let tgid = stack.tgid();
    if let Found::At(_) = jumped_into(stack.frames(), at.func) {
        let unsure = stack.parked().may_go_on_inside(tgid, at.func);
        stack.parked().unsure += u64::from(unsure);
        return false;
    }
    // Below the first call that the trace knows there may be one of it.
    let is_cut = stack.frames().first().is_some_and(|first| first.kind == FrameKind::Resumed);
    let Some(taken) = stack.parked().take_inside(tgid, at.func) else { return false };
    stack.parked().unsure += u64::from(taken.others || taken.alike || is_cut);
    let left = stack.leave();
    stack.parked().leave(tgid, left);
    go_on(stack, at, taken);
    true
}

/// A return or indirect jump of user code behind an instruction that loads the stack pointer.
pub(crate) fn pivot(stack: &mut impl TaskStack, at: &Arrival, is_return: bool) {
    let (tgid, task) = (stack.tgid(), stack.task());
    let ends_top = |top: &Frame| top.ret_ip == at.ip && !top.is_entry();
    if is_return && stack.frames().last().is_some_and(ends_top) {
        return stack.pop();
    }
    stack.parked().guessed(task);
    if let Some(taken) = stack.parked().take(tgid, at.ip) {
        let own = matches!(returned_to(stack.frames(), at.ip), Found::At(_));
        stack.parked().unsure += u64::from(taken.others || taken.alike || own);
        if taken.others || own {
            let mut next = taken.stack.clone();
            next.frames.truncate(taken.keep);
            stack.parked().guess(task, Stack { at: Some(at.ip), ..next });
        }
        let left = stack.leave();
        stack.parked().leave(tgid, left);
        return go_on(stack, at, taken);
    }
    if let Found::At(index) = returned_to(stack.frames(), at.ip) {
        // The stack that was left last goes on.
        return stack.truncate(index);
    }
    if !is_return && at.is_inside() && jumped_elsewhere(stack, at) {
        return;
    }
    if !at.is_entry() || stack.frames().is_empty() {
        return if is_return { ret(stack, at) } else { jump(stack, at) };
    }
    // The first call on a new stack.
    let left = stack.leave();
    stack.parked().leave(tgid, left);
    stack.push(at, at.func, FrameKind::Call, NO_RETURN, true);
    stack.entered(at);
}

/// A jump to another function: a tail call, a jump into the middle of a function that is on the stack, or a jump back
/// from a part that the compiler placed elsewhere.
pub(crate) fn jump(stack: &mut impl TaskStack, at: &Arrival) {
    if at.is_inside()
        && at.flags & flag::DIRECT == 0
        && let Found::At(index) = jumped_into(stack.frames(), at.func)
    {
        stack.truncate(index + 1);
        if let Some(top) = stack.frames().last_mut().filter(|top| top.func != at.func) {
            top.go_home();
        }
        return;
    }
    match stack.frames().last_mut() {
        None => {
            let kind = if at.is_entry() { FrameKind::Tail } else { FrameKind::Resumed };
            stack.push(at, at.func, kind, NO_RETURN, at.is_entry());
            stack.entered(at);
        }
        Some(top) if top.func == at.func => {}
        Some(top) if at.is_inside() && top.home_func == at.func && !top.is_entry() => top.go_home(),
        Some(top) => {
            let top = *top;
            tail(stack, top, at);
        }
    }
    if at.is_entry() {
        body(stack, at);
    }
}

/// Replaces the top frame's function. A kernel entry stays on the stack: only `iret` leaves it, whatever jumps came
/// before.
fn tail(stack: &mut impl TaskStack, top: Frame, at: &Arrival) {
    let counts = !at.is_inside() || at.counts_inside;
    if top.is_entry() {
        stack.push(at, at.func, FrameKind::Tail, NO_RETURN, counts);
        return stack.entered(at);
    }
    if let Some(old) = stack.frames().last_mut() {
        old.take_ends(); // the new frame has them
    }
    stack.pop();
    let kind = if top.kind == FrameKind::Signal { top.kind } else { FrameKind::Tail };
    stack.push(at, at.func, kind, top.ret_ip, counts);
    if let Some(new) = stack.frames().last_mut() {
        new.inherit(&top);
    }
    stack.entered(at);
}

/// The first call of a system call's body names the system call.
pub(crate) fn body(stack: &mut impl TaskStack, at: &Arrival) {
    if at.flags & flag::SYSCALL_BODY == 0 {
        return;
    }
    if let Some(entry) = stack.frames().iter_mut().rev().find(|f| f.is_entry()) {
        entry.name_body(at.func);
    }
    if at.flags & flag::FORK != 0 {
        fork(stack);
    }
}

/// The flow is known again after a gap. Frames that still fit stay; there are none if nothing was recorded in the gap.
///
/// If tracing is `switched_on`, or packets are there again, at a function's first instruction, the function has just been called, by an
/// instruction that was not traced: a window opens there, a filter begins there, a signal's handler or a new program starts. The call
/// on the stack is continued instead only if it was seen and has run nothing yet.
pub(crate) fn resume(stack: &mut impl TaskStack, at: &Arrival, switched_on: bool) {
    let kernel = is_kernel(at.ip);
    if at.flags & (flag::ENTRY | flag::INNER) == 0 {
        // Without symbols, nothing but the privilege says which frames still fit.
        if !kernel {
            leave_kernel(stack);
        }
        if stack.frames().last().is_some_and(|top| top.kernel == kernel) {
            return;
        }
    }
    let enters = switched_on && at.is_entry();
    let insns = stack.insns();
    let frames = stack.frames();
    if let Some(index) = frames.iter().rposition(|f| f.func == at.func) {
        let runs_nothing_yet = insns == frames[index].start_insns && !frames[index].again;
        if !enters || runs_nothing_yet {
            return stack.truncate(index + 1);
        }
        stack.pop_untraced(index);
    } else if !kernel {
        leave_kernel(stack);
    }
    let kind = if enters { FrameKind::Call } else { FrameKind::Resumed };
    stack.push(at, at.func, kind, NO_RETURN, enters);
    if enters {
        stack.entered(at);
    }
}

/// Drops the kernel's frames, down to user code.
fn leave_kernel(stack: &mut impl TaskStack) {
    let keep = stack.frames().iter().rposition(|f| !f.kernel).map_or(0, |i| i + 1);
    stack.truncate(keep);
}

/// Leaves the kernel, or an interrupt of kernel code.
pub(crate) fn exit(stack: &mut impl TaskStack, at: &Arrival) {
    let user = !is_kernel(at.ip);
    let frames = stack.frames();
    if let Some(index) = left_entry(frames, user) {
        let entry = frames[index];
        stack.truncate(index);
        return exit_from(stack, at, &entry);
    }
    if !user {
        // Of an interrupt that came before the trace began, nothing but its end is known.
        if !returned_to_unseen(stack, at) {
            jump(stack, at);
        }
        return;
    }
    leave_kernel(stack);
    if stack.frames().is_empty() {
        first_user_code(stack, at);
    }
}

/// Leaves a kernel entry that is no longer on the stack.
pub(crate) fn exit_from(stack: &mut impl TaskStack, at: &Arrival, entry: &Frame) {
    if entry.resumes_at(at.ip) {
        return;
    }
    if is_kernel(at.ip) {
        // A fault with a fix-up continues elsewhere, mostly in the same function.
        return jump(stack, at);
    }
    if entry.aux != at.space {
        // The address space changed: the task executes a new program.
        stack.truncate(0);
        let tgid = stack.tgid();
        stack.parked().forget(tgid);
        stack.push(at, at.func, FrameKind::Call, NO_RETURN, true);
        return stack.entered(at);
    }
    let interrupted = |f: &Frame| f.kind == FrameKind::Signal && restarts_at(f.aux, at.ip);
    if let Some(index) = stack.frames().iter().rposition(interrupted) {
        return stack.truncate(index);
    }
    if at.is_inside() {
        return jump(stack, at);
    }
    stack.push(at, at.func, FrameKind::Signal, NO_RETURN, true);
    if let Some(top) = stack.frames().last_mut() {
        top.aux = entry.ret_ip;
    }
    stack.entered(at);
}

/// The running task creates another. Keeps the stack that the child will start with.
fn fork(stack: &mut impl TaskStack) {
    let tgid = stack.tgid();
    let frames = stack.frames();
    let Some(index) = frames.iter().rposition(|f| f.kind == FrameKind::Syscall) else { return };
    let (ip, space) = (frames[index].ret_ip, frames[index].aux);
    let forked = Forked { ip, space, tgid, stack: frames[..index].to_vec() };
    let forks = stack.forks();
    forks.waiting.push_back(forked);
    if forks.waiting.len() > MAX_FORKS
        && let Some(oldest) = forks.waiting.pop_front()
    {
        *forks.dropped.entry(oldest.ip).or_default() += 1;
    }
}

/// First user code of a new task. The child of a fork continues in a copy of its parent's stack, a thread in the
/// function that created it.
fn first_user_code(stack: &mut impl TaskStack, at: &Arrival) {
    let forks = stack.forks();
    let parent = forks.waiting.iter().position(|f| f.ip == at.ip);
    if parent.is_none()
        && let Some(dropped) = forks.dropped.get_mut(&at.ip).filter(|n| **n > 0)
    {
        *dropped -= 1;
        forks.orphans += 1;
    }
    if let Some(forked) = parent.and_then(|index| forks.waiting.remove(index)) {
        let tgid = stack.tgid();
        if forked.tgid != tgid {
            stack.parked().forget(tgid);
        }
        let shared = forked.space == at.space || forked.tgid == tgid;
        let from = if shared { forked.stack.len().saturating_sub(1) } else { 0 };
        for frame in &forked.stack[from..] {
            stack.push(at, frame.func, FrameKind::Resumed, frame.ret_ip, false);
        }
    }
    if stack.frames().is_empty() {
        let kind = if at.is_entry() { FrameKind::Call } else { FrameKind::Resumed };
        stack.push(at, at.func, kind, NO_RETURN, at.is_entry());
        stack.entered(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::frames::Now;

    const USER: u64 = 0x40_0000;

    #[derive(Default)]
    struct One {
        frames: Vec<Frame>,
        forks: Forks,
        parked: Parked,
    }

    impl TaskStack for One {
        fn frames(&mut self) -> &mut Vec<Frame> {
            &mut self.frames
        }
        fn push(&mut self, _: &Arrival, func: u32, kind: FrameKind, ret_ip: u64, _: bool) {
            let now = Now { ns: 0, insns: 0, cpu: 0 };
            self.frames.push(Frame::begin(0, func, kind, ret_ip, false, now));
        }
        fn pop(&mut self) {
            self.frames.pop();
        }
        fn insns(&self) -> u64 {
            0
        }
        fn tgid(&self) -> u32 {
            7
        }
        fn forks(&mut self) -> &mut Forks {
            &mut self.forks
        }
        fn parked(&mut self) -> &mut Parked {
            &mut self.parked
        }
        fn leave(&mut self) -> Stack {
            Stack { task: 0, insns: 0, cpu: 0, frames: std::mem::take(&mut self.frames), at: None }
        }
        fn enter(&mut self, _: &Arrival, stack: Stack) {
            self.frames = stack.frames;
        }
        fn task(&self) -> usize {
            0
        }
    }

    const JUMP: Arrival = Arrival { ip: USER, func: 2, flags: flag::INNER, space: 0, counts_inside: false };

    /// A stack of calls of these functions, the innermost last.
    fn calls(one: &mut One, funcs: &[u32]) {
        one.frames.clear();
        for &func in funcs {
            one.push(&JUMP, func, FrameKind::Call, u64::from(func) << 8, true);
        }
    }

    fn open(one: &One) -> Vec<u32> {
        one.frames.iter().map(|frame| frame.func).collect()
    }

    #[test]
    fn longjmp_goes_on_on_the_stack_on_which_the_function_is_open() {
        let mut one = One::default();
        calls(&mut one, &[1, 2, 9]);
        let left = one.leave();
        one.parked.leave(7, left);
        calls(&mut one, &[5, 6, 9]);
        pivot(&mut one, &JUMP, false);
        assert_eq!(open(&one), [1, 2]);
        // The other one was left, and goes on.
        pivot(&mut one, &Arrival { func: 6, ..JUMP }, false);
        assert_eq!((open(&one), one.parked.unsure), (vec![5, 6], 0));
    }

    #[test]
    fn longjmp_on_its_own_stack_is_no_change_of_stacks() {
        let mut one = One::default();
        calls(&mut one, &[1, 2, 9]);
        pivot(&mut one, &JUMP, false);
        assert_eq!((open(&one), one.parked.unsure), (vec![1, 2], 0));
        // Another stack has a call of that function too: it may be that one.
        let left = one.leave();
        one.parked.leave(7, left);
        calls(&mut one, &[3, 2, 9]);
        pivot(&mut one, &JUMP, false);
        assert_eq!((open(&one), one.parked.unsure), (vec![3, 2], 1));
    }

    #[test]
    fn a_choice_between_stacks_is_counted() {
        let mut one = One::default();
        for bottom in [3, 4, 4] {
            calls(&mut one, &[bottom, 8]);
            let left = one.leave();
            one.parked.leave(7, left);
        }
        let back = Arrival { ip: 8 << 8, func: 3, ..JUMP };
        let mut unsure = Vec::new();
        for _ in 0..3 {
            one.frames.clear();
            pivot(&mut one, &back, true);
            unsure.push((open(&one), one.parked.unsure));
        }
        // Of other calls; of the same calls, whose times differ; the last one is no choice.
        assert_eq!(unsure, [(vec![3], 1), (vec![4], 2), (vec![4], 2)]);
    }

    /// More tasks are created than stacks are kept for: those whose stack was dropped are counted, when they begin.
    #[test]
    fn children_without_their_parents_stack_are_counted() {
        let mut one = One::default();
        let at = Arrival { ip: USER, func: 3, flags: flag::INNER, space: 0, counts_inside: false };
        one.push(&at, 1, FrameKind::Call, NO_RETURN, true);
        one.push(&at, 2, FrameKind::Syscall, USER, true);
        (0..MAX_FORKS + 2).for_each(|_| fork(&mut one));
        let mut with_callers = 0;
        for _ in 0..MAX_FORKS + 2 {
            one.frames.clear();
            first_user_code(&mut one, &at);
            with_callers += usize::from(one.frames[0].func == 1);
        }
        assert_eq!((with_callers, one.forks.orphans), (MAX_FORKS, 2));
        // Others whose parent was never seen are not of these.
        one.frames.clear();
        first_user_code(&mut one, &at);
        assert_eq!(one.forks.orphans, 2);
    }
}
