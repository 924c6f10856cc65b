// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runs of a lake. Input: the files of `manifest`. Output: each run once, with the part in which its rows count.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::layout::{Lake, SCHEMA, TableFile};
use crate::rows::{Column, Source};

/// A run in a lake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// Its id.
    pub run: String,
    /// The part in which its rows count.
    pub part: i64,
    /// Its suite.
    pub suite: String,
    /// The file of `manifest` that says so, relative to the lake.
    pub file: PathBuf,
}

/// All runs, by id.
///
/// # Errors
/// A file of `manifest` cannot be read.
pub fn live(lake: &Lake) -> Result<BTreeMap<String, Live>> {
    let mut all: BTreeMap<String, Live> = BTreeMap::new();
    for file in lake.files("manifest")? {
        for found in rows_of(lake, &file)? {
            let newer = all.get(&found.run).is_none_or(|old| old.part < found.part);
            if newer {
                all.insert(found.run.clone(), found);
            }
        }
    }
    Ok(all)
}

/// One run, if the lake has it. Only files that may name it are read.
///
/// # Errors
/// A file of `manifest` cannot be read.
pub fn find(lake: &Lake, run: &str) -> Result<Option<Live>> {
    let mut best: Option<Live> = None;
    for file in lake.files("manifest")? {
        if file.stem == run || file.part().is_some() {
            let rows = rows_of(lake, &file)?.into_iter().filter(|row| row.run == run);
            best = best.into_iter().chain(rows).max_by_key(|row| row.part);
        }
    }
    Ok(best)
}

/// The rows of a file of `manifest`.
fn rows_of(lake: &Lake, file: &TableFile) -> Result<Vec<Live>> {
    let path = lake.root().join(&file.path);
    let source = Source::open(&path)?;
    let mut rows = Vec::new();
    for group in 0..source.groups() {
        let columns = source.group(group)?;
        let column = |name: &str| {
            let found = columns.iter().find(|column: &&Column| column.name == name);
            found.with_context(|| {
                format!(
                    "{}: no column {name}: not written by `kprism lake` of schema {SCHEMA}",
                    path.display()
                )
            })
        };
        let (runs, parts) = (column("run_id")?, column("part")?);
        for row in 0..runs.values.len() {
            let run = runs
                .values
                .str_at(row)
                .with_context(|| format!("{}: row {row}: no run_id", path.display()))?;
            let part = parts.values.ints().get(row).copied().flatten().unwrap_or(0);
            let (suite, file) = (file.suite.clone(), file.path.clone());
            rows.push(Live { run: run.to_owned(), part, suite, file });
        }
    }
    Ok(rows)
}

/// The labels of a run, as the lake has them.
///
/// # Errors
/// A file of `labels` cannot be read.
pub fn labels(lake: &Lake, run: &Live) -> Result<BTreeMap<String, String>> {
    let rows = texts(lake, "labels", run, ["label_key", "label_value"])?;
    Ok(rows.into_iter().filter_map(|[key, value]| Some((key?, value?))).collect())
}

/// Columns of text of a run's rows in a table. A file that lacks one of them has no rows.
///
/// # Errors
/// A file of the table cannot be read.
pub fn texts<const N: usize>(
    lake: &Lake,
    table: &str,
    run: &Live,
    names: [&str; N],
) -> Result<Vec<[Option<String>; N]>> {
    let mut rows = Vec::new();
    let wanted = |file: &TableFile| match file.part() {
        Some(part) => part == run.part,
        None => file.stem == run.run,
    };
    for file in lake.files(table)?.iter().filter(|file| file.suite == run.suite && wanted(file)) {
        let source = Source::open(&lake.root().join(&file.path))?;
        for group in 0..source.groups() {
            let columns = source.group(group)?;
            let column =
                |name: &str| columns.iter().find(|column| column.name == name).map(|column| &column.values);
            let found = names.map(column);
            let Some(runs) = column("run_id").filter(|_| found.iter().all(Option::is_some)) else { continue };
            for row in (0..runs.len()).filter(|&row| runs.str_at(row) == Some(&run.run)) {
                rows.push(
                    found.map(|values| values.and_then(|values| values.str_at(row)).map(str::to_owned)),
                );
            }
        }
    }
    Ok(rows)
}
