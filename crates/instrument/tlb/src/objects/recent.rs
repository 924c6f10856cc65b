// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of addresses that were looked up lately, with what was found there. Most misses fall where one before them fell, so
//! a search through all ranges of a process is rare.

/// Number of ranges, a power of two.
const RANGES: usize = 64;

/// Addresses of so many bits share a range's place in the table.
const SHIFT: u32 = 21;

#[derive(Debug, Clone, Copy)]
struct Range {
    /// [`Recent::filling`] when it was found. A range of an earlier filling is no longer valid.
    filling: u64,
    tgid: u32,
    start: u64,
    /// The last address: a range may end with the address space.
    last: u64,
    found: Option<u32>,
}

/// A direct-mapped table, allocated with the first range.
#[derive(Debug, Clone, Default)]
pub(super) struct Recent {
    ranges: Vec<Range>,
    filling: u64,
}

impl Recent {
    fn slot(tgid: u32, va: u64) -> usize {
        (va >> SHIFT ^ u64::from(tgid)) as usize % RANGES
    }

    /// The object found in the range around `va`; `None` if it was not looked up lately.
    #[inline]
    pub fn get(&self, tgid: u32, va: u64) -> Option<Option<u32>> {
        let range = self.ranges.get(Self::slot(tgid, va))?;
        let holds =
            range.tgid == tgid && range.filling == self.filling && range.start <= va && va <= range.last;
        holds.then_some(range.found)
    }

    /// Notes what was found for `va`, and for all of its range.
    pub fn put(&mut self, tgid: u32, va: u64, (start, last): (u64, u64), found: Option<u32>) {
        let none = Range { filling: u64::MAX, tgid: 0, start: 0, last: 0, found: None };
        self.ranges.resize(RANGES, none);
        self.ranges[Self::slot(tgid, va)] = Range { filling: self.filling, tgid, start, last, found };
    }

    /// Forgets all ranges: what is at an address may have changed.
    pub fn clear(&mut self) {
        self.filling += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_process_and_range_is_found() {
        let mut recent = Recent::default();
        assert_eq!(recent.get(1, 0x1000), None);
        recent.put(1, 0x1000, (0x1000, 0x1fff), Some(7));
        recent.put(2, 0x20_0000, (0x20_0000, u64::MAX), None);
        assert_eq!(recent.get(1, 0x1fff), Some(Some(7)));
        assert_eq!(recent.get(1, 0x2000), None);
        assert_eq!(recent.get(2, 0x1000), None);
        assert_eq!(recent.get(2, 0x20_0008), Some(None));
        recent.clear();
        assert_eq!(recent.get(1, 0x1fff), None);
    }
}
