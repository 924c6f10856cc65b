// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of functions of two runs: calls, total, own time, percentiles, and how far their distributions are apart.

use std::cmp::Reverse;

use kprism_durations::rows::{self, Row};
use kprism_profile::{Filter, Histogram, Profile, Times};

use super::{Fact, Section, Shape, counts, only, paired, times};
use crate::table::{Cell, Table};

struct Function<'a> {
    row: Row,
    durations: Option<&'a Histogram>,
}

impl Function<'_> {
    fn percentile(&self, percent: f64) -> u64 {
        self.durations.map_or(0, |histogram| histogram.percentile(percent))
    }
}

fn functions<'a>(
    profile: &'a Profile,
    of: &'a Times,
    filter: &Filter,
) -> Vec<((String, String), Function<'a>)> {
    let all = rows::functions(profile, of, &filter.tasks(profile));
    let called = all.into_iter().filter(|row| row.calls > 0);
    called
        .map(|row| {
            let func = &profile.funcs[row.func as usize];
            let durations = of.funcs.get(row.func as usize).map(|f| &f.durations);
            ((func.name.clone(), func.module.clone()), Function { row, durations })
        })
        .collect()
}

/// The sums, and the table of functions, those with the greatest difference in total time first. `filter` chooses tasks;
/// distributions are of all tasks, so with it there are none. `unknown`: what the run does not have is not known there.
pub fn compare(runs: [(&Profile, &Times); 2], filter: &Filter, unknown: [bool; 2]) -> (Vec<Fact>, Section) {
    let [old, new] = runs.map(|(profile, of)| functions(profile, of, filter));
    let sum = |all: &[((String, String), Function<'_>)], of: fn(&Row) -> u64| {
        all.iter().map(|(_, function)| of(&function.row)).fold(0, u64::saturating_add)
    };
    let both = |of: fn(&Row) -> u64| [sum(&old, of), sum(&new, of)];
    let facts = vec![
        Fact {
            key: "functions",
            name: "functions",
            values: [&old, &new].map(|all| Cell::Count(all.len() as u64)),
        },
        Fact { key: "calls", name: "calls", values: both(|row| row.calls).map(Cell::Count) },
        Fact { key: "self_ns", name: "time in functions", values: both(|row| row.self_ns).map(Cell::Ns) },
    ];
    let mut pairs = paired(old, new);
    let total = |side: &Option<Function<'_>>| side.as_ref().map_or(0, |function| function.row.total_ns);
    pairs.sort_by_key(|(_, pair)| Reverse(total(&pair[0]).abs_diff(total(&pair[1]))));
    let everyone = *filter == Filter::default();
    let mut shapes = Vec::new();
    let mut lines = Vec::new();
    for ((name, module), pair) in &pairs {
        let histograms = pair.each_ref().map(|side| side.as_ref().and_then(|f| f.durations));
        let shape = everyone.then(|| Shape::of_times(name, histograms));
        let percentile = |percent: f64| {
            let side = |side: &Option<Function<'_>>| match side {
                Some(function) if everyone => Cell::Ns(function.percentile(percent)),
                _ => Cell::Nothing,
            };
            pair.each_ref().map(side)
        };
        let mut line = Vec::new();
        line.extend(times(pair, unknown, |f| f.row.total_ns));
        line.extend(counts(pair, unknown, |f| f.row.calls));
        line.extend(times(pair, unknown, |f| f.row.self_ns));
        line.extend(percentile(50.0));
        line.extend(percentile(99.0));
        line.push(shape.as_ref().map_or(Cell::Nothing, Shape::shift_cell));
        line.extend([only(pair, unknown), Cell::Text(name.clone()), Cell::Text(module.clone())]);
        lines.push(line);
        shapes.push(shape);
    }
    let columns = [
        ("total_diff_ns", "total diff"),
        ("total_old_ns", "total OLD"),
        ("total_new_ns", "total NEW"),
        ("calls_diff", "calls diff"),
        ("calls_old", "calls OLD"),
        ("calls_new", "calls NEW"),
        ("self_diff_ns", "self diff"),
        ("self_old_ns", "self OLD"),
        ("self_new_ns", "self NEW"),
        ("p50_old_ns", "p50 OLD"),
        ("p50_new_ns", "p50 NEW"),
        ("p99_old_ns", "p99 OLD"),
        ("p99_new_ns", "p99 NEW"),
        ("shift_percent", "shift"),
        ("only_in", ""),
        ("function", "function"),
        ("module", "module"),
    ];
    let about = "Functions are the same if name and module are. Shift: the greatest distance between both distributions' \
                 sums, from 0 (the same) to 100 %. Choose a function for both distributions.";
    let section = Section {
        shapes,
        ..Section::new("functions", "Durations of functions", about, Table::new(&columns, lines))
    };
    (facts, section)
}
