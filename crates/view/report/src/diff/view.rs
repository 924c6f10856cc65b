// SPDX-License-Identifier: MIT OR Apache-2.0
//! A comparison as tables and JSON.

use kprism_profile::NO_PARENT;
use serde_json::{Value, json};

use super::{Amount, Diff, FunctionAmount, SIDES, Side};
use crate::calltree::Weight;
use crate::compared::only_of;
use crate::environment::UNKNOWN;
use crate::table::{Cell, Style, Table};
use kprism_profile::units;

/// Divisor of the numbers: none, or the calls of the compared function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Sums as they are.
    Sums,
    /// Means of one call, in OLD and in NEW.
    PerCall([u64; 2]),
}

impl Scale {
    /// A value of one run, rounded to the nearest integer.
    pub fn apply(self, side: Side, value: u64) -> u64 {
        match self {
            Scale::Sums => value,
            Scale::PerCall(calls) => {
                let calls = u128::from(calls[side as usize].max(1));
                ((u128::from(value) + calls / 2) / calls) as u64
            }
        }
    }

    fn calls(self, side: Side, value: u64) -> Cell {
        match self {
            Scale::Sums => Cell::Int(value),
            Scale::PerCall(calls) => Cell::Real(value as f64 / calls[side as usize].max(1) as f64),
        }
    }
}

fn difference(old: u64, new: u64) -> i64 {
    let size = i64::try_from(old.abs_diff(new)).unwrap_or(i64::MAX);
    if new < old { -size } else { size }
}

/// The difference, if both are known.
fn both(pair: [Option<u64>; 2]) -> Option<i64> {
    Some(difference(pair[0]?, pair[1]?))
}

/// The numbers of a function in both runs; `None` is not known.
struct Cells<'a> {
    diff: &'a Diff,
    scale: Scale,
    rows: [Option<FunctionAmount>; 2],
}

impl Cells<'_> {
    /// In a run that does not have it, the function took nothing, if that is known.
    fn side(&self, side: Side) -> Option<FunctionAmount> {
        let at = side as usize;
        self.rows[at].or_else(|| (!self.diff.unknown[at]).then(FunctionAmount::default))
    }

    fn of(&self, value: fn(&FunctionAmount) -> u64) -> [Option<u64>; 2] {
        SIDES.map(|side| Some(self.scale.apply(side, value(&self.side(side)?))))
    }

    fn insns(&self, value: fn(&FunctionAmount) -> u64) -> [Option<u64>; 2] {
        let all = self.of(value);
        SIDES.map(|side| all[side as usize].filter(|_| !self.diff.uncounted[side as usize]))
    }
}

/// A table of the functions that only one run has, or that cost more or less, sorted by the difference of their own
/// instructions or time. It has all columns; for people, select those of [`shown`] with [`Table::select`].
pub fn functions_table(diff: &Diff, weight: Weight, scale: Scale) -> Table {
    let mut rows = Vec::new();
    for row in diff.functions() {
        let func = &diff.funcs[row.func as usize];
        let change = only_of(&row.rows, diff.unknown);
        let cells = Cells { diff, scale, rows: row.rows };
        let (self_insns, total_insns) = (cells.insns(|f| f.own.insns), cells.insns(|f| f.total_insns));
        let (self_ns, total_ns) = (cells.of(|f| f.own.ns), cells.of(|f| f.total_ns));
        let calls = SIDES.map(|side| match cells.side(side) {
            Some(amount) => scale.calls(side, amount.own.calls),
            None => Cell::Nothing,
        });
        let same = |pair: [Option<u64>; 2]| pair[0] == pair[1];
        let equal =
            [self_insns, total_insns, self_ns, total_ns].into_iter().all(same) && calls[0] == calls[1];
        if equal && change.is_empty() {
            continue;
        }
        let mut line = vec![Cell::Text(change.into())];
        for pair in [self_insns, total_insns] {
            line.extend(pair.map(|value| value.map_or(Cell::Nothing, Cell::Count)));
            line.push(both(pair).map_or(Cell::Nothing, Cell::CountDiff));
        }
        for pair in [self_ns, total_ns] {
            line.extend(pair.map(|value| value.map_or(Cell::Nothing, Cell::Ns)));
            line.push(both(pair).map_or(Cell::Nothing, Cell::NsDiff));
        }
        line.extend(calls);
        line.extend([Cell::Text(func.name.clone()), Cell::Text(func.module.clone())]);
        rows.push(line);
    }
    let mut table = Table::new(
        &[
            ("change", ""),
            ("old_self_instructions", "self OLD"),
            ("new_self_instructions", "self NEW"),
            ("self_instructions_difference", "self diff"),
            ("old_total_instructions", "total OLD"),
            ("new_total_instructions", "total NEW"),
            ("total_instructions_difference", "total diff"),
            ("old_self_ns", "self OLD"),
            ("new_self_ns", "self NEW"),
            ("self_ns_difference", "self diff"),
            ("old_total_ns", "total OLD"),
            ("new_total_ns", "total NEW"),
            ("total_ns_difference", "total diff"),
            ("old_calls", "calls OLD"),
            ("new_calls", "calls NEW"),
            ("function", "function"),
            ("module", "module"),
        ],
        rows,
    );
    let key = match weight {
        Weight::Instructions => "self_instructions_difference",
        Weight::Time => "self_ns_difference",
    };
    let known = table.sort_by(key);
    debug_assert!(known.is_ok(), "a table sorts by a column of its own");
    table
}

/// The columns of [`functions_table`] that fit a terminal.
pub fn shown(weight: Weight) -> [&'static str; 11] {
    match weight {
        Weight::Instructions => [
            "self_instructions_difference",
            "old_self_instructions",
            "new_self_instructions",
            "total_instructions_difference",
            "old_total_instructions",
            "new_total_instructions",
            "old_calls",
            "new_calls",
            "change",
            "function",
            "module",
        ],
        Weight::Time => [
            "self_ns_difference",
            "old_self_ns",
            "new_self_ns",
            "total_ns_difference",
            "old_total_ns",
            "new_total_ns",
            "old_calls",
            "new_calls",
            "change",
            "function",
            "module",
        ],
    }
}

/// Number of frames of a path shown in a terminal, including the extra one.
pub const FRAMES: usize = 4;

/// A table of the paths that only one run took, the heaviest first, with at most `frames` frames of each.
pub fn paths_table(diff: &Diff, weight: Weight, scale: Scale, frames: usize) -> Table {
    let totals = diff.totals();
    let mut paths = diff.extra_paths();
    let weigh = |amount: &Amount| match weight {
        Weight::Instructions => amount.insns,
        Weight::Time => amount.ns,
    };
    paths.sort_by_key(|p| std::cmp::Reverse((scale.apply(p.side, weigh(&p.total)), weigh(&p.total))));
    let cells = paths
        .iter()
        .map(|p| {
            let whole = totals[p.side as usize].first().map_or(0, weigh);
            vec![
                Cell::Text(if p.side == Side::Old { "OLD" } else { "NEW" }.into()),
                Cell::Percent(units::percent(weigh(&p.total), whole)),
                match diff.uncounted[p.side as usize] {
                    true => Cell::Nothing,
                    false => Cell::Count(scale.apply(p.side, p.total.insns)),
                },
                Cell::Ns(scale.apply(p.side, p.total.ns)),
                scale.calls(p.side, p.total.calls),
                Cell::Text(stack(diff, p.node, frames)),
            ]
        })
        .collect();
    Table::new(
        &[
            ("only_in", "only in"),
            ("percent", "share"),
            ("instructions", "insns"),
            ("ns", "time"),
            ("calls", "calls"),
            ("path", "path"),
        ],
        cells,
    )
}

/// A path with its innermost frame first, as in the other tables.
fn stack(diff: &Diff, node: u32, frames: usize) -> String {
    let path = diff.path(node);
    let mut names: Vec<&str> = path.iter().rev().take(frames).map(|&n| diff.name(n)).collect();
    // A recording of sums has one task, whose name is that of the root.
    let root = diff.name(0);
    if names.ends_with(&[root, root]) {
        names.pop();
    }
    if path.len() > frames {
        names.push("…");
    }
    names.join(" < ")
}

/// Calls of the compared part, if it is one of calls; `None` if it is not known how many the run made.
fn invocations(diff: &Diff, side: Side) -> Option<u64> {
    let at = side as usize;
    diff.invocations.map(|calls| calls[at]).filter(|&calls| calls > 0 || !diff.unknown[at])
}

/// The cost of the compared part, with all callees; `None` if the run does not have it and that is not known to be nothing.
fn whole(diff: &Diff, side: Side) -> Option<Amount> {
    let at = side as usize;
    let has_it = diff.nodes.first().is_some_and(|root| root.amounts[at].is_some());
    (has_it || !diff.unknown[at]).then(|| diff.totals()[at].first().copied().unwrap_or_default())
}

/// A summary of both runs in one line.
pub fn headline(diff: &Diff, name: &str, scale: Scale, style: Style) -> String {
    let wholes = SIDES.map(|side| whole(diff, side));
    let of = |value: fn(&Amount) -> u64| {
        SIDES.map(|side| wholes[side as usize].as_ref().map(|whole| scale.apply(side, value(whole))))
    };
    let (insns, ns) = (of(|whole| whole.insns), of(|whole| whole.ns));
    let told =
        |value: Option<u64>, unit: fn(u64) -> String| value.map_or_else(|| "not known".to_owned(), unit);
    let times = |[old, new]: [Option<u64>; 2]| match (old, new) {
        (Some(old), Some(new)) if old > 0 => format!(" (×{:.2})", new as f64 / old as f64),
        _ => String::new(),
    };
    let calls = match diff.invocations {
        Some(_) => {
            let known =
                |side: Side| invocations(diff, side).map_or_else(|| "not known".to_owned(), units::grouped);
            format!("{} → {} calls; ", known(Side::Old), known(Side::New))
        }
        None => String::new(),
    };
    let note = match diff.shared {
        [0, 0] => String::new(),
        [old, new] => format!(
            "{} → {} of the calls share their way in and out with other system calls: only their body is counted\n",
            units::grouped(old),
            units::grouped(new)
        ),
    };
    let mean = if matches!(scale, Scale::PerCall(_)) { "per call " } else { "" };
    // Recordings of durations do not count instructions.
    let instructions = match insns {
        [Some(0), Some(0)] => String::new(),
        _ if diff.uncounted.contains(&true) => String::new(),
        [old, new] => {
            format!(
                "{} → {} instructions{}, ",
                told(old, units::count),
                told(new, units::count),
                times(insns)
            )
        }
    };
    format!(
        "{}: {calls}{mean}{instructions}{} → {} on CPU{}\n{note}",
        style.bold(&units::printable(name)),
        told(ns[0], units::duration),
        told(ns[1], units::duration),
        times(ns),
    )
}

/// The comparison as text: the headline, and the tables of functions and of paths.
pub fn to_text(diff: &Diff, name: &str, scale: Scale, tables: [&Table; 2], style: Style) -> String {
    let [functions, paths] = tables;
    let mut out = headline(diff, name, scale, style);
    out += &match functions.rows.is_empty() {
        true => "\nno function differs\n".to_owned(),
        false => format!("\n{}\n{}", style.bold("functions"), functions.to_text(style)),
    };
    let not_known = diff.unknown.contains(&true);
    if !paths.rows.is_empty() {
        let title = if not_known { "paths that only one run has" } else { "paths that only one run took" };
        out += &format!("\n{}\n{}", style.bold(title), paths.to_text(style));
    }
    if not_known && functions.rows.iter().flatten().any(|cell| *cell == Cell::Nothing) {
        out += &format!("\n{UNKNOWN}\n");
    }
    out
}

/// The comparison as JSON. The caller provides the rows of both tables, which it may have limited.
pub fn to_json(diff: &Diff, scale: Scale, functions: &Table, paths: &Table) -> Value {
    let whole = |side: Side| {
        let amount = whole(diff, side);
        let contexts =
            diff.nodes.iter().filter(|n| n.parent != NO_PARENT && n.amounts[side as usize].is_some());
        json!({
            "instructions": amount.filter(|_| !diff.uncounted[side as usize]).map(|amount| amount.insns),
            "ns": amount.map(|amount| amount.ns), "contexts": contexts.count(),
            "calls": invocations(diff, side),
            "absent_is_zero": !diff.unknown[side as usize],
            "calls_body_only": diff.shared[side as usize],
        })
    };
    json!({
        "per_call": matches!(scale, Scale::PerCall(_)),
        "old": whole(Side::Old),
        "new": whole(Side::New),
        "functions": functions.to_json(),
        "functions_hidden": functions.hidden,
        "paths": paths.to_json(),
        "paths_hidden": paths.hidden,
        "hidden": functions.hidden + paths.hidden,
    })
}
