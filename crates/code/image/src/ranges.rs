// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values at ranges of addresses, which may overlap, found by an address.
//!
//! The input is ranges with a value each; the output is the values at a place. A search takes time in proportion to what it
//! finds, unless a long range covers many short ones that lie beside the place.

use std::collections::BTreeMap;

/// Values by range of addresses.
#[derive(Debug, Clone)]
pub struct Ranges<T> {
    /// Start, end and value, in order of their starts.
    items: Vec<(u64, u64, T)>,
    /// For each item, the largest end up to it.
    reach: Vec<u64>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { items: Vec::new(), reach: Vec::new() }
    }
}

impl<T> Ranges<T> {
    /// An index of ranges (start, end, exclusive, value).
    pub fn new(mut items: Vec<(u64, u64, T)>) -> Self {
        items.sort_by_key(|item| item.0);
        let reach = items
            .iter()
            .scan(0, |most, item| {
                *most = item.1.max(*most);
                Some(*most)
            })
            .collect();
        Self { items, reach }
    }

    /// The values whose ranges overlap `start..end`, from the last start to the first.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &T> {
        self.ranges_overlapping(start, end).map(|(_, _, value)| value)
    }

    /// The same with the ranges: start, end, value.
    fn ranges_overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &(u64, u64, T)> {
        let after = self.items.partition_point(|item| item.0 < end);
        let near = self.items[..after].iter().zip(&self.reach[..after]).rev();
        near.take_while(move |(_, reach)| **reach > start)
            .filter(move |(item, _)| item.1 > start)
            .map(|(item, _)| item)
    }

    /// The values whose ranges contain `va`.
    pub fn at(&self, va: u64) -> impl Iterator<Item = &T> {
        self.overlapping(va, va.saturating_add(1))
    }
}

/// Ranges that begin one after another, such as mappings: at an address, the last that has begun is in force.
#[derive(Debug, Clone, Default)]
pub struct InTime {
    /// Numbers of those with the same range, in order.
    groups: Ranges<Vec<u32>>,
    /// When each begins.
    begins: Vec<u64>,
}

impl InTime {
    /// An index of ranges (start, end, exclusive, begin), which are in order of their begins. Each has its place in this order as its
    /// number.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64, u64)>) -> Self {
        let mut begins = Vec::new();
        let mut groups: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
        for (number, (start, end, begin)) in (0..).zip(ranges) {
            groups.entry((start, end)).or_default().push(number);
            begins.push(begin);
        }
        let groups = groups.into_iter().map(|((start, end), group)| (start, end, group));
        Self { groups: Ranges::new(groups.collect()), begins }
    }

    /// Numbers of all ranges with `va`.
    pub fn at(&self, va: u64) -> impl Iterator<Item = usize> {
        self.groups.at(va).flatten().map(|&number| number as usize)
    }

    /// Number of the range that is in force at `va` at a time.
    #[must_use]
    pub fn newest(&self, va: u64, time: u64) -> Option<usize> {
        let last = self.groups.at(va).filter_map(|group| group[..self.begun(group, time)].last()).max();
        last.map(|&number| number as usize)
    }

    /// Number of the first range with `va` that begins after a time.
    #[must_use]
    pub fn next(&self, va: u64, time: u64) -> Option<usize> {
        let next = self.groups.at(va).filter_map(|group| group.get(self.begun(group, time))).min();
        next.map(|&number| number as usize)
    }

    /// The part of `range` around `va` in which no other range is in force at a time; of those that have begun, only the ones behind
    /// number `after` count. `va` is in no such range.
    #[must_use]
    pub fn around(&self, va: u64, time: u64, range: (u64, u64), after: Option<usize>) -> (u64, u64) {
        let (mut from, mut to) = range;
        for (start, end, group) in self.groups.ranges_overlapping(from, to) {
            let last = group[..self.begun(group, time)].last().map(|&number| number as usize);
            if last.is_none() || last <= after {
                continue;
            }
            if *end <= va {
                from = from.max(*end);
            } else if *start > va {
                to = to.min(*start);
            }
        }
        (from, to)
    }

    /// When the first of those that overlap `start..end` begins.
    #[must_use]
    pub fn first_begin(&self, start: u64, end: u64) -> Option<u64> {
        let first = |group: &Vec<u32>| group.first().map(|&number| self.begins[number as usize]);
        self.groups.overlapping(start, end).filter_map(first).min()
    }

    /// How many of a group have begun at a time.
    fn begun(&self, group: &[u32], time: u64) -> usize {
        group.partition_point(|&number| self.begins[number as usize] <= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ranges_at_one_address_the_last_that_has_begun_is_in_force() {
        let ranges = [(0x1000, 0x2000, 10), (0, 0x8000, 20), (0x1000, 0x2000, 30)];
        let index = InTime::new(ranges);
        assert_eq!([5, 10, 25, 35].map(|time| index.newest(0x1800, time)), [None, Some(0), Some(1), Some(2)]);
        assert_eq!([5, 10, 25, 35].map(|time| index.next(0x1800, time)), [Some(0), Some(1), Some(2), None]);
        assert_eq!((index.newest(0x3000, 35), index.next(0x3000, 5)), (Some(1), Some(1)));
        assert_eq!((index.at(0x1800).count(), index.at(0x9000).count()), (3, 0));
        assert_eq!((index.first_begin(0, 1), index.first_begin(0x1f00, 0x3000)), (Some(20), Some(10)));
        assert_eq!(index.first_begin(0x8000, 0x9000), None);
        let whole = (0x800, 0x8000);
        assert_eq!([5, 10].map(|time| index.around(0x900, time, whole, None)), [whole, (0x800, 0x1000)]);
        assert_eq!(
            [25, 35].map(|time| index.around(0x3000, time, whole, Some(1))),
            [whole, (0x2000, 0x8000)]
        );
    }

    #[test]
    fn overlapping_ranges_are_all_found() {
        let all = [(10, 20, 'a'), (0, 100, 'b'), (20, 30, 'c'), (15, 25, 'd'), (40, 40, 'e')];
        let ranges = Ranges::new(all.to_vec());
        for start in 0..110 {
            for end in start + 1..110 {
                let mut found: Vec<char> = ranges.overlapping(start, end).copied().collect();
                found.sort_unstable();
                let expected = all.iter().filter(|(s, e, _)| *s < end && start < *e);
                let mut expected: Vec<char> = expected.map(|item| item.2).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "{start}..{end}");
            }
        }
        assert_eq!(ranges.at(17).collect::<String>(), "dab");
        assert_eq!(Ranges::<u8>::default().at(5).count(), 0);
    }
}
