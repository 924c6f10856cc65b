// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of coverage by folder, file or function.

pub mod compare;
pub mod diff;
pub mod page;
pub mod patch;
pub mod source;

use std::collections::{BTreeMap, BTreeSet};

use kprism_cover::counters::Runs;
use kprism_cover::cover::{Ratio, Source, Totals};
use kprism_cover::path::{absolute, is_below};
use kprism_cover::{Cover, demangled};
use kprism_image::glob::glob;
use kprism_store::Account;
use serde_json::{Value, json};

use crate::shape;
use crate::table::{Cell, Table};

/// Unit of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Each {
    /// A folder, with all below it.
    Folder,
    /// A source file.
    File,
    /// A function.
    Function,
}

/// Returns true if a path is below `filter`, or matches it as a pattern.
pub fn takes(filter: Option<&str>, path: &str) -> bool {
    filter.is_none_or(|filter| is_below(filter, path) || glob(filter, path))
}

/// Whether a source file is below `filter`, or matches it as a pattern. The filter is a path as tables show it, maybe with
/// `./` before it, or an absolute one.
pub fn takes_source(cover: &Cover, filter: Option<&str>, path: &str) -> bool {
    filter.is_none_or(|filter| takes_either(cover.shown(&absolute(None, filter)), path, cover.shown(path)))
}

/// Returns true if a source with this full path, shown as `shown`, is below `filter`. An empty filter is the folder from
/// which all paths are shown.
fn takes_either(filter: &str, full: &str, shown: &str) -> bool {
    filter.is_empty() || takes(Some(filter), shown) || filter.starts_with('/') && takes(Some(filter), full)
}

/// Folders from the top of what is shown down to what `filter` names.
fn depth(cover: &Cover, filter: &str) -> usize {
    let wanted = absolute(None, filter);
    let shown = cover.shown(&wanted);
    let holds_root = cover.root.as_deref().is_some_and(|root| takes(Some(shown), root));
    if shown.is_empty() || holds_root { 0 } else { shown.trim_matches('/').split('/').count() }
}

/// The files that `filter` takes, and their totals.
pub fn chosen<'a>(cover: &'a Cover, filter: Option<&str>) -> (Vec<&'a Source>, Totals) {
    let sources = cover.sources.iter().filter(|source| takes_source(cover, filter, &source.path));
    let sources: Vec<&Source> = sources.collect();
    let mut totals = Totals::default();
    sources.iter().for_each(|source| totals.add(&source.totals()));
    (sources, totals)
}

/// The table of coverage.
pub fn table(cover: &Cover, each: Each, filter: Option<&str>) -> Table {
    let (sources, _) = chosen(cover, filter);
    let rows = match each {
        Each::Function => return functions(cover, &sources),
        Each::File => sources.iter().map(|source| row(cover.shown(&source.path), &source.totals())).collect(),
        Each::Folder => {
            // Two levels below what is asked for; a file stands for the folder it is in.
            let levels = filter.map_or(0, |filter| depth(cover, filter)) + 2;
            let paths: Vec<&str> = sources.iter().map(|source| cover.shown(&source.path)).collect();
            let chains = chains(&paths);
            let mut folders: BTreeMap<&str, Totals> = BTreeMap::new();
            for (source, path) in sources.iter().zip(paths) {
                let totals = source.totals();
                let ends = folder_ends(path).filter(|&end| !chains.contains(&path[..end]));
                for end in ends.take(levels) {
                    folders.entry(&path[..end]).or_default().add(&totals);
                }
                if !path.trim_start_matches('/').contains('/') {
                    folders.entry(".").or_default().add(&totals);
                }
            }
            folders.iter().map(|(name, totals)| row(name, totals)).collect()
        }
    };
    Table::new(&columns("path", if each == Each::File { "file" } else { "folder" }), rows)
}

/// Lengths of the prefixes of `path` that are folders, the outermost first.
fn folder_ends(path: &str) -> impl Iterator<Item = usize> {
    path.match_indices('/').map(|(at, _)| at).filter(|&at| at > 0)
}

/// Folders that hold one folder and nothing else. Their row would repeat that of the folder in them.
fn chains<'a>(paths: &[&'a str]) -> BTreeSet<&'a str> {
    let mut within: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for path in paths {
        let ends: Vec<usize> = folder_ends(path).collect();
        for (&end, next) in ends.iter().zip(ends.iter().skip(1).map(|&end| &path[..end]).chain([*path])) {
            within.entry(&path[..end]).or_default().insert(next);
        }
    }
    let is_chain = |inner: &BTreeSet<&str>| {
        inner.len() == 1 && inner.first().is_some_and(|only| within.contains_key(only))
    };
    within.iter().filter(|(_, inner)| is_chain(inner)).map(|(folder, _)| *folder).collect()
}

/// A table of the lines that each of several runs executed, and that no other run did.
pub fn runs_table(cover: &Cover, runs: &Runs, filter: Option<&str>) -> Table {
    let (sources, totals) = chosen(cover, filter);
    let mut numbers = vec![(0u64, 0u64); runs.names.len()];
    for source in sources {
        for &(_, set) in runs.of_source(&source.path) {
            let set = &runs.sets[set as usize];
            for &run in set {
                numbers[usize::from(run)].0 += 1;
                numbers[usize::from(run)].1 += u64::from(set.len() == 1);
            }
        }
    }
    let rows = runs.names.iter().zip(numbers).enumerate().map(|(number, (name, (hit, only)))| {
        let percent = Ratio { all: totals.lines.all, hit }.percent();
        vec![
            percent.map_or(Cell::Nothing, Cell::Percent),
            Cell::Int(hit),
            Cell::Int(only),
            Cell::Int(number as u64 + 1),
            Cell::Text(name.clone()),
        ]
    });
    let columns = [
        ("lines_percent", "lines"),
        ("lines_hit", "hit"),
        ("only", "only there"),
        ("number", "run"),
        ("run", "name"),
    ];
    Table::new(&columns, rows.collect())
}

/// Columns shown to people. Programs get all.
pub const SHOWN: [&str; 11] = [
    "lines_percent",
    "lines_hit",
    "lines",
    "functions_percent",
    "functions_hit",
    "functions",
    "branches_percent",
    "branches_taken",
    "branches",
    "calls",
    "path",
];

fn columns(key: &'static str, head: &'static str) -> [(&'static str, &'static str); 13] {
    [
        ("lines_percent", "lines"),
        ("lines_hit", "hit"),
        ("lines", "of"),
        ("functions_percent", "functions"),
        ("functions_hit", "hit"),
        ("functions", "of"),
        ("branches_percent", "branches"),
        ("branches_taken", "taken"),
        ("branches", "of"),
        ("branches_executed", "executed"),
        ("calls", "calls"),
        ("calls_executed", "executed"),
        (key, head),
    ]
}

fn row(name: &str, totals: &Totals) -> Vec<Cell> {
    let percent = |ratio: Ratio| ratio.percent().map_or(Cell::Nothing, Cell::Percent);
    let taken = Ratio { all: totals.branches.all, hit: totals.taken };
    vec![
        percent(totals.lines),
        Cell::Int(totals.lines.hit),
        Cell::Int(totals.lines.all),
        percent(totals.functions),
        Cell::Int(totals.functions.hit),
        Cell::Int(totals.functions.all),
        percent(taken),
        Cell::Int(taken.hit),
        Cell::Int(taken.all),
        Cell::Int(totals.branches.hit),
        Cell::Int(totals.calls.all),
        Cell::Int(totals.calls.hit),
        Cell::Text(name.to_owned()),
    ]
}

fn functions(cover: &Cover, sources: &[&Source]) -> Table {
    let rows = sources.iter().flat_map(|source| {
        let path = cover.shown(&source.path);
        source.functions.iter().map(move |function| {
            let (all, executed) = function.blocks;
            let blocks = Ratio { all: all.into(), hit: executed.into() };
            vec![
                Cell::Int(function.called.max(0) as u64),
                blocks.percent().map_or(Cell::Nothing, Cell::Percent),
                Cell::Text(demangled(&function.name).into_owned()),
                Cell::Text(format!("{path}:{}", function.lines.0)),
            ]
        })
    });
    let columns = [
        ("called", "called"),
        ("blocks_percent", "blocks executed"),
        ("function", "function"),
        ("place", "place"),
    ];
    Table::new(&columns, rows.collect())
}

/// The totals as text, one line each.
pub fn summary(totals: &Totals) -> String {
    let mut out = String::new();
    let taken = Ratio { all: totals.branches.all, hit: totals.taken };
    for (name, what, ratio) in [
        ("lines", "executed", totals.lines),
        ("functions", "called", totals.functions),
        ("branches", "executed", totals.branches),
        ("branches", "taken", taken),
        ("calls", "executed", totals.calls),
        ("conditions", "outcomes seen", totals.conditions),
        ("paths", "gone", totals.paths),
    ] {
        let Some(percent) = ratio.percent() else { continue };
        let (hit, all) =
            (kprism_profile::units::grouped(ratio.hit), kprism_profile::units::grouped(ratio.all));
        out.push_str(&format!("{name:<10} {percent:>6.2}%  {hit} of {all} {what}\n"));
    }
    out
}

/// The totals as JSON.
pub fn summary_json(totals: &Totals) -> Value {
    json!({
        "lines": totals.lines.all, "lines_hit": totals.lines.hit,
        "functions": totals.functions.all, "functions_hit": totals.functions.hit,
        "branches": totals.branches.all, "branches_executed": totals.branches.hit,
        "branches_taken": totals.taken,
        "calls": totals.calls.all, "calls_executed": totals.calls.hit,
        "conditions": totals.conditions.all, "conditions_seen": totals.conditions.hit,
        "paths": totals.paths.all, "paths_gone": totals.paths.hit,
    })
}

/// The table of files of which a line was executed, those with most lines first.
pub fn executed(cover: &Cover, filter: Option<&str>) -> Table {
    let mut table = table(cover, Each::File, filter);
    let known = table.sort_by("lines_hit");
    debug_assert!(known.is_ok(), "a table sorts by a column of its own");
    let hit = table.columns.iter().position(|column| column.key == "lines_hit");
    table.rows.retain(|row| hit.and_then(|hit| row.get(hit)) != Some(&Cell::Int(0)));
    table
}

/// The number of objects and of source files, and the totals, as text. `never` is the number of objects that never ran;
/// `files` and `totals` are of the sources that were chosen.
pub fn header(cover: &Cover, never: u64, files: usize, totals: &Totals) -> String {
    let objects = cover.objects;
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let never = if never > 0 { format!(" ({never} of them never ran)") } else { String::new() };
    let (one, other) = (plural(objects.into()), plural(files as u64));
    // A tracefile of another program does not tell of objects.
    let from = if objects == 0 { String::new() } else { format!("{objects} object{one}{never}, ") };
    format!("{from}{files} source file{other}\n{}", summary(totals))
}

/// A table with what is said of the coverage, as JSON. `files` and `totals` are of the sources that were chosen.
pub fn to_json(cover: &Cover, files: usize, totals: &Totals, table: &Table, account: &Account) -> Value {
    let mut value = shape::report(shape::run(None, Some(account)), table);
    value["objects"] = json!(cover.objects);
    value["files"] = files.into();
    value["root"] = json!(cover.root);
    value["totals"] = summary_json(totals);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_as_people_name_them() {
        let source = |path: &str| Source { path: path.into(), ..Source::default() };
        let sources = vec![source("/tree/src/a.c"), source("/tree/src/mm/b.c"), source("/usr/include/c.h")];
        let cover = Cover { sources, root: Some("/tree/src".into()), ..Cover::default() };
        let found = |filter: &str| chosen(&cover, Some(filter)).0.len();
        for (filter, files) in [
            ("a.c", 1),
            ("./a.c", 1),
            (".", 3),
            ("mm/", 1),
            ("./mm//b.c", 1),
            ("/tree/src/a.c", 1),
            ("/tree/src/mm", 1),
            ("/tree/src", 2),
            ("/tree", 2),
            ("/tree/src/*.c", 2),
            ("./m*", 1),
            ("/usr", 1),
            ("/", 3),
            ("/tree/sr", 0),
            ("src", 0),
        ] {
            assert_eq!(found(filter), files, "{filter}");
        }
        assert_eq!((depth(&cover, "/tree"), depth(&cover, "/tree/src/mm"), depth(&cover, "./mm")), (0, 1, 1));
    }
}
