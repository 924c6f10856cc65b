// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of TLB misses: a map over address and time, objects, the paper's curves, advice, the account.
//!
//! Input: what the tables are made from, and a [`Map`]. Output: one HTML file whose size does not depend on the number of
//! misses: the map has at most [`CELLS`] cells, each table at most [`ROWS`] rows, curves are points at whole
//! percents. What is left out is counted in the page.

use std::collections::HashMap;

use kprism_profile::units::printable;
use kprism_store::{Account, Manifest};
use kprism_tlb::Geometry;
use kprism_tlb::counts::Counts;
use kprism_tlb::map::{CELLS, Map, Touched};
use kprism_tlb::objects::{Object, Objects};
use kprism_tlb::profile::{Misses, Profile};
use serde::Serialize;
use serde_json::Value;

use super::report::{is_sampled, method_text, period};
use crate::html::{self, HtmlError};
use crate::poisson;
use crate::table::{Cell, Table};

/// Most rows of a table in the page.
pub const ROWS: usize = 1000;
/// Most processes with curves of their own.
pub const PROCESSES: usize = 12;

/// The facts and tables that a page is made from.
pub struct Input<'a> {
    /// Facts on the recording.
    pub manifest: &'a Manifest,
    /// The models; none if the misses were not found by models.
    pub geometries: &'a [Geometry],
    /// The recorder's counts.
    pub counts: &'a Counts,
    /// Misses that were seen, kept and lost.
    pub account: &'a Account,
    /// Remarks on the result.
    pub notes: &'a [String],
    /// Sums of the misses.
    pub profile: &'a Profile,
    /// The objects, with their names.
    pub objects: &'a Objects,
    /// Misses over address and time.
    pub map: &'a Map,
    /// Pages of each object that missed.
    pub touched: &'a Touched,
    /// Names of tasks by thread id.
    pub comms: &'a HashMap<u32, String>,
    /// More tables, each with its name and a sentence.
    pub tables: Vec<(&'static str, &'static str, Table)>,
    /// The saving by larger pages, or the reason why it is not known.
    pub advice: Result<Table, String>,
}

#[derive(Serialize)]
struct Data<'a> {
    title: String,
    method: String,
    stopped: Option<String>,
    geometries: Vec<&'a str>,
    sampled: bool,
    misses: u64,
    map: MapData,
    objects: Vec<ObjectData>,
    /// Objects that are not in the table, and their misses.
    omitted: (usize, u64),
    curves: Vec<Curves>,
    tables: Vec<TableData>,
    advice: Option<TableData>,
    no_advice: Option<String>,
    account: &'a Account,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct MapData {
    span: (u64, u64),
    bins: usize,
    others: usize,
    limit: usize,
    rows: Vec<RowData>,
}

#[derive(Serialize)]
struct RowData {
    /// Index in `objects`; -1 for the other objects.
    object: i64,
    start: String,
    last: String,
    /// Pages that lie between the row before it and this one and did not miss; of one process. `None` at its first.
    gap: Option<u64>,
    pages: u64,
    /// Empty bins before each bin, and its misses, in turn.
    cells: Vec<u64>,
}

#[derive(Serialize)]
struct ObjectData {
    name: String,
    kind: &'static str,
    tgid: u32,
    process: String,
    start: String,
    bytes: u64,
    pages: u64,
    misses: Vec<u64>,
    /// 95 % interval of misses that were sampled.
    interval: Option<(u64, u64)>,
    /// The allocating function, and the places that called it, innermost first.
    allocated: Option<(String, Vec<String>)>,
}

/// The paper's figures 6, 7 and 9 of one process and page size.
#[derive(Serialize)]
struct Curves {
    process: String,
    size: &'static str,
    together: u64,
    /// Groups of entries that missed, and their misses.
    entries: usize,
    misses: u64,
    /// Misses of an entry at each whole percent of the sorted entries, from 1 on.
    average: Vec<f64>,
    /// Percent of all misses up to there, from 0 on.
    cdf: Vec<f64>,
}

/// A table with a cell's value for sorting and its text.
#[derive(Serialize)]
pub(crate) struct TableData {
    name: &'static str,
    about: &'static str,
    heads: Vec<String>,
    keys: Vec<&'static str>,
    rows: Vec<Vec<(Value, String)>>,
    omitted: usize,
}

impl TableData {
    /// The first rows of a table.
    pub(crate) fn new(name: &'static str, about: &'static str, table: &Table, most: usize) -> Self {
        // The page sorts by the values and shows the texts; neither may mislead.
        let cell = |cell: &Cell| match cell {
            Cell::Text(_) => (Value::String(cell.text()), cell.text()),
            _ => (cell.json(), cell.text()),
        };
        TableData {
            name,
            about,
            heads: table.columns.iter().map(|c| printable(&c.head)).collect(),
            keys: table.columns.iter().map(|c| c.key).collect(),
            rows: table.rows.iter().take(most).map(|row| row.iter().map(cell).collect()).collect(),
            omitted: table.hidden + table.rows.len().saturating_sub(most),
        }
    }
}

/// Renders the page.
///
/// # Errors
/// [`HtmlError`]; it does not depend on the misses.
pub fn render(input: &Input<'_>) -> Result<String, HtmlError> {
    let (css, js) = (include_str!("../../assets/tlb.css"), include_str!("../../assets/tlb.js"));
    let data = data(input);
    html::page(&data.title, &[("", Some(input.account))], &input.manifest.conditions(None), (css, js), &data)
}

fn data<'a>(input: &Input<'a>) -> Data<'a> {
    let Input { profile, objects, .. } = input;
    let mut ranked: Vec<(usize, &Misses)> = (0..).zip(&profile.objects).filter(has_missed).collect();
    ranked.sort_by_key(|&(number, misses)| (std::cmp::Reverse(misses[0]), number));
    let sampled = is_sampled(input.counts);
    // Objects with rows in the map are among those that miss most, so all of them are in the table.
    let shown = ranked.len().min(ROWS);
    let place: HashMap<u32, i64> = ranked.iter().map(|&(n, _)| n as u32).zip(0..).take(shown).collect();
    let (advice, no_advice) = match &input.advice {
        Ok(table) => (Some(TableData::new("advice", "", table, ROWS)), None),
        Err(why) => (None, Some(printable(why))),
    };
    Data {
        title: printable(&input.manifest.command.join(" ")),
        method: method_text(input.manifest, input.counts, input.geometries),
        stopped: input.manifest.stopped.as_deref().map(printable),
        geometries: input.geometries.iter().map(|g| g.name.as_str()).collect(),
        sampled,
        misses: profile.all()[0],
        map: map(input, &place),
        objects: ranked[..shown].iter().map(|&(n, m)| object(input, n, &objects.all()[n], m)).collect(),
        omitted: (ranked.len() - shown, ranked[shown..].iter().map(|(_, misses)| misses[0]).sum()),
        curves: curves(input),
        tables: input.tables.iter().map(|(name, about, t)| TableData::new(name, about, t, ROWS)).collect(),
        advice,
        no_advice,
        account: input.account,
        notes: input.notes.iter().map(|note| printable(note)).collect(),
    }
}

fn has_missed((_, misses): &(usize, &Misses)) -> bool {
    misses.iter().any(|&n| n > 0)
}

fn process(input: &Input<'_>, tgid: u32) -> String {
    match (tgid, input.comms.get(&tgid)) {
        (0, _) => "kernel".into(),
        (tgid, Some(comm)) => format!("{} {tgid}", printable(comm)),
        (tgid, None) => tgid.to_string(),
    }
}

fn object(input: &Input<'_>, number: usize, object: &Object, misses: &Misses) -> ObjectData {
    let name = printable(&object.name);
    let period = period(input.counts).filter(|_| is_sampled(input.counts));
    let interval = period.map(|period| {
        let (low, high) = poisson::interval(misses[0] as f64 / period);
        ((low * period) as u64, (high * period).ceil() as u64)
    });
    let allocated = object.site.as_ref().map(|_| match name.split_once(" by ") {
        Some((function, places)) => (function.to_owned(), places.split(" < ").map(str::to_owned).collect()),
        None => (name.clone(), Vec::new()),
    });
    ObjectData {
        kind: object.kind.name(),
        tgid: object.tgid,
        process: process(input, object.tgid),
        start: format!("{:#x}", object.start),
        bytes: object.bytes,
        pages: input.touched.pages(number as u32),
        misses: misses[..input.geometries.len().max(1)].to_vec(),
        interval,
        allocated,
        name,
    }
}

fn map(input: &Input<'_>, place: &HashMap<u32, i64>) -> MapData {
    let map = input.map;
    let tgid = |object: Option<u32>| Some(input.objects.all().get(object? as usize)?.tgid);
    let mut before: Option<(Option<u32>, u64)> = None;
    let mut rows = Vec::new();
    for row in &map.rows {
        let own = tgid(row.object);
        let gap = before.filter(|(other, last)| own.is_some() && *other == own && *last < row.start);
        let mut cells = Vec::new();
        let mut empty = 0;
        for &n in &row.bins {
            if n == 0 {
                empty += 1;
                continue;
            }
            cells.extend([empty, n]);
            empty = 0;
        }
        rows.push(RowData {
            object: row.object.and_then(|o| place.get(&o).copied()).unwrap_or(-1),
            start: format!("{:#x}", row.start),
            last: format!("{:#x}", row.last),
            gap: gap.map(|(_, last)| (row.start - last) >> 12),
            pages: row.pages,
            cells,
        });
        before = Some((own, row.last));
    }
    MapData { span: map.span, bins: map.bins, others: map.others, limit: CELLS, rows }
}

/// Curves of all processes together, and of those with the most misses.
fn curves(input: &Input<'_>) -> Vec<Curves> {
    let mut by_process: HashMap<u32, u64> = HashMap::new();
    for (key, n) in input.profile.pages.iter() {
        *by_process.entry(key.owner).or_default() += n;
    }
    let mut most: Vec<(u32, u64)> = by_process.into_iter().collect();
    most.sort_by_key(|&(tgid, n)| (std::cmp::Reverse(n), tgid));
    let one = most.iter().take(PROCESSES).map(|&(tgid, _)| (process(input, tgid), Some(tgid)));
    let mut curves = Vec::new();
    for (name, tgid) in std::iter::once(("all processes".to_owned(), None)).chain(one) {
        for (size, all) in super::distributions(input.profile, tgid) {
            for d in all {
                let at = |percent: u32| f64::from(percent) / 100.0;
                curves.push(Curves {
                    process: name.clone(),
                    size,
                    together: d.together,
                    entries: d.sums.len(),
                    misses: d.sums.iter().sum(),
                    average: (1..=100).map(|p| d.average_at(at(p))).collect(),
                    cdf: (0..=100).map(|p| (1e6 * d.part_below(at(p))).round() / 1e4).collect(),
                });
            }
        }
    }
    curves
}
