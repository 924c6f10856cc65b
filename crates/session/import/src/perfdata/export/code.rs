// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the code of one address space as seen by several CPUs, in order of time: the initial code, and its changes
//! with their times.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::PAGE;

/// Code that a CPU executed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    pub ns: u64,
    pub va: u64,
    pub bytes: &'a [u8],
}

impl Seen<'_> {
    /// Addresses of the pages that it is in.
    pub fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        pages_of(self.va, self.bytes.len())
    }
}

/// Addresses of the pages that `len` bytes from `va` on are in.
pub(super) fn pages_of(va: u64, len: usize) -> impl Iterator<Item = u64> {
    let last = va.saturating_add((len as u64).max(1) - 1);
    (va / PAGE..=last / PAGE).map(|page| page * PAGE)
}

/// Ranges of these pages, which are in order of address. Ranges at most `gap` apart are joined.
pub(super) fn ranges(pages: impl Iterator<Item = u64>, gap: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for start in pages {
        let end = start.wrapping_add(PAGE);
        match ranges.last_mut() {
            Some(last) if start >= last.1 && start - last.1 <= gap => last.1 = end,
            _ => ranges.push((start, end)),
        }
    }
    ranges
}

/// A replacement of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub ns: u64,
    pub va: u64,
    pub old: Vec<u8>,
    pub new: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Page {
    bytes: Box<[u8; PAGE as usize]>,
    known: Box<[bool; PAGE as usize]>,
}

/// Known bytes by page.
#[derive(Debug, Clone, Default)]
pub(super) struct Code {
    pages: BTreeMap<u64, Page>,
}

impl Code {
    /// The initial code at each place. `seen` must be in order of time.
    pub fn first<'a>(seen: impl Iterator<Item = Seen<'a>>) -> (Self, Vec<Change>) {
        let mut first = Self::default();
        let mut now: BTreeMap<u64, u8> = BTreeMap::new();
        let mut changes = Vec::new();
        for Seen { ns, va, bytes } in seen {
            let old: Vec<u8> = (va..)
                .zip(bytes)
                .map(|(va, &new)| now.get(&va).copied().unwrap_or_else(|| first.add(va, new)))
                .collect();
            if old != bytes {
                now.extend((va..).zip(bytes.iter().copied()));
                changes.push(Change { ns, va, old, new: bytes.to_vec() });
            }
        }
        (first, changes)
    }

    /// Adds a byte unless one is known there. Returns the byte that is then there.
    fn add(&mut self, va: u64, byte: u8) -> u8 {
        let at = (va % PAGE) as usize;
        let page = match self.pages.entry(va - va % PAGE) {
            Entry::Occupied(page) => page.into_mut(),
            Entry::Vacant(free) => {
                free.insert(Page { bytes: Box::new([0; 4096]), known: Box::new([false; 4096]) })
            }
        };
        if !page.known[at] {
            page.bytes[at] = byte;
            page.known[at] = true;
        }
        page.bytes[at]
    }

    /// Replaces bytes.
    pub fn set(&mut self, va: u64, bytes: &[u8]) {
        for (va, &byte) in (va..).zip(bytes) {
            self.add(va, byte);
            if let Some(page) = self.pages.get_mut(&(va - va % PAGE)) {
                page.bytes[(va % PAGE) as usize] = byte;
            }
        }
    }

    /// Ranges of pages with code. Ranges less than `gap` apart are joined.
    pub fn ranges(&self, gap: u64) -> Vec<(u64, u64)> {
        ranges(self.pages.keys().copied(), gap)
    }

    /// Pages from `start` up to `end`.
    pub fn pages(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.range(start..end).map(|(va, page)| (*va, &page.bytes[..]))
    }
}
