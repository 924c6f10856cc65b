// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums over calling contexts: by function, by task and function, callers and callees.

use std::collections::BTreeMap;

use kprism_profile::{FrameKind, NO_PARENT, Profile, Times};

/// A function's times, over some of its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Row {
    /// Number of the function.
    pub func: u32,
    /// Calls that ended.
    pub calls: u64,
    /// Time from entry to exit, ns; in a recursion only of the outermost call.
    pub total_ns: u64,
    /// Time from entry to exit of each call, ns; in a recursion also of the inner calls.
    pub sum_ns: u64,
    /// Own time on a CPU, ns: without callees, interrupts and time off the CPU.
    pub self_ns: u64,
    /// Total without callees, ns: self time, plus the function's own time off the CPU and in interrupts known from
    /// events.
    pub local_ns: u64,
    /// Time off the CPU in it or its callees, ns; in a recursion only of the outermost call.
    pub off_ns: u64,
    /// Time in interrupts, ns; in a recursion only of the outermost call.
    pub irq_ns: u64,
    /// Number of calls that are not inside another of the same function.
    pub outermost: u64,
    /// Number of calls of all functions below those.
    pub below: u64,
}

/// For each context: time off the CPU and in interrupts, including its callees, and whether the same function is among
/// its callers.
struct Sums {
    off: Vec<u64>,
    irq: Vec<u64>,
    below: Vec<u64>,
    inner: Vec<bool>,
    task: Vec<u32>,
}

fn sums(profile: &Profile, times: &Times) -> Sums {
    let nodes = &profile.nodes;
    let mut off: Vec<u64> = times.nodes.iter().map(|t| t.off_ns).collect();
    let mut irq: Vec<u64> = times.nodes.iter().map(|t| t.irq_ns).collect();
    let mut below = vec![0u64; nodes.len()];
    let mut callees = vec![0u64; nodes.len()];
    off.resize(nodes.len(), 0);
    irq.resize(nodes.len(), 0);
    for i in (0..nodes.len()).rev() {
        let node = &nodes[i];
        if node.parent == NO_PARENT {
            continue;
        }
        let up = node.parent as usize;
        let time = times.nodes.get(i).copied().unwrap_or_default();
        let own = time.total_ns;
        // Some callees were called by calls that did not end, whose time is not in the total.
        let inner = [node.ns, time.off_ns, time.irq_ns].iter().fold(own, |ns, part| ns.saturating_sub(*part));
        if callees[i] > inner {
            let part = u128::from(below[i]) * u128::from(inner) / u128::from(callees[i]);
            below[i] = part as u64;
        }
        callees[up] = callees[up].saturating_add(own);
        let interrupts = if node.kind == FrameKind::Interrupt { own } else { irq[i] };
        off[up] = off[up].saturating_add(off[i]);
        irq[up] = irq[up].saturating_add(interrupts);
        below[up] = below[up].saturating_add(below[i]).saturating_add(node.calls);
    }
    // Likewise, the total of ended calls cannot hold more waiting time than its own duration.
    for (i, time) in times.nodes.iter().enumerate().take(nodes.len()) {
        irq[i] = irq[i].min(time.total_ns);
        off[i] = off[i].min(time.total_ns - irq[i]);
    }
    let mut task = vec![u32::MAX; nodes.len()];
    for (number, t) in (0u32..).zip(&profile.tasks) {
        if let Some(slot) = task.get_mut(t.root as usize) {
            *slot = number;
        }
    }
    let mut inner = vec![false; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        if node.parent == NO_PARENT {
            continue;
        }
        task[i] = task[node.parent as usize];
        let mut up = node.parent;
        while nodes[up as usize].parent != NO_PARENT {
            if nodes[up as usize].func == node.func {
                inner[i] = true;
                break;
            }
            up = nodes[up as usize].parent;
        }
    }
    Sums { off, irq, below, inner, task }
}

/// Adds context `i` to a row. `outermost` is true if its total counts.
fn add(row: &mut Row, profile: &Profile, times: &Times, sums: &Sums, i: usize, outermost: bool) {
    let (node, time) = (&profile.nodes[i], times.nodes.get(i).copied().unwrap_or_default());
    let plus = |a: &mut u64, b: u64| *a = a.saturating_add(b);
    row.func = node.func;
    plus(&mut row.calls, node.calls);
    plus(&mut row.sum_ns, time.total_ns);
    plus(&mut row.self_ns, node.ns);
    plus(&mut row.local_ns, node.ns.saturating_add(time.off_ns).saturating_add(time.irq_ns));
    if outermost {
        plus(&mut row.total_ns, time.total_ns);
        plus(&mut row.off_ns, sums.off[i]);
        plus(&mut row.irq_ns, sums.irq[i]);
        plus(&mut row.outermost, node.calls);
        plus(&mut row.below, sums.below[i]);
    }
}

fn grouped<K: Ord>(
    profile: &Profile,
    times: &Times,
    taken: &[bool],
    key: impl Fn(usize, &Sums) -> Option<K>,
    outermost: impl Fn(usize, &Sums) -> bool,
) -> Vec<(K, Row)> {
    let sums = sums(profile, times);
    let mut rows: BTreeMap<K, Row> = BTreeMap::new();
    for (i, node) in profile.nodes.iter().enumerate() {
        let takes = taken.get(sums.task[i] as usize).copied().unwrap_or(false);
        if node.parent == NO_PARENT || !takes {
            continue;
        }
        if let Some(key) = key(i, &sums) {
            add(rows.entry(key).or_default(), profile, times, &sums, i, outermost(i, &sums));
        }
    }
    rows.into_iter().collect()
}

/// Rows by function, over the tasks selected by number.
#[must_use]
pub fn functions(profile: &Profile, times: &Times, taken: &[bool]) -> Vec<Row> {
    let rows = grouped(profile, times, taken, |i, _| Some(profile.nodes[i].func), |i, s| !s.inner[i]);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Rows by function for each task, with the task's number.
#[must_use]
pub fn by_task(profile: &Profile, times: &Times, taken: &[bool]) -> Vec<(u32, Row)> {
    let key = |i: usize, s: &Sums| Some((s.task[i], profile.nodes[i].func));
    let rows = grouped(profile, times, taken, key, |i, s| !s.inner[i]);
    rows.into_iter().map(|((task, _), row)| (task, row)).collect()
}

/// Rows of the functions called from functions for which `is` returns true, for those calls only.
#[must_use]
pub fn callees(profile: &Profile, times: &Times, taken: &[bool], is: impl Fn(u32) -> bool) -> Vec<Row> {
    let key = |i: usize, _: &Sums| {
        let parent = &profile.nodes[profile.nodes[i].parent as usize];
        (parent.parent != NO_PARENT && is(parent.func)).then_some(profile.nodes[i].func)
    };
    let rows = grouped(profile, times, taken, key, |_, _| true);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Rows of the callers of these functions, for those calls only. `None` is a caller that was not traced.
#[must_use]
pub fn callers(
    profile: &Profile,
    times: &Times,
    taken: &[bool],
    is: impl Fn(u32) -> bool,
) -> Vec<(Option<u32>, Row)> {
    let key = |i: usize, _: &Sums| {
        let node = &profile.nodes[i];
        let parent = &profile.nodes[node.parent as usize];
        is(node.func).then_some((parent.parent != NO_PARENT).then_some(parent.func))
    };
    grouped(profile, times, taken, key, |_, _| true)
}
