// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stack of return addresses for RET compression (SDM vol. 3, "Indirect Transfer Compression for Returns"). It has
//! 64 entries; pushing a 65th drops the oldest.

/// Number of entries that the processor keeps.
const DEPTH: usize = 64;

/// A pending return.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Return {
    /// Return address.
    pub ip: u64,
    /// Index of the call's event, which remembers the block at `ip`.
    pub site: u32,
    /// The cache's epoch in which `site` is valid.
    pub epoch: u32,
}

#[derive(Debug)]
pub(crate) struct RetStack {
    entries: [Return; DEPTH],
    top: usize,
    len: usize,
}

impl RetStack {
    pub fn new() -> Self {
        Self { entries: [Return::default(); DEPTH], top: 0, len: 0 }
    }

    #[inline(always)]
    pub fn push(&mut self, entry: Return) {
        self.top = (self.top + 1) % DEPTH;
        self.entries[self.top] = entry;
        self.len = (self.len + 1).min(DEPTH);
    }

    #[inline(always)]
    pub fn pop(&mut self) -> Option<Return> {
        if self.len == 0 {
            return None;
        }
        let entry = self.entries[self.top];
        self.top = (self.top + DEPTH - 1) % DEPTH;
        self.len -= 1;
        Some(entry)
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}
