// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one shape of all reports as JSON, so that a script finds rows, what was left out, and the account in the same places
//! whatever the instrument.
//!
//! In: facts on a run, its account, its tables. Out: `run` with `account` in it; the rows of a report's only table as `rows`,
//! or each table of an overview by its name; `hidden`, the number of rows that `--limit` left out of all of them.

use kprism_store::{Account, Entry, Fate, Manifest, PLACES};
use serde_json::{Value, json};

use crate::table::Table;

/// The facts of the run that every report states. Counters of gcov need not belong to a run.
#[must_use]
pub fn run(manifest: Option<&Manifest>, account: Option<&Account>) -> Value {
    let kernel = manifest.and_then(|m| m.kernel.as_ref()).map(|kernel| &kernel.release);
    let mut value = json!({
        "command": manifest.map(|m| m.command.join(" ")),
        "kernel": kernel,
        "stopped": manifest.and_then(|m| m.stopped.as_ref()),
        "account": account,
    });
    // Only where not all was recorded.
    let part = manifest.map(Manifest::recorded_part).unwrap_or_default();
    if !part.is_empty() {
        value["recorded_part"] = json!(part);
    }
    let guest = manifest.map(|m| m.conditions(None)).unwrap_or_default();
    if !guest.is_empty() {
        value["guest"] = json!(guest);
    }
    value
}

/// One account of several recordings: counts of one fate and unit are added up, and places name the recording. A recording
/// without an account is not understood.
#[must_use]
pub fn account_of_all<'a>(recordings: impl IntoIterator<Item = (&'a str, Option<&'a Account>)>) -> Account {
    let mut all = Account::new();
    let mut unknown = Vec::new();
    for (name, account) in recordings {
        let Some(account) = account.filter(|account| !account.is_empty()) else {
            unknown.push(name.to_owned());
            continue;
        };
        for entry in &account.entries {
            let mut places: Vec<String> = entry.places.iter().map(|at| format!("{name}: {at}")).collect();
            if places.is_empty() && entry.is_fault() {
                places.push(name.to_owned());
            }
            let same = |other: &&mut Entry| (other.fate, &other.unit) == (entry.fate, &entry.unit);
            if let Some(sum) = all.entries.iter_mut().find(same) {
                sum.count = sum.count.zip(entry.count).map(|(one, other)| one.saturating_add(other));
                sum.places.extend(places);
                sum.places.truncate(PLACES);
            } else {
                all = all.at(entry.fate, &entry.unit, entry.count, places);
            }
        }
    }
    match unknown.len() as u64 {
        0 => all,
        n => all.at(Fate::NotUnderstood, "recordings without an account", n, unknown),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_recording_does_not_know_nobody_knows() {
        let one = Account::new().with(Fate::Kept, "calls", 3).with(Fate::Lost, "calls", 0);
        let two = Account::new().with(Fate::Kept, "calls", 4).at(Fate::Lost, "calls", 2, vec!["here".into()]);
        let all = account_of_all([("a", Some(&one)), ("b", Some(&one))]);
        assert_eq!((all.count(Fate::Kept, "calls"), all.is_whole()), (Some(6), true));
        let all = account_of_all([("a", Some(&one)), ("b", Some(&two))]);
        assert_eq!(
            (all.count(Fate::Lost, "calls"), &all.entries[1].places[..]),
            (Some(2), &["b: here".into()][..])
        );
        let unknown = Account::new().with(Fate::Lost, "calls", None);
        assert_eq!(
            account_of_all([("a", Some(&two)), ("b", Some(&unknown))]).count(Fate::Lost, "calls"),
            None
        );
        assert!(!account_of_all([("a", Some(&one)), ("b", None)]).is_whole());
        assert!(!account_of_all([]).is_whole());
    }
}
