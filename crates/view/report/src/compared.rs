// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two runs of an instrument other than the flow, one against the other: facts, tables with both values and their
//! difference, distributions and curves of both.
//!
//! Input: a [`Comparison`], which each instrument fills ([`durations`], [`tlb`], [`probe`], [`cover`]). Output: text, JSON, or
//! one HTML page ([`Comparison::render`], `ui/src/compare.ts`), all of the same tables. Rows are matched by name; what only one
//! run has is told as such.

pub mod cover;
pub mod durations;
pub mod probe;
pub mod shape;
pub mod tlb;

use std::collections::BTreeMap;

use kprism_profile::units::printable;
use kprism_store::Account;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::environment::Compared;
use crate::html::{self, HtmlError};
use crate::table::{Cell, Style, Table};
use crate::tlb::page::TableData;

pub use shape::{Curve, Shape};

/// Most rows of a table in a page.
const ROWS: usize = 2000;

/// One of the two runs.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Its folder.
    pub path: String,
    /// The command, or another name of it.
    pub title: String,
    /// More in words: the kernel, the method.
    pub about: String,
    /// Things lost, not understood or guessed, in words; empty if none.
    pub faults: Vec<String>,
    /// The account; `None` for tables of an older kprism.
    pub account: Option<Account>,
}

/// A number of both runs.
#[derive(Debug, Clone)]
pub struct Fact {
    /// Name for programs.
    pub key: &'static str,
    /// Name for people.
    pub name: &'static str,
    /// Its values.
    pub values: [Cell; 2],
}

/// A table, or curves.
#[derive(Debug, Clone)]
pub struct Section {
    /// Name for programs and in the page's address.
    pub id: &'static str,
    /// Heading.
    pub title: &'static str,
    /// A sentence on the contents.
    pub about: String,
    /// The table.
    pub table: Table,
    /// Distributions by row of the table; shorter if the last rows have none.
    pub shapes: Vec<Option<Shape>>,
    /// Curves of both runs.
    pub curves: Vec<Curve>,
}

impl Section {
    /// A section with a table alone.
    pub fn new(id: &'static str, title: &'static str, about: &str, table: Table) -> Self {
        Section { id, title, about: about.into(), table, shapes: Vec::new(), curves: Vec::new() }
    }
}

/// Two runs of an instrument.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The instrument in words: `durations of functions`.
    pub what: &'static str,
    /// OLD and NEW.
    pub sides: [Side; 2],
    /// Their environments, and what was recorded; `None` of files that are no runs.
    pub environment: Option<Compared>,
    /// Sums.
    pub facts: Vec<Fact>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Tables and curves.
    pub sections: Vec<Section>,
}

#[derive(Serialize)]
struct Data {
    name: &'static str,
    sides: [Side; 2],
    facts: Vec<(&'static str, [(Value, String); 2])>,
    notes: Vec<String>,
    sections: Vec<SectionData>,
}

#[derive(Serialize)]
struct SectionData {
    id: &'static str,
    title: &'static str,
    about: String,
    table: TableData,
    shapes: Vec<Option<Shape>>,
    curves: Vec<Curve>,
}

impl Comparison {
    /// Renders the page. Its size is bounded: each table has at most 2,000 rows.
    ///
    /// # Errors
    /// As [`html::render`].
    pub fn render(&self) -> Result<String, HtmlError> {
        let (css, js) = (include_str!("../assets/compare.css"), include_str!("../assets/compare.js"));
        let side = |side: &Side| Side {
            path: printable(&side.path),
            title: printable(&side.title),
            about: printable(&side.about),
            faults: side.faults.iter().map(|fault| printable(fault)).collect(),
            account: side.account.clone(),
        };
        let section = |section: &Section| SectionData {
            id: section.id,
            title: section.title,
            about: printable(&section.about),
            table: TableData::new(section.id, "", &section.table, ROWS),
            shapes: section.shapes.iter().take(ROWS).map(|s| s.as_ref().map(Shape::short)).collect(),
            curves: section.curves.clone(),
        };
        let fact = |fact: &Fact| (fact.name, fact.values.each_ref().map(|cell| (cell.json(), cell.text())));
        let data = Data {
            name: self.what,
            sides: self.sides.each_ref().map(side),
            facts: self.facts.iter().map(fact).collect(),
            notes: self.notes.iter().map(|note| printable(note)).collect(),
            sections: self.sections.iter().map(section).collect(),
        };
        let title = format!("{}: {} against {}", self.what, data.sides[1].path, data.sides[0].path);
        let [old, new] = self.sides.each_ref().map(|side| side.account.as_ref());
        html::page_of_two(&title, [old, new], self.environment.as_ref(), (css, js), &data)
    }

    /// Keeps so many rows of each table in text and JSON; 0 keeps all.
    pub fn limit(&mut self, rows: usize) {
        if rows > 0 {
            self.sections.iter_mut().for_each(|section| section.table.limit(rows));
        }
    }

    /// All of it as text.
    pub fn to_text(&self, style: Style) -> String {
        let mut out = String::new();
        for (name, side) in ["OLD", "NEW"].iter().zip(&self.sides) {
            let texts = [&side.path, &side.title, &side.about].map(|text| printable(text));
            let texts: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
            out += &format!("{} {}\n", style.bold(name), texts.join(" · "));
            for fault in &side.faults {
                out += &format!("    {}\n", style.alert(&format!("not whole: {}", printable(fault))));
            }
        }
        out += &self.environment.as_ref().map(Compared::to_text).unwrap_or_default();
        for Fact { name, values: [old, new], .. } in &self.facts {
            out += &format!("{name}: {} → {}\n", old.text(), new.text());
        }
        for note in &self.notes {
            out += &format!("{}\n", printable(note));
        }
        for section in &self.sections {
            out += &format!("\n{}\n{}", style.bold(section.title), section.table.to_text(style));
        }
        out
    }

    /// All of it as JSON: facts, and each table by its name.
    pub fn to_json(&self) -> Value {
        let facts: Map<String, Value> = self
            .facts
            .iter()
            .map(|fact| {
                let [old, new] = &fact.values;
                (fact.key.to_owned(), json!({"old": old.json(), "new": new.json()}))
            })
            .collect();
        let mut value = json!({
            "compares": self.what,
            "runs": {"old": self.sides[0], "new": self.sides[1]},
            "environment": self.environment.as_ref().map(Compared::to_json),
            "facts": facts,
            "notes": self.notes,
        });
        for section in &self.sections {
            value[section.id] = section.table.to_json();
            if section.table.hidden > 0 {
                value[format!("{}_hidden", section.id)] = section.table.hidden.into();
            }
        }
        value["hidden"] = self.sections.iter().map(|section| section.table.hidden).sum::<usize>().into();
        value
    }
}

/// Pairs the values of two runs by their names, in order of names.
pub fn paired<K: Ord, T>(
    old: impl IntoIterator<Item = (K, T)>,
    new: impl IntoIterator<Item = (K, T)>,
) -> Vec<(K, [Option<T>; 2])> {
    let mut all: BTreeMap<K, [Option<T>; 2]> = BTreeMap::new();
    for (key, value) in old {
        all.entry(key).or_insert([None, None])[0] = Some(value);
    }
    for (key, value) in new {
        all.entry(key).or_insert([None, None])[1] = Some(value);
    }
    all.into_iter().collect()
}

/// `new` if only the new run has it, `gone` if only the old one; else nothing. Where it is not known whether the other run
/// had it, too, `only NEW` and `only OLD`.
pub(crate) fn only_of<T>(pair: &[Option<T>; 2], unknown: [bool; 2]) -> &'static str {
    match (pair, unknown) {
        ([None, Some(_)], [true, _]) => "only NEW",
        ([Some(_), None], [_, true]) => "only OLD",
        ([None, Some(_)], _) => "new",
        ([Some(_), None], _) => "gone",
        _ => "",
    }
}

/// The same as a cell.
pub fn only<T>(pair: &[Option<T>; 2], unknown: [bool; 2]) -> Cell {
    Cell::Text(only_of(pair, unknown).into())
}

/// Difference of two counts; no overflow for any values.
pub fn difference(old: u64, new: u64) -> i64 {
    (i128::from(new) - i128::from(old)).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// A number of both runs. What a run does not have is zero, unless that is not known there.
fn numbers<T>(pair: &[Option<T>; 2], unknown: [bool; 2], of: impl Fn(&T) -> u64) -> [Option<u64>; 2] {
    [0, 1].map(|side: usize| pair[side].as_ref().map(&of).or_else(|| (!unknown[side]).then_some(0)))
}

fn with_difference(
    [old, new]: [Option<u64>; 2],
    value: fn(u64) -> Cell,
    change: fn(i64) -> Cell,
) -> [Cell; 3] {
    let differs = old.zip(new).map_or(Cell::Nothing, |(old, new)| change(difference(old, new)));
    let cell = |number: Option<u64>| number.map_or(Cell::Nothing, value);
    [differs, cell(old), cell(new)]
}

/// Their difference, old and new, as counts; nothing where one is not known.
pub fn counts<T>(pair: &[Option<T>; 2], unknown: [bool; 2], of: impl Fn(&T) -> u64) -> [Cell; 3] {
    with_difference(numbers(pair, unknown, of), Cell::Count, Cell::CountDiff)
}

/// The same of nanoseconds.
pub fn times<T>(pair: &[Option<T>; 2], unknown: [bool; 2], of: impl Fn(&T) -> u64) -> [Cell; 3] {
    with_difference(numbers(pair, unknown, of), Cell::Ns, Cell::NsDiff)
}

/// The faults of an account in words.
pub fn faults(account: &kprism_store::Account) -> Vec<String> {
    use kprism_store::Fate;
    let is_fault = |fate: Fate| matches!(fate, Fate::Lost | Fate::NotUnderstood | Fate::Guessed);
    let entries = account.entries.iter().filter(|entry| is_fault(entry.fate) && entry.count != Some(0));
    entries
        .map(|entry| {
            let fate = serde_json::to_value(entry.fate).ok();
            let fate =
                fate.and_then(|fate| fate.as_str().map(|fate| fate.replace('_', " "))).unwrap_or_default();
            let count = entry.count.map_or("not known how many".into(), kprism_profile::units::grouped);
            format!("{fate}: {count} {}", entry.unit)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_does_not_have_is_zero_or_not_known() {
        let pair = [Some(7), None];
        let zero = counts(&pair, [false; 2], |n| *n);
        assert_eq!(zero, [Cell::CountDiff(-7), Cell::Count(7), Cell::Count(0)]);
        let unknown = counts(&pair, [false, true], |n| *n);
        assert_eq!(unknown, [Cell::Nothing, Cell::Count(7), Cell::Nothing]);
        assert_eq!(unknown[0].json(), Value::Null);
        assert_eq!(only(&pair, [true, false]), Cell::Text("gone".into()));
        assert_eq!(only(&pair, [false, true]), Cell::Text("only OLD".into()));
    }
}
