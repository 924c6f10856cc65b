// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events by name and task, of a trace that holds no calls of functions.

use kprism_durations::events::Seen;
use kprism_profile::units::grouped;
use kprism_store::Account;
use serde_json::{Value, json};

use crate::header::{account_text, head};
use crate::shape;
use crate::table::{Cell, Style, Table};

/// A row for each event and task.
#[must_use]
pub fn events(rows: &[Seen]) -> Table {
    let cells = |of: &Seen| {
        vec![
            Cell::Int(of.count),
            Cell::Text(of.event.clone()),
            Cell::Int(of.pid.into()),
            Cell::Text(of.comm.clone()),
            Cell::Ns(of.first_ns),
            Cell::Ns(of.last_ns),
        ]
    };
    let columns = [
        ("count", "count"),
        ("event", "event"),
        ("pid", "pid"),
        ("comm", "comm"),
        ("first_ns", "first"),
        ("last_ns", "last"),
    ];
    Table::new(&columns, rows.iter().map(cells).collect())
}

/// The table with the account, as JSON. `total` is the number of events of all tasks.
#[must_use]
pub fn events_json(total: u64, table: &Table, account: Option<&Account>) -> Value {
    let counts = json!({"events": total, "calls": 0, "account": account});
    shape::report(counts, table)
}

/// The same as text.
#[must_use]
pub fn events_text(total: u64, table: &Table, account: Option<&Account>, style: Style) -> String {
    format!(
        "{} events and no calls of functions; one by one: kprism script\n{}\n{}{}",
        grouped(total),
        head(account, style),
        table.to_text(style),
        account_text(account, style)
    )
}
