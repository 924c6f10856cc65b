// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums up the calls of a replay.
#![allow(dead_code)]

use std::collections::BTreeMap;

use kprism_flow::event::{Event, EventKind};
use kprism_flow::replay::calls::{Begin, Calls, End, Stacks};
use kprism_flow::replay::{Code, Inputs, Listener, TracePosition, replay};
use kprism_image::Image;
use kprism_image::resolve::Resolve;

/// Calls and own instructions by task and path of functions, for paths that have any.
pub type Contexts = BTreeMap<(u32, Vec<String>), (u64, u64)>;

/// The sums over a replay.
pub struct Replayed<'a, R> {
    resolver: &'a R,
    stacks: Stacks,
    /// Addresses of each lane's blocks.
    blocks: Vec<Vec<Vec<u64>>>,
    pub contexts: Contexts,
    /// Every instruction with its lane and time.
    pub ran: Vec<(usize, u64, u64)>,
    /// System calls: start, wall time, instructions, task, body's function.
    pub syscalls: Vec<(u64, u64, u64, u32, Option<u32>)>,
    /// Time of the last call from the replay, which never decreases.
    last_ns: u64,
    /// Current stack depth of each task, by begins and ends.
    depths: BTreeMap<usize, usize>,
    /// Instructions of each task since its last event.
    running: BTreeMap<usize, u64>,
    pids: Vec<u32>,
}

impl<'a, R: Resolve> Replayed<'a, R> {
    pub fn of(inputs: &Inputs<'a, R>) -> Self {
        let mut all = Self {
            resolver: inputs.resolver,
            stacks: Stacks::default(),
            blocks: vec![Vec::new(); inputs.streams.len()],
            contexts: Contexts::new(),
            ran: Vec::new(),
            syscalls: Vec::new(),
            last_ns: 0,
            depths: BTreeMap::new(),
            running: BTreeMap::new(),
            pids: Vec::new(),
        };
        let stats = replay(inputs, &mut all).stats;
        for task in 0..all.pids.len() {
            all.settle(task, all.pids[task]);
        }
        let counted: u64 = stats.iter().map(|s| s.instructions).sum();
        assert_eq!(all.ran.len() as u64, counted, "told, and counted by the decoders");
        all
    }

    fn path(&self, task: usize) -> Vec<String> {
        self.stacks.functions(task).map(|f| self.resolver.describe(f).name).collect()
    }

    /// Adds the instructions since the task's last event to its context.
    fn settle(&mut self, task: usize, pid: u32) {
        let ran = self.running.remove(&task).unwrap_or(0);
        if ran > 0 {
            let path = self.path(task);
            assert!(!path.is_empty(), "instructions outside of any function");
            self.contexts.entry((pid, path)).or_default().1 += ran;
        }
        if let Some(known) = self.pids.get_mut(task) {
            *known = pid;
        } else {
            self.pids.resize(task + 1, pid);
        }
    }

    fn note_time(&mut self, at: &TracePosition<'_>) {
        assert!(at.ns() >= self.last_ns, "{} after {}", at.ns(), self.last_ns);
        self.last_ns = at.ns();
    }
}

/// Collects calls while the stacks are changed.
#[derive(Default)]
struct Heard {
    begun: Vec<Begin>,
    ended: Vec<(u64, End)>,
}

impl Calls for Heard {
    fn begin(&mut self, _at: &TracePosition<'_>, call: Begin) {
        self.begun.push(call);
    }

    fn end(&mut self, at: &TracePosition<'_>, call: End) {
        self.ended.push((at.ns(), call));
    }
}

impl<R: Resolve> Listener for Replayed<'_, R> {
    fn define(&mut self, at: &TracePosition<'_>, block: u32, code: Code, _image: &Image) {
        assert_eq!(block as usize, self.blocks[at.lane].len());
        self.blocks[at.lane].push(code.ips);
    }

    fn run(&mut self, at: &TracePosition<'_>, block: u32, from: u32, to: u32) {
        self.note_time(at);
        self.stacks.run(at, to - from);
        let ips = &self.blocks[at.lane][block as usize][from as usize..to as usize];
        self.ran.extend((0..).zip(ips).map(|(i, &ip)| (at.lane, at.after(i), ip)));
        *self.running.entry(at.task).or_default() += u64::from(to - from);
    }

    fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        self.stacks.rest(at, ns);
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        self.note_time(at);
        if event.kind != EventKind::Switch {
            self.settle(at.task, at.tasks[at.task].pid);
        } else {
            for task in 0..at.tasks.len() {
                self.settle(task, at.tasks[task].pid);
            }
        }
        let before = self.path(at.task);
        let mut heard = Heard::default();
        self.stacks.event(at, event, &mut heard);
        let after = self.path(at.task);
        let depth = self.depths.entry(at.task).or_default();
        *depth = *depth + heard.begun.len() - heard.ended.len();
        assert_eq!(*depth, after.len(), "{before:?} {event:?} {after:?}");
        for call in heard.begun.iter().filter(|c| c.counts) {
            // Several begin at once only for the child of a fork, and those do not count.
            let path = after[..=call.depth].to_vec();
            self.contexts.entry((at.tasks[at.task].pid, path)).or_default().0 += 1;
        }
        for (ns, end) in heard.ended {
            if end.kind == kprism_profile::FrameKind::Syscall {
                let pid = at.tasks[at.task].pid;
                self.syscalls.push((end.start_ns, ns - end.start_ns, end.insns, pid, end.body));
            }
        }
    }
}
