// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds a run to a lake. Input: a run folder, a suite, labels. Output: the run's files, all visible at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kprism_session::Progress;
use parquet::file::metadata::KeyValue;
use serde::Serialize;

use crate::commit::{Commit, Journal, exclusive};
use crate::layout::{Lake, SCHEMA, check_name};
use crate::live::{find, labels};
use crate::rows::{Column, Sink, Source, Values};
use crate::tables::{self, Facts, Table, Tables};

/// Options of an addition.
#[derive(Debug, Clone, Default)]
pub struct AddOptions {
    /// The suite.
    pub suite: String,
    /// Labels of the run.
    pub labels: BTreeMap<String, String>,
    /// Take the place of what the lake has of the run with another suite or other labels.
    pub replace: bool,
}

/// The end of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The lake did not have the run.
    Added,
    /// The lake had the run with this suite and these labels.
    Present,
    /// The lake had the run with another suite or other labels.
    Replaced,
}

/// A run that was added.
#[derive(Debug, Clone, Serialize)]
pub struct Added {
    /// The run's folder.
    pub run: PathBuf,
    /// Its id.
    pub run_id: String,
    /// The end.
    pub outcome: Outcome,
    /// Number of files written.
    pub files: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

/// Adds a run.
///
/// # Errors
/// The run cannot be read or has no tables of this schema; the lake has it with other labels; the disk is full. Nothing of
/// the run is left in the lake then.
pub fn add(lake: &Lake, folder: &Path, options: &AddOptions, progress: &Progress) -> Result<Added> {
    check_suite(&options.suite)?;
    check_labels(&options.labels)?;
    let facts = tables::facts(folder)?;
    let run_id = facts.run_id.clone();
    let done = |outcome, files, bytes| Added {
        run: folder.to_path_buf(),
        run_id: run_id.clone(),
        outcome,
        files,
        bytes,
    };

    // A look without a lock: adding again is common, and cheap.
    if is_there(lake, &facts, options)? == Some(true) {
        return Ok(done(Outcome::Present, 0, 0));
    }
    let _merging = if options.replace { Some(exclusive(lake)?) } else { None };
    let (stage, part) = {
        let commit = Commit::begin(lake)?;
        let part = match is_there(lake, &facts, options)? {
            None => 0,
            Some(true) => return Ok(done(Outcome::Present, 0, 0)),
            Some(false) => commit.next_part()?,
        };
        (commit.stage(&run_id)?, part)
    };
    let (mut journal, mut bytes) = (Journal::default(), 0);
    progress.step(&format!("adding {}", folder.display()));
    let Tables { tables, added, unmeasured, fault } = tables::all(&facts, &options.labels, progress)?;
    if let Some(fault) = fault {
        progress
            .note(&format!("{}: not whole: {fault}; the table manifest has it as fault", folder.display()));
    }
    for (table, rows) in tables {
        let to = Lake::run_file(&table, &options.suite, &facts.day, &run_id);
        let raw = match rows {
            Table::File(path) => path,
            Table::Rows(columns) => tables::raw(&table, columns, &stage.folder)?,
        };
        let more = added.get(&*table).map_or(&[][..], Vec::as_slice);
        bytes += finish(&raw, &stage.folder, &table, (more, &unmeasured), (&run_id, part))?;
        let list = if table == "manifest" { &mut journal.manifest } else { &mut journal.data };
        list.push((stage.relative.join(format!("{table}.parquet")), to));
    }
    let files = journal.data.len() + journal.manifest.len();

    let commit = Commit::begin(lake)?;
    let outcome = match is_there(lake, &facts, options)? {
        Some(true) => return Ok(done(Outcome::Present, 0, 0)),
        Some(false) => Outcome::Replaced,
        None => Outcome::Added,
    };
    if outcome == Outcome::Replaced {
        let kept: Vec<&PathBuf> = journal.data.iter().chain(&journal.manifest).map(|(_, to)| to).collect();
        for table in lake.tables()? {
            let old = lake.files(&table)?.into_iter().filter(|file| file.stem == run_id);
            let old: Vec<PathBuf> = old.map(|file| file.path).filter(|path| !kept.contains(&path)).collect();
            journal.remove.extend(old);
        }
    }
    commit.put(&journal)?;
    Ok(done(outcome, files, bytes))
}

/// A suite is a folder's name, in which engines find its value.
///
/// # Errors
/// It cannot be a folder's name, or would be read as a number.
pub fn check_suite(suite: &str) -> Result<()> {
    check_name("--suite", suite)?;
    if suite.bytes().all(|byte| byte.is_ascii_digit()) {
        bail!("--suite {suite}: expected a letter in it, as engines read a folder suite=007 as the number 7");
    }
    Ok(())
}

/// The views order runs by `position`: one that is no number would end every query of them.
///
/// # Errors
/// It is no whole number.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    match labels.get("position") {
        Some(text) if text.parse::<i64>().is_err() => {
            bail!("--label position={text}: expected a whole number, as the views order runs by it")
        }
        _ => Ok(()),
    }
}

/// Whether the lake has the run as it is to be added: `None` if it has not, `Some(false)` if it is to be replaced.
fn is_there(lake: &Lake, facts: &Facts, options: &AddOptions) -> Result<Option<bool>> {
    let Some(old) = find(lake, &facts.run_id)? else { return Ok(None) };
    let old_labels = labels(lake, &old)?;
    let new_labels = &options.labels;
    if old.suite == options.suite && old_labels == *new_labels {
        return Ok(Some(true));
    }
    if options.replace {
        return Ok(Some(false));
    }
    let show = |suite: &str, labels: &BTreeMap<String, String>| {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("suite {suite}, labels [{}]", labels.join(", "))
    };
    bail!(
        "{}: the lake has this run ({}) as {}, not as {}; --replace changes that",
        facts.folder.display(),
        facts.run_id,
        show(&old.suite, &old_labels),
        show(&options.suite, new_labels)
    )
}

/// Adds the columns `run_id` and `part`, and `more`, to a table that was written, and waits until it is on the disk. Columns whose
/// names end in one of `unmeasured` are NULL.
fn finish(
    raw: &Path,
    folder: &Path,
    table: &str,
    (more, unmeasured): (&[Column], &[&str]),
    (run_id, part): (&str, i64),
) -> Result<u64> {
    let path = folder.join(format!("{table}.parquet"));
    let source = Source::open(raw)?;
    if let Some(column) = more.iter().find(|column| i64::try_from(column.values.len()) != Ok(source.rows())) {
        let (name, values, rows) = (&column.name, column.values.len(), source.rows());
        bail!("{}: {rows} rows, and {values} values of {name}: the table is damaged", raw.display());
    }
    let own = |rows: usize| {
        let run = Column::text("run_id", std::iter::repeat_n(Some(run_id), rows));
        [run, Column::int("part", std::iter::repeat_n(Some(part), rows))]
    };
    let add = |columns: Vec<Column>, first: usize, rows: usize| -> Vec<Column> {
        let picked = |values: &Values| {
            let rows: Vec<usize> = (first..(first + rows).min(values.len())).collect();
            values.pick(&rows)
        };
        let more = more.iter().map(|c| Column { name: c.name.clone(), values: picked(&c.values) });
        let others = columns.into_iter().filter(|column| !matches!(&*column.name, "run_id" | "part"));
        let measured = |mut column: Column| {
            if unmeasured.iter().any(|end| column.name.ends_with(end)) {
                column.values = column.values.unknown();
            }
            column
        };
        own(rows).into_iter().chain(others.chain(more).map(measured)).collect()
    };
    let mut notes = source.notes();
    notes.retain(|note| note.key != "kprism.run_id" && note.key != "kprism.schema");
    notes.push(KeyValue::new("kprism.run_id".into(), run_id.to_owned()));
    notes.push(KeyValue::new("kprism.schema".into(), SCHEMA.to_string()));
    let mut sink = Sink::create(&path, table, &add(source.columns()?, 0, 0), notes)?;
    let mut first = 0;
    for group in 0..source.groups() {
        let columns = source.group(group)?;
        let rows = columns.first().map_or(0, |column| column.values.len());
        sink.write(add(columns, first, rows))?;
        first += rows;
    }
    sink.finish()
}
