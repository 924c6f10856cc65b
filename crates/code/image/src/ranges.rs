// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values at ranges of addresses, which may overlap, found by an address.
//!
//! The input is ranges with a value each; the output is the values at a place. A search takes time in proportion to what it
//! finds, unless a long range covers many short ones that lie beside the place.

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
        let after = self.items.partition_point(|item| item.0 < end);
        let near = self.items[..after].iter().zip(&self.reach[..after]).rev();
        near.take_while(move |(_, reach)| **reach > start)
            .filter(move |((_, end, _), _)| *end > start)
            .map(|((_, _, value), _)| value)
    }

    /// The values whose ranges contain `va`.
    pub fn at(&self, va: u64) -> impl Iterator<Item = &T> {
        self.overlapping(va, va.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
