// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one shape of all reports as JSON, so that a script finds rows, what was left out, and the account in the same places
//! whatever the instrument.
//!
//! In: facts on a run, its account, its tables. Out: `run` with `account` in it; the rows of a report's only table as `rows`,
//! or each table of an overview by its name; `hidden`, the number of rows that `--limit` left out of all of them.

use kprism_store::{Account, Manifest};
use serde_json::{Value, json};

use crate::table::Table;

/// The facts of the run that every report states. Counters of gcov need not belong to a run.
#[must_use]
pub fn run(manifest: Option<&Manifest>, account: Option<&Account>) -> Value {
    let kernel = manifest.and_then(|m| m.kernel.as_ref()).map(|kernel| &kernel.release);
    json!({
        "command": manifest.map(|m| m.command.join(" ")),
        "kernel": kernel,
        "stopped": manifest.and_then(|m| m.stopped.as_ref()),
        "account": account,
    })
}

/// A report of one table.
#[must_use]
pub fn report(run: Value, table: &Table) -> Value {
    json!({"run": run, "rows": table.to_json(), "hidden": table.hidden})
}

/// An overview of several tables.
#[must_use]
pub fn overview<'t>(run: Value, tables: impl IntoIterator<Item = (&'t str, &'t Table)>) -> Value {
    let mut value = json!({"run": run});
    let mut hidden = 0;
    for (name, table) in tables {
        value[name] = table.to_json();
        hidden += table.hidden;
    }
    value["hidden"] = hidden.into();
    value
}
