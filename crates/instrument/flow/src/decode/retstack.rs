// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stack of return addresses for RET compression (SDM vol. 3, "Indirect Transfer Compression for Returns"). It has
//! 64 entries; pushing a 65th drops the oldest.
//!
//! Where the kernel's code is missing, the flow is lost at each entry of the kernel. The program's entries are [`Parked`] then, and are
//! there again when the program goes on: a return is compressed only if it goes where the program's own call says.

use kprism_image::is_kernel;

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

#[derive(Debug, Clone)]
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

    /// Drops the calls that the kernel's known code made, down to the program's own.
    fn keep_programs(&mut self) {
        while self.len > 0 && is_kernel(self.entries[self.top].ip) {
            self.pop();
        }
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// Where a program goes on after its stay in the kernel: the address, and its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GoesOn {
    pub ip: u64,
    pub asid: u64,
}

/// Stacks of programs that are in the kernel, whose code is missing. A PSB or a loss of another kind ends them all.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// `None`: two threads of a program wait at this address, and which of them goes on is not known.
    stacks: Vec<(GoesOn, Option<Box<RetStack>>)>,
}

/// Programs that wait at once. A further one's compressed returns are errors.
const MOST_PARKED: usize = 64;

impl Parked {
    /// Keeps the program's part of `stack` until it goes on.
    pub fn park(&mut self, at: GoesOn, stack: &RetStack) {
        if let Some((_, known)) = self.stacks.iter_mut().find(|(place, _)| *place == at) {
            *known = None;
        } else if self.stacks.len() < MOST_PARKED {
            let mut kept = Box::new(stack.clone());
            kept.keep_programs();
            self.stacks.push((at, Some(kept)));
        }
    }

    /// The stack of the program that goes on; an empty one if it is not known.
    pub fn unpark(&mut self, at: GoesOn) -> RetStack {
        match self.stacks.iter().position(|(place, known)| *place == at && known.is_some()) {
            Some(place) => self.stacks.swap_remove(place).1.map_or_else(RetStack::new, |stack| *stack),
            None => RetStack::new(),
        }
    }

    pub fn clear(&mut self) {
        self.stacks.clear();
    }
}
