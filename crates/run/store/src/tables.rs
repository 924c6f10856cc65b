// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of a [`Profile`] to Parquet tables and back. The input is a profile; the output is one file per table. A
//! table per kind of row lets other tools read a run with SQL.
//!
//! | table | content of a row | columns |
//! |---|---|---|
//! | functions | a function | func_id, func_key, name_key, name, module_name, address, is_kernel |
//! | tasks | a task | task_id, pid, tgid, comm, root_node_id |
//! | nodes | a calling context | node_id, parent_id (NULL at roots), func_id (NULL at roots), kind, calls, insns, self_ns |
//! | syscalls | a system call | task_id, cpu, func_id, start_ns, wall_ns, on_cpu_ns, insns, node_id, and `_ns` and `_insns` of entry, interrupts, exit |
//! | slices | a call on the timeline | task_id, cpu, func_id, depth, kind, start_ns, end_ns, insns, ending (an older table has none) |
//! | errors | a place not decoded | cpu, stream_offset, time_ns, ip, kind |
//! | cpus | a CPU's stream | cpu, instructions, branches, errors, overflows, lost_bytes, first_ns, last_ns |
//!
//! Intervals have their own tables, see [`crate::delta_tables`].
//!
//! `func_id`, `task_id` and `node_id` are row numbers of their own table. They are also that table's first column, so that SQL
//! can join on them. Keys are the same in all runs ([`crate::keys`]). Counts in `nodes` cover that context only.

use crate::column::{About, Table, write_table};
use crate::delta_tables::{Limits, load_deltas, save_deltas};
use crate::keys::{func_keys, name_keys};
use crate::marks::Marks;
use crate::rows::Column;
use crate::{Manifest, Result, Run};
use kprism_profile::{
    CpuTotals, Ending, FlowError, FrameKind, Func, NO_PARENT, Node, Part, Parts, Profile, Slice, Syscall,
    Task, Totals,
};
use std::collections::BTreeMap;

/// Writes all tables of a profile, and returns their marks by name, which belong into the manifest
/// ([`Manifest::tables`]).
///
/// # Errors
/// Fails at the first file that cannot be written. Tables written before it stay.
pub fn save_profile(run: &Run, profile: &Profile) -> Result<BTreeMap<String, String>> {
    std::fs::create_dir_all(run.tables()).map_err(crate::io_at(&run.tables()))?;
    let manifest = run.manifest().ok();
    let kernel = manifest.as_ref().and_then(|manifest| manifest.kernel.as_ref());
    let mut to = Saver::new(run, manifest.as_ref());
    let f = &profile.funcs;
    to.save(
        "functions",
        vec![
            ("func_id", Column::numbers(f.len())),
            ("func_key", Column::owned_u64s(func_keys(run, kernel, profile))),
            ("name_key", Column::owned_u64s(name_keys(profile))),
            ("name", Column::strs(f, |f| &f.name)),
            ("module_name", Column::strs(f, |f| &f.module)),
            ("address", Column::u64s(f, |f| f.start)),
            ("is_kernel", Column::bools(f, |f| f.kernel)),
        ],
    )?;
    let t = &profile.tasks;
    to.save(
        "tasks",
        vec![
            ("task_id", Column::numbers(t.len())),
            ("pid", Column::u32s(t, |t| t.pid)),
            ("tgid", Column::u32s(t, |t| t.tgid)),
            ("comm", Column::strs(t, |t| &t.comm)),
            ("root_node_id", Column::u32s(t, |t| t.root)),
        ],
    )?;
    let n = &profile.nodes;
    let unless_root = |n: &Node, value: u32| (n.parent != NO_PARENT).then_some(value);
    to.save(
        "nodes",
        vec![
            ("node_id", Column::numbers(n.len())),
            ("parent_id", Column::opt_u32s(n, |n| unless_root(n, n.parent))),
            ("func_id", Column::opt_u32s(n, |n| unless_root(n, n.func))),
            ("kind", kinds(n, |n| n.kind)),
            ("calls", Column::u64s(n, |n| n.calls)),
            ("insns", Column::u64s(n, |n| n.insns)),
            ("self_ns", Column::u64s(n, |n| n.ns)),
        ],
    )?;
    let s = &profile.syscalls;
    to.save(
        "syscalls",
        vec![
            ("task_id", Column::u32s(s, |s| s.task)),
            ("cpu", Column::u32s(s, |s| s.cpu.into())),
            ("func_id", Column::u32s(s, |s| s.func)),
            ("start_ns", Column::u64s(s, |s| s.start_ns)),
            ("wall_ns", Column::u64s(s, |s| s.wall_ns)),
            ("on_cpu_ns", Column::u64s(s, |s| s.on_cpu_ns)),
            ("insns", Column::u64s(s, |s| s.insns)),
            ("node_id", Column::u32s(s, |s| s.node)),
            ("entry_ns", Column::u64s(s, |s| s.parts.entry.ns)),
            ("entry_insns", Column::u64s(s, |s| s.parts.entry.insns)),
            ("interrupts_ns", Column::u64s(s, |s| s.parts.interrupts.ns)),
            ("interrupts_insns", Column::u64s(s, |s| s.parts.interrupts.insns)),
            ("exit_ns", Column::u64s(s, |s| s.parts.exit.ns)),
            ("exit_insns", Column::u64s(s, |s| s.parts.exit.insns)),
        ],
    )?;
    let s = &profile.slices;
    to.save(
        "slices",
        vec![
            ("task_id", Column::u32s(s, |s| s.task)),
            ("cpu", Column::u32s(s, |s| s.cpu.into())),
            ("func_id", Column::u32s(s, |s| s.func)),
            ("depth", Column::u32s(s, |s| s.depth.into())),
            ("kind", kinds(s, |s| s.kind)),
            ("start_ns", Column::u64s(s, |s| s.start_ns)),
            ("end_ns", Column::u64s(s, |s| s.end_ns)),
            ("insns", Column::u64s(s, |s| s.insns)),
            ("ending", endings(s)),
        ],
    )?;
    let e = &profile.errors;
    to.save(
        "errors",
        vec![
            ("cpu", Column::u32s(e, |e| e.cpu.into())),
            ("stream_offset", Column::u64s(e, |e| e.offset)),
            ("time_ns", Column::u64s(e, |e| e.ns)),
            ("ip", Column::u64s(e, |e| e.ip)),
            ("kind", Column::strs(e, |e| &e.kind)),
        ],
    )?;
    let c = &profile.totals.per_cpu;
    to.save(
        "cpus",
        vec![
            ("cpu", Column::numbers(c.len())),
            ("instructions", Column::u64s(c, |c| c.instructions)),
            ("branches", Column::u64s(c, |c| c.branches)),
            ("errors", Column::u64s(c, |c| c.errors)),
            ("overflows", Column::u64s(c, |c| c.overflows)),
            ("lost_bytes", Column::u64s(c, |c| c.lost_bytes)),
            ("first_ns", Column::u64s(c, |c| c.first_ns)),
            ("last_ns", Column::u64s(c, |c| c.last_ns)),
        ],
    )?;
    save_deltas(&mut to, &profile.deltas, &profile.counts)?;
    Ok(to.marks)
}

/// Writes tables of a run, whose manifest is read once for all of them.
pub(crate) struct Saver<'a> {
    run: &'a Run,
    clock: &'a str,
    /// Marks of the tables that were written, by name.
    pub marks: BTreeMap<String, String>,
}

impl<'a> Saver<'a> {
    pub fn new(run: &'a Run, manifest: Option<&'a Manifest>) -> Self {
        Saver { run, clock: manifest.map_or("", |manifest| &manifest.clock.name), marks: BTreeMap::new() }
    }

    pub fn save(&mut self, name: &str, columns: Vec<(&str, Column<'_>)>) -> Result<()> {
        let about = About { table: name, clock: self.clock };
        let mark = write_table(&self.run.table(name), about, columns)?;
        self.marks.insert(name.to_owned(), mark);
        Ok(())
    }
}

const KINDS: [(FrameKind, &str); 8] = [
    (FrameKind::Root, "root"),
    (FrameKind::Call, "call"),
    (FrameKind::Tail, "tail"),
    (FrameKind::Syscall, "syscall"),
    (FrameKind::Interrupt, "interrupt"),
    (FrameKind::Exception, "exception"),
    (FrameKind::Signal, "signal"),
    (FrameKind::Resumed, "resumed"),
];

/// Name of a kind in the tables.
pub(crate) fn kind_name(kind: FrameKind) -> &'static str {
    KINDS[place_of(kind)].1
}

/// Place of a kind in `KINDS`; that of a call for others.
fn place_of(kind: FrameKind) -> usize {
    KINDS.iter().position(|(known, _)| *known == kind).unwrap_or(1)
}

fn kinds<'a, T>(rows: &'a [T], get: impl Fn(&T) -> FrameKind + 'a) -> Column<'a> {
    let texts = KINDS.map(|(_, name)| name);
    Column::of_few(rows, &texts, move |row| place_of(get(row)))
}

fn parse_kinds(table: &Table) -> Result<Vec<FrameKind>> {
    table
        .str("kind")?
        .iter()
        .enumerate()
        .map(|(row, text)| {
            let known = KINDS.iter().find(|(_, name)| name == text);
            known.map(|(kind, _)| *kind).ok_or_else(|| table.bad(row, format!("unknown kind {text:?}")))
        })
        .collect()
}

/// The word of a call of which an older table does not tell whether it ended.
const NOT_TOLD: &str = "unknown";

fn endings(slices: &[Slice]) -> Column<'_> {
    let [seen, untraced, left, open] = Ending::ALL.map(Ending::name);
    Column::of_few(slices, &[seen, untraced, left, open, NOT_TOLD], |slice| {
        slice.ending.map_or(Ending::ALL.len(), |ending| ending as usize)
    })
}

/// The endings of `rows` calls.
fn parse_endings(table: &Table, rows: usize) -> Result<Vec<Option<Ending>>> {
    if !table.has("ending") {
        return Ok(vec![None; rows]);
    }
    let parse = |(row, text): (usize, &String)| match Ending::of_name(text) {
        None if text != NOT_TOLD => Err(table.bad(row, format!("unknown ending {text:?}"))),
        ending => Ok(ending),
    };
    table.str("ending")?.iter().enumerate().map(parse).collect()
}

/// Combines columns of equal length into rows. Columns that differ in length are an error of the table.
macro_rules! rows {
    ($table:expr, $($field:ident : $column:expr),+ => $row:expr) => {{
        let table = &$table;
        $(let $field = $column;)+
        let length = [$($field.len()),+];
        if let Some(short) = length.iter().find(|l| **l != length[0]) {
            return Err(table.bad(*short.min(&length[0]), "columns differ in length"));
        }
        let mut out = Vec::with_capacity(length[0]);
        $(let mut $field = $field.into_iter();)+
        for _ in 0..length[0] {
            if let ($(Some($field),)+) = ($($field.next(),)+) {
                out.push($row);
            }
        }
        out
    }};
}
pub(crate) use rows;

/// The profile of a run's tables; `None` if it was not decoded yet.
///
/// # Errors
/// The tables are there and cannot be read: whoever takes them for none leaves out what depends on them without a word.
pub fn load_profile_if_made(run: &Run) -> Result<Option<Profile>> {
    if run.has_tables() { load_profile(run).map(Some) } else { Ok(None) }
}

/// Reads all tables of a run back.
///
/// # Errors
/// [`StoreError::NoTable`](crate::StoreError::NoTable) if the run has not been decoded;
/// [`StoreError::OtherTable`](crate::StoreError::OtherTable) if a table is not the one that the manifest names;
/// [`StoreError::Table`](crate::StoreError::Table) if a row refers to one that does not exist, or a
/// node comes before its parent.
pub fn load_profile(run: &Run) -> Result<Profile> {
    let marks = Marks::of(run);
    let path = run.table("functions");
    let t = Table::open(&path, &marks)?;
    let funcs = rows!(t, name: t.str("name")?, module: t.str("module_name")?, start: t.u64("address")?,
        kernel: t.bool("is_kernel")? => Func { name, module, start, kernel });

    let path = run.table("nodes");
    let t = Table::open(&path, &marks)?;
    let nodes = rows!(t, parent: t.opt_u32("parent_id")?, func: t.opt_u32("func_id")?, kind: parse_kinds(&t)?,
        calls: t.u64("calls")?, insns: t.u64("insns")?, ns: t.u64("self_ns")?
        => Node { parent: parent.unwrap_or(NO_PARENT), func: func.unwrap_or(0), calls, insns, ns, kind });
    for (row, node) in nodes.iter().enumerate() {
        if node.parent != NO_PARENT {
            below(&t, row, "parent_id", node.parent, row)?;
            below(&t, row, "func_id", node.func, funcs.len())?;
        }
    }

    let path = run.table("tasks");
    let t = Table::open(&path, &marks)?;
    let tasks = rows!(t, pid: t.u32("pid")?, tgid: t.u32("tgid")?, comm: t.str("comm")?,
        root: t.u32("root_node_id")? => Task { pid, tgid, comm, root });
    for (row, task) in tasks.iter().enumerate() {
        below(&t, row, "root_node_id", task.root, nodes.len())?;
    }

    let path = run.table("syscalls");
    let t = Table::open(&path, &marks)?;
    let syscalls = rows!(t, task: t.u32("task_id")?, cpu: t.u16("cpu")?, func: t.u32("func_id")?,
        start_ns: t.u64("start_ns")?, wall_ns: t.u64("wall_ns")?, on_cpu_ns: t.u64("on_cpu_ns")?,
        insns: t.u64("insns")?, node: t.u32("node_id")?, entry: part(&t, "entry")?,
        interrupts: part(&t, "interrupts")?, exit: part(&t, "exit")?
        => Syscall { task, cpu, func, start_ns, wall_ns, on_cpu_ns, insns, node,
            parts: Parts { entry, interrupts, exit } });
    for (row, call) in syscalls.iter().enumerate() {
        below(&t, row, "task_id", call.task, tasks.len())?;
        below(&t, row, "func_id", call.func, funcs.len())?;
        below(&t, row, "node_id", call.node, nodes.len())?;
    }

    let path = run.table("slices");
    let t = Table::open(&path, &marks)?;
    let tasks_of_slices = t.u32("task_id")?;
    let endings = parse_endings(&t, tasks_of_slices.len())?;
    let slices = rows!(t, task: tasks_of_slices, cpu: t.u16("cpu")?, func: t.u32("func_id")?,
        depth: t.u16("depth")?, kind: parse_kinds(&t)?, start_ns: t.u64("start_ns")?,
        end_ns: t.u64("end_ns")?, insns: t.u64("insns")?, ending: endings
        => Slice { task, cpu, func, depth, start_ns, end_ns, insns, kind, ending });
    for (row, slice) in slices.iter().enumerate() {
        below(&t, row, "task_id", slice.task, tasks.len())?;
        below(&t, row, "func_id", slice.func, funcs.len())?;
    }

    let path = run.table("errors");
    let t = Table::open(&path, &marks)?;
    let errors = rows!(t, cpu: t.u16("cpu")?, offset: t.u64("stream_offset")?, ns: t.u64("time_ns")?,
        ip: t.u64("ip")?, kind: t.str("kind")? => FlowError { cpu, offset, ns, ip, kind });

    let path = run.table("cpus");
    let t = Table::open(&path, &marks)?;
    let per_cpu = rows!(t, instructions: t.u64("instructions")?, branches: t.u64("branches")?,
        errors: t.u64("errors")?, overflows: t.u64("overflows")?, lost_bytes: t.u64("lost_bytes")?, first_ns: t.u64("first_ns")?,
        last_ns: t.u64("last_ns")?
        => CpuTotals { instructions, branches, errors, overflows, lost_bytes, first_ns, last_ns });
    let limits = Limits { funcs: funcs.len(), tasks: tasks.len(), nodes: nodes.len() };
    let (deltas, counts) = load_deltas(run, &marks, &limits)?;
    let totals = Totals { per_cpu, ..Totals::default() };
    Ok(Profile { funcs, tasks, nodes, syscalls, slices, deltas, counts, errors, totals })
}

/// The two columns of one part of a system call.
fn part(table: &Table, name: &str) -> Result<Vec<Part>> {
    let (ns, insns) = (table.u64(&format!("{name}_ns"))?, table.u64(&format!("{name}_insns"))?);
    if ns.len() != insns.len() {
        return Err(table.bad(ns.len().min(insns.len()), "columns differ in length"));
    }
    Ok(ns.into_iter().zip(insns).map(|(ns, insns)| Part { ns, insns }).collect())
}

pub(crate) fn below(table: &Table, row: usize, what: &str, value: u32, limit: usize) -> Result<()> {
    if (value as usize) < limit {
        return Ok(());
    }
    Err(table.bad(row, format!("{what} {value} does not exist (there are {limit} before or in all)")))
}
