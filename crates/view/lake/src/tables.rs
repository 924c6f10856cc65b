// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run's tables, as the lake takes them. Input: a run folder. Output: files with the columns of the schema.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kprism_session::Progress;
use kprism_store::{Manifest, Run};
use sha2::{Digest as _, Sha256};

use crate::layout::names;
use crate::rows::{Column, Sink, Values};

/// A run's identity.
pub struct Facts {
    /// Its folder.
    pub folder: PathBuf,
    /// Its id: 32 hexadecimal digits.
    pub run_id: String,
    /// The day it was made, in UTC.
    pub day: String,
    run: Run,
    manifest: Manifest,
}

/// Reads what a run is, and decodes it if its tables are missing.
///
/// # Errors
/// It is no run, or cannot be decoded.
pub fn facts(folder: &Path, progress: &Progress) -> Result<Facts> {
    let run = Run::open(folder)?;
    let manifest = run.manifest()?;
    let path = run.manifest_path();
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let run_id: String = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let day = manifest.created.get(..10).filter(|day| day.bytes().all(|b| b.is_ascii_digit() || b == b'-'));
    let Some(day) = day.map(str::to_owned) else {
        bail!(
            "{}: created {:?}: expected a date such as 2026-11-25T08:00:00Z",
            path.display(),
            manifest.created
        )
    };
    if names(&run.tables())?.is_empty() {
        kprism_session::open_profile(folder, progress)?;
    }
    Ok(Facts { folder: folder.to_path_buf(), run_id, day, run, manifest })
}

/// The run's labels and those that were given.
pub fn all_labels(_: &Facts, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    given.clone()
}

/// The tables of a run: names, and the files with them. `manifest` and `labels` are written to `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn write(
    facts: &Facts,
    labels: &BTreeMap<String, String>,
    folder: &Path,
) -> Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for name in names(&facts.run.tables())? {
        if let Some(table) = name.strip_suffix(".parquet") {
            all.push((table.to_owned(), facts.run.table(table)));
        }
    }
    let mut own = |table: &str, columns: Vec<Column>| -> Result<()> {
        let path = folder.join(format!("{table}.raw"));
        let mut sink = Sink::create(&path, table, &columns, Vec::new())?;
        sink.write(columns)?;
        sink.finish()?;
        all.push((table.to_owned(), path));
        Ok(())
    };
    let labels = all_labels(facts, labels);
    own(
        "labels",
        vec![
            Column::text("label_key", labels.keys().map(|key| Some(&**key))),
            Column::text("label_value", labels.values().map(|value| Some(&**value))),
        ],
    )?;
    let m = &facts.manifest;
    let kernel = m.kernel.as_ref();
    let command = m.command.join(" ");
    let kind = serde_json::to_value(m.kind)?;
    own(
        "manifest",
        vec![
            Column::text("run_kind", [kind.as_str()]),
            Column::text("command", [Some(&*command)]),
            Column::text("kernel_release", [kernel.map(|kernel| &*kernel.release)]),
            Column::text("kernel_build_id", [kernel.map(|kernel| &*kernel.build_id)]),
            Column::text("created", [Some(&*m.created)]),
            Column::text("clock", [Some(&*m.clock.name)]),
            Column::int("vcpus", [Some(i64::from(m.vcpus))]),
            Column::int("exit_code", [m.exit_code.map(i64::from)]),
        ],
    )?;
    Ok(all)
}

/// Names of columns of schema 1, and those of schema 2: of a table (or of any), the old, the new.
const NAMES: [(&str, &str, &str); 20] = [
    ("", "func", "func_id"),
    ("", "task", "task_id"),
    ("", "node", "node_id"),
    ("", "parent", "parent_id"),
    ("", "delta", "delta_id"),
    ("functions", "start", "address"),
    ("functions", "module", "module_name"),
    ("functions", "kernel", "is_kernel"),
    ("tasks", "root", "root_node_id"),
    ("deltas", "from", "from_marker"),
    ("deltas", "to", "to_marker"),
    ("deltas", "scope", "counted_per"),
    ("delta_bins", "of", "quantity"),
    ("delta_bins", "low", "low_value"),
    ("delta_bins", "high", "high_value"),
    ("delta_bins", "count", "intervals"),
    ("delta_longest", "ns", "duration_ns"),
    ("delta_sites", "count", "intervals"),
    ("delta_sites", "ns", "total_ns"),
    ("counts", "count", "executions"),
];

/// Names and keys of the schema.
pub fn lift(table: &str, mut columns: Vec<Column>) -> Vec<Column> {
    for column in &mut columns {
        if let Some((_, _, name)) =
            NAMES.iter().find(|(of, old, _)| (of.is_empty() || *of == table) && *old == column.name)
        {
            column.name = (*name).into();
        }
    }
    if table == "functions" && !columns.iter().any(|column| column.name == "name_key") {
        let get = |name: &str| {
            columns.iter().find(|column| column.name == name).map(|column| column.values.clone())
        };
        let (names, modules) =
            (get("name").unwrap_or(Values::Text(vec![])), get("module_name").unwrap_or(Values::Text(vec![])));
        let key = |row: usize| {
            let text = format!("{}\0{}", modules.str_at(row)?, names.str_at(row)?);
            let digest = Sha256::digest(text.as_bytes());
            Some(i64::from_le_bytes(digest.first_chunk::<8>().copied()?))
        };
        let keys = (0..names.len()).map(key).collect::<Vec<_>>();
        columns.push(Column::int("name_key", keys));
    }
    columns
}
