// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums up ended calls by calling context as they come, and keeps the longest ones.

use foldhash::HashMap;
use kprism_profile::histogram::Counter;
use kprism_profile::{Ending, FrameKind, NO_PARENT, Node, Slice};

use kprism_profile::{FuncTimes, NodeTimes};

/// A call that ended. Its callees have been reported before, or are in `inner`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of the function.
    pub func: u32,
    /// True if it began an interrupt.
    pub interrupt: bool,
    /// CPU on which it ended.
    pub cpu: u32,
    /// Number of functions below it on the stack.
    pub depth: u32,
    /// Start time, ns.
    pub start_ns: u64,
    /// End time, ns.
    pub end_ns: u64,
    /// Own time on a CPU, ns.
    pub self_ns: u64,
    /// Own time off the CPU, ns.
    pub off_ns: u64,
    /// Time off the CPU in its callees, ns, if the recorder counted it together with its own.
    pub off_below_ns: u64,
    /// Interrupts in its own time, ns.
    pub irq_ns: u64,
    /// True if events were lost in it.
    pub gapped: bool,
    /// True if its entry was not seen: its exit states its start.
    pub rebuilt: bool,
    /// Its callees, if they had to wait until its callers were known.
    pub inner: Vec<Ended>,
}

impl Ended {
    /// Time from entry to exit, ns.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Maximum of calls in the timeline. Beyond it, the shorter ones are dropped.
const SLICES: usize = 1 << 20;

/// Sums by calling context.
#[derive(Debug, Default)]
pub struct Tree {
    /// Contexts; a caller comes before its callees.
    pub nodes: Vec<Node>,
    /// Times by context.
    pub times: Vec<NodeTimes>,
    /// Calls of the timeline.
    pub slices: Vec<Slice>,
    /// Minimum duration of calls in the timeline, ns.
    pub shortest_ns: u64,
    /// Number of calls that ended, in the timeline or not.
    pub ended: u64,
    /// If enabled: rebuilt calls with the numbers of their tasks, callers before callees.
    pub rebuilt: Option<Vec<(u32, Ended)>>,
    known: HashMap<(u32, u32, bool), u32>,
    /// The context that was looked up last below each context: callers repeat themselves. 0, a root, is nobody's callee.
    last: Vec<u32>,
    funcs: Vec<Func>,
}

#[derive(Debug, Default)]
struct Func {
    durations: Counter,
    unfinished: u64,
    gapped: u64,
}

impl Tree {
    /// Adds the root of a task: a node without a function.
    pub fn root(&mut self) -> u32 {
        self.push(NO_PARENT, 0, FrameKind::Root)
    }

    /// The context of `func` called from `parent`. It is added if it is new.
    pub fn child(&mut self, parent: u32, func: u32, interrupt: bool) -> u32 {
        let last = self.last.get(parent as usize).copied().unwrap_or(0);
        if let Some(node) = self.nodes.get(last as usize)
            && (node.parent, node.func) == (parent, func)
            && (node.kind == FrameKind::Interrupt) == interrupt
        {
            return last;
        }
        let node = self.known_child(parent, func, interrupt);
        if let Some(last) = self.last.get_mut(parent as usize) {
            *last = node;
        }
        node
    }

    fn known_child(&mut self, parent: u32, func: u32, interrupt: bool) -> u32 {
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
        self.last.push(0);
        (self.nodes.len() - 1) as u32
    }

    fn func(&mut self, func: u32) -> &mut Func {
        let need = func as usize + 1;
        if self.funcs.len() < need {
            self.funcs.resize_with(need, Func::default);
        }
        &mut self.funcs[need - 1]
    }

    /// Adds an ended call of context `node` in task number `task`.
    pub fn end(&mut self, node: u32, task: u32, call: &Ended) {
        let ns = call.ns();
        self.ended += 1;
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
                ending: Some(Ending::Seen),
            });
            if self.slices.len() >= 2 * SLICES {
                self.thin();
            }
        }
    }

    /// Adds a call and its callees, which all waited for its callers to be known.
    pub fn end_all(&mut self, parent: u32, task: u32, calls: Vec<Ended>) {
        // Most calls have none, and this is asked at each end of a call.
        if calls.is_empty() {
            return;
        }
        // An explicit stack, because the input determines the depth.
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

    /// Counts a call whose end is unknown.
    pub fn unfinished(&mut self, func: u32) {
        self.func(func).unfinished += 1;
    }

    /// Drops the shorter half of the timeline.
    fn thin(&mut self) {
        let mut lengths: Vec<u64> = self.slices.iter().map(|s| s.end_ns - s.start_ns).collect();
        let (_, median, _) = lengths.select_nth_unstable(self.slices.len() / 2);
        self.shortest_ns = (*median).max(self.shortest_ns + 1);
        let shortest = self.shortest_ns;
        self.slices.retain(|s| s.end_ns - s.start_ns >= shortest);
    }

    /// Durations by function, for the functions `0..count`.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// More calls than the timeline has room for: the shorter ones are not in it, but in all sums.
    #[test]
    fn a_full_timeline_keeps_the_longer_calls() {
        let mut tree = Tree::default();
        let (root, all) = (tree.root(), 2 * SLICES as u64 + 7);
        let node = tree.child(root, 0, false);
        for n in 0..all {
            tree.end(node, 0, &Ended { end_ns: 1 + n % 100, ..Ended::default() });
        }
        assert_eq!((tree.ended, tree.nodes[node as usize].calls), (all, all));
        assert_eq!(tree.func_times(1)[0].durations.count, all);
        assert!(tree.slices.len() < SLICES + SLICES / 10 && tree.slices.len() > SLICES / 2);
        assert!(tree.slices.iter().all(|s| s.end_ns >= tree.shortest_ns) && tree.shortest_ns > 40);
    }
}
