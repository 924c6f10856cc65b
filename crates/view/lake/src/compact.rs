// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the files of many runs. Input: a lake. Output: for each table and suite, files of many runs, sorted by key.
//!
//! Merged files are written elsewhere and renamed into place first; their rows do not count yet. The rename of one file of
//! `manifest` makes them count, and those before them not. Only then are the old files removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kprism_session::Progress;
use serde::Serialize;

use crate::commit::{Commit, Journal, exclusive};
use crate::layout::{Lake, TableFile};
use crate::live::{Live, live};
use crate::rows::{Column, Sink, Source, Values};

/// Result of a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Compacted {
    /// Runs whose files were merged.
    pub runs: usize,
    /// Files before.
    pub files_before: usize,
    /// Files after.
    pub files_after: usize,
    /// Size of the files before, in bytes.
    pub bytes_before: u64,
    /// Size of the files after, in bytes.
    pub bytes_after: u64,
}

/// Merges files up to `target` bytes each. Files that no longer count are removed `grace` after that.
///
/// # Errors
/// A file cannot be read or written; columns of one name have different types. What counted before counts then.
pub fn compact(lake: &Lake, target: u64, grace: Duration, progress: &Progress) -> Result<Compacted> {
    let _one = exclusive(lake)?;
    let mut done = Compacted::default();
    let mut files: BTreeMap<String, Vec<TableFile>> = BTreeMap::new();
    let runs = {
        // Nobody adds a run between the two looks: its files would seem to be those of no run.
        let _commit = Commit::begin(lake)?;
        for table in lake.tables()? {
            let all = lake.files(&table)?;
            files.insert(table, all);
        }
        live(lake)?
    };
    let suites: BTreeSet<&str> = runs.values().map(|run| &*run.suite).collect();
    for suite in suites {
        for unit in units(lake, suite, &runs, &files, target)? {
            progress.step(&format!("merging {} runs of {suite}", unit.runs.len()));
            merge(lake, suite, &unit, grace, &mut done)?;
        }
    }
    Ok(done)
}

/// Runs that are to share files.
#[derive(Default)]
struct Unit<'a> {
    runs: Vec<&'a Live>,
    files: BTreeMap<&'a str, Vec<&'a TableFile>>,
    size: BTreeMap<&'a str, u64>,
    sources: usize,
    /// A file has rows of runs that were replaced.
    is_stale: bool,
}

impl<'a> Unit<'a> {
    fn largest(&self) -> u64 {
        self.size.values().copied().max().unwrap_or(0)
    }

    fn join(&mut self, other: Unit<'a>) {
        self.runs.extend(other.runs);
        self.sources += other.sources;
        self.is_stale |= other.is_stale;
        for (table, files) in other.files {
            self.files.entry(table).or_default().extend(files);
        }
        for (table, size) in other.size {
            *self.size.entry(table).or_default() += size;
        }
    }
}

/// Groups a suite's runs so that the largest file of a group is at most `target`. Groups that stay as they are left out.
fn units<'a>(
    lake: &Lake,
    suite: &str,
    runs: &'a BTreeMap<String, Live>,
    files: &'a BTreeMap<String, Vec<TableFile>>,
    target: u64,
) -> Result<Vec<Unit<'a>>> {
    // What stands in the same files goes together. A file of runs that were all replaced belongs to none.
    let mut together: BTreeMap<String, Unit<'a>> = BTreeMap::new();
    for run in runs.values().filter(|run| run.suite == suite) {
        let stem = run.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        together.entry(stem).or_default().runs.push(run);
    }
    let mut dead: BTreeMap<&str, Vec<&TableFile>> = BTreeMap::new();
    for (table, files) in files {
        for file in files.iter().filter(|file| file.suite == suite) {
            match together.get_mut(&file.stem) {
                Some(unit) => {
                    unit.files.entry(table).or_default().push(file);
                    let size = std::fs::metadata(lake.root().join(&file.path))?.len();
                    *unit.size.entry(table).or_default() += size;
                    unit.sources = 1;
                    unit.is_stale |= table == "manifest"
                        && Source::open(&lake.root().join(&file.path))?.rows() > unit.runs.len() as i64;
                }
                None => dead.entry(table).or_default().push(file),
            }
        }
    }
    let mut units: Vec<Unit<'a>> = Vec::new();
    for unit in together.into_values() {
        match units.last_mut().filter(|last| last.largest() + unit.largest() <= target) {
            Some(last) => last.join(unit),
            None => units.push(unit),
        }
    }
    let all_stay = units.iter().all(|unit| unit.sources < 2 && !unit.is_stale);
    if all_stay
        && !dead.is_empty()
        && let Some(first) = units.first_mut()
    {
        // Dead files go with a merge.
        first.is_stale = true;
    }
    units.retain(|unit| unit.sources > 1 || unit.is_stale);
    if let Some(first) = units.first_mut() {
        for (table, files) in dead {
            first.files.entry(table).or_default().extend(files);
        }
    }
    Ok(units)
}

/// Writes a group's files, and lets them take the place of the old ones.
fn merge(lake: &Lake, suite: &str, unit: &Unit<'_>, grace: Duration, done: &mut Compacted) -> Result<()> {
    let (stage, part) = {
        let commit = Commit::begin(lake)?;
        let part = commit.next_part()?;
        (commit.stage(&format!("part-{part}"))?, part)
    };
    let counts: BTreeSet<(&str, i64)> = unit.runs.iter().map(|run| (&*run.run, run.part)).collect();
    let mut first = Journal::default();
    let mut last = Journal::default();
    for (table, files) in &unit.files {
        let name = format!("{table}.parquet");
        let rows = merged(lake, files, &counts, part)?;
        let notes = files.first().map(|file| Source::open(&lake.root().join(&file.path))).transpose()?;
        let mut notes = notes.map(|source| source.notes()).unwrap_or_default();
        notes.retain(|note| note.key != "kprism.run_id");
        let mut sink = Sink::create(&stage.folder.join(&name), table, &rows, notes)?;
        sink.write(rows)?;
        done.bytes_after += sink.finish()?;
        let rename = (stage.relative.join(&name), Lake::part_file(table, suite, part));
        match *table {
            "manifest" => last.manifest.push(rename),
            _ => first.data.push(rename),
        }
        last.remove.extend(files.iter().map(|file| file.path.clone()));
        done.files_before += files.len();
        done.files_after += 1;
        for file in files {
            done.bytes_before += std::fs::metadata(lake.root().join(&file.path))?.len();
        }
    }
    // Others list the tables one after the other: those that see the new manifest have seen the new files.
    Commit::begin(lake)?.put(&first)?;
    std::thread::sleep(grace);
    let remove = std::mem::take(&mut last.remove);
    Commit::begin(lake)?.put(&last)?;
    std::thread::sleep(grace);
    Commit::begin(lake)?.put(&Journal { remove, ..Journal::default() })?;
    done.runs += unit.runs.len();
    Ok(())
}

/// The rows of many files that count, with columns united by name, sorted.
fn merged(
    lake: &Lake,
    files: &[&TableFile],
    counts: &BTreeSet<(&str, i64)>,
    part: i64,
) -> Result<Vec<Column>> {
    let mut all: Vec<Column> = Vec::new();
    let mut rows = 0;
    for file in files {
        let path = lake.root().join(&file.path);
        let source = Source::open(&path)?;
        unite(&mut all, source.columns()?, rows, &path)?;
        for group in 0..source.groups() {
            let columns = live_rows(source.group(group)?, counts).with_context(|| {
                format!("{}: no columns run_id and part: not a file of a lake", path.display())
            })?;
            let more = columns.first().map_or(0, |column| column.values.len());
            unite(&mut all, columns, rows, &path)?;
            rows += more;
            all.iter_mut().for_each(|column| column.values.pad(rows));
        }
    }
    for column in &mut all {
        if column.name == "part" {
            column.values = Values::Int(vec![Some(part); rows]);
        }
    }
    let order = order(&all, rows);
    for column in &mut all {
        column.values = column.values.pick(&order);
    }
    Ok(all)
}

fn unite(all: &mut Vec<Column>, more: Vec<Column>, rows: usize, path: &Path) -> Result<()> {
    for column in more {
        match all.iter_mut().find(|old| old.name == column.name) {
            Some(old) => {
                if !old.values.append(column.values) {
                    bail!(
                        "{}: column {}: another type than in other files of the lake",
                        path.display(),
                        column.name
                    );
                }
            }
            None => {
                let mut values = column.values.none();
                values.pad(rows);
                values.append(column.values);
                all.push(Column { name: column.name, values });
            }
        }
    }
    Ok(())
}

/// Leaves out rows of runs that were replaced.
fn live_rows(columns: Vec<Column>, counts: &BTreeSet<(&str, i64)>) -> Option<Vec<Column>> {
    let values = |name: &str| columns.iter().find(|column| column.name == name).map(|column| &column.values);
    let rows = columns.first().map_or(0, |column| column.values.len());
    let (runs, parts) = (values("run_id")?, values("part")?);
    let counts = |row: usize| {
        let part = parts.ints().get(row).copied().flatten().unwrap_or(0);
        runs.str_at(row).is_some_and(|run| counts.contains(&(run, part)))
    };
    let picked: Vec<usize> = (0..rows).filter(|&row| counts(row)).collect();
    Some(match picked.len() == rows {
        true => columns,
        false => {
            columns.iter().map(|c| Column { name: c.name.clone(), values: c.values.pick(&picked) }).collect()
        }
    })
}

/// Rows that are asked for together stand together: by function, then by run and time.
const ORDER: [&str; 8] =
    ["name_key", "func_key", "stack_key", "source_file", "source_line", "run_id", "start_ns", "time_ns"];

fn order(columns: &[Column], rows: usize) -> Vec<usize> {
    let keys: Vec<&Values> = ORDER
        .iter()
        .filter_map(|name| columns.iter().find(|column| column.name == *name).map(|column| &column.values))
        .collect();
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by(|&a, &b| {
        let compare = |values: &&Values| match values {
            Values::Int(v) => v[a].cmp(&v[b]),
            Values::Text(v) => v[a].as_ref().map(|t| t.data()).cmp(&v[b].as_ref().map(|t| t.data())),
            _ => std::cmp::Ordering::Equal,
        };
        keys.iter().map(compare).find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    order
}
