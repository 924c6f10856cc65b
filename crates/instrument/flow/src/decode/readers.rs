// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps granules of code to the blocks built from them, so that a change of code or symbols invalidates only those.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use kprism_image::code::{GRANULE, KeyHasher};

use crate::decode::block::NONE;

/// An index from granules to blocks: chains in one flat list.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    heads: HashMap<(u64, u64), u32, BuildHasherDefault<KeyHasher>>,
    /// (block, next in chain).
    links: Vec<(u32, u32)>,
}

impl Readers {
    pub fn add(&mut self, asid: u64, granule: u64, block: u32) {
        let link = self.links.len() as u32;
        let head = self.heads.entry((asid, granule)).or_insert(NONE);
        let next = std::mem::replace(head, link);
        self.links.push((block, next));
    }

    /// Removes all blocks of a granule from the index and passes them to `each`.
    pub fn take(&mut self, asid: u64, granule: u64, mut each: impl FnMut(u32)) {
        let mut at = self.heads.remove(&(asid, granule)).unwrap_or(NONE);
        while let Some(&(block, next)) = self.links.get(at as usize) {
            each(block);
            at = next;
        }
    }

    /// The granules with blocks in this range of addresses.
    pub fn within(&self, asid: u64, start: u64, end: u64) -> Vec<u64> {
        let first = start / GRANULE * GRANULE;
        if end.saturating_sub(first) / GRANULE < self.heads.len() as u64 {
            let granules = (first..end).step_by(GRANULE as usize);
            return granules.filter(|&va| self.heads.contains_key(&(asid, va))).collect();
        }
        let inside = |key: &&(u64, u64)| key.0 == asid && key.1 >= first && key.1 < end;
        let mut granules: Vec<u64> = self.heads.keys().filter(inside).map(|key| key.1).collect();
        granules.sort_unstable();
        granules
    }

    pub fn clear(&mut self) {
        self.heads.clear();
        self.links.clear();
    }
}
