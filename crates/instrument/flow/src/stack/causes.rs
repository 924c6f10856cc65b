// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies the start of a span to the complete stack of its task, by the rules of [`crate::stack::rules`].

use kprism_image::resolve::Resolve;

use crate::stack::chunk::{Cause, Span, Tracing};
use crate::stack::frames::{Frame, is_kernel};
use crate::stack::parked::{Parked, Stack};
use crate::stack::rules::{self, Arrival, Forks, TaskStack};
use crate::stack::stitch::{Gap, Stitcher};
use kprism_profile::{Ending, FrameKind};

/// A task's stack at the start of a span.
struct AtSpan<'s, 'a, R> {
    stitcher: &'s mut Stitcher<'a, R>,
    task: usize,
    cpu: u16,
    ns: u64,
    gap: Gap,
    /// That of the calls that are taken off the stack.
    ending: Ending,
}

impl<R: Resolve> Stitcher<'_, R> {
    /// Changes the task's stack as the span's cause requires.
    pub(crate) fn apply(&mut self, task: usize, span: &Span, gap: Gap, cpu: u16) {
        // Where the flow is known again, calls are off the stack that ended before.
        let ending = match span.cause {
            Cause::Resume { .. } | Cause::Switch { .. } => Ending::Untraced,
            _ => Ending::Seen,
        };
        let stack = &mut AtSpan { stitcher: self, task, cpu, ns: span.start_ns, gap, ending };
        let at = |ip| Arrival {
            ip,
            func: span.func,
            flags: span.flags,
            space: span.space,
            counts_inside: !matches!(span.cause, Cause::Ret { .. } | Cause::Pivot { is_return: true, .. }),
        };
        match span.cause {
            // Where programs alone are traced, a task goes on in the middle of its code.
            Cause::Switch { ip, .. } if !is_kernel(ip) => rules::resume(stack, &at(ip), false),
            Cause::Begin | Cause::Switch { .. } => {}
            Cause::Resume { ip } => {
                let is_found = gap.tracing == Tracing::Lost && gap.is_between;
                rules::resume(stack, &at(ip), gap.tracing == Tracing::Off || is_found);
            }
            Cause::Ret { ip } => rules::ret(stack, &at(ip)),
            Cause::Jump { ip } => rules::jump(stack, &at(ip)),
            Cause::Pivot { ip, is_return } => rules::pivot(stack, &at(ip), is_return),
            Cause::Exit { ip, entry: Some(entry) } => rules::exit_from(stack, &at(ip), &entry),
            Cause::Exit { ip, entry: None } => rules::exit(stack, &at(ip)),
            Cause::Body | Cause::Fork => rules::body(stack, &at(0)),
        }
    }
}

impl<R: Resolve> TaskStack for AtSpan<'_, '_, R> {
    fn frames(&mut self) -> &mut Vec<Frame> {
        &mut self.stitcher.threads[self.task].stack
    }

    fn push(&mut self, _at: &Arrival, func: u32, kind: FrameKind, ret_ip: u64, counts: bool) {
        self.stitcher.push(self.task, func, kind, ret_ip, self.ns, counts);
    }

    fn pop(&mut self) {
        self.stitcher.pop(self.task, self.ns, self.cpu, self.ending);
    }

    fn pop_untraced(&mut self, len: usize) {
        let ns = self.gap.since.min(self.ns);
        while self.frames().len() > len {
            self.stitcher.pop(self.task, ns, self.cpu, Ending::Untraced);
        }
    }

    fn entered(&mut self, at: &Arrival) {
        self.stitcher.entered(self.task, at);
    }

    fn insns(&self) -> u64 {
        self.stitcher.threads[self.task].insns
    }

    fn tgid(&self) -> u32 {
        self.stitcher.threads[self.task].tgid
    }

    fn forks(&mut self) -> &mut Forks {
        &mut self.stitcher.forks
    }

    fn parked(&mut self) -> &mut Parked {
        &mut self.stitcher.parked
    }

    fn leave(&mut self) -> Stack {
        self.stitcher.leave(self.task, self.ns, self.cpu)
    }

    fn enter(&mut self, _at: &Arrival, stack: Stack) {
        self.stitcher.enter(self.task, stack, self.ns);
    }

    fn task(&self) -> usize {
        self.task
    }
}
