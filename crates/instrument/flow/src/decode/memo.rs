// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches where eight branch outcomes lead from a block: (block, byte of outcomes) → (next block, instructions).
//!
//! Used only for runs of plain blocks. They have no events, so skipping them loses nothing but a count, which the cache
//! supplies. Most code calls or returns every few branches, where following the block's own links is as fast. So this
//! cache is used in long loops only: there one lookup replaces eight links.

use crate::decode::block::{Blocks, NONE};

/// Outcomes per lookup.
pub(crate) const OUTCOMES: u32 = 8;

/// Number of entries, a power of two. The table fits into a second-level cache.
const ENTRIES: usize = 1 << 12;

#[derive(Debug, Clone, Copy)]
struct Entry {
    from: u32,
    to: u32,
    insns: u32,
    /// The outcomes in the low byte, [`Blocks::deaths`] above: an entry is invalid once any block has died.
    stamp: u32,
}

/// A direct-mapped table, allocated at the first lookup.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    entries: Vec<Entry>,
}

impl Memo {
    /// Returns the block to which `outcomes`, the oldest in the top bit, lead from block `from`, and the instructions
    /// on the way. `None` if a block on the way is not plain, or not linked yet.
    #[inline]
    pub fn leap(&mut self, blocks: &Blocks, from: u32, outcomes: u8) -> Option<(u32, u32)> {
        let stamp = blocks.deaths << 8 | u32::from(outcomes);
        let slot =
            (from ^ u32::from(outcomes) << 4).wrapping_mul(0x9e37_79b9) as usize >> (32 - ENTRIES.ilog2());
        if self.entries.is_empty() {
            self.entries = vec![Entry { from: NONE, to: NONE, insns: 0, stamp: 0 }; ENTRIES];
        }
        let entry = &mut self.entries[slot % ENTRIES];
        if entry.from != from || entry.stamp != stamp {
            let (to, insns) = follow(blocks, from, outcomes)?;
            *entry = Entry { from, to, insns, stamp };
        }
        Some((entry.to, entry.insns))
    }
}

fn follow(blocks: &Blocks, from: u32, outcomes: u8) -> Option<(u32, u32)> {
    let (mut at, mut insns) = (from, 0);
    for bit in (0..OUTCOMES).rev() {
        let block = &blocks.hot[at as usize];
        if !block.is_plain() {
            return None;
        }
        insns += block.insns;
        at = block.next[usize::from(outcomes >> bit & 1)];
        if at == NONE {
            return None;
        }
    }
    Some((at, insns))
}
