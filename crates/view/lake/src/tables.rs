// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's tables, as the lake takes them. Input: a run folder. Output: for each table its name and its rows: those of the run's
//! own folder with the keys that join runs, and those that only many runs have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kprism_gate::summary::Wanted;
use kprism_profile::{NO_PARENT, Profile};
use kprism_session::{Progress, cover, open_profile, probe};
use kprism_store::recorded::BearsOn;
use kprism_store::{
    Instrument, Manifest, NamedTable, Recorded, Run, Values as Stored, manifest_tables, stack_keys,
};
use parquet::data_type::ByteArray;
use serde_json::Value;

use crate::baseline;
use crate::layout::names;
use crate::rows::{Column, Sink, Values};
use crate::views::RECORDED;

/// A run's identity.
pub struct Facts {
    /// Its folder.
    pub folder: PathBuf,
    /// Its id: 32 hexadecimal digits.
    pub run_id: String,
    /// The day it was made, in UTC.
    pub day: String,
    run: Run,
}

/// Reads what a run is.
///
/// # Errors
/// It is no run, or has no date.
pub fn facts(folder: &Path) -> Result<Facts> {
    let run = Run::open(folder)?;
    let manifest = run.manifest()?;
    let day = manifest.created.get(..10).filter(|day| day.bytes().all(|b| b.is_ascii_digit() || b == b'-'));
    let Some(day) = day.map(str::to_owned) else {
        let path = run.manifest_path();
        bail!(
            "{}: created {:?}: expected a date such as 2026-11-25T08:00:00Z",
            path.display(),
            manifest.created
        )
    };
    Ok(Facts { folder: folder.to_path_buf(), run_id: manifest.run_id(), day, run })
}

/// A table to be added.
pub enum Table {
    /// Rows of a file of the run.
    File(PathBuf),
    /// Rows in memory.
    Rows(Vec<Column>),
}

/// All tables of a run, and columns to be added to its files.
pub struct Tables {
    /// By name.
    pub tables: BTreeMap<String, Table>,
    /// Columns that a run's own table has not, by the table's name: the keys of contexts, and what each function took, which
    /// would otherwise be summed over all contexts of all runs by each query.
    pub added: BTreeMap<&'static str, Vec<Column>>,
    /// Ends of the names of columns that the recorder did not measure: their values are NULL, whatever the run's own tables hold.
    pub unmeasured: Vec<&'static str>,
    /// Why the recording is not whole, if it is not. A run without an account says nothing.
    pub fault: Option<String>,
}

/// Ends of names of columns with instructions.
const INSTRUCTIONS: &str = "insns";
/// Ends of names of columns with times.
const TIMES: &str = "_ns";

/// What a run's recorder did not measure: a recording of durations counts no instructions, and some have no clock.
fn unmeasured(of_durations: bool, manifest: &Manifest) -> Vec<&'static str> {
    let instructions = of_durations.then_some(INSTRUCTIONS);
    instructions.into_iter().chain((!manifest.clock.counts()).then_some(TIMES)).collect()
}

/// The tables of a run. A flow or durations that were not decoded yet, or by another kprism, are decoded.
///
/// # Errors
/// The run cannot be decoded or read.
pub fn all(facts: &Facts, labels: &BTreeMap<String, String>, progress: &Progress) -> Result<Tables> {
    let run = &facts.run;
    // This decodes what was not decoded yet.
    let (summary, of_flow) = kprism_gate::summary::load(&facts.folder, &Wanted::default(), progress.clone())?;
    let profile = match run.holds(Instrument::Durations) {
        true => Some(open_profile(&facts.folder, progress)?.1),
        false => of_flow,
    };
    let added = profile.as_ref().map(added).unwrap_or_default();
    let manifest = run.manifest()?;
    let mut tables = BTreeMap::new();
    for name in names(&run.tables())? {
        if let Some(table) = name.strip_suffix(".parquet") {
            run.check_table(table)?;
            tables.insert(table.to_owned(), Table::File(run.table(table)));
        }
    }
    let mut own = |table: &str, columns| tables.insert(table.to_owned(), Table::Rows(columns));
    for NamedTable { name, columns } in manifest_tables(&manifest) {
        own(name, columns.into_iter().map(|(name, values)| column(name, values)).collect());
    }
    own(
        "labels",
        vec![
            Column::text("label_key", labels.keys().map(|key| Some(&**key))),
            Column::text("label_value", labels.values().map(|value| Some(&**value))),
        ],
    );
    own(RECORDED, recorded_parts(summary.recorded.as_ref()));
    let summary = serde_json::to_string(&summary)?;
    own(baseline::TABLE, vec![Column::text(baseline::COLUMN, [Some(&*summary)])]);
    if run.holds(Instrument::Cover) {
        own("cover_lines", cover_lines(&facts.folder, progress)?);
    }
    if run.holds(Instrument::Probe) {
        own("probe_values", probe_values(run)?);
    }
    if run.tlb_counts().exists() {
        own("tlb_counters", tlb_counters(run)?);
    }
    let unmeasured = unmeasured(run.holds(Instrument::Durations), &manifest);
    Ok(Tables { tables, added, unmeasured, fault: manifest.recording_fault() })
}

/// `stack_key` of contexts; calls, instructions and time of functions themselves.
fn added(profile: &Profile) -> BTreeMap<&'static str, Vec<Column>> {
    let mut sums = vec![[0u64; 3]; profile.funcs.len()];
    for node in profile.nodes.iter().filter(|node| node.parent != NO_PARENT) {
        if let Some(sum) = sums.get_mut(node.func as usize) {
            *sum = [sum[0] + node.calls, sum[1] + node.insns, sum[2] + node.ns];
        }
    }
    let int = |name, of: usize| Column::int(name, sums.iter().map(|sum| Some(sum[of].cast_signed())));
    let keys = Column::int("stack_key", stack_keys(profile).iter().map(|key| Some(key.cast_signed())));
    BTreeMap::from([
        ("nodes", vec![keys]),
        ("functions", vec![int("calls", 0), int("insns", 1), int("self_ns", 2)]),
    ])
}

/// What was recorded, a row a part, and the numbers that each bears on. Runs with one `recorded_id` can be compared in instructions.
fn recorded_parts(recorded: Option<&Recorded>) -> Vec<Column> {
    let id = recorded.map(Recorded::id);
    let parts: Vec<(&str, &str)> = recorded.into_iter().flat_map(Recorded::parts).collect();
    vec![
        Column::text("part_name", parts.iter().map(|(part, _)| Some(*part))),
        Column::text("part_value", parts.iter().map(|(_, value)| Some(*value))),
        Column::text("bears_on", parts.iter().map(|(part, _)| Some(BearsOn::of_part(part).name()))),
        Column::text("recorded_id", parts.iter().map(|_| id.as_deref())),
    ]
}

/// Writes rows to a file.
///
/// # Errors
/// The disk is full.
pub fn raw(table: &str, columns: Vec<Column>, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("{table}.raw"));
    let mut sink = Sink::create(&path, table, &columns, Vec::new())?;
    sink.write(columns)?;
    sink.finish()?;
    Ok(path)
}

fn column(name: String, values: Stored) -> Column {
    let text = |all: Vec<Option<String>>| {
        Values::Text(all.into_iter().map(|text| text.as_deref().map(ByteArray::from)).collect())
    };
    let values = match values {
        Stored::Signed(all) => Values::Int(all),
        Stored::Unsigned(all) => Values::Int(all.into_iter().map(|n| n.map(u64::cast_signed)).collect()),
        Stored::Float(all) => Values::Double(all),
        Stored::Bool(all) => Values::Bool(all),
        Stored::Text(all) => text(all),
    };
    Column { name, values }
}

/// Lines of source, and how often they ran: gcov's counters. Lines of a flow's coverage are not here, as they take debug information.
fn cover_lines(folder: &Path, progress: &Progress) -> Result<Vec<Column>> {
    let (from, who) = (cover::Options::default(), cover::Part::default());
    let loaded = cover::load_and_tell(folder, &from, &who, progress)?;
    let lines = || {
        let sources = loaded.cover.sources.iter();
        sources.flat_map(|source| source.lines.iter().map(move |line| (source, line)))
    };
    Ok(vec![
        // Relative to the tree, so that files of two builds in two folders are one.
        Column::text("source_file", lines().map(|(source, _)| Some(loaded.cover.shown(&source.path)))),
        Column::int("source_line", lines().map(|(_, line)| Some(line.line.into()))),
        Column::int("executions", lines().map(|(_, line)| Some(line.count))),
    ])
}

/// Values that probes collected, one a row: a run's probes collect what they like.
fn probe_values(run: &Run) -> Result<Vec<Column>> {
    let loaded = probe::Loaded::open(run)?;
    let (columns, records) = probe::columns(&loaded)?;
    let (facts, items) = columns.split_at(columns.len().min(PROBE_FACTS));
    let rows: Vec<(usize, usize)> = (0..records)
        .flat_map(|record| (0..items.len()).map(move |item| (record, item)))
        .filter(|&(record, item)| is_there(&items[item].1, record))
        .collect();
    let mut all = vec![Column::int("record_id", rows.iter().map(|&(record, _)| i64::try_from(record).ok()))];
    for (name, values) in facts {
        let name = if name == "probe" { "probe_place" } else { name };
        let picked = column(name.to_owned(), values.clone());
        let records: Vec<usize> = rows.iter().map(|&(record, _)| record).collect();
        all.push(Column { name: picked.name, values: picked.values.pick(&records) });
    }
    all.push(Column::text("item", rows.iter().map(|&(_, item)| Some(&*items[item].0))));
    let each: Vec<One> = rows.iter().map(|&(record, item)| one(&items[item].1, record)).collect();
    all.push(Column::int("int_value", each.iter().map(|one| one.int)));
    all.push(Column {
        name: "float_value".into(),
        values: Values::Double(each.iter().map(|one| one.float).collect()),
    });
    all.push(Column::text("text_value", each.iter().map(|one| one.text)));
    Ok(all)
}

/// Columns of a record itself, before those of its values.
const PROBE_FACTS: usize = 5;

/// A value: one of the three, or none.
#[derive(Default)]
struct One<'a> {
    int: Option<i64>,
    float: Option<f64>,
    text: Option<&'a str>,
}

fn one(values: &Stored, row: usize) -> One<'_> {
    let none = One::default();
    match values {
        Stored::Signed(all) => One { int: all[row], ..none },
        Stored::Unsigned(all) => One { int: all[row].map(u64::cast_signed), ..none },
        Stored::Bool(all) => One { int: all[row].map(i64::from), ..none },
        Stored::Float(all) => One { float: all[row], ..none },
        Stored::Text(all) => One { text: all[row].as_deref(), ..none },
    }
}

fn is_there(values: &Stored, row: usize) -> bool {
    let one = one(values, row);
    one.int.is_some() || one.float.is_some() || one.text.is_some()
}

/// The models' own counts, by their path in `streams/tlb/counts.json`.
fn tlb_counters(run: &Run) -> Result<Vec<Column>> {
    let path = run.tlb_counts();
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let counts: Value = serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?;
    let mut found = Vec::new();
    numbers(&counts, String::new(), &mut found);
    Ok(vec![
        Column::text("counter_path", found.iter().map(|(path, _)| Some(&**path))),
        Column::int("amount", found.iter().map(|(_, amount)| Some(*amount))),
    ])
}

/// Every integer of a JSON value, with its path, such as `geometries.0.last.1`.
fn numbers(value: &Value, path: String, found: &mut Vec<(String, i64)>) {
    let below = |name: &str| match path.is_empty() {
        true => name.to_owned(),
        false => format!("{path}.{name}"),
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| numbers(value, below(name), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| numbers(value, below(&i.to_string()), found));
        }
        _ => found.extend(value.as_i64().map(|number| (path, number))),
    }
}

#[cfg(test)]
mod tests {
    use kprism_store::{NO_CLOCK, RunKind};

    use super::*;

    #[test]
    fn what_was_recorded_is_a_row_a_part() {
        let recorded = Manifest::new(RunKind::Lab, 1).recorded();
        let columns = recorded_parts(Some(&recorded));
        let row = (0..columns[0].values.len()).find(|row| columns[0].values.str_at(*row) == Some("clock"));
        let clock = row.map(|row| columns.iter().map(|column| column.values.str_at(row)).collect::<Vec<_>>());
        let id = recorded.id();
        assert_eq!(clock, Some(vec![Some("clock"), Some("guest-virtual"), Some("times"), Some(&*id)]));
        assert!(recorded_parts(None).iter().all(|column| column.values.is_empty()));
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let mut manifest = Manifest::new(RunKind::Import, 1);
        assert!(unmeasured(false, &manifest).is_empty());
        assert_eq!(unmeasured(true, &manifest), [INSTRUCTIONS]);
        manifest.clock.name = NO_CLOCK.into();
        assert_eq!(unmeasured(false, &manifest), [TIMES]);
    }
}
