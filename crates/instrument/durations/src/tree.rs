// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ended calls, summed up by calling context as they come, and the longest of them one by one.

use foldhash::HashMap;
use kprism_profile::histogram::Counter;
use kprism_profile::{FrameKind, NO_PARENT, Node, Slice};

use kprism_profile::{FuncTimes, NodeTimes};

/// A call that ended. What it called has been told before or is in `inner`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of the function.
    pub func: u32,
    /// How it began.
    pub interrupt: bool,
    /// CPU on which it ended.
    pub cpu: u32,
    /// Functions below it.
    pub depth: u32,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Its own time on a CPU.
    pub self_ns: u64,
    /// Its own time off the CPU.
    pub off_ns: u64,
    /// Time off the CPU in what it called, where the recorder counted that for both together.
    pub off_below_ns: u64,
    /// Interrupts in its own time.
    pub irq_ns: u64,
    /// Events were lost in it.
    pub gapped: bool,
    /// Its entry was not there: its exit told when it began.
    pub rebuilt: bool,
    /// What it called, if it could not be told before its callers were known.
    pub inner: Vec<Ended>,
}

impl Ended {
    /// From entry to exit.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Calls of the timeline that are kept. When there are more, the shortest go.
const SLICES: usize = 1 << 20;

/// The sums.
#[derive(Debug, Default)]
pub struct Tree {
    /// Contexts; a caller comes before its callees.
    pub nodes: Vec<Node>,
    /// Their times.
    pub times: Vec<NodeTimes>,
    /// Calls of the timeline.
    pub slices: Vec<Slice>,
    /// Only calls of at least this many ns are in it.
    pub shortest_ns: u64,
    /// If kept: calls that were rebuilt and the numbers of their tasks, callers before callees.
    pub rebuilt: Option<Vec<(u32, Ended)>>,
    known: HashMap<(u32, u32, bool), u32>,
    funcs: Vec<Func>,
}

#[derive(Debug, Default)]
struct Func {
    durations: Counter,
    unfinished: u64,
    gapped: u64,
}

impl Tree {
    /// The root of a task: a node that has no function.
    pub fn root(&mut self) -> u32 {
        self.push(NO_PARENT, 0, FrameKind::Root)
    }

    /// The context of `func` called from `parent`.
    pub fn child(&mut self, parent: u32, func: u32, interrupt: bool) -> u32 {
        if let Some(&node) = self.known.get(&(parent, func, interrupt)) {
            return node;
        }
        let kind = if interrupt { FrameKind::Interrupt } else { FrameKind::Call };
        let node = self.push(parent, func, kind);
        self.known.insert((parent, func, interrupt), node);
        node
    }

    fn push(&mut self, parent: u32, func: u32, kind: FrameKind) -> u32 {
        self.nodes.push(Node { parent, func, calls: 0, insns: 0, ns: 0, kind });
        self.times.push(NodeTimes::default());
        (self.nodes.len() - 1) as u32
    }

    fn func(&mut self, func: u32) -> &mut Func {
        let need = func as usize + 1;
        if self.funcs.len() < need {
            self.funcs.resize_with(need, Func::default);
        }
        &mut self.funcs[need - 1]
    }

    /// A call of context `node` in task number `task` ended.
    pub fn end(&mut self, node: u32, task: u32, call: &Ended) {
        let ns = call.ns();
        let sums = &mut self.nodes[node as usize];
        sums.calls += 1;
        sums.ns = sums.ns.saturating_add(call.self_ns);
        let times = &mut self.times[node as usize];
        times.total_ns = times.total_ns.saturating_add(ns);
        times.off_ns = times.off_ns.saturating_add(call.off_ns);
        times.irq_ns = times.irq_ns.saturating_add(call.irq_ns);
        let kind = sums.kind;
        if call.rebuilt
            && let Some(rebuilt) = &mut self.rebuilt
        {
            let inner = Vec::new();
            rebuilt.push((task, Ended { interrupt: kind == FrameKind::Interrupt, inner, ..*call }));
        }
        let func = self.func(call.func);
        func.durations.add(ns);
        func.gapped += u64::from(call.gapped);
        if ns >= self.shortest_ns {
            self.slices.push(Slice {
                task,
                cpu: u16::try_from(call.cpu).unwrap_or(u16::MAX),
                func: call.func,
                depth: u16::try_from(call.depth).unwrap_or(u16::MAX),
                start_ns: call.start_ns,
                end_ns: call.end_ns,
                insns: 0,
                kind,
            });
            if self.slices.len() >= 2 * SLICES {
                self.thin();
            }
        }
    }

    /// A call and what it called, all of which waited for its callers to be known.
    pub fn end_all(&mut self, parent: u32, task: u32, calls: Vec<Ended>) {
        // A stack of our own: input decides how deep it goes.
        let mut todo = vec![(parent, calls.into_iter())];
        while let Some((parent, calls)) = todo.last_mut() {
            let parent = *parent;
            let Some(mut call) = calls.next() else {
                todo.pop();
                continue;
            };
            let node = self.child(parent, call.func, call.interrupt);
            self.end(node, task, &call);
            let inner = std::mem::take(&mut call.inner);
            if !inner.is_empty() {
                todo.push((node, inner.into_iter()));
            }
        }
    }

    /// A call's end is not known.
    pub fn unfinished(&mut self, func: u32) {
        self.func(func).unfinished += 1;
    }

    /// Takes the shorter half of the timeline away.
    fn thin(&mut self) {
        let mut lengths: Vec<u64> = self.slices.iter().map(|s| s.end_ns - s.start_ns).collect();
        let (_, median, _) = lengths.select_nth_unstable(self.slices.len() / 2);
        self.shortest_ns = (*median).max(self.shortest_ns + 1);
        let shortest = self.shortest_ns;
        self.slices.retain(|s| s.end_ns - s.start_ns >= shortest);
    }

    /// Durations of the functions `0..count`.
    #[must_use]
    pub fn func_times(&self, count: usize) -> Vec<FuncTimes> {
        let mut times: Vec<FuncTimes> = self
            .funcs
            .iter()
            .map(|f| FuncTimes {
                durations: f.durations.finish(),
                unfinished: f.unfinished,
                gapped: f.gapped,
            })
            .collect();
        times.resize_with(count, FuncTimes::default);
        times
    }
}
