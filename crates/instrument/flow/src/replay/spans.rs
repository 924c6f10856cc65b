// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures chosen parts of a run one by one, in a single [`replay`](mod@crate::replay): calls of a function, or families of
//! processes. For each: instructions, time, system calls, and the kernel's instructions that ran.
//!
//! Input: a [`Rule`]. Output: a [`Span`] for each part. Instructions of interrupts that came in between are counted apart:
//! they would have come anywhere.

use std::collections::{HashMap, HashSet};

use kprism_image::Image;
use kprism_profile::{Ending, FrameKind, Unended};

use crate::decode::event::Event;
use crate::replay::calls::{Begin, Calls, End, Stacks};
use crate::replay::{Code, Listener, TracePosition};
use crate::stack::frames::is_kernel;
use crate::stack::guessed::Guessed;

/// The parts that are measured.
#[derive(Debug, Clone)]
pub enum Rule<'a> {
    /// Each call of a kernel function, from its entry to its return, or to the end of its task.
    Calls {
        /// The function, as the resolver numbers it.
        func: u32,
        /// Calls of this function are numbered: see [`Span::group`].
        group: u32,
        /// The function in which a task ends.
        exit: Option<u32>,
    },
    /// Processes that ran one after the other, each with the processes and threads that first ran while it did. They have
    /// higher numbers than the first process, and run user code: the kernel's own threads are left out.
    Families {
        /// Process ids, and the time from which each counts, ns. The span of the first is the first.
        roots: &'a [(u32, u64)],
        /// The function in which a task ends.
        exit: Option<u32>,
    },
}

/// A measured part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Span {
    /// For calls: number of calls of [`Rule::Calls::group`] that had begun, in any task. 0 for families.
    pub group: u32,
    /// Time of its first instruction, ns.
    pub start_ns: u64,
    /// Time of its end, ns.
    pub end_ns: u64,
    /// Instructions, without those of interrupts.
    pub insns: u64,
    /// Instructions of interrupts that came while its tasks ran.
    pub interrupt_insns: u64,
    /// System calls that began.
    pub syscalls: u64,
    /// True if its end was seen: not of a call whose end was not traced. False for families without an instruction.
    pub ended: bool,
    /// Addresses of the kernel's instructions that ran, interrupts' left out; sorted.
    pub kernel: Vec<u64>,
}

/// A block of code.
struct Block {
    ips: Vec<u64>,
    kernel: bool,
}

/// A span that is being measured.
#[derive(Debug, Default)]
struct Measured {
    span: Span,
    /// Lane, block, and the range of its instructions.
    ran: HashSet<(u32, u32, u32, u32)>,
}

impl Measured {
    /// Adds a task of the same family.
    fn add(&mut self, other: Self) {
        let (span, more) = (&mut self.span, other.span);
        if more.ended {
            span.start_ns = if span.ended { span.start_ns.min(more.start_ns) } else { more.start_ns };
            span.end_ns = span.end_ns.max(more.end_ns);
        }
        span.insns += more.insns;
        span.interrupt_insns += more.interrupt_insns;
        span.syscalls += more.syscalls;
        span.ended |= more.ended;
        self.ran.extend(other.ran);
    }
}

/// A task's part in a span.
#[derive(Debug, Clone, Copy)]
struct Part {
    span: usize,
    /// Depth of the call that is measured; of a family, 0.
    depth: usize,
}

/// The listener that measures spans.
pub struct Spans<'a> {
    stacks: Stacks,
    watch: Watch<'a>,
    lanes: Vec<Vec<Block>>,
}

struct Watch<'a> {
    rule: Rule<'a>,
    measured: Vec<Measured>,
    /// By task.
    parts: HashMap<usize, Part>,
    /// Depth of the interrupt in which a task is, by task.
    interrupts: HashMap<usize, usize>,
    groups: u32,
    families: Families,
}

/// State of [`Rule::Families`].
#[derive(Default)]
struct Families {
    /// The index in [`Watch::measured`] of each task that ran; none if it is in no family.
    tasks: HashMap<usize, Option<usize>>,
    /// The family of each task that joined one, and whether it ran user code. The first ones are the roots.
    members: Vec<(usize, bool)>,
    /// Families whose root has ended.
    over: HashSet<usize>,
}

impl<'a> Spans<'a> {
    /// Measures what `rule` says.
    pub fn new(rule: Rule<'a>) -> Self {
        let (mut measured, mut families) = (Vec::new(), Families::default());
        if let Rule::Families { roots, .. } = &rule {
            measured.resize_with(roots.len(), Measured::default);
            families.members = (0..roots.len()).map(|root| (root, true)).collect();
        }
        let watch =
            Watch { rule, measured, parts: HashMap::new(), interrupts: HashMap::new(), groups: 0, families };
        Self { stacks: Stacks::default(), watch, lanes: Vec::new() }
    }

    /// The spans: calls in the order in which they began, families in that of their roots.
    pub fn finish(self) -> Vec<Span> {
        let lanes = self.lanes;
        let finish = |measured: Measured| {
            let Measured { mut span, ran } = measured;
            let of = |&(lane, block, from, to): &(u32, u32, u32, u32)| {
                &lanes[lane as usize][block as usize].ips[from as usize..to as usize]
            };
            span.kernel = ran.iter().flat_map(of).copied().collect();
            span.kernel.sort_unstable();
            span.kernel.dedup();
            span
        };
        let Watch { mut measured, rule, families, .. } = self.watch;
        if let Rule::Families { roots, .. } = rule {
            let joined = measured.split_off(roots.len());
            for (member, (family, is_user)) in joined.into_iter().zip(&families.members[roots.len()..]) {
                if *is_user {
                    measured[*family].add(member);
                }
            }
        }
        measured.into_iter().map(finish).collect()
    }
}

impl Watch<'_> {
    /// The measurement that a task's instructions belong to.
    fn part(&mut self, at: &TracePosition<'_>) -> Option<usize> {
        let Rule::Families { roots, .. } = &self.rule else {
            return self.parts.get(&at.task).map(|part| part.span);
        };
        let pid = at.tasks[at.task].pid;
        let part = *self.families.tasks.entry(at.task).or_insert_with(|| {
            if let Some(root) = roots.iter().position(|root| root.0 == pid) {
                return Some(root);
            }
            let family = roots.iter().rposition(|root| root.1 <= at.ns())?;
            if self.families.over.contains(&family) || pid <= roots[0].0 {
                return None;
            }
            self.families.members.push((family, false));
            self.measured.push(Measured::default());
            Some(self.measured.len() - 1)
        });
        part.filter(|&part| roots.get(part).is_none_or(|root| root.1 <= at.ns()))
    }

    fn close(&mut self, at: &TracePosition<'_>, ending: Ending) {
        if let Some(part) = self.parts.remove(&at.task) {
            let span = &mut self.measured[part.span].span;
            span.end_ns = at.ns();
            span.ended = ending == Ending::Seen;
        }
    }
}

impl Calls for Watch<'_> {
    fn begin(&mut self, at: &TracePosition<'_>, call: Begin) {
        match call.kind {
            FrameKind::Interrupt => drop(self.interrupts.entry(at.task).or_insert(call.depth)),
            FrameKind::Syscall => {
                if let Some(span) = self.part(at) {
                    self.measured[span].span.syscalls += 1;
                }
            }
            _ => {}
        }
        let (func, group, exit) = match self.rule {
            Rule::Calls { func, group, exit } => (func, group, exit),
            Rule::Families { roots, exit } => {
                let pid = at.tasks[at.task].pid;
                if exit == Some(call.func)
                    && let Some(root) = roots.iter().position(|root| root.0 == pid)
                {
                    self.families.over.insert(root);
                }
                return;
            }
        };
        if !call.counts {
            return;
        }
        if call.func == group {
            self.groups += 1;
        } else if call.func == func && !self.parts.contains_key(&at.task) {
            let span = Span { group: self.groups, start_ns: at.ns(), end_ns: at.ns(), ..Span::default() };
            self.parts.insert(at.task, Part { span: self.measured.len(), depth: call.depth });
            self.measured.push(Measured { span, ran: HashSet::new() });
        } else if exit == Some(call.func) {
            self.close(at, Ending::Seen);
        }
    }

    fn end(&mut self, at: &TracePosition<'_>, call: End) {
        if self.interrupts.get(&at.task) == Some(&call.depth) {
            self.interrupts.remove(&at.task);
        }
        if self.parts.get(&at.task).is_some_and(|part| part.depth == call.depth) {
            self.close(at, call.ending);
        }
    }
}

impl Listener for Spans<'_> {
    fn define(&mut self, at: &TracePosition<'_>, _block: u32, code: Code, _image: &Image) {
        if self.lanes.len() <= at.lane {
            self.lanes.resize_with(at.lane + 1, Vec::new);
        }
        let kernel = code.ips.first().is_some_and(|&ip| is_kernel(ip));
        // User code is not kept.
        let ips = if kernel { code.ips } else { Vec::new() };
        self.lanes[at.lane].push(Block { ips, kernel });
    }

    fn run(&mut self, at: &TracePosition<'_>, block: u32, from: u32, to: u32) {
        self.stacks.run(at, to - from);
        let Some(index) = self.watch.part(at) else { return };
        let interrupted = self.watch.interrupts.contains_key(&at.task);
        let family = matches!(self.watch.rule, Rule::Families { .. });
        let Measured { span, ran } = &mut self.watch.measured[index];
        let count = u64::from(to - from);
        if family {
            if !span.ended {
                (span.start_ns, span.ended) = (at.ns(), true);
            }
            span.end_ns = at.after(to - from);
        }
        if interrupted {
            span.interrupt_insns += count;
            return;
        }
        span.insns += count;
        if self.lanes[at.lane][block as usize].kernel {
            ran.insert((at.lane as u32, block, from, to));
        } else if let Some(member) = self.watch.families.members.get_mut(index) {
            member.1 = true;
        }
    }

    fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        self.stacks.rest(at, ns);
    }

    fn guessed(&self) -> Guessed {
        self.stacks.guessed()
    }

    fn unended(&self) -> Unended {
        self.stacks.unended()
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        self.stacks.event(at, event, &mut self.watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::event::{EventKind, flag};
    use crate::replay::Task;

    /// A window of the recording ends in a call. In the next one the program is in its caller.
    #[test]
    fn a_call_whose_end_was_not_traced_has_not_ended() {
        let tasks = [Task::default()];
        let at = TracePosition::begin(&tasks, &[(0, u64::MAX)]);
        let mut spans = Spans::new(Rule::Calls { func: 2, group: 9, exit: None });
        for (kind, func, flags) in [
            (EventKind::Start, 1, flag::INNER),
            (EventKind::Call, 2, flag::ENTRY),
            (EventKind::Start, 1, flag::INNER),
            (EventKind::Call, 2, flag::ENTRY),
            (EventKind::Ret, 1, flag::INNER),
        ] {
            spans.event(&at, &Event { kind, flags, insns: 0, func, link: 0, ip: 0x40_1000 });
        }
        let ended: Vec<bool> = spans.finish().iter().map(|span| span.ended).collect();
        assert_eq!(ended, [false, true]);
    }
}
