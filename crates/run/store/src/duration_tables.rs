// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of measured durations to Parquet tables and back. The input is the [`Times`] of a run; the output is
//! these tables. They are separate from the profile's tables because only some instruments measure durations.
//!
//! | table | content of a row | columns |
//! |---|---|---|
//! | durations | a function | func_id, calls, sum_ns, min_ns, max_ns, unfinished, gapped |
//! | duration_bins | a bin of the histogram of its calls' durations | func_id, low_ns, high_ns, calls |
//! | node_times | a calling context | node_id, total_ns, off_cpu_ns, interrupts_ns |
//!
//! The counts of the analysis are in the manifest, under `options.durations`.

use kprism_profile::{Bin, Counts, FuncTimes, Histogram, NodeTimes, Profile, Times};

use crate::column::Table;
use crate::marks::Marks;
use crate::rows::Column;
use crate::tables::{Saver, below, rows};
use crate::{OptionKey, Result, Run};

/// Names of the tables.
const TABLES: [&str; 3] = ["durations", "duration_bins", "node_times"];

/// Key of the counts in the manifest's options.
const COUNTS: OptionKey = OptionKey::Durations;

/// Writes the tables, and writes the counts and the tables' marks into the manifest.
///
/// # Errors
/// Fails at the first file that cannot be written.
pub fn save_times(run: &Run, times: &Times) -> Result<()> {
    let mut manifest = run.manifest()?;
    let read = manifest.clone();
    let mut to = Saver::new(run, Some(&read));
    let funcs = &times.funcs;
    to.save(
        "durations",
        vec![
            ("func_id", Column::numbers(funcs.len())),
            ("calls", Column::u64s(funcs, |f| f.durations.count)),
            ("sum_ns", Column::u64s(funcs, |f| f.durations.sum)),
            ("min_ns", Column::u64s(funcs, |f| f.durations.min)),
            ("max_ns", Column::u64s(funcs, |f| f.durations.max)),
            ("unfinished", Column::u64s(funcs, |f| f.unfinished)),
            ("gapped", Column::u64s(funcs, |f| f.gapped)),
        ],
    )?;
    let bins: Vec<(u32, &Bin)> =
        (0u32..).zip(funcs).flat_map(|(n, f)| f.durations.bins.iter().map(move |bin| (n, bin))).collect();
    to.save(
        "duration_bins",
        vec![
            ("func_id", Column::u32s(&bins, |b| b.0)),
            ("low_ns", Column::u64s(&bins, |b| b.1.low)),
            ("high_ns", Column::u64s(&bins, |b| b.1.high)),
            ("calls", Column::u64s(&bins, |b| b.1.count)),
        ],
    )?;
    let nodes = &times.nodes;
    to.save(
        "node_times",
        vec![
            ("node_id", Column::numbers(nodes.len())),
            ("total_ns", Column::u64s(nodes, |n| n.total_ns)),
            ("off_cpu_ns", Column::u64s(nodes, |n| n.off_ns)),
            ("interrupts_ns", Column::u64s(nodes, |n| n.irq_ns)),
        ],
    )?;
    let counts = serde_json::to_value(times.counts).unwrap_or_default();
    manifest.set(COUNTS, counts);
    manifest.name_tables(to.marks);
    run.write_manifest(&manifest)
}

/// True if the run has all of these tables.
#[must_use]
pub fn has_times(run: &Run) -> bool {
    TABLES.iter().all(|name| run.table(name).exists())
}

/// Reads the tables of a run with this profile.
///
/// # Errors
/// Fails if a table is missing or damaged, or does not match the functions and contexts of the profile.
pub fn load_times(run: &Run, profile: &Profile) -> Result<Times> {
    let marks = Marks::of(run);
    let path = run.table("durations");
    let t = Table::open(&path, &marks)?;
    let mut funcs = rows!(t, count: t.u64("calls")?, sum: t.u64("sum_ns")?, min: t.u64("min_ns")?,
        max: t.u64("max_ns")?, unfinished: t.u64("unfinished")?, gapped: t.u64("gapped")?
        => FuncTimes { durations: Histogram { bins: Vec::new(), count, sum, min, max }, unfinished, gapped });
    if funcs.len() != profile.funcs.len() {
        return Err(t.bad(funcs.len(), format!("{} functions in `functions`", profile.funcs.len())));
    }
    let path = run.table("duration_bins");
    let t = Table::open(&path, &marks)?;
    let bins = rows!(t, func: t.u32("func_id")?, low: t.u64("low_ns")?, high: t.u64("high_ns")?, count: t.u64("calls")?
        => (func, Bin { low, high, count }));
    for (row, (func, bin)) in bins.into_iter().enumerate() {
        below(&t, row, "func_id", func, funcs.len())?;
        funcs[func as usize].durations.bins.push(bin);
    }
    let path = run.table("node_times");
    let t = Table::open(&path, &marks)?;
    let nodes = rows!(t, total_ns: t.u64("total_ns")?, off_ns: t.u64("off_cpu_ns")?, irq_ns: t.u64("interrupts_ns")?
        => NodeTimes { total_ns, off_ns, irq_ns });
    if nodes.len() != profile.nodes.len() {
        return Err(t.bad(nodes.len(), format!("{} contexts in `nodes`", profile.nodes.len())));
    }
    // Counts that are not there would be zeros that nobody measured.
    let manifest = run.manifest()?;
    let counts: Option<Counts> =
        manifest.option(COUNTS).and_then(|value| serde_json::from_value(value.clone()).ok());
    let counts = counts.ok_or_else(|| {
        let name = COUNTS.name();
        t.bad(0, format!("the manifest's options have no `{name}` that belong to it; remove tables/ to have it made again"))
    })?;
    Ok(Times { funcs, nodes, counts })
}
