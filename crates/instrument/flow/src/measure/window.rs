// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restricts a profile to one task's work in a stretch of time, for example to a single system call.
//!
//! The whole flow is followed, so stacks are right. Only events inside the window are counted. Afterwards contexts
//! without counts and other tasks are removed.

use kprism_profile::{NO_PARENT, Node, Profile};

/// A task and a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Thread id.
    pub pid: u32,
    /// Thread group id.
    pub tgid: u32,
    /// Start time, ns.
    pub from_ns: u64,
    /// End time, exclusive, ns.
    pub to_ns: u64,
}

impl Window {
    /// Returns true if `ns` is inside.
    #[inline]
    pub(crate) fn holds(&self, ns: u64) -> bool {
        self.from_ns <= ns && ns < self.to_ns
    }
}

/// Reduces a profile that was counted inside a window to the window's task. Intervals are removed, because they are
/// measured over the whole run.
pub(crate) fn restrict(profile: &mut Profile, window: &Window) {
    let task = profile.tasks.iter().position(|t| (t.pid, t.tgid) == (window.pid, window.tgid));
    let root = task.map(|t| profile.tasks[t].root);
    let (map, nodes) = keep(&profile.nodes, root);
    profile.nodes = nodes;
    profile.tasks = task.map(|t| profile.tasks[t].clone()).into_iter().collect();
    for task in &mut profile.tasks {
        task.root = 0;
    }
    let inside = |of: u32, ns: u64| Some(of as usize) == task && window.holds(ns);
    profile.syscalls.retain(|s| inside(s.task, s.start_ns));
    profile.slices.retain(|s| inside(s.task, s.start_ns));
    for call in &mut profile.syscalls {
        call.task = 0;
        call.node = map[call.node as usize].unwrap_or(0);
    }
    profile.deltas.clear();
    profile.counts.clear();
    profile.slices.iter_mut().for_each(|s| s.task = 0);
}

/// Selects the nodes below `root` that have counts, and the nodes on the way to them. Returns the new number of each
/// old node, and the nodes, the root first.
fn keep(nodes: &[Node], root: Option<u32>) -> (Vec<Option<u32>>, Vec<Node>) {
    let mut alive: Vec<bool> = nodes.iter().map(|n| n.calls + n.insns + n.ns > 0).collect();
    for i in (0..nodes.len()).rev() {
        if alive[i] && nodes[i].parent != NO_PARENT {
            alive[nodes[i].parent as usize] = true;
        }
    }
    let mut map: Vec<Option<u32>> = vec![None; nodes.len()];
    let mut kept = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        // A parent comes before its children.
        let parent = match node.parent {
            NO_PARENT if Some(i as u32) == root => Some(NO_PARENT),
            NO_PARENT => None,
            parent if alive[i] => map[parent as usize],
            _ => None,
        };
        if let Some(parent) = parent {
            map[i] = Some(kept.len() as u32);
            kept.push(Node { parent, ..node.clone() });
        }
    }
    (map, kept)
}
