// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers behind the tables: per function, per system call, per task.

use crate::tree::subtree_sums;
use kprism_profile::Filter;
use kprism_profile::units;
use kprism_profile::{NO_PARENT, Parts, Profile};
use std::collections::BTreeMap;

/// A function over the selected tasks. Times are on-CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FunctionRow {
    /// Index into [`Profile::funcs`].
    pub func: u32,
    /// Number of entries.
    pub calls: u64,
    /// Instructions in the function itself.
    pub self_insns: u64,
    /// Instructions with callees; recursion counted once.
    pub total_insns: u64,
    /// Nanoseconds in the function itself.
    pub self_ns: u64,
    /// Nanoseconds with callees; recursion counted once.
    pub total_ns: u64,
}

/// A function in one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskFunctionRow {
    /// Index into [`Profile::tasks`].
    pub task: u32,
    /// The numbers within that task.
    pub row: FunctionRow,
}

/// Functions per task, by task and then function. The rows of a function add up over tasks.
pub fn functions_by_task(profile: &Profile, filter: &Filter) -> Vec<TaskFunctionRow> {
    let taken = filter.tasks(profile);
    let task_of = profile.task_of_nodes();
    let parents = || profile.nodes.iter().map(|n| n.parent);
    let insns = subtree_sums(parents(), profile.nodes.iter().map(|n| n.insns));
    let ns = subtree_sums(parents(), profile.nodes.iter().map(|n| n.ns));
    let called = |i: usize| {
        let node = &profile.nodes[i];
        (node.parent != NO_PARENT).then_some(node.func)
    };
    let inner = recursive(parents(), called, profile.funcs.len());
    let mut rows: BTreeMap<(u32, u32), FunctionRow> = BTreeMap::new();
    for (i, node) in profile.nodes.iter().enumerate() {
        let Some(task) = task_of[i].filter(|&t| taken[t as usize]) else { continue };
        if node.parent == NO_PARENT {
            continue;
        }
        let row = rows.entry((task, node.func)).or_default();
        row.func = node.func;
        row.calls = row.calls.saturating_add(node.calls);
        row.self_insns = row.self_insns.saturating_add(node.insns);
        row.self_ns = row.self_ns.saturating_add(node.ns);
        if !inner[i] {
            row.total_insns = row.total_insns.saturating_add(insns[i]);
            row.total_ns = row.total_ns.saturating_add(ns[i]);
        }
    }
    rows.into_iter().map(|((task, _), row)| TaskFunctionRow { task, row }).collect()
}

/// For each node, true if the same function is among its ancestors, whose total then includes it. `func` returns the
/// function of a node, if it is one of `funcs`.
pub(crate) fn recursive(
    parents: impl Iterator<Item = u32>,
    func: impl Fn(usize) -> Option<u32>,
    funcs: usize,
) -> Vec<bool> {
    let mut children: Vec<Vec<u32>> = Vec::new();
    let mut stack = Vec::new();
    for (i, parent) in parents.enumerate() {
        children.push(Vec::new());
        match parent {
            NO_PARENT => stack.push((i as u32, false)),
            parent => children[parent as usize].push(i as u32),
        }
    }
    let mut inner = vec![false; children.len()];
    let mut active = vec![0u32; funcs];
    while let Some((i, done)) = stack.pop() {
        if let Some(active) = func(i as usize).and_then(|func| active.get_mut(func as usize)) {
            if done {
                *active -= 1;
            } else {
                inner[i as usize] = *active > 0;
                *active += 1;
            }
        }
        if !done {
            stack.push((i, true));
            stack.extend(children[i as usize].iter().map(|&c| (c, false)));
        }
    }
    inner
}

/// Functions over all selected tasks, by index.
pub fn functions(profile: &Profile, filter: &Filter) -> Vec<FunctionRow> {
    let mut rows: BTreeMap<u32, FunctionRow> = BTreeMap::new();
    for TaskFunctionRow { row, .. } in functions_by_task(profile, filter) {
        let sum = rows.entry(row.func).or_default();
        sum.func = row.func;
        sum.calls = sum.calls.saturating_add(row.calls);
        sum.self_insns = sum.self_insns.saturating_add(row.self_insns);
        sum.total_insns = sum.total_insns.saturating_add(row.total_insns);
        sum.self_ns = sum.self_ns.saturating_add(row.self_ns);
        sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
    }
    rows.into_values().collect()
}

/// A system call over the selected tasks. Wall times are from entry to return, including waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyscallRow {
    /// Index of its entry function into [`Profile::funcs`].
    pub func: u32,
    /// Name as in the man page.
    pub name: String,
    /// Wall times of the single calls in nanoseconds, sorted.
    pub wall_ns: Vec<u64>,
    /// Sum of the time on a CPU.
    pub on_cpu_ns: u64,
    /// Sum of the kernel's instructions.
    pub insns: u64,
    /// Sums of the time on a CPU besides the body.
    pub parts: Parts,
}

/// The wall time of system calls by part, ns. The parts add up to the total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Split {
    /// In the entry path.
    pub entry: u64,
    /// In the body.
    pub body: u64,
    /// In interrupts.
    pub interrupts: u64,
    /// Not on a CPU.
    pub off_cpu: u64,
    /// In the exit path.
    pub exit: u64,
}

impl SyscallRow {
    /// Number of calls.
    pub fn count(&self) -> u64 {
        self.wall_ns.len() as u64
    }

    /// Sum of wall times.
    pub fn wall_total_ns(&self) -> u64 {
        self.wall_ns.iter().fold(0u64, |sum, &ns| sum.saturating_add(ns))
    }

    /// The wall time of all calls by part.
    pub fn split(&self) -> Split {
        let Parts { entry, interrupts, exit } = self.parts;
        let body =
            self.on_cpu_ns.saturating_sub(entry.ns).saturating_sub(interrupts.ns).saturating_sub(exit.ns);
        let off_cpu = self.wall_total_ns().saturating_sub(self.on_cpu_ns);
        Split { entry: entry.ns, body, interrupts: interrupts.ns, off_cpu, exit: exit.ns }
    }

    /// Mean wall time, rounded down to ns.
    pub fn average_ns(&self) -> u64 {
        self.wall_total_ns().checked_div(self.count()).unwrap_or(0)
    }

    /// The `percent`th percentile by nearest rank: the smallest measured value that at least `percent` of
    /// the calls do not exceed. Always a value that occurred.
    pub fn percentile_ns(&self, percent: u64) -> u64 {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        self.wall_ns.get(rank as usize - 1).or(self.wall_ns.last()).copied().unwrap_or(0)
    }
}

/// System calls over the selected tasks, by index of their function.
pub fn syscalls(profile: &Profile, filter: &Filter) -> Vec<SyscallRow> {
    let taken = filter.tasks(profile);
    grouped_syscalls(profile, |task| taken[task as usize].then_some(()))
        .into_iter()
        .map(|(_, row)| row)
        .collect()
}

/// System calls whose number is not known: none of the kernel's functions did their work ([`units::is_without_body`]).
pub fn refused(profile: &Profile, filter: &Filter) -> u64 {
    let rows = syscalls(profile, filter);
    let is_refused = |row: &&SyscallRow| units::is_without_body(&profile.funcs[row.func as usize].name);
    rows.iter().filter(is_refused).map(SyscallRow::count).sum()
}

/// System calls of each task, by task and function.
pub fn syscalls_by_task(profile: &Profile) -> Vec<(u32, SyscallRow)> {
    grouped_syscalls(profile, Some)
}

fn grouped_syscalls<K: Ord + Copy>(
    profile: &Profile,
    key: impl Fn(u32) -> Option<K>,
) -> Vec<(K, SyscallRow)> {
    let mut rows: BTreeMap<(K, u32), SyscallRow> = BTreeMap::new();
    for call in &profile.syscalls {
        let Some(key) = key(call.task) else { continue };
        let row = rows.entry((key, call.func)).or_insert_with(|| SyscallRow {
            func: call.func,
            name: units::syscall_name(&profile.funcs[call.func as usize].name),
            wall_ns: Vec::new(),
            on_cpu_ns: 0,
            insns: 0,
            parts: Parts::default(),
        });
        row.wall_ns.push(call.wall_ns);
        row.on_cpu_ns = row.on_cpu_ns.saturating_add(call.on_cpu_ns);
        row.insns = row.insns.saturating_add(call.insns);
        for (sum, part) in [
            (&mut row.parts.entry, call.parts.entry),
            (&mut row.parts.interrupts, call.parts.interrupts),
            (&mut row.parts.exit, call.parts.exit),
        ] {
            sum.ns = sum.ns.saturating_add(part.ns);
            sum.insns = sum.insns.saturating_add(part.insns);
        }
    }
    for row in rows.values_mut() {
        row.wall_ns.sort_unstable();
    }
    rows.into_iter().map(|((key, _), row)| (key, row)).collect()
}

/// A task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskRow {
    /// Index into [`Profile::tasks`].
    pub task: u32,
    /// Instructions in user mode.
    pub user_insns: u64,
    /// Instructions in the kernel, on this task's stack.
    pub kernel_insns: u64,
    /// Nanoseconds on a CPU.
    pub ns: u64,
    /// System calls made.
    pub syscalls: u64,
}

/// The selected tasks, in the profile's order.
pub fn tasks(profile: &Profile, filter: &Filter) -> Vec<TaskRow> {
    let taken = filter.tasks(profile);
    let empty = |task| TaskRow { task, user_insns: 0, kernel_insns: 0, ns: 0, syscalls: 0 };
    let mut rows: Vec<TaskRow> = (0..profile.tasks.len() as u32).map(empty).collect();
    for (node, task) in profile.nodes.iter().zip(profile.task_of_nodes()) {
        let Some(row) = task.map(|t| &mut rows[t as usize]) else { continue };
        let kernel = node.parent != NO_PARENT && profile.funcs[node.func as usize].kernel;
        let sum = if kernel { &mut row.kernel_insns } else { &mut row.user_insns };
        *sum = sum.saturating_add(node.insns);
        row.ns = row.ns.saturating_add(node.ns);
    }
    for call in &profile.syscalls {
        rows[call.task as usize].syscalls += 1;
    }
    rows.retain(|row| taken[row.task as usize]);
    rows
}

#[cfg(test)]
mod tests {
    use kprism_profile::{Func, Syscall, Task};

    use super::*;

    #[test]
    fn refused_system_calls_are_counted() {
        let func = |name: &str| Func { name: name.to_owned(), kernel: true, ..Func::default() };
        let call = |func| Syscall { func, ..Syscall::default() };
        let profile = Profile {
            funcs: vec![func("__x64_sys_read"), func("entry_SYSCALL_64")],
            tasks: vec![Task { pid: 7, ..Task::default() }],
            syscalls: vec![call(0), call(1), call(1)],
            ..Profile::default()
        };
        assert_eq!(refused(&profile, &Filter::default()), 2);
        assert_eq!(refused(&profile, &Filter { pids: vec![8], comms: Vec::new() }), 0);
    }
}
