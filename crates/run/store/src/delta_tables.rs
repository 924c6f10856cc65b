// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of intervals between markers to Parquet tables and back. The input is the intervals and instruction
//! counts of a profile; the output is these tables. They are a module of their own because one interval takes rows of
//! several tables.
//!
//! | table | content of a row | columns |
//! |---|---|---|
//! | deltas | a kind of interval | delta_id, name, from_marker, to_marker, counted_per (`cpu`, `task`), restarted, unfinished, halts |
//! | delta_bins | a bin of its histogram | delta_id, quantity (`ns`, `insns`), low_value, high_value, intervals, total, smallest, largest |
//! | delta_longest | one of its longest intervals | delta_id, task_id, cpu, start_ns, duration_ns, insns, from_ip, to_ip, from_node_id, to_node_id |
//! | delta_sites | a context in which it began | delta_id, node_id, intervals, total_ns, insns, max_ns |
//! | counts | an instruction pattern in a function | pattern, func_id, executions |
//!
//! In `delta_bins` `total`, `smallest` and `largest` are those of the whole histogram, and are the same in each of its rows.

use kprism_profile::{Bin, Count, Delta, Histogram, Interval, Scope, Site};

use crate::column::Table;
use crate::marks::Marks;
use crate::rows::Column;
use crate::tables::{Saver, below, rows};
use crate::{Result, Run};

/// Numbers of rows in the tables to which these tables refer.
pub(crate) struct Limits {
    pub funcs: usize,
    pub tasks: usize,
    pub nodes: usize,
}

/// Writes the tables.
pub(crate) fn save_deltas(to: &mut Saver<'_>, deltas: &[Delta], counts: &[Count]) -> Result<()> {
    let text = |get: fn(&Delta) -> &str| Column::strs(deltas, get);
    to.save(
        "deltas",
        vec![
            ("delta_id", Column::numbers(deltas.len())),
            ("name", text(|d| &d.name)),
            ("from_marker", text(|d| &d.from)),
            ("to_marker", text(|d| &d.to)),
            (
                "counted_per",
                text(|d| match d.scope {
                    Scope::Cpu => "cpu",
                    Scope::Task => "task",
                }),
            ),
            ("restarted", Column::u64s(deltas, |d| d.restarted)),
            ("unfinished", Column::u64s(deltas, |d| d.unfinished)),
            ("halts", Column::owned_opt_u64s(deltas.iter().map(|d| d.halts).collect())),
        ],
    )?;
    let bins: Vec<(u32, &str, &Histogram, &Bin)> = numbered(deltas)
        .flat_map(|(n, d)| [(n, "ns", &d.ns), (n, "insns", &d.insns)])
        .flat_map(|(n, of, h)| h.bins.iter().map(move |bin| (n, of, h, bin)))
        .collect();
    to.save(
        "delta_bins",
        vec![
            ("delta_id", Column::u32s(&bins, |b| b.0)),
            ("quantity", Column::strs(&bins, |b| b.1)),
            ("low_value", Column::u64s(&bins, |b| b.3.low)),
            ("high_value", Column::u64s(&bins, |b| b.3.high)),
            ("intervals", Column::u64s(&bins, |b| b.3.count)),
            ("total", Column::u64s(&bins, |b| b.2.sum)),
            ("smallest", Column::u64s(&bins, |b| b.2.min)),
            ("largest", Column::u64s(&bins, |b| b.2.max)),
        ],
    )?;
    let longest: Vec<(u32, &Interval)> =
        numbered(deltas).flat_map(|(n, d)| d.longest.iter().map(move |i| (n, i))).collect();
    to.save(
        "delta_longest",
        vec![
            ("delta_id", Column::u32s(&longest, |i| i.0)),
            ("task_id", Column::u32s(&longest, |i| i.1.task)),
            ("cpu", Column::u32s(&longest, |i| i.1.cpu.into())),
            ("start_ns", Column::u64s(&longest, |i| i.1.start_ns)),
            ("duration_ns", Column::u64s(&longest, |i| i.1.ns)),
            ("insns", Column::u64s(&longest, |i| i.1.insns)),
            ("from_ip", Column::u64s(&longest, |i| i.1.from_ip)),
            ("to_ip", Column::u64s(&longest, |i| i.1.to_ip)),
            ("from_node_id", Column::u32s(&longest, |i| i.1.from_node)),
            ("to_node_id", Column::u32s(&longest, |i| i.1.to_node)),
        ],
    )?;
    let sites: Vec<(u32, &Site)> =
        numbered(deltas).flat_map(|(n, d)| d.sites.iter().map(move |s| (n, s))).collect();
    to.save(
        "delta_sites",
        vec![
            ("delta_id", Column::u32s(&sites, |s| s.0)),
            ("node_id", Column::u32s(&sites, |s| s.1.node)),
            ("intervals", Column::u64s(&sites, |s| s.1.count)),
            ("total_ns", Column::u64s(&sites, |s| s.1.ns)),
            ("insns", Column::u64s(&sites, |s| s.1.insns)),
            ("max_ns", Column::u64s(&sites, |s| s.1.max_ns)),
        ],
    )?;
    to.save(
        "counts",
        vec![
            ("pattern", Column::strs(counts, |c| &c.pattern)),
            ("func_id", Column::u32s(counts, |c| c.func)),
            ("executions", Column::u64s(counts, |c| c.count)),
        ],
    )
}

fn numbered(deltas: &[Delta]) -> impl Iterator<Item = (u32, &Delta)> {
    (0..).zip(deltas)
}

/// Reads the tables back. Fails if a row refers to one that does not exist.
pub(crate) fn load_deltas(run: &Run, marks: &Marks, limits: &Limits) -> Result<(Vec<Delta>, Vec<Count>)> {
    let path = run.table("deltas");
    let t = Table::open(&path, marks)?;
    let names = t.str("name")?;
    let added = t.added_u64("halts", names.len())?;
    let mut deltas = rows!(t, name: names, from: t.str("from_marker")?, to: t.str("to_marker")?, scope: scopes(&t)?,
        restarted: t.u64("restarted")?, unfinished: t.u64("unfinished")?, halts: added
        => Delta { name, from, to, scope, restarted, unfinished, halts, ..Delta::default() });

    let path = run.table("delta_bins");
    let t = Table::open(&path, marks)?;
    let bins = rows!(t, delta: t.u32("delta_id")?, of: t.str("quantity")?, low: t.u64("low_value")?, high: t.u64("high_value")?,
        count: t.u64("intervals")?, sum: t.u64("total")?, min: t.u64("smallest")?, max: t.u64("largest")?
        => (delta, of, Bin { low, high, count }, sum, min, max));
    for (row, (delta, of, bin, sum, min, max)) in bins.into_iter().enumerate() {
        below(&t, row, "delta_id", delta, deltas.len())?;
        if bin.high <= bin.low {
            return Err(t.bad(row, "a bin that holds nothing"));
        }
        let delta = &mut deltas[delta as usize];
        let histogram = match of.as_str() {
            "ns" => &mut delta.ns,
            "insns" => &mut delta.insns,
            other => return Err(t.bad(row, format!("unknown histogram {other:?}"))),
        };
        histogram.count = histogram.count.saturating_add(bin.count);
        (histogram.sum, histogram.min, histogram.max) = (sum, min, max);
        histogram.bins.push(bin);
    }

    let path = run.table("delta_longest");
    let t = Table::open(&path, marks)?;
    let longest = rows!(t, delta: t.u32("delta_id")?, task: t.u32("task_id")?, cpu: t.u16("cpu")?,
        start_ns: t.u64("start_ns")?, ns: t.u64("duration_ns")?, insns: t.u64("insns")?, from_ip: t.u64("from_ip")?,
        to_ip: t.u64("to_ip")?, from_node: t.u32("from_node_id")?, to_node: t.u32("to_node_id")?
        => (delta, Interval { task, cpu, start_ns, ns, insns, from_ip, to_ip, from_node, to_node }));
    for (row, (delta, interval)) in longest.into_iter().enumerate() {
        below(&t, row, "delta_id", delta, deltas.len())?;
        below(&t, row, "task_id", interval.task, limits.tasks)?;
        below(&t, row, "from_node_id", interval.from_node, limits.nodes)?;
        below(&t, row, "to_node_id", interval.to_node, limits.nodes)?;
        deltas[delta as usize].longest.push(interval);
    }

    let path = run.table("delta_sites");
    let t = Table::open(&path, marks)?;
    let sites = rows!(t, delta: t.u32("delta_id")?, node: t.u32("node_id")?, count: t.u64("intervals")?,
        ns: t.u64("total_ns")?, insns: t.u64("insns")?, max_ns: t.u64("max_ns")?
        => (delta, Site { node, count, ns, insns, max_ns }));
    for (row, (delta, site)) in sites.into_iter().enumerate() {
        below(&t, row, "delta_id", delta, deltas.len())?;
        below(&t, row, "node_id", site.node, limits.nodes)?;
        deltas[delta as usize].sites.push(site);
    }

    let path = run.table("counts");
    let t = Table::open(&path, marks)?;
    let counts = rows!(t, pattern: t.str("pattern")?, func: t.u32("func_id")?, count: t.u64("executions")?
        => Count { pattern, func, count });
    for (row, count) in counts.iter().enumerate() {
        below(&t, row, "func_id", count.func, limits.funcs)?;
    }
    Ok((deltas, counts))
}

fn scopes(table: &Table) -> Result<Vec<Scope>> {
    let parse = |(row, text): (usize, String)| match text.as_str() {
        "cpu" => Ok(Scope::Cpu),
        "task" => Ok(Scope::Task),
        other => Err(table.bad(row, format!("unknown scope {other:?}"))),
    };
    table.str("counted_per")?.into_iter().enumerate().map(parse).collect()
}
