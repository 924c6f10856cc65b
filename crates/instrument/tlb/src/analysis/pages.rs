// SPDX-License-Identifier: MIT OR Apache-2.0
//! Misses by page. Neighbouring pages are counted in one piece of the table: a program that walks through its memory, or
//! jumps about in it, finds the piece in the processor's cache more often than a page of its own.

use foldhash::{HashMap, HashMapExt as _};

use crate::model::geometry::PageSize;

/// A page, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey {
    /// Process (0 for the kernel's half), or object: what the table's maker sums by.
    pub owner: u32,
    /// First address.
    pub start: u64,
    /// Size of the page.
    pub size: PageSize,
}

/// Pages of a piece: enough to need few pieces, few enough that lonely pages cost little memory.
const PIECE: usize = 32;

/// Sums of misses by page.
#[derive(Debug, Clone)]
pub struct Pages {
    /// By the key of the first page.
    pieces: HashMap<PageKey, [u64; PIECE]>,
}

impl Default for Pages {
    fn default() -> Self {
        Pages { pieces: HashMap::new() }
    }
}

impl Pages {
    /// Adds misses of the owner's page of this size that holds `va`.
    pub fn add(&mut self, owner: u32, size: PageSize, va: u64, misses: u64) {
        let number = va >> size.shift();
        let first = number / PIECE as u64 * PIECE as u64;
        let piece = self.pieces.entry(PageKey { owner, start: first << size.shift(), size });
        piece.or_insert([0; PIECE])[number as usize % PIECE] += misses;
    }

    /// Pages that missed, in no order, with their misses.
    pub fn iter(&self) -> impl Iterator<Item = (PageKey, u64)> {
        self.pieces.iter().flat_map(|(first, sums)| {
            let key = |at: u64| PageKey { start: first.start + (at << first.size.shift()), ..*first };
            (0..).zip(sums).filter(|(_, sum)| **sum > 0).map(move |(at, &sum)| (key(at), sum))
        })
    }

    /// Number of pages that missed.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns true if no page missed.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_its_own_sum() {
        let mut pages = Pages::default();
        for (owner, size, va) in [
            (1, PageSize::K4, 0x1_fff8),
            (1, PageSize::K4, 0x1_f000),
            (1, PageSize::K4, 0x2_0000),
            (2, PageSize::K4, 0x1_f000),
            (1, PageSize::M2, 0x1_f000),
            (1, PageSize::K4, u64::MAX),
        ] {
            pages.add(owner, size, va, 2);
        }
        let mut found: Vec<_> = pages.iter().map(|(key, n)| (key.owner, key.size, key.start, n)).collect();
        found.sort_unstable();
        let expected = [
            (1, PageSize::K4, 0x1_f000, 4),
            (1, PageSize::K4, 0x2_0000, 2),
            (1, PageSize::K4, u64::MAX - 0xfff, 2),
            (1, PageSize::M2, 0, 2),
            (2, PageSize::K4, 0x1_f000, 2),
        ];
        assert_eq!(found, expected);
        assert_eq!((pages.len(), pages.is_empty()), (5, false));
    }
}
