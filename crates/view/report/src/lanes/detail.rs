// SPDX-License-Identifier: MIT OR Apache-2.0
//! Levels of detail: lanes of any length as data of bounded size for a page.
//!
//! In: [`Lane`]s. Out: [`Reduced`] lanes in columns. While all items fit into the [`Budget`], all are kept. Otherwise each
//! lane keeps its longest items one by one, and the others are summed in cells: for a bin of time and a label, how many and
//! how long together. Sums over any time stay exact but for the two bins at its edges, and the page says what it merged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Group, Lane, Unit};

/// Limits on the data of all lanes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Most items kept one by one.
    pub items: usize,
    /// Most cells of merged items.
    pub cells: usize,
    /// Most bytes of labels and texts.
    pub texts: usize,
}

impl Default for Budget {
    /// Below 2 MB in the page.
    fn default() -> Self {
        Budget { items: 30_000, cells: 24_000, texts: 400_000 }
    }
}

/// A timeline for a page. Times are relative to `from_ns`.
#[derive(Debug, Serialize)]
pub struct Reduced {
    /// Time of the first item, ns of the run's clock.
    pub from_ns: u64,
    /// Length of the timeline, ns.
    pub ns: u64,
    /// Labels and texts of all lanes.
    pub texts: Vec<String>,
    /// Texts that had no room and are shown as `…`.
    pub texts_cut: usize,
    /// The lanes, by group.
    pub lanes: Vec<ReducedLane>,
}

/// A lane in columns.
#[derive(Debug, Serialize)]
pub struct ReducedLane {
    /// Its group.
    pub group: Group,
    /// Name.
    pub name: String,
    /// One item in words, and several.
    pub words: [&'static str; 2],
    /// Remark.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Names and units of arguments.
    pub args: Vec<(&'static str, Unit)>,
    /// Number of items of the run, kept and merged.
    pub count: usize,
    /// Starts, each as the distance from the start before it, ns.
    pub start: Vec<u64>,
    /// Lengths plus one in ns; 0 is an event without a length.
    pub length: Vec<u64>,
    /// Labels.
    pub label: Vec<u32>,
    /// Rows; empty if all are 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depth: Vec<u16>,
    /// Arguments, item by item.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<u64>,
    /// Items that were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged: Option<Merged>,
}

/// Items that are not in the page one by one.
#[derive(Debug, Serialize)]
pub struct Merged {
    /// Length of a bin, ns.
    pub bin_ns: u64,
    /// Number of items.
    pub count: u64,
    /// The longest, ns.
    pub longest_ns: u64,
    /// Bins, each as the distance from the one before it.
    pub bin: Vec<u64>,
    /// Labels.
    pub label: Vec<u32>,
    /// Items of this label that begin in the bin.
    pub items: Vec<u64>,
    /// Their lengths together, ns.
    pub ns: Vec<u64>,
}

/// Brings lanes within the budget.
pub fn reduce(lanes: &[Lane], budget: &Budget) -> Reduced {
    let mut lanes: Vec<&Lane> = lanes.iter().filter(|lane| !lane.items.is_empty()).collect();
    // Stable: a task's calls stay below its system calls.
    lanes.sort_by_key(|lane| if lane.group == Group::Calls { Group::Task } else { lane.group });
    let from_ns = lanes.iter().flat_map(|lane| &lane.items).map(|item| item.start_ns).min().unwrap_or(0);
    let to_ns = lanes.iter().flat_map(|lane| &lane.items).map(|item| item.end_ns()).max().unwrap_or(0);
    let ns = (to_ns - from_ns).max(1);
    let lengths: Vec<usize> = lanes.iter().map(|lane| lane.items.len()).collect();
    let shares = shares(&lengths, budget.items);
    let merging = lengths.iter().zip(&shares).filter(|(all, kept)| all > kept).count();
    let cells = budget.cells / merging.max(1);
    let mut texts = Texts { room: budget.texts, ..Texts::default() };
    let lanes =
        lanes.iter().zip(&shares).map(|(lane, &kept)| one(lane, kept, cells, (from_ns, ns), &mut texts));
    let lanes = lanes.collect();
    Reduced { from_ns, ns, lanes, texts: texts.all, texts_cut: texts.cut }
}

/// Shares a total: small lanes get all that they have, large ones an equal part of the rest.
fn shares(lengths: &[usize], total: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| lengths[i]);
    let (mut left, mut out) = (total, vec![0; lengths.len()]);
    for (at, &i) in order.iter().enumerate() {
        out[i] = lengths[i].min(left / (lengths.len() - at));
        left -= out[i];
    }
    out
}

#[derive(Default)]
struct Texts {
    all: Vec<String>,
    index: HashMap<String, u32>,
    room: usize,
    cut: usize,
}

impl Texts {
    fn add(&mut self, text: &str) -> u32 {
        if let Some(&at) = self.index.get(text) {
            return at;
        }
        // Four bytes for quotes and the comma; one for the mark itself is always there.
        let fits = text.len() + 4 <= self.room;
        if !fits && text != "…" {
            self.cut += 1;
            return self.add("…");
        }
        self.room = self.room.saturating_sub(text.len() + 4);
        self.insert(text)
    }

    fn insert(&mut self, text: &str) -> u32 {
        self.all.push(text.to_owned());
        let at = self.all.len() as u32 - 1;
        self.index.insert(text.to_owned(), at);
        at
    }
}

/// Spreads equal items evenly over time: neighbours are far apart in this order.
fn spread(i: usize) -> u32 {
    (i as u32).reverse_bits()
}

fn one(lane: &Lane, kept: usize, cells: usize, (from_ns, ns): (u64, u64), texts: &mut Texts) -> ReducedLane {
    let mut keep = vec![true; lane.items.len()];
    if kept < lane.items.len() {
        let mut order: Vec<usize> = (0..lane.items.len()).collect();
        order.sort_by_key(|&i| (Reverse(lane.items[i].ns), spread(i)));
        for &i in &order[kept..] {
            keep[i] = false;
        }
    }
    let mut out = ReducedLane {
        group: lane.group,
        name: lane.name.clone(),
        words: [lane.one, lane.many],
        note: lane.note.clone(),
        args: lane.args.clone(),
        count: lane.items.len(),
        start: Vec::new(),
        length: Vec::new(),
        label: Vec::new(),
        depth: Vec::new(),
        values: Vec::new(),
        merged: None,
    };
    let width = lane.args.len();
    let is_nested = lane.items.iter().any(|item| item.depth > 0);
    let mut before = from_ns;
    for (i, item) in lane.items.iter().enumerate().filter(|(i, _)| keep[*i]) {
        out.start.push(item.start_ns.saturating_sub(before));
        before = before.max(item.start_ns);
        out.length.push(item.ns.map_or(0, |ns| ns.saturating_add(1)));
        out.label.push(texts.add(&lane.texts[item.label as usize]));
        if is_nested {
            out.depth.push(item.depth);
        }
        for (&value, (_, unit)) in lane.values[i * width..(i + 1) * width].iter().zip(&lane.args) {
            out.values.push(match unit {
                Unit::Text => texts.add(&lane.texts[value as usize]).into(),
                Unit::Count | Unit::Ns => value,
            });
        }
    }
    if kept < lane.items.len() {
        out.merged = Some(merge(lane, &keep, cells, (from_ns, ns), texts));
    }
    out
}

/// Sums items in bins as fine as the cells allow.
fn merge(lane: &Lane, keep: &[bool], cells: usize, (from_ns, ns): (u64, u64), texts: &mut Texts) -> Merged {
    let dropped = || lane.items.iter().zip(keep).filter(|(_, keep)| !**keep).map(|(item, _)| item);
    let mut bin_ns = (ns / cells.max(1) as u64).max(1);
    let mut sums: BTreeMap<(u64, u32), (u64, u64)> = BTreeMap::new();
    for item in dropped() {
        let cell = sums.entry(((item.start_ns - from_ns) / bin_ns, item.label)).or_default();
        *cell = (cell.0 + 1, cell.1.saturating_add(item.ns.unwrap_or(0)));
    }
    // Two bins become one until there are few enough; with one bin, the labels of least time become one.
    while sums.len() > cells.max(1) && bin_ns < ns {
        bin_ns = bin_ns.saturating_mul(2);
        let mut coarser: BTreeMap<(u64, u32), (u64, u64)> = BTreeMap::new();
        for ((bin, label), (n, sum)) in sums {
            let cell = coarser.entry((bin / 2, label)).or_default();
            *cell = (cell.0 + n, cell.1.saturating_add(sum));
        }
        sums = coarser;
    }
    let mut merged = Merged {
        bin_ns,
        count: dropped().count() as u64,
        longest_ns: dropped().filter_map(|item| item.ns).max().unwrap_or(0),
        bin: Vec::new(),
        label: Vec::new(),
        items: Vec::new(),
        ns: Vec::new(),
    };
    let most = cells.max(1);
    let mut before = 0;
    let mut rest = (0, 0_u64);
    for (i, ((bin, label), (items, sum))) in sums.into_iter().enumerate() {
        if i + 1 >= most {
            rest = (rest.0 + items, rest.1.saturating_add(sum));
            continue;
        }
        merged.bin.push(bin - before);
        before = bin;
        merged.label.push(texts.add(&lane.texts[label as usize]));
        merged.items.push(items);
        merged.ns.push(sum);
    }
    if rest.0 > 0 {
        merged.bin.push(0);
        merged.label.push(texts.add("others"));
        merged.items.push(rest.0);
        merged.ns.push(rest.1);
    }
    merged
}

#[cfg(test)]
#[path = "detail_tests.rs"]
mod tests;
