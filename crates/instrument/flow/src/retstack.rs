// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stack of return addresses behind RET compression (SDM vol. 3, "Indirect Transfer Compression for
//! Returns"): 64 entries, of which the oldest is lost when a 65th is pushed.

/// Entries the processor keeps.
const DEPTH: usize = 64;

/// A pending return.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Return {
    /// Where it goes.
    pub ip: u64,
    /// The call's event, which remembers the block at `ip`.
    pub site: u32,
    /// The cache's epoch when `site` was valid.
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
