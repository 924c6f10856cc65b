// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data in the page, in columns to keep them small. `ui/src/data.ts` reads them.

use super::durations::{self, Durations};
use super::histogram;
use super::intervals::{self, Contexts, Kind};
use super::names::{Funcs, Names};
use super::trees::{EmbeddedTree, embed_tree};
use super::{Budget, Scope};
use crate::header::Header;
use crate::lanes::detail::Reduced;
use crate::rows::{self, FunctionRow};
use crate::tree;
use kprism_profile::Filter;
use kprism_profile::TracingCost;
use kprism_profile::{Profile, Times};
use serde::Serialize;
use serde_json::Value;

/// The data of the page.
#[derive(Serialize)]
pub(super) struct Data {
    header: Value,
    funcs: Funcs,
    modules: Vec<String>,
    comms: Vec<String>,
    tasks: Vec<Task>,
    trees: Vec<EmbeddedTree>,
    trees_omitted: Omitted,
    functions: FunctionColumns,
    functions_by_task: FunctionColumns,
    syscalls: Vec<Syscall>,
    intervals: Vec<Kind>,
    contexts: Contexts,
    #[serde(skip_serializing_if = "Option::is_none")]
    durations: Option<Durations>,
    errors: Vec<Error>,
    errors_omitted: usize,
    cpus: Vec<Cpu>,
    /// Of a flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeline: Option<Reduced>,
    /// Annotated functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sources: Vec<Value>,
    /// Names of annotated functions that had no room.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sources_omitted: Vec<String>,
}

/// One tree with the names and the functions of its scope.
#[derive(Serialize)]
pub(super) struct OneTree {
    funcs: Funcs,
    modules: Vec<String>,
    comms: Vec<String>,
    tree: EmbeddedTree,
    functions: FunctionColumns,
    /// Of a task: its system calls.
    syscalls: Vec<Syscall>,
}

/// The tree of a scope with at most `contexts` nodes, and all functions of a whole run or a task. `None` if there is no such
/// task or system call.
pub(super) fn one_tree(profile: &Profile, scope: Scope<'_>, contexts: usize) -> Option<OneTree> {
    let everyone = Filter::default();
    let mut names = Names::default();
    let (mut functions, mut syscalls) = (Vec::new(), Vec::new());
    let (place, whole) = match scope {
        Scope::All => {
            functions = rows::functions(profile, &everyone).into_iter().map(|row| (None, row)).collect();
            (("all", 0, "All tasks".to_owned()), tree::by_comm(profile, &everyone))
        }
        Scope::Task(number) => {
            let task = profile.tasks.get(number as usize)?;
            let own = rows::functions_by_task(profile, &everyone).into_iter().filter(|r| r.task == number);
            functions = own.map(|r| (Some(r.task), r.row)).collect();
            let calls = rows::syscalls_by_task(profile).into_iter().filter(|(task, _)| *task == number);
            syscalls = calls.map(|(task, row)| syscall(profile, &mut names, Some(task), &row)).collect();
            let label = format!("{} [{}]", task.comm, task.pid);
            (("task", number, label), tree::of_task(profile, number))
        }
        Scope::Syscall(name) => {
            let row = rows::syscalls(profile, &everyone).into_iter().find(|row| row.name == name)?;
            let whole = tree::of_syscall(profile, &[row.func], &everyone).tree;
            (("syscall", names.func(profile, row.func), row.name), whole)
        }
    };
    let tree = embed_tree(profile, &mut names, place, &whole, contexts);
    let functions = function_columns(profile, &mut names, functions, usize::MAX);
    let Names { funcs, modules, comms, .. } = names;
    Some(OneTree { funcs, modules, comms, tree, functions, syscalls })
}

#[derive(Serialize)]
struct Task {
    pid: u32,
    tgid: u32,
    comm: String,
    user_insns: u64,
    kernel_insns: u64,
    ns: u64,
    syscalls: u64,
}

#[derive(Serialize)]
struct Omitted {
    tasks: usize,
    syscalls: usize,
}

#[derive(Default, Serialize)]
struct FunctionColumns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    task: Vec<u32>,
    func: Vec<u32>,
    calls: Vec<u64>,
    self_insns: Vec<u64>,
    total_insns: Vec<u64>,
    self_ns: Vec<u64>,
    total_ns: Vec<u64>,
    omitted: usize,
}

#[derive(Serialize)]
struct Syscall {
    task: i64,
    func: u32,
    name: String,
    count: u64,
    wall_ns: u64,
    average_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    on_cpu_ns: u64,
    insns: u64,
    entry_ns: u64,
    interrupts_ns: u64,
    exit_ns: u64,
    histogram: Vec<u64>,
}

#[derive(Serialize)]
struct Error {
    cpu: u16,
    offset: String,
    time_ns: u64,
    ip: String,
    kind: String,
}

#[derive(Serialize)]
struct Cpu {
    cpu: usize,
    instructions: u64,
    branches: u64,
    errors: u64,
    lost_bytes: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Data {
    pub(super) fn new(
        header: &Header,
        profile: &Profile,
        times: Option<(&Times, Option<&TracingCost>)>,
        budget: &Budget,
    ) -> Self {
        let everyone = Filter::default();
        let mut names = Names::default();
        let tasks = rows::tasks(profile, &everyone);
        let mut trees = vec![embed_tree(
            profile,
            &mut names,
            ("all", 0, "All tasks".to_string()),
            &tree::by_comm(profile, &everyone),
            budget.contexts,
        )];

        let mut largest: Vec<&rows::TaskRow> = tasks.iter().collect();
        // Runs of durations have no instructions.
        largest.sort_by_key(|t| std::cmp::Reverse((t.user_insns.saturating_add(t.kernel_insns), t.ns)));
        largest.truncate(budget.trees);
        let each = budget.task_contexts / largest.len().max(1);
        for task in &largest {
            let t = &profile.tasks[task.task as usize];
            let label = format!("{} [{}]", t.comm, t.pid);
            let whole = tree::of_task(profile, task.task);
            trees.push(embed_tree(profile, &mut names, ("task", task.task, label), &whole, each));
        }

        let all_calls = rows::syscalls(profile, &everyone);
        let mut longest: Vec<&rows::SyscallRow> = all_calls.iter().collect();
        longest.sort_by_key(|r| std::cmp::Reverse(r.wall_total_ns()));
        longest.truncate(budget.trees);
        let each = budget.syscall_contexts / longest.len().max(1);
        for call in &longest {
            let whole = tree::of_syscall(profile, &[call.func], &everyone).tree;
            let id = names.func(profile, call.func);
            trees.push(embed_tree(profile, &mut names, ("syscall", id, call.name.clone()), &whole, each));
        }
        let trees_omitted =
            Omitted { tasks: tasks.len() - largest.len(), syscalls: all_calls.len() - longest.len() };

        let functions = function_columns(
            profile,
            &mut names,
            rows::functions(profile, &everyone).into_iter().map(|row| (None, row)).collect(),
            budget.functions,
        );
        let by_task = rows::functions_by_task(profile, &everyone);
        let shown = |task: u32| largest.iter().any(|t| t.task == task);
        let by_task = by_task.into_iter().filter(|r| shown(r.task)).map(|r| (Some(r.task), r.row)).collect();
        let functions_by_task = function_columns(profile, &mut names, by_task, budget.task_functions);

        let mut syscalls: Vec<Syscall> =
            all_calls.iter().map(|row| syscall(profile, &mut names, None, row)).collect();
        let mut by_task = rows::syscalls_by_task(profile);
        by_task.retain(|(task, _)| shown(*task));
        by_task.sort_by_key(|(_, row)| std::cmp::Reverse(row.wall_total_ns()));
        by_task.truncate(budget.task_syscalls);
        syscalls.extend(by_task.iter().map(|(task, row)| syscall(profile, &mut names, Some(*task), row)));

        let (intervals, contexts) = intervals::embed(profile, &mut names);
        let durations = times.map(|(times, cost)| durations::embed(profile, times, cost, &mut names));

        Data {
            header: header.to_json(),
            tasks: tasks.iter().map(|row| embed_task(profile, row)).collect(),
            trees,
            trees_omitted,
            functions,
            functions_by_task,
            syscalls,
            intervals,
            contexts,
            durations,
            errors: profile.errors.iter().take(budget.errors).map(embed_error).collect(),
            errors_omitted: profile.errors.len().saturating_sub(budget.errors),
            cpus: cpus(profile),
            timeline: None,
            funcs: names.funcs,
            modules: names.modules,
            comms: names.comms,
            sources: Vec::new(),
            sources_omitted: Vec::new(),
        }
    }
}

fn function_columns(
    profile: &Profile,
    names: &mut Names,
    mut rows: Vec<(Option<u32>, FunctionRow)>,
    limit: usize,
) -> FunctionColumns {
    let omitted = rows.len().saturating_sub(limit);
    rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.total_insns, row.total_ns)));
    rows.truncate(limit);
    let mut columns = FunctionColumns { omitted, ..FunctionColumns::default() };
    for (task, row) in rows {
        columns.task.extend(task);
        columns.func.push(names.func(profile, row.func));
        columns.calls.push(row.calls);
        columns.self_insns.push(row.self_insns);
        columns.total_insns.push(row.total_insns);
        columns.self_ns.push(row.self_ns);
        columns.total_ns.push(row.total_ns);
    }
    columns
}

fn syscall(profile: &Profile, names: &mut Names, task: Option<u32>, row: &rows::SyscallRow) -> Syscall {
    Syscall {
        task: task.map_or(-1, i64::from),
        func: names.func(profile, row.func),
        name: row.name.clone(),
        count: row.count(),
        wall_ns: row.wall_total_ns(),
        average_ns: row.average_ns(),
        p50_ns: row.percentile_ns(50),
        p90_ns: row.percentile_ns(90),
        p99_ns: row.percentile_ns(99),
        max_ns: row.percentile_ns(100),
        on_cpu_ns: row.on_cpu_ns,
        insns: row.insns,
        entry_ns: row.parts.entry.ns,
        interrupts_ns: row.parts.interrupts.ns,
        exit_ns: row.parts.exit.ns,
        histogram: histogram::bins(&row.wall_ns),
    }
}

fn embed_task(profile: &Profile, row: &rows::TaskRow) -> Task {
    let task = &profile.tasks[row.task as usize];
    Task {
        pid: task.pid,
        tgid: task.tgid,
        comm: task.comm.clone(),
        user_insns: row.user_insns,
        kernel_insns: row.kernel_insns,
        ns: row.ns,
        syscalls: row.syscalls,
    }
}

fn embed_error(error: &kprism_profile::FlowError) -> Error {
    Error {
        cpu: error.cpu,
        offset: format!("{:#x}", error.offset),
        time_ns: error.ns,
        ip: format!("{:#x}", error.ip),
        kind: error.kind.clone(),
    }
}

fn cpus(profile: &Profile) -> Vec<Cpu> {
    let cpu = |(cpu, c): (usize, &kprism_profile::CpuTotals)| Cpu {
        cpu,
        instructions: c.instructions,
        branches: c.branches,
        errors: c.errors,
        lost_bytes: c.lost_bytes,
        first_ns: c.first_ns,
        last_ns: c.last_ns,
    };
    profile.totals.per_cpu.iter().enumerate().map(cpu).collect()
}
