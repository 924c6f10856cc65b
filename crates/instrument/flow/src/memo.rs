// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remembers where eight branch outcomes lead from a block: (block, byte of outcomes) → (next block,
//! instructions).
//!
//! Only for runs of plain blocks, which have no events: nothing but a count is lost by passing them in one
//! leap. Most code calls and returns every few branches, where a block's own links are as good; so leaps are
//! tried in long loops alone, where eight links to follow one after the other become one look.

use crate::block::{Blocks, NONE};

/// Outcomes in one leap.
pub(crate) const OUTCOMES: u32 = 8;

/// Leaps remembered; a power of two. They fit a second-level cache.
const ENTRIES: usize = 1 << 12;

#[derive(Debug, Clone, Copy)]
struct Entry {
    from: u32,
    to: u32,
    insns: u32,
    /// The outcomes in the low byte, [`Blocks::deaths`] above: a leap over a block that died since is void.
    stamp: u32,
}

/// A direct-mapped table of leaps, made when the first is tried.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    entries: Vec<Entry>,
}

impl Memo {
    /// Where `outcomes`, the oldest in the top bit, lead from block `from`, and over how many instructions.
    /// `None` if a block on the way is not plain, or not linked yet.
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
