// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of intervals between markers to Parquet tables and back. The input is the intervals and instruction
//! counts of a profile; the output is these tables. They are a module of their own because one interval takes rows of
//! several tables.
//!
//! | table | content of a row | columns |
//! |---|---|---|
//! | deltas | a kind of interval | delta, name, from, to, scope (`cpu`, `task`), restarted, unfinished |
//! | delta_bins | a bin of its histogram | delta, of (`ns`, `insns`), low, high, count, sum, min, max |
//! | delta_longest | one of its longest intervals | delta, task, cpu, start_ns, ns, insns, from_ip, to_ip, from_node, to_node |
//! | delta_sites | a context in which it began | delta, node, count, ns, insns, max_ns |
//! | counts | an instruction pattern in a function | pattern, func, count |
//!
//! In `delta_bins` the sum, minimum and maximum are those of the whole histogram, and are the same in each of its rows.

use kprism_profile::{Bin, Count, Delta, Histogram, Interval, Scope, Site};

use crate::column::{Column, Table};
use crate::tables::{below, rows, save, u32s, u64s};
use crate::{Result, Run};

/// Numbers of rows in the tables to which these tables refer.
pub(crate) struct Limits {
    pub funcs: usize,
    pub tasks: usize,
    pub nodes: usize,
}

/// Writes the tables.
pub(crate) fn save_deltas(run: &Run, deltas: &[Delta], counts: &[Count]) -> Result<()> {
    let text = |get: fn(&Delta) -> &str| Column::Str(deltas.iter().map(|d| get(d).to_owned()).collect());
    save(
        run,
        "deltas",
        vec![
            ("delta", Column::U32((0..deltas.len() as u32).collect())),
            ("name", text(|d| &d.name)),
            ("from", text(|d| &d.from)),
            ("to", text(|d| &d.to)),
            (
                "scope",
                text(|d| match d.scope {
                    Scope::Cpu => "cpu",
                    Scope::Task => "task",
                }),
            ),
            ("restarted", u64s(deltas, |d| d.restarted)),
            ("unfinished", u64s(deltas, |d| d.unfinished)),
        ],
    )?;
    let bins: Vec<(u32, &str, &Histogram, &Bin)> = numbered(deltas)
        .flat_map(|(n, d)| [(n, "ns", &d.ns), (n, "insns", &d.insns)])
        .flat_map(|(n, of, h)| h.bins.iter().map(move |bin| (n, of, h, bin)))
        .collect();
    save(
        run,
        "delta_bins",
        vec![
            ("delta", u32s(&bins, |b| b.0)),
            ("of", Column::Str(bins.iter().map(|b| b.1.to_owned()).collect())),
            ("low", u64s(&bins, |b| b.3.low)),
            ("high", u64s(&bins, |b| b.3.high)),
            ("count", u64s(&bins, |b| b.3.count)),
            ("sum", u64s(&bins, |b| b.2.sum)),
            ("min", u64s(&bins, |b| b.2.min)),
            ("max", u64s(&bins, |b| b.2.max)),
        ],
    )?;
    let longest: Vec<(u32, &Interval)> =
        numbered(deltas).flat_map(|(n, d)| d.longest.iter().map(move |i| (n, i))).collect();
    save(
        run,
        "delta_longest",
        vec![
            ("delta", u32s(&longest, |i| i.0)),
            ("task", u32s(&longest, |i| i.1.task)),
            ("cpu", u32s(&longest, |i| i.1.cpu.into())),
            ("start_ns", u64s(&longest, |i| i.1.start_ns)),
            ("ns", u64s(&longest, |i| i.1.ns)),
            ("insns", u64s(&longest, |i| i.1.insns)),
            ("from_ip", u64s(&longest, |i| i.1.from_ip)),
            ("to_ip", u64s(&longest, |i| i.1.to_ip)),
            ("from_node", u32s(&longest, |i| i.1.from_node)),
            ("to_node", u32s(&longest, |i| i.1.to_node)),
        ],
    )?;
    let sites: Vec<(u32, &Site)> =
        numbered(deltas).flat_map(|(n, d)| d.sites.iter().map(move |s| (n, s))).collect();
    save(
        run,
        "delta_sites",
        vec![
            ("delta", u32s(&sites, |s| s.0)),
            ("node", u32s(&sites, |s| s.1.node)),
            ("count", u64s(&sites, |s| s.1.count)),
            ("ns", u64s(&sites, |s| s.1.ns)),
            ("insns", u64s(&sites, |s| s.1.insns)),
            ("max_ns", u64s(&sites, |s| s.1.max_ns)),
        ],
    )?;
    save(
        run,
        "counts",
        vec![
            ("pattern", Column::Str(counts.iter().map(|c| c.pattern.clone()).collect())),
            ("func", u32s(counts, |c| c.func)),
            ("count", u64s(counts, |c| c.count)),
        ],
    )
}

fn numbered(deltas: &[Delta]) -> impl Iterator<Item = (u32, &Delta)> {
    (0..).zip(deltas)
}

/// Reads the tables back. Fails if a row refers to one that does not exist.
pub(crate) fn load_deltas(run: &Run, limits: &Limits) -> Result<(Vec<Delta>, Vec<Count>)> {
    let path = run.table("deltas");
    let t = Table::open(&path)?;
    let mut deltas = rows!(t, name: t.str("name")?, from: t.str("from")?, to: t.str("to")?, scope: scopes(&t)?,
        restarted: t.u64("restarted")?, unfinished: t.u64("unfinished")?
        => Delta { name, from, to, scope, restarted, unfinished, ..Delta::default() });

    let path = run.table("delta_bins");
    let t = Table::open(&path)?;
    let bins = rows!(t, delta: t.u32("delta")?, of: t.str("of")?, low: t.u64("low")?, high: t.u64("high")?,
        count: t.u64("count")?, sum: t.u64("sum")?, min: t.u64("min")?, max: t.u64("max")?
        => (delta, of, Bin { low, high, count }, sum, min, max));
    for (row, (delta, of, bin, sum, min, max)) in bins.into_iter().enumerate() {
        below(&t, row, "delta", delta, deltas.len())?;
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
    let t = Table::open(&path)?;
    let longest = rows!(t, delta: t.u32("delta")?, task: t.u32("task")?, cpu: t.u16("cpu")?,
        start_ns: t.u64("start_ns")?, ns: t.u64("ns")?, insns: t.u64("insns")?, from_ip: t.u64("from_ip")?,
        to_ip: t.u64("to_ip")?, from_node: t.u32("from_node")?, to_node: t.u32("to_node")?
        => (delta, Interval { task, cpu, start_ns, ns, insns, from_ip, to_ip, from_node, to_node }));
    for (row, (delta, interval)) in longest.into_iter().enumerate() {
        below(&t, row, "delta", delta, deltas.len())?;
        below(&t, row, "task", interval.task, limits.tasks)?;
        below(&t, row, "from_node", interval.from_node, limits.nodes)?;
        below(&t, row, "to_node", interval.to_node, limits.nodes)?;
        deltas[delta as usize].longest.push(interval);
    }

    let path = run.table("delta_sites");
    let t = Table::open(&path)?;
    let sites = rows!(t, delta: t.u32("delta")?, node: t.u32("node")?, count: t.u64("count")?,
        ns: t.u64("ns")?, insns: t.u64("insns")?, max_ns: t.u64("max_ns")?
        => (delta, Site { node, count, ns, insns, max_ns }));
    for (row, (delta, site)) in sites.into_iter().enumerate() {
        below(&t, row, "delta", delta, deltas.len())?;
        below(&t, row, "node", site.node, limits.nodes)?;
        deltas[delta as usize].sites.push(site);
    }

    let path = run.table("counts");
    let t = Table::open(&path)?;
    let counts = rows!(t, pattern: t.str("pattern")?, func: t.u32("func")?, count: t.u64("count")?
        => Count { pattern, func, count });
    for (row, count) in counts.iter().enumerate() {
        below(&t, row, "func", count.func, limits.funcs)?;
    }
    Ok((deltas, counts))
}

fn scopes(table: &Table) -> Result<Vec<Scope>> {
    let parse = |(row, text): (usize, String)| match text.as_str() {
        "cpu" => Ok(Scope::Cpu),
        "task" => Ok(Scope::Task),
        other => Err(table.bad(row, format!("unknown scope {other:?}"))),
    };
    table.str("scope")?.into_iter().enumerate().map(parse).collect()
}
