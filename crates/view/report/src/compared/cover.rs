// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of two runs: lines by file, and functions that only one of them executed.

use std::collections::BTreeMap;

use kprism_cover::Cover;
use kprism_cover::cover::Totals;

use super::{Fact, Section, paired};
use crate::cover::diff::{self, Change};
use crate::table::{Cell, Table};

fn functions(cover: &Cover, filter: Option<&str>) -> BTreeMap<(String, String), i64> {
    let mut all = BTreeMap::new();
    for source in &cover.sources {
        if crate::cover::takes_source(cover, filter, &source.path) {
            let path = cover.root.as_deref().and_then(|root| source.path.strip_prefix(root));
            let path = path.map_or(source.path.as_str(), |path| path.trim_start_matches('/'));
            for function in &source.functions {
                let sum = all.entry((function.name.clone(), path.to_owned())).or_insert(0_i64);
                *sum = sum.saturating_add(function.called);
            }
        }
    }
    all
}

/// The sums, the files with changes, and the functions gained and lost. `changes` and `totals` are those of `filter`.
pub fn compare(
    covers: [&Cover; 2],
    totals: [&Totals; 2],
    changes: &BTreeMap<String, Change>,
    filter: Option<&str>,
) -> (Vec<Fact>, Vec<Section>) {
    let sum = |of: fn(&Change) -> usize| changes.values().map(of).sum::<usize>() as u64;
    let (gained, lost) = (sum(|change| change.gained.len()), sum(|change| change.lost.len()));
    let facts = vec![
        Fact { key: "lines", name: "lines executed", values: totals.map(|t| Cell::Count(t.lines.hit)) },
        Fact {
            key: "functions",
            name: "functions executed",
            values: totals.map(|t| Cell::Count(t.functions.hit)),
        },
        Fact {
            key: "changed",
            name: "lines lost → gained",
            values: [Cell::Count(lost), Cell::Count(gained)],
        },
    ];
    let mut table = diff::table(changes);
    diff::shorten(&mut table);
    table.rows.sort_by_key(|row| match (&row[0], &row[1]) {
        (Cell::Int(gained), Cell::Int(lost)) => std::cmp::Reverse(gained + lost),
        _ => std::cmp::Reverse(0),
    });
    let files = Section::new("files", "Files", "Lines that only one run executed.", table);
    let [old, new] = covers.map(|cover| functions(cover, filter));
    let mut lines = Vec::new();
    for ((name, path), pair) in paired(old, new) {
        let [before, after] = pair.map(Option::unwrap_or_default);
        if (before > 0) == (after > 0) {
            continue;
        }
        let which = if after > 0 { "gained" } else { "lost" };
        let count = |n: i64| Cell::Count(n.max(0) as u64);
        lines.push(vec![
            Cell::Text(which.into()),
            count(before),
            count(after),
            Cell::Text(name),
            Cell::Text(path),
        ]);
    }
    let columns = [
        ("change", ""),
        ("calls_old", "calls OLD"),
        ("calls_new", "calls NEW"),
        ("function", "function"),
        ("path", "file"),
    ];
    let about = "Functions that only one run executed. They are the same if name and file are.";
    (facts, vec![files, Section::new("functions", "Functions", about, Table::new(&columns, lines))])
}
