// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map of all misses over address and time for a page that zooms: only pages that missed have a place, and its size does
//! not depend on the number of misses.
//!
//! Input: the streams, twice: for the pages of each object, then for the misses. Output: [`Map`], whose rows are groups
//! of pages that missed, each of one object.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};

use crate::analysis::pages::Pages;
use crate::model::geometry::PageSize;
use crate::objects::Objects;
use crate::stream::{Reader, StreamError, for_each};

/// Most rows of a map.
pub const ROWS: usize = 768;
/// Most bins of time; a power of two, so that they can be joined in pairs.
pub const BINS: usize = 1024;
/// Most cells that are not empty. Above it, bins of time are joined in pairs.
pub const CELLS: usize = 200_000;
/// Most objects with rows of their own.
pub const OBJECTS: usize = 256;

/// Misses of the first geometry by object and page of 4 KiB.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    pages: HashMap<u32, BTreeMap<u64, u64>>,
}

impl Touched {
    /// Adds a CPU's stream.
    ///
    /// # Errors
    /// The stream is damaged. Misses before the damage were added.
    pub fn add(&mut self, reader: Reader<'_>, objects: &mut Objects) -> Result<(), StreamError> {
        let mut sums = Pages::default();
        let result = for_each(reader, |context, m| {
            if m.last & 1 != 0 {
                sums.add(objects.find(context, m.va), PageSize::K4, m.va, context.weight());
            }
        });
        for (page, misses) in sums.iter() {
            *self.pages.entry(page.owner).or_default().entry(page.start >> 12).or_default() += misses;
        }
        result
    }

    /// Pages of an object that missed.
    pub fn pages(&self, object: u32) -> u64 {
        self.pages.get(&object).map_or(0, |pages| pages.len() as u64)
    }
}

/// A row of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The object; `None` for all objects without rows of their own.
    pub object: Option<u32>,
    /// First address of its first page.
    pub start: u64,
    /// Last address of its last page.
    pub last: u64,
    /// Number of its pages of 4 KiB that missed.
    pub pages: u64,
    /// Misses by bin of time.
    pub bins: Vec<u64>,
}

/// Misses over address and time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Start of the first bin and end of the last, ns.
    pub span: (u64, u64),
    /// Rows in order of process and address; that of the other objects is the last.
    pub rows: Vec<Row>,
    /// Number of bins, a power of two.
    pub bins: usize,
    /// Objects in the row of the others.
    pub others: usize,
    /// Each object's rows by their first page, as index in `rows`.
    of: HashMap<u32, Vec<(u64, usize)>>,
}

impl Map {
    /// An empty map. `span` is that of [`crate::profile::Profile`].
    pub fn new(touched: &Touched, objects: &Objects, span: (u64, u64)) -> Self {
        Self::limited(touched, objects, span, (ROWS, OBJECTS, BINS))
    }

    fn limited(
        touched: &Touched,
        objects: &Objects,
        span: (u64, u64),
        (most_rows, most_objects, bins): (usize, usize, usize),
    ) -> Self {
        let length = span.1.saturating_sub(span.0).saturating_add(1);
        let bins = 1 << bins.min(usize::try_from(length).unwrap_or(bins)).max(1).ilog2();
        let mut most: Vec<(u64, u32)> =
            touched.pages.iter().map(|(&object, pages)| (pages.values().sum(), object)).collect();
        most.sort_by_key(|&(misses, object)| (std::cmp::Reverse(misses), object));
        let others = most.split_off(most.len().min(most_objects));
        let wanted: Vec<(u64, u64)> =
            most.iter().map(|&(misses, object)| (misses, touched.pages(object))).collect();
        let heights = share_out(&wanted, most_rows.saturating_sub(usize::from(!others.is_empty())));
        let mut map = Map { span, rows: Vec::new(), bins, others: others.len(), of: HashMap::new() };
        for (&(_, object), height) in most.iter().zip(heights) {
            let pages: Vec<u64> = touched.pages[&object].keys().copied().collect();
            for group in pages.chunks(pages.len().div_ceil(height.max(1)).max(1)) {
                let (start, last) = (group[0] << 12, (group[group.len() - 1] << 12) | 0xfff);
                let pages = group.len() as u64;
                map.rows.push(Row { object: Some(object), start, last, pages, bins: vec![0; bins] });
            }
        }
        let tgid = |row: &Row| row.object.and_then(|o| objects.all().get(o as usize)).map_or(0, |o| o.tgid);
        map.rows.sort_by_key(|row| (row.start >> 63, tgid(row), row.start, row.object));
        for (at, row) in map.rows.iter().enumerate() {
            let Some(object) = row.object else { continue };
            map.of.entry(object).or_default().push((row.start, at));
        }
        if !others.is_empty() {
            let of = || others.iter().filter_map(|(_, object)| touched.pages.get(object));
            let start = of().filter_map(|p| p.keys().next()).min().copied().unwrap_or(0) << 12;
            let last = (of().filter_map(|p| p.keys().next_back()).max().copied().unwrap_or(0) << 12) | 0xfff;
            let pages = others.iter().map(|&(_, object)| touched.pages(object)).sum();
            map.rows.push(Row { object: None, start, last, pages, bins: vec![0; bins] });
        }
        map
    }

    /// Adds a CPU's stream: one of those that `touched` was made of.
    ///
    /// # Errors
    /// The stream is damaged. Misses before the damage were added.
    pub fn add(&mut self, reader: Reader<'_>, objects: &mut Objects) -> Result<(), StreamError> {
        let length = self.span.1.saturating_sub(self.span.0);
        for_each(reader, |context, m| {
            if m.last & 1 == 0 {
                return;
            }
            let at = match self.of.get(&objects.find(context, m.va)) {
                Some(rows) => {
                    let behind = rows.partition_point(|&(start, _)| start <= m.va);
                    rows.get(behind.saturating_sub(1)).map(|&(_, at)| at)
                }
                None => self.rows.len().checked_sub(1),
            };
            let Some(row) = at.and_then(|at| self.rows.get_mut(at)) else { return };
            row.bins[bin(m.ns.saturating_sub(self.span.0), self.bins, length)] += context.weight();
        })
    }

    /// Number of cells that are not empty.
    pub fn filled(&self) -> usize {
        self.rows.iter().flat_map(|row| &row.bins).filter(|n| **n > 0).count()
    }

    /// Joins bins of time in pairs until at most `cells` cells are not empty, or one bin is left.
    pub fn fit(&mut self, cells: usize) {
        while self.filled() > cells && self.bins > 1 {
            self.bins /= 2;
            for row in &mut self.rows {
                row.bins = row.bins.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
    }
}

/// The bin of `bins` in which a time is, `ns` after the first of `length` ns and one.
pub(super) fn bin(ns: u64, bins: usize, length: u64) -> usize {
    let at = match (ns.checked_mul(bins as u64), length.checked_add(1)) {
        // A division of 64 bits is several times as fast.
        (Some(ns), Some(length)) => ns / length,
        _ => u64::try_from(u128::from(ns) * bins as u128 / (u128::from(length) + 1)).unwrap_or(u64::MAX),
    };
    usize::try_from(at).unwrap_or(usize::MAX).min(bins - 1)
}

/// Rows of each object of so many misses and pages: one at least, no more than pages, the rest by misses.
fn share_out(wanted: &[(u64, u64)], rows: usize) -> Vec<usize> {
    let mut heights = vec![1usize; wanted.len()];
    let mut left = rows.saturating_sub(wanted.len());
    while left > 0 {
        let open = |heights: &[usize], n: usize| (heights[n] as u64) < wanted[n].1;
        let total: u128 =
            (0..wanted.len()).filter(|&n| open(&heights, n)).map(|n| u128::from(wanted[n].0)).sum();
        let (round, before) = (left as u128, left);
        for n in 0..wanted.len() {
            if !open(&heights, n) || total == 0 {
                continue;
            }
            let part = (round * u128::from(wanted[n].0)).div_ceil(total) as usize;
            let room = (wanted[n].1 - heights[n] as u64).min(left as u64) as usize;
            heights[n] += part.min(room);
            left -= part.min(room);
        }
        if left == before {
            break;
        }
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::profile::Profile;
    use crate::model::geometry::{Access, PageSize};
    use crate::stream::{Event, Miss, Writer};
    use kprism_image::sideband::parse;

    /// Two arrays of 8 pages, far apart, of which every second page misses; `rounds` times, in order.
    fn run(rounds: u64) -> (Vec<u8>, Objects) {
        let map = |start: u64| {
            format!(
                r#"{{"k":"mmap","t":0,"cpu":0,"pid":7,"tgid":7,"asid":4096,"start":{start},"end":{},"pgoff":0,"exec":false,"path":""}}"#,
                start + 8 * 4096
            )
        };
        let lines = format!("{}\n{}\n", map(0x7f00_0000_0000), map(0x7f10_0000_0000));
        let objects = Objects::new(&parse(lines.as_bytes()).unwrap(), |_| None);
        let mut w = Writer::new(&[crate::model::presets::preset("zen4").unwrap()]);
        w.event(&Event::Task { pid: 7, tgid: 7 });
        for i in 0..rounds * 8 {
            let array = if i % 8 < 4 { 0x7f00_0000_0000 } else { 0x7f10_0000_0000 };
            let va = array + (i % 4) * 2 * 4096;
            let miss =
                Miss { ns: 10 * i, va, ip: 0, access: Access::Load, size: PageSize::K4, first: 1, last: 1 };
            w.event(&Event::Miss(miss));
        }
        (w.bytes, objects)
    }

    fn map(rounds: u64, limits: (usize, usize, usize)) -> Map {
        let (bytes, mut objects) = run(rounds);
        let reader = || Reader::new(&bytes).unwrap();
        let mut profile = Profile::default();
        profile.add(reader(), &mut objects).unwrap();
        let mut touched = Touched::default();
        touched.add(reader(), &mut objects).unwrap();
        let mut map = Map::limited(&touched, &objects, profile.span.unwrap(), limits);
        map.add(reader(), &mut objects).unwrap();
        map
    }

    fn sum(map: &Map) -> u64 {
        map.rows.iter().flat_map(|row| &row.bins).sum()
    }

    #[test]
    fn bins_are_those_of_the_wide_division() {
        for length in [0, 1, 999, 1 << 40, 1 << 55, u64::MAX] {
            for ns in [0, 1, 500, 999, 1 << 39, 1 << 54, u64::MAX] {
                let wide = u128::from(ns) * 1024 / (u128::from(length) + 1);
                assert_eq!(bin(ns, 1024, length) as u128, wide.min(1023), "{ns} of {length}");
            }
        }
    }

    #[test]
    fn only_pages_that_missed_have_a_place() {
        let map = map(4, (4, 9, 4));
        let rows: Vec<_> = map.rows.iter().map(|r| (r.start, r.last, r.pages)).collect();
        let (a, b) = (0x7f00_0000_0000, 0x7f10_0000_0000);
        assert_eq!(
            rows,
            [
                (a, a + 0x2fff, 2),
                (a + 0x4000, a + 0x6fff, 2),
                (b, b + 0x2fff, 2),
                (b + 0x4000, b + 0x6fff, 2)
            ]
        );
        assert!(map.rows.iter().all(|r| r.bins == [2, 2, 2, 2]), "{map:?}");
    }

    #[test]
    fn objects_beyond_the_most_are_one_row() {
        let map = map(4, (4, 1, 4));
        assert_eq!((map.others, map.rows.last().map(|r| (r.object, r.pages))), (1, Some((None, 4))));
        assert_eq!(sum(&map), 32);
    }

    #[test]
    fn joining_keeps_every_miss_and_ends() {
        let mut map = map(400, (8, 9, 1023));
        assert_eq!((sum(&map), map.rows.len(), map.bins), (3200, 8, 512));
        map.fit(200);
        assert!(map.filled() <= 200, "{}", map.filled());
        assert_eq!((sum(&map), map.bins), (3200, 16));
        map.fit(0);
        assert_eq!((sum(&map), map.bins), (3200, 1));
    }

    #[test]
    fn rows_go_to_those_who_miss_and_have_pages() {
        assert_eq!(share_out(&[(90, 1000), (10, 1000)], 102), [91, 11]);
        assert_eq!(share_out(&[(90, 3), (10, 1000)], 100), [3, 97]);
        assert_eq!(share_out(&[(1, 1), (0, 5)], 100), [1, 1]);
        assert_eq!(share_out(&[], 9), [0usize; 0]);
    }
}
