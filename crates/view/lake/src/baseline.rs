// SPDX-License-Identifier: MIT OR Apache-2.0
//! Baselines for `kprism gate` from a lake. Input: a lake, a suite, a command. Output: the numbers of the newest runs of that command,
//! which `lake add` keeps in the table `gate_summaries`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};

use crate::commit::reading;
use crate::layout::Lake;
use crate::live::{live, texts};

/// The table with a run's numbers, as JSON.
pub(crate) const TABLE: &str = "gate_summaries";
/// Its column.
pub(crate) const COLUMN: &str = "summary_json";

/// A run's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// The run.
    pub run_id: String,
    /// When it was made.
    pub created: String,
    /// The numbers as JSON, as `kprism gate --save` writes them.
    pub summary: String,
}

/// Whether a folder is a lake, and not a run.
pub fn is_lake(path: &Path) -> bool {
    path.join("_lake").is_dir() && !path.join("manifest.json").exists()
}

/// The newest `count` runs of a command, the oldest of them first. The run `but` does not count.
///
/// # Errors
/// There are none, or they are of several suites and none is named.
pub fn newest(
    lake: &Lake,
    suite: Option<&str>,
    command: &str,
    but: &str,
    count: usize,
) -> Result<Vec<Baseline>> {
    // Files that are listed stay until all is read.
    let (_reading, runs) = reading(lake, || live(lake))?;
    let place = lake.root().display();
    let mut found = Vec::new();
    for run in runs.into_values() {
        if run.run == but || suite.is_some_and(|suite| run.suite != suite) {
            continue;
        }
        let [Some(created), Some(of)] =
            texts(lake, "manifest", &run, ["created", "command"])?.into_iter().next().unwrap_or([None, None])
        else {
            continue;
        };
        if of == command {
            found.push((created, run));
        }
    }
    let suites: BTreeSet<&str> = found.iter().map(|(_, run)| run.suite.as_str()).collect();
    if suites.len() > 1 {
        let suites: Vec<&str> = suites.into_iter().collect();
        bail!("{place}: has runs of this command in the suites {}: name one by --suite", suites.join(", "));
    }
    if found.is_empty() {
        bail!(
            "{place}: has no other run of `{command}`{}",
            suite.map(|s| format!(" in the suite {s}")).unwrap_or_default()
        );
    }
    found.sort_by(|a, b| (&a.0, &a.1.run).cmp(&(&b.0, &b.1.run)));
    let newest = found.split_off(found.len().saturating_sub(count.max(1)));
    let mut all = Vec::new();
    for (created, run) in newest {
        let summary = texts(lake, TABLE, &run, [COLUMN])?.into_iter().next().and_then(|[text]| text);
        let Some(summary) = summary else {
            bail!("{place}: run {} has no numbers for the gate: add it again with --replace", run.run)
        };
        all.push(Baseline { run_id: run.run, created, summary });
    }
    Ok(all)
}
