// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies the start of a span to the stack of its task. This is the part of call-stack keeping that needs the whole
//! stack; [`crate::stack::chunk`] does the rest.

use kprism_image::resolve::Resolve;

use crate::decode::event::{NO_FUNC, flag};
use crate::stack::chunk::{Cause, SPACE, Span, Tracing, resumes};
use crate::stack::frames::{Found, Frame, NO_RETURN, is_kernel, search};
use crate::stack::stitch::{Forked, Gap, MAX_FORKS, Stitcher};
use kprism_profile::FrameKind;

impl<R: Resolve> Stitcher<'_, R> {
    /// Changes the task's stack as the span's cause requires.
    pub(crate) fn apply(&mut self, task: usize, span: &Span, gap: Gap, cpu: u16) {
        let now = span.start_ns;
        match span.cause {
            Cause::Begin | Cause::Switch => {}
            Cause::Resume { ip } => self.resume(task, span, ip, gap, cpu),
            Cause::Ret { ip } => {
                match search(&self.threads[task].stack, |f| f.ret_ip == ip && !f.is_entry()) {
                    Found::At(index) => self.truncate(task, index, now, cpu),
                    _ => self.jump(task, span, ip, cpu),
                }
            }
            Cause::Jump { ip } => self.jump(task, span, ip, cpu),
            Cause::Exit { ip, entry } => self.exit(task, span, ip, entry, cpu),
            Cause::Body | Cause::Fork => {
                let entry = self.threads[task].stack.iter_mut().rev().find(|f| f.is_entry());
                if let Some(entry) = entry
                    && entry.kind == FrameKind::Syscall
                    && entry.body == NO_FUNC
                {
                    entry.body = span.func;
                }
                if span.flags & flag::FORK != 0 {
                    self.fork(task);
                }
            }
        }
    }

    /// A jump to the span's function, with the whole stack known. Inside a chunk [`crate::stack::chunk`] does this.
    fn jump(&mut self, task: usize, span: &Span, ip: u64, cpu: u16) {
        let now = span.start_ns;
        if span.flags & flag::INNER != 0
            && let Found::At(i) = search(&self.threads[task].stack, |f| f.func == span.func && !f.is_entry())
        {
            return self.truncate(task, i + 1, now, cpu);
        }
        let Some(&top) = self.threads[task].stack.last() else {
            let known = span.flags & flag::ENTRY != 0;
            let kind = if known { FrameKind::Tail } else { FrameKind::Resumed };
            self.push(task, span.func, kind, NO_RETURN, now);
            return self.entered(task, span, ip);
        };
        if top.func == span.func {
            return;
        }
        let ret_ip = if top.is_entry() { NO_RETURN } else { top.ret_ip };
        if let Some(old) = self.threads[task].stack.last_mut()
            && !top.is_entry()
        {
            old.ends = [NO_FUNC; 2]; // the new frame has them
            self.pop(task, now, cpu);
        }
        let kind = match top.kind {
            FrameKind::Signal => FrameKind::Signal,
            _ => FrameKind::Tail,
        };
        self.push(task, span.func, kind, ret_ip, now);
        if span.flags & flag::INNER != 0 && matches!(span.cause, Cause::Ret { .. }) {
            // A return into the middle of a function that is not on the stack: its context was switched to, and it
            // continues.
            self.uncount(task, now);
        }
        if let Some(new) = self.threads[task].stack.last_mut()
            && !top.is_entry()
        {
            new.ends = top.ends;
            if kind == FrameKind::Signal {
                new.aux = top.aux;
            }
        }
        self.entered(task, span, ip);
    }

    /// The flow is known again after a gap. Frames that still fit stay.
    ///
    /// If tracing is switched on at a function's first instruction, the function has just been called, by an
    /// instruction that was not traced: a window opens there, a filter begins there, a signal's handler or a new
    /// program starts. The call on the stack is continued instead only if it was seen and has run nothing yet.
    fn resume(&mut self, task: usize, span: &Span, ip: u64, gap: Gap, cpu: u16) {
        let now = span.start_ns;
        if span.flags & (flag::ENTRY | flag::INNER) == 0 && !self.threads[task].stack.is_empty() {
            // Without symbols, nothing says which frames still fit.
            return;
        }
        let enters = span.flags & flag::ENTRY != 0 && gap.tracing == Tracing::Off;
        let thread = &self.threads[task];
        if let Some(i) = thread.stack.iter().rposition(|f| f.func == span.func) {
            if !enters || thread.insns == thread.stack[i].start_insns {
                return self.truncate(task, i + 1, now, cpu);
            }
            // The end of the earlier call was not traced.
            self.truncate(task, i, gap.since.min(now), cpu);
        } else if !is_kernel(ip) {
            self.leave_kernel(task, now, cpu);
        }
        let kind = if enters { FrameKind::Call } else { FrameKind::Resumed };
        self.push(task, span.func, kind, NO_RETURN, now);
        if enters {
            self.entered(task, span, ip);
        }
    }

    /// Drops the kernel's frames, down to user code.
    fn leave_kernel(&mut self, task: usize, now: u64, cpu: u16) {
        let stack = &self.threads[task].stack;
        let keep = stack.iter().rposition(|f| !f.kernel).map_or(0, |i| i + 1);
        self.truncate(task, keep, now, cpu);
    }

    /// Leaves a kernel entry to another address than the interrupted one, or leaves an entry that lies below the chunk.
    fn exit(&mut self, task: usize, span: &Span, ip: u64, entry: Option<Frame>, cpu: u16) {
        let now = span.start_ns;
        let user = !is_kernel(ip);
        let entry = match entry {
            Some(entry) => Some(entry),
            None => {
                let stack = &self.threads[task].stack;
                let found = stack.iter().rposition(|f| f.is_entry() && !(user && is_kernel(f.ret_ip)));
                let entry = found.map(|i| stack[i]);
                match found {
                    Some(i) => self.truncate(task, i, now, cpu),
                    None if user => self.leave_kernel(task, now, cpu),
                    None => {}
                }
                entry
            }
        };
        let Some(entry) = entry else {
            if user && self.threads[task].stack.is_empty() {
                self.first_user_code(task, span, ip);
            } else if !user {
                self.jump(task, span, ip, cpu);
            }
            return;
        };
        if resumes(&entry, ip) {
            return;
        }
        if !user {
            return self.jump(task, span, ip, cpu);
        }
        if entry.aux != span.space & SPACE {
            // The address space changed: the task executes a new program.
            self.truncate(task, 0, now, cpu);
            self.push(task, span.func, FrameKind::Call, NO_RETURN, now);
            return self.entered(task, span, ip);
        }
        let stack = &self.threads[task].stack;
        let interrupted =
            |f: &Frame| f.kind == FrameKind::Signal && (f.aux == ip || f.aux.wrapping_sub(2) == ip);
        if let Some(i) = stack.iter().rposition(interrupted) {
            return self.truncate(task, i, now, cpu);
        }
        if span.flags & flag::INNER != 0 {
            return self.jump(task, span, ip, cpu);
        }
        self.push(task, span.func, FrameKind::Signal, NO_RETURN, now);
        if let Some(top) = self.threads[task].stack.last_mut() {
            top.aux = entry.ret_ip;
        }
        self.entered(task, span, ip);
    }

    /// The running task creates another. Keeps the stack that the child will start with.
    fn fork(&mut self, task: usize) {
        let thread = &self.threads[task];
        let Some(at) = thread.stack.iter().rposition(|f| f.kind == FrameKind::Syscall) else { return };
        let entry = thread.stack[at];
        self.forks.push_back(Forked {
            ip: entry.ret_ip,
            space: entry.aux,
            tgid: thread.tgid,
            stack: thread.stack[..at].to_vec(),
        });
        if self.forks.len() > MAX_FORKS {
            self.forks.pop_front();
        }
    }

    /// First user code of a new task. The child of a fork continues in a copy of its parent's stack, a thread in the
    /// function that created it.
    fn first_user_code(&mut self, task: usize, span: &Span, ip: u64) {
        let now = span.start_ns;
        if let Some(i) = self.forks.iter().position(|f| f.ip == ip)
            && let Some(forked) = self.forks.remove(i)
        {
            let shared = forked.space == span.space & SPACE || forked.tgid == self.threads[task].tgid;
            let from = if shared { forked.stack.len().saturating_sub(1) } else { 0 };
            for frame in &forked.stack[from..] {
                self.push(task, frame.func, FrameKind::Resumed, frame.ret_ip, now);
            }
        }
        if self.threads[task].stack.is_empty() {
            let kind = if span.flags & flag::ENTRY != 0 { FrameKind::Call } else { FrameKind::Resumed };
            self.push(task, span.func, kind, NO_RETURN, now);
            self.entered(task, span, ip);
        }
    }
}
