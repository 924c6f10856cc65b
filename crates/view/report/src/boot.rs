// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of a boot, and an HTML page with its chart; two boots side by side.

use std::fmt::Write as _;

use kprism_boot::{Boot, Compared};
use kprism_store::{Account, Condition};
use serde::Serialize;
use serde_json::{Value, json};

use crate::environment::Compared as Environments;
use crate::html::{self, HtmlError};
use crate::shape;
use crate::table::{Cell, Column, Style, Table};
use kprism_profile::units;

const fn column(key: &'static str, head: &'static str) -> Column {
    Column { key, head: std::borrow::Cow::Borrowed(head) }
}

/// A cell for a name that may be unknown.
fn named(name: &str) -> Cell {
    if name.is_empty() { Cell::Nothing } else { Cell::Text(name.to_owned()) }
}

/// All initcalls, the longest first.
pub fn initcalls(boot: &Boot) -> Table {
    let columns = vec![
        column("duration_ns", "duration"),
        column("start_ns", "start"),
        column("level", "level"),
        column("pid", "task"),
        column("result", "result"),
        column("name", "initcall"),
        column("module", "module"),
    ];
    let mut calls: Vec<_> = boot.initcalls.iter().collect();
    calls.sort_by_key(|call| (std::cmp::Reverse(call.ns), call.start_ns));
    let row = |call: &&kprism_boot::Initcall| {
        vec![
            Cell::Ns(call.ns),
            Cell::Ns(call.start_ns),
            named(&call.level),
            Cell::Int(call.pid.into()),
            call.result.map_or(Cell::Nothing, |result| Cell::Text(result.to_string())),
            Cell::Text(call.name.clone()),
            call.module.clone().map_or(Cell::Nothing, Cell::Text),
        ]
    };
    Table { columns, rows: calls.iter().map(row).collect(), hidden: 0 }
}

/// Long calls summed up by function, the longest single call first.
pub fn functions(boot: &Boot) -> Table {
    let mut all: std::collections::BTreeMap<&str, (u64, u64, u64)> = std::collections::BTreeMap::new();
    for call in &boot.calls {
        let (count, sum, max) = all.entry(&call.name).or_default();
        (*count, *sum, *max) = (*count + 1, sum.saturating_add(call.ns), (*max).max(call.ns));
    }
    let mut rows: Vec<_> = all.into_iter().collect();
    rows.sort_by_key(|&(name, (_, _, max))| (std::cmp::Reverse(max), name));
    let columns = vec![
        column("max_ns", "longest"),
        column("count", "calls"),
        column("total_ns", "total"),
        column("name", "function"),
    ];
    let row = |(name, (count, sum, max)): (&str, (u64, u64, u64))| {
        vec![Cell::Ns(max), Cell::Int(count), Cell::Ns(sum), Cell::Text(name.to_owned())]
    };
    Table { columns, rows: rows.into_iter().map(row).collect(), hidden: 0 }
}

/// Time in initcalls by level, in boot order.
pub fn levels(boot: &Boot) -> Table {
    let mut all: Vec<(&str, u64, u64)> = Vec::new();
    for call in &boot.initcalls {
        match all.iter_mut().find(|(level, ..)| *level == call.level) {
            Some((_, count, ns)) => (*count, *ns) = (*count + 1, ns.saturating_add(call.ns)),
            None => all.push((&call.level, 1, call.ns)),
        }
    }
    let columns = vec![column("level", "level"), column("count", "initcalls"), column("total_ns", "total")];
    let row = |(level, count, ns): (&str, u64, u64)| vec![named(level), Cell::Int(count), Cell::Ns(ns)];
    Table { columns, rows: all.into_iter().map(row).collect(), hidden: 0 }
}

/// Changes, the largest difference first.
pub fn changes(compared: &Compared) -> Table {
    let columns = vec![
        column("diff_ns", "diff"),
        column("old_ns", "OLD"),
        column("new_ns", "NEW"),
        column("level", "level"),
        column("name", "initcall"),
        column("module", "module"),
    ];
    let side = |side: Option<(u64, u64)>| side.map_or(Cell::Nothing, |(_, ns)| Cell::Ns(ns));
    let row = |change: &kprism_boot::Change| {
        vec![
            Cell::NsDiff(change.ns()),
            side(change.old),
            side(change.new),
            named(&change.level),
            Cell::Text(change.name.clone()),
            change.module.clone().map_or(Cell::Nothing, Cell::Text),
        ]
    };
    let rows = compared.changes.iter().filter(|change| change.ns() != 0).map(row).collect();
    Table { columns, rows, hidden: 0 }
}

/// Two boots compared, as text; `changes` is the table of [`changes`].
pub fn compared_text(compared: &Compared, changes: &Table, style: Style) -> String {
    let [old_span, new_span] = compared.span_ns.map(units::duration);
    let [old_sum, new_sum] = compared.initcall_ns.map(units::duration);
    let table = match changes.rows.is_empty() {
        true => "no initcall differs\n".to_owned(),
        false => changes.to_text(style),
    };
    format!(
        "from the first initcall to the last: {old_span} → {new_span}; in initcalls {old_sum} → {new_sum}\n\n{table}"
    )
}

/// The same as JSON.
pub fn compared_json(compared: &Compared, changes: &Table) -> Value {
    json!({
        "span_ns": compared.span_ns, "initcall_ns": compared.initcall_ns, "initcalls": changes.to_json(),
        "hidden": changes.hidden,
    })
}

/// A summary of the boot in a few lines, which a terminal shows before the tables.
pub fn headline(boot: &Boot) -> String {
    let sum = boot.initcalls.iter().map(|call| call.ns).sum();
    let failed = boot.initcalls.iter().filter(|call| call.result.is_some_and(|result| result < 0)).count();
    let mut text = format!(
        "{} initcalls, {} in them; {failed} returned an error",
        units::grouped(boot.initcalls.len() as u64),
        units::duration(sum)
    );
    if !boot.calls.is_empty() {
        write!(text, "; {} long calls", units::grouped(boot.calls.len() as u64)).ok();
    }
    write!(text, "; {} events lost", units::grouped(boot.lost)).ok();
    if boot.coarse > 0 {
        let what = "initcalls have the log's times, coarse early on: there are no events of them";
        write!(text, "\n{} {what}", units::grouped(boot.coarse as u64)).ok();
    }
    if boot.unnamed > 0 {
        write!(
            text,
            "\n{} initcalls are not in the log: their names are what is at their address now",
            boot.unnamed
        )
        .ok();
    }
    text.push('\n');
    text
}

/// The whole boot for a terminal, with `limit` rows per table; 0 for all.
pub fn to_text(boot: &Boot, limit: usize, style: Style) -> String {
    let mut text = headline(boot);
    for (title, mut table) in [
        ("levels", levels(boot)),
        ("slowest initcalls", initcalls(boot)),
        ("longest functions", functions(boot)),
    ] {
        if table.rows.is_empty() {
            continue;
        }
        // There are only a dozen levels, and readers look for all of them.
        if limit > 0 && title != "levels" {
            table.limit(limit);
        }
        write!(text, "\n{}\n{}", style.bold(title), table.to_text(style)).ok();
    }
    text
}

/// The boot as JSON, `limit` rows of each table (0: all); `run` is what is said of the run.
pub fn to_json(boot: &Boot, run: Value, limit: usize) -> Value {
    let mut tables =
        [("initcalls", initcalls(boot)), ("functions", functions(boot)), ("levels", levels(boot))];
    if limit > 0 {
        tables.iter_mut().filter(|(name, _)| *name != "levels").for_each(|(_, table)| table.limit(limit));
    }
    let mut value = shape::overview(run, tables.iter().map(|(name, table)| (*name, table)));
    value["unnamed"] = json!(boot.unnamed);
    value["coarse"] = json!(boot.coarse);
    value["lost_events"] = json!(boot.lost);
    value
}

type InitcallRow = (usize, i64, usize, u32, u64, u64, Option<i64>);

/// The data of one boot in a page. Names are stored once and referred to by number.
#[derive(Serialize)]
struct Side<'a> {
    title: &'a str,
    /// The range of all times, ns.
    span: (u64, u64),
    names: Vec<&'a str>,
    tasks: &'a [(u32, String)],
    /// `name, module (-1 if none), level, pid, start, ns, result (null if none)`.
    initcalls: Vec<InitcallRow>,
    /// `name, pid, depth, start, ns`.
    calls: Vec<(usize, u32, u32, u64, u64)>,
    notes: String,
}

/// Maximum of long calls in a page; the shortest are left out.
const CALLS: usize = 40_000;

fn side<'a>(boot: &'a Boot, title: &'a str) -> Side<'a> {
    let mut names: Vec<&str> = Vec::new();
    let mut numbers = std::collections::HashMap::new();
    let mut number = |name: &'a str| {
        *numbers.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() - 1
        })
    };
    let initcalls = boot
        .initcalls
        .iter()
        .map(|c| {
            let module = c.module.as_deref().map_or(-1, |module| number(module) as i64);
            (number(&c.name), module, number(&c.level), c.pid, c.start_ns, c.ns, c.result)
        })
        .collect();
    let mut kept: Vec<&kprism_boot::LongCall> = boot.calls.iter().collect();
    let mut notes = headline(boot);
    if kept.len() > CALLS {
        kept.sort_by_key(|call| (std::cmp::Reverse(call.ns), call.start_ns));
        let left_out = units::grouped((kept.len() - CALLS) as u64);
        writeln!(notes, "{left_out} shorter calls are left out of the chart").ok();
        kept.truncate(CALLS);
        kept.sort_by_key(|call| (call.start_ns, std::cmp::Reverse(call.ns)));
    }
    let calls = kept.into_iter().map(|c| (number(&c.name), c.pid, c.depth, c.start_ns, c.ns)).collect();
    Side { title, span: boot.span(), names, tasks: &boot.tasks, initcalls, calls, notes }
}

/// Renders the boot's chart with its tables as one file. `guest`: what the guest does otherwise than a machine.
///
/// # Errors
/// [`HtmlError`]; it does not depend on the boot.
pub fn render(boot: &Boot, title: &str, account: &Account, guest: &[Condition]) -> Result<String, HtmlError> {
    let (css, js) = (include_str!("../assets/boot.css"), include_str!("../assets/boot.js"));
    html::page(title, &[("", Some(account))], guest, (css, js), &[side(boot, title)])
}

/// Renders two boots' charts, one above the other on one scale.
///
/// # Errors
/// As [`render`].
pub fn render_two(
    old: (&Boot, &str),
    new: (&Boot, &str),
    accounts: [Option<&Account>; 2],
    compared: Option<&Environments>,
) -> Result<String, HtmlError> {
    let (css, js) = (include_str!("../assets/boot.css"), include_str!("../assets/boot.js"));
    let title = format!("{} and {}", old.1, new.1);
    html::page_of_two(&title, accounts, compared, (css, js), &[side(old.0, old.1), side(new.0, new.1)])
}
