// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations from a flow: of every function that ran, including those that no tracer may touch.
//!
//! Input: a [`replay`](mod@kprism_flow::replay) of the run. Output: [`Measured`], as from a trace. The flow has each
//! call's time on a CPU, so its time off the CPU is exact. Interrupts are frames of their own.

use std::collections::HashMap;

use kprism_flow::Guessed;
use kprism_flow::event::Event;
use kprism_flow::replay::calls::{Begin, Calls, End, Ending, Stacks};
use kprism_flow::replay::{self, Code, Listener, TracePosition};
use kprism_image::Image;
use kprism_image::resolve::Resolve;
use kprism_profile::{Counts, CpuTotals, FrameKind, Func, Profile, Task, Times, Totals, Unended};

use crate::measured::Measured;
use crate::tree::{Ended, Tree};

/// The listener that measures a replayed flow.
#[derive(Default)]
pub struct Collector {
    stacks: Stacks,
    heard: Heard,
}

#[derive(Default)]
struct Heard {
    /// Numbers of the resolver's functions.
    numbers: HashMap<u32, u32>,
    funcs: Vec<u32>,
    tasks: Vec<Thread>,
    named: Named,
    cpus: Vec<CpuTotals>,
    tree: Tree,
    counts: Counts,
}

/// The tasks with their names.
#[derive(Default)]
struct Named {
    tasks: Vec<replay::Task>,
    /// The count of renames for which the names are valid.
    names: u32,
}

impl Named {
    /// Takes what is new. Tasks are added at the end, and most have the name that is known: each new task would copy all others.
    fn learn(&mut self, tasks: &[replay::Task], names: u32) {
        if self.names != names {
            for (known, now) in self.tasks.iter_mut().zip(tasks) {
                if *known != *now {
                    known.clone_from(now);
                }
            }
            self.names = names;
        }
        self.tasks.extend_from_slice(tasks.get(self.tasks.len()..).unwrap_or_default());
    }
}

struct Thread {
    root: u32,
    stack: Vec<Frame>,
}

struct Frame {
    node: u32,
    func: u32,
    counts: bool,
    /// True if the call is counted as one without an end already.
    told: bool,
    /// Sums over its callees.
    called_ns: u64,
    called_on_cpu_ns: u64,
}

impl Heard {
    fn thread(&mut self, task: usize) -> &mut Thread {
        while self.tasks.len() <= task {
            let root = self.tree.root();
            self.tasks.push(Thread { root, stack: Vec::new() });
        }
        &mut self.tasks[task]
    }

    fn seen(&mut self, at: &TracePosition<'_>) {
        self.named.learn(at.tasks, at.names);
        let cpu = usize::from(at.cpu);
        if self.cpus.len() <= cpu {
            self.cpus.resize_with(cpu + 1, CpuTotals::default);
        }
        let totals = &mut self.cpus[cpu];
        if totals.last_ns == 0 {
            totals.first_ns = at.ns();
        }
        totals.last_ns = totals.last_ns.max(at.ns());
    }

    /// Drops frames whose end was not seen.
    fn drop_from(&mut self, task: usize, depth: usize) {
        while self.thread(task).stack.len() > depth {
            if let Some(frame) = self.tasks[task].stack.pop() {
                self.without_end(&frame);
            }
        }
    }

    /// Counts a call of which the beginning or the end was not seen. One that left its stack and came back is counted once.
    fn without_end(&mut self, frame: &Frame) {
        if !frame.told {
            self.counts.unfinished += 1;
            self.tree.unfinished(frame.func);
        }
    }
}

impl Calls for Heard {
    fn begin(&mut self, at: &TracePosition<'_>, call: Begin) {
        self.seen(at);
        self.drop_from(at.task, call.depth);
        let next = self.funcs.len() as u32;
        let func = *self.numbers.entry(call.func).or_insert(next);
        if func == next {
            self.funcs.push(call.func);
        }
        let thread = self.thread(at.task);
        let parent = thread.stack.last().map_or(thread.root, |f| f.node);
        let node = self.tree.child(parent, func, call.kind == FrameKind::Interrupt);
        let (counts, told) = (call.counts, call.again);
        let frame = Frame { node, func, counts, told, called_ns: 0, called_on_cpu_ns: 0 };
        self.tasks[at.task].stack.push(frame);
    }

    fn end(&mut self, at: &TracePosition<'_>, call: End) {
        self.seen(at);
        self.drop_from(at.task, call.depth + 1);
        let Some(frame) = self.tasks[at.task].stack.pop() else { return };
        let end_ns = at.ns().max(call.start_ns);
        let ns = end_ns - call.start_ns;
        let on_cpu = call.on_cpu_ns.min(ns);
        let self_ns = on_cpu.saturating_sub(frame.called_on_cpu_ns);
        let rest = ns.saturating_sub(frame.called_ns).saturating_sub(self_ns);
        if let Some(parent) = self.tasks[at.task].stack.last_mut() {
            parent.called_ns = parent.called_ns.saturating_add(ns);
            parent.called_on_cpu_ns = parent.called_on_cpu_ns.saturating_add(on_cpu);
        }
        if !frame.counts || call.ending != Ending::Seen {
            return self.without_end(&frame);
        }
        self.counts.calls += 1;
        let ended = Ended {
            func: frame.func,
            interrupt: call.kind == FrameKind::Interrupt,
            cpu: at.cpu.into(),
            depth: call.depth as u32,
            start_ns: call.start_ns,
            end_ns,
            self_ns,
            off_ns: rest,
            ..Ended::default()
        };
        self.tree.end(frame.node, at.task as u32, &ended);
    }
}

impl Listener for Collector {
    fn define(&mut self, _at: &TracePosition<'_>, _block: u32, _code: Code, _image: &Image) {}

    #[inline]
    fn run(&mut self, at: &TracePosition<'_>, _block: u32, from: u32, to: u32) {
        self.stacks.run(at, to - from);
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
        self.stacks.event(at, event, &mut self.heard);
    }
}

impl Collector {
    /// Ends the replay and returns the durations.
    pub fn finish(self, resolver: &impl Resolve) -> Measured {
        let mut heard = self.heard;
        for task in 0..heard.tasks.len() {
            heard.drop_from(task, 0);
        }
        let func = |&id: &u32| {
            let info = resolver.describe(id);
            Func { name: info.name, module: info.module, start: info.start, kernel: info.kernel }
        };
        let funcs: Vec<Func> = heard.funcs.iter().map(func).collect();
        let names = heard.named.tasks;
        let task = |(i, thread): (usize, &Thread)| {
            let known = names.get(i).cloned().unwrap_or_default();
            Task { pid: known.pid, tgid: known.tgid, comm: known.comm, root: thread.root }
        };
        let tasks = heard.tasks.iter().enumerate().map(task).collect();
        let times = Times {
            funcs: heard.tree.func_times(funcs.len()),
            nodes: heard.tree.times,
            counts: heard.counts,
        };
        let totals = Totals { per_cpu: heard.cpus, ..Totals::default() };
        let profile = Profile { funcs, tasks, nodes: heard.tree.nodes, totals, ..Profile::default() };
        Measured { profile, times, ..Measured::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_tasks_and_new_names_are_copied() {
        let mut tasks: Vec<replay::Task> =
            (1..4).map(|pid| replay::Task { pid, tgid: pid, comm: format!("task{pid}") }).collect();
        let mut named = Named::default();
        named.learn(&tasks[..2], 2);
        assert_eq!(named.tasks, tasks[..2]);
        let texts: Vec<*const u8> = named.tasks.iter().map(|task| task.comm.as_ptr()).collect();
        tasks[1].comm = "other".to_owned();
        named.learn(&tasks, 4);
        assert_eq!(named.tasks, tasks);
        assert_eq!(named.tasks[0].comm.as_ptr(), texts[0], "a name that stays is not copied");
        named.learn(&tasks, 4);
        assert_eq!((named.tasks.len(), named.names), (3, 4));
    }

    #[test]
    fn a_call_that_came_back_to_its_stack_is_counted_once() {
        let mut heard = Heard::default();
        let thread = heard.thread(0);
        for told in [false, true] {
            let frame = Frame { node: 0, func: 0, counts: true, told, called_ns: 0, called_on_cpu_ns: 0 };
            thread.stack.push(frame);
        }
        heard.drop_from(0, 0);
        assert_eq!(heard.counts.unfinished, 1);
        assert_eq!(heard.tree.func_times(1)[0].unfinished, 1);
    }
}
