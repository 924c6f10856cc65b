// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks: straight runs of code, across direct jumps and calls, up to the next instruction that needs a packet.
//!
//! A block begins where the trace can arrive. Its effect on the call structure is computed once, when it is built, as a
//! list of events. Walking a block then costs an addition and a link. Code bytes come from [`Image`]; blocks live in
//! flat arrays and refer to each other by index.

use std::collections::HashMap;

use kprism_image::insn::{Far, Mode};

use crate::decode::event::Event;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// A free slot of the index.
const EMPTY: u64 = u64::MAX;

/// In the lower half of a slot: the block was invalidated.
const GONE: u32 = u32::MAX - 1;

/// When this many blocks exist, all are dropped. This bounds memory, at some 150 bytes each.
const MAX_BLOCKS: usize = 1 << 20;

/// Capacity reserved at the start. Memory that is never touched costs nothing.
const RESERVE: usize = 1 << 15;

/// The instruction or event that ends a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    /// Conditional branch: one TNT bit.
    Cond,
    /// Near return: a taken TNT bit if compressed, else a TIP.
    Ret,
    /// Near indirect jump: TIP.
    IndirectJump,
    /// Near indirect call: TIP.
    IndirectCall,
    /// Far transfer: TIP.
    Far(Far),
    /// `int 0x80`: a far transfer, and a system call.
    Int80,
    /// Needs no packet: the block was cut for length and another one continues it.
    Chain,
    /// The run continues at an address without known code, or without a valid instruction.
    Unknown,
    /// Invalid since code or symbols changed. It must be looked up again.
    Dead,
}

/// The part of a block that every walk reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Successors once known: not taken, taken. Blocks with one way on (chains, indirect jumps) keep the last one in
    /// `next[1]`.
    pub next: [u32; 2],
    /// Instructions after the last event.
    pub insns: u32,
    /// Index of this block's first event.
    pub ops: u32,
    /// Function at the block's end.
    pub func: u32,
    /// Function at its start.
    pub start_func: u32,
    /// Number of its address space and mode: equal numbers mean that both are equal.
    pub context: u16,
    /// Number of events. One more lies behind them: the call with its return address that an indirect call at the block's end
    /// takes once its target is known.
    pub nops: u16,
    pub end: End,
    /// [`crate::decode::event::flag`] bits of the first instruction as a target, [`WATCHED`] and [`PIVOTS`].
    pub flags: u8,
}

/// In [`Block::flags`]: the block starts at the watched address.
pub(crate) const WATCHED: u8 = 0x80;

/// In [`Block::flags`]: the code before the return or indirect jump at the block's end loads the stack pointer. A target has no
/// property of this number.
pub(crate) const PIVOTS: u8 = crate::decode::event::flag::DIRECT;

impl Block {
    /// Returns true if the block ends in a conditional branch and has no events. Nearly all do.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.nops == 0 && matches!(self.end, End::Cond)
    }
}

/// Identity of a block: its start address, address space and mode, and how it is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub ip: u64,
    pub asid: u64,
    pub mode: Mode,
    /// Entered from another function by a branch or by falling through. The block then begins with that event.
    pub crossed: bool,
}

/// The part of a block that only linking and partial walks read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cold {
    pub key: Key,
    /// The ending instruction; for [`End::Unknown`] the address without code.
    pub end_ip: u64,
    /// The instruction after it.
    pub next_ip: u64,
    /// Target of a taken conditional branch, or address at which a chain continues.
    pub target: u64,
    /// Addresses of all instructions, when kept: start and count in [`Blocks::ips`].
    pub ips: (u32, u32),
    /// The same block entered from another function. It is invalidated together with this one.
    pub twin: u32,
    /// Targets of its direct jumps and calls, without the one at its end: the [`target_bit`] of each.
    pub targets: u64,
}

/// Maps an address to one bit of 64. Equal addresses have equal bits.
#[inline]
pub(crate) fn target_bit(ip: u64) -> u64 {
    1 << (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

/// All blocks and their index by key.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub hot: Vec<Block>,
    pub cold: Vec<Cold>,
    pub ops: Vec<Event>,
    pub ips: Vec<u64>,
    /// Numbers of address spaces and modes.
    contexts: HashMap<(u64, Mode), u16>,
    /// The context looked up last. Code runs address space by address space.
    last_context: Option<(u64, Mode, u16)>,
    /// Open-addressed index: the upper half of the key's hash, then the block.
    table: Vec<u64>,
    mask: usize,
    /// Slots that are not empty.
    used: usize,
    /// [`MAX_BLOCKS`]; tests take fewer.
    pub most: usize,
    /// Number of times that blocks were invalidated. A cached path is valid only while it stays the same.
    pub deaths: u32,
}

impl Blocks {
    pub fn new() -> Self {
        let size = 1 << 13;
        Self {
            hot: Vec::with_capacity(RESERVE),
            cold: Vec::with_capacity(RESERVE),
            ops: Vec::with_capacity(RESERVE),
            ips: Vec::new(),
            contexts: HashMap::new(),
            last_context: None,
            table: vec![EMPTY; size],
            mask: size - 1,
            used: 0,
            most: MAX_BLOCKS,
            deaths: 0,
        }
    }

    fn hash(key: &Key) -> u64 {
        let word = key.ip ^ key.asid.rotate_left(20) ^ u64::from(key.crossed) << 62 ^ (key.mode as u64) << 60;
        let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }

    /// Finds the block with this key.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<u32> {
        let hash = Self::hash(key);
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.table[at];
            if slot == EMPTY {
                return None;
            }
            // Comparing the upper half of the hash avoids most comparisons of keys.
            if (slot ^ hash) >> 32 == 0 && slot as u32 != GONE && self.cold[slot as u32 as usize].key == *key
            {
                return Some(slot as u32);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds a block. Its key must not be in the index yet.
    pub fn insert(&mut self, hot: Block, cold: Cold) -> u32 {
        if (self.used + 1) * 2 > self.table.len() {
            self.grow();
        }
        let index = self.hot.len() as u32;
        self.hot.push(hot);
        self.cold.push(cold);
        self.place(index);
        index
    }

    fn place(&mut self, index: u32) {
        let hash = Self::hash(&self.cold[index as usize].key);
        let mut at = hash as usize & self.mask;
        while self.table[at] != EMPTY && self.table[at] as u32 != GONE {
            at = (at + 1) & self.mask;
        }
        self.used += usize::from(self.table[at] == EMPTY);
        self.table[at] = hash >> 32 << 32 | u64::from(index);
    }

    /// Rebuilds the index: larger, or without the invalidated blocks.
    fn grow(&mut self) {
        let alive = self.hot.iter().filter(|b| !matches!(b.end, End::Dead)).count();
        let size = if alive * 4 > self.table.len() { self.table.len() * 2 } else { self.table.len() };
        self.table = vec![EMPTY; size];
        self.mask = size - 1;
        self.used = 0;
        for index in 0..self.hot.len() as u32 {
            if !matches!(self.hot[index as usize].end, End::Dead) {
                self.place(index);
            }
        }
    }

    /// Returns the number of an address space and mode.
    pub fn context(&mut self, asid: u64, mode: Mode) -> u16 {
        if let Some((.., last)) = self.last_context.filter(|last| (last.0, last.1) == (asid, mode)) {
            return last;
        }
        let next = self.contexts.len() as u16;
        let number = *self.contexts.entry((asid, mode)).or_insert(next);
        self.last_context = Some((asid, mode, number));
        number
    }

    /// Returns true if the numbers of blocks or contexts have run out. All blocks must then be dropped.
    pub fn is_full(&self) -> bool {
        self.hot.len() >= self.most || self.contexts.len() >= usize::from(u16::MAX)
    }

    /// Invalidates a block. Links to it remain; they end at [`End::Dead`], where the block is looked up again.
    pub fn kill(&mut self, index: u32) {
        if matches!(self.hot[index as usize].end, End::Dead) {
            return;
        }
        let mut at = Self::hash(&self.cold[index as usize].key) as usize & self.mask;
        while self.table[at] as u32 != index {
            at = (at + 1) & self.mask;
        }
        self.table[at] = self.table[at] >> 32 << 32 | u64::from(GONE);
        let block = &mut self.hot[index as usize];
        block.end = End::Dead;
        self.deaths = self.deaths.wrapping_add(1);
        block.next = [NONE, NONE];
        block.insns = 0;
        block.nops = 0;
        let cold = &mut self.cold[index as usize];
        cold.ips.1 = 0;
        let twin = std::mem::replace(&mut cold.twin, NONE);
        if twin != NONE {
            self.kill(twin);
        }
    }

    /// Drops all blocks.
    pub fn clear(&mut self) {
        self.deaths = self.deaths.wrapping_add(1);
        self.hot.clear();
        self.cold.clear();
        self.ops.clear();
        self.ips.clear();
        self.contexts.clear();
        self.last_context = None;
        self.table.fill(EMPTY);
        self.used = 0;
    }
}
