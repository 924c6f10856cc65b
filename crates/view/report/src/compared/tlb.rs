// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLB misses of two runs: objects, functions and processes by name, and the curves of their distribution over pages.
//!
//! Addresses and process ids differ from run to run; names are what two runs have in common. Objects of one name are added up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use kprism_image::symbols::Symbols;
use kprism_tlb::objects::Objects;
use kprism_tlb::profile::Profile;

use super::{Curve, Fact, Section, counts, only, paired};
use crate::table::{Cell, Table};

/// A run's misses and what names them.
pub struct Input<'a> {
    /// Sums of the misses.
    pub profile: &'a Profile,
    /// The objects, with their names.
    pub objects: &'a Objects,
    /// Names of functions; none where misses are not known by instruction.
    pub symbols: Option<&'a Symbols>,
    /// Names of tasks by thread id.
    pub comms: &'a HashMap<u32, String>,
}

type Named = BTreeMap<Vec<String>, u64>;

fn objects(input: &Input<'_>) -> Named {
    let mut all = Named::new();
    for (object, misses) in input.objects.all().iter().zip(&input.profile.objects).filter(|(_, m)| m[0] > 0) {
        *all.entry(vec![object.name.clone(), object.kind.name().to_owned()]).or_default() += misses[0];
    }
    all
}

/// Sums rows of an existing table by some of its texts.
fn of_table(table: &Table, texts: &[&str]) -> Named {
    let place = |key: &str| table.columns.iter().position(|column| column.key == key);
    let (misses, texts) = (place("misses"), texts.iter().map(|key| place(key)).collect::<Vec<_>>());
    let mut all = Named::new();
    for row in &table.rows {
        let text = |at: &Option<usize>| match at.and_then(|at| row.get(at)) {
            Some(Cell::Text(text)) => text.clone(),
            Some(cell) => cell.text(),
            None => String::new(),
        };
        let Some(Cell::Count(n)) = misses.and_then(|at| row.get(at)) else { continue };
        let sum = all.entry(texts.iter().map(text).collect()).or_default();
        *sum = sum.saturating_add(*n);
    }
    all
}

fn section(
    id: &'static str,
    title: &'static str,
    about: &str,
    names: &[(&'static str, &'static str)],
    [old, new]: [Named; 2],
    unknown: [bool; 2],
) -> Section {
    let mut pairs = paired(old, new);
    pairs.sort_by_key(|(_, [a, b])| Reverse(a.unwrap_or(0).abs_diff(b.unwrap_or(0))));
    let line = |(texts, pair): &(Vec<String>, [Option<u64>; 2])| {
        let mut line: Vec<Cell> = counts(pair, unknown, |n| *n).into();
        line.push(only(pair, unknown));
        line.extend(texts.iter().map(|text| Cell::Text(text.clone())));
        line
    };
    let mut columns = vec![
        ("misses_diff", "misses diff"),
        ("misses_old", "misses OLD"),
        ("misses_new", "misses NEW"),
        ("only_in", ""),
    ];
    columns.extend(names);
    Section::new(id, title, about, Table::new(&columns, pairs.iter().map(line).collect()))
}

/// Compares them. Misses are those of the first geometry. `unknown`: what the run does not have is not known there.
pub fn compare(runs: [&Input<'_>; 2], unknown: [bool; 2]) -> (Vec<Fact>, Vec<Section>) {
    let facts = vec![
        Fact { key: "misses", name: "misses", values: runs.map(|run| Cell::Count(run.profile.all()[0])) },
        Fact {
            key: "pages",
            name: "pages that missed",
            values: runs.map(|run| Cell::Count(run.profile.pages.len() as u64)),
        },
    ];
    let mut sections = vec![section(
        "objects",
        "Objects",
        "Objects are the same if name and kind are; several of one name are added up.",
        &[("object", "object"), ("kind", "kind")],
        runs.map(objects),
        unknown,
    )];
    if let [Some(old), Some(new)] = runs.map(|run| run.symbols) {
        let of = |run: &Input<'_>, symbols| {
            of_table(&crate::tlb::functions(run.profile, &[""], symbols), &["function", "module"])
        };
        let both = [of(runs[0], old), of(runs[1], new)];
        let names = [("function", "function"), ("module", "module")];
        sections.push(section(
            "functions",
            "Functions",
            "Functions whose instructions missed.",
            &names,
            both,
            unknown,
        ));
    }
    let of = |run: &Input<'_>| of_table(&crate::tlb::tasks(run.profile, &[""], run.comms, false), &["comm"]);
    let about = "Processes by name; several of one name are added up.";
    sections.push(section("processes", "Processes", about, &[("comm", "process")], runs.map(of), unknown));
    sections.push(curves(runs));
    (facts, sections)
}

/// The parts of all misses that entries of page tables have, sorted by their misses (figures 7 and 9 of the PTAT paper).
fn curves(runs: [&Input<'_>; 2]) -> Section {
    let mut found: BTreeMap<(&'static str, u64), [Option<Vec<f64>>; 2]> = BTreeMap::new();
    for (side, run) in runs.into_iter().enumerate() {
        for (size, all) in crate::tlb::distributions(run.profile, None) {
            for d in all {
                let at = |percent: u32| (1e6 * d.part_below(f64::from(percent) / 100.0)).round() / 1e4;
                found.entry((size, d.together)).or_default()[side] = Some((0..=100).map(at).collect());
            }
        }
    }
    let mut lines = Vec::new();
    let mut curves = Vec::new();
    for ((size, together), pair) in found {
        for percent in [50, 75, 90, 95, 99] {
            let at = |side: &Option<Vec<f64>>| {
                side.as_ref().map_or(Cell::Nothing, |values| Cell::Percent(values[percent]))
            };
            let [old, new] = pair.each_ref().map(at);
            lines.push(vec![
                Cell::Int(percent as u64),
                old,
                new,
                Cell::Int(together),
                Cell::Text(size.to_owned()),
            ]);
        }
        if together == 1 {
            curves.push(Curve {
                title: if size == "all" { "All page sizes".into() } else { format!("Pages of {size}") },
                across: "% of entries that missed, sorted by misses",
                up: "% of misses",
                values: pair.map(Option::unwrap_or_default),
            });
        }
    }
    let columns = [
        ("entries_percent", "% of entries"),
        ("misses_old_percent", "misses OLD"),
        ("misses_new_percent", "misses NEW"),
        ("together", "entries together"),
        ("page_size", "page size"),
    ];
    let about =
        "Entries of page tables in increasing order of their misses, and the part of all misses up to there.";
    Section { curves, ..Section::new("distribution", "Distribution", about, Table::new(&columns, lines)) }
}
