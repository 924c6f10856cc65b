// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks: straight runs of code from a place the trace can arrive at to the next instruction that needs a
//! packet, across direct jumps and calls. What a block does to the call structure is worked out once, when
//! it is built, as a list of events; walking it costs an addition and a link.
//!
//! Bytes in (through [`Image`]), flat arrays out. Blocks refer to each other by index.

use std::collections::HashMap;

use kprism_image::insn::{Far, Mode};

use crate::event::Event;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// A free slot of the index.
const EMPTY: u64 = u64::MAX;

/// In the lower half of a slot: the block is dead.
const GONE: u32 = u32::MAX - 1;

/// When this many blocks exist, all are forgotten: a bound on memory, some 150 bytes each.
const MAX_BLOCKS: usize = 4 << 20;

/// Room made from the start; memory that stays untouched costs nothing.
const RESERVE: usize = 1 << 15;

/// What ends a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    /// Conditional branch: one TNT bit.
    Cond,
    /// Near return: a taken bit when compressed, else a TIP.
    Ret,
    /// Near indirect jump: TIP.
    IndirectJump,
    /// Near indirect call: TIP.
    IndirectCall,
    /// Far transfer: TIP.
    Far(Far),
    /// `int 0x80`: a far transfer, and a system call.
    Int80,
    /// Needs nothing: goes on in another block (cut for length).
    Chain,
    /// No code known, or none that decodes, where the run goes on.
    Unknown,
    /// Void since code or symbols changed; look it up again.
    Dead,
}

/// The part of a block that walking touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Successors once known: not taken, taken. Blocks with one way on (chains, indirect jumps) keep the
    /// last one in `next[1]`; indirect calls keep the block at their return address in `next[0]`.
    pub next: [u32; 2],
    /// Instructions after the last event.
    pub insns: u32,
    /// First of this block's events.
    pub ops: u32,
    /// Function at the block's end.
    pub func: u32,
    /// Function at its start.
    pub start_func: u32,
    /// Its address space and mode, by number: equal numbers mean equal both.
    pub context: u16,
    /// Number of events.
    pub nops: u16,
    pub end: End,
    /// [`crate::event::flag`] bits of the first instruction as a target, and [`WATCHED`].
    pub flags: u8,
}

/// In [`Block::flags`]: the block starts at the watched address.
pub(crate) const WATCHED: u8 = 0x80;

impl Block {
    /// Ends in a conditional branch and has no events: nearly all of them.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.nops == 0 && matches!(self.end, End::Cond)
    }
}

/// The identity of a block: where it starts and how it is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub ip: u64,
    pub asid: u64,
    pub mode: Mode,
    /// Entered from another function by a branch or by falling through, so that it begins with that event.
    pub crossed: bool,
}

/// The part of a block that linking and partial walks touch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cold {
    pub key: Key,
    /// The ending instruction; for [`End::Unknown`] the address without code.
    pub end_ip: u64,
    /// The instruction after it.
    pub next_ip: u64,
    /// Where a conditional branch goes when taken; where a chain goes on.
    pub target: u64,
    /// Addresses of all instructions, when kept: start and count in the cache's list.
    pub ips: (u32, u32),
    /// The same block entered from another function, which shares its fate.
    pub twin: u32,
    /// Where its direct jumps and calls go, the one at its end not among them: [`target_bit`] of each.
    pub targets: u64,
}

/// One bit of 64 for an address: equal addresses have equal bits.
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
    /// Address spaces and modes by their numbers, and the numbers.
    contexts: HashMap<(u64, Mode), u16>,
    /// The one asked for last: code is met address space by address space.
    last_context: Option<(u64, Mode, u16)>,
    /// Open-addressed index: the upper half of the key's hash, then the block.
    table: Vec<u64>,
    mask: usize,
    /// Slots that are not empty.
    used: usize,
    /// Counts the times that blocks died, which voids what was learnt of the ways over them.
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
            deaths: 0,
        }
    }

    fn hash(key: &Key) -> u64 {
        let word = key.ip ^ key.asid.rotate_left(20) ^ u64::from(key.crossed) << 62 ^ (key.mode as u64) << 60;
        let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }

    /// The block with this key.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<u32> {
        let hash = Self::hash(key);
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.table[at];
            if slot == EMPTY {
                return None;
            }
            // The upper half of the hash spares most looks at the key.
            if (slot ^ hash) >> 32 == 0 && slot as u32 != GONE && self.cold[slot as u32 as usize].key == *key
            {
                return Some(slot as u32);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds a block under its key, which must not be there.
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

    /// Makes room in the index: a larger one, or the same without the gone.
    fn grow(&mut self) {
        let alive = self.hot.iter().filter(|b| !matches!(b.end, End::Dead)).count();
        let size = if alive * 4 > self.table.len() { self.table.len() * 4 } else { self.table.len() };
        self.table = vec![EMPTY; size];
        self.mask = size - 1;
        self.used = 0;
        for index in 0..self.hot.len() as u32 {
            if !matches!(self.hot[index as usize].end, End::Dead) {
                self.place(index);
            }
        }
    }

    /// The number of an address space and mode.
    pub fn context(&mut self, asid: u64, mode: Mode) -> u16 {
        if let Some((.., last)) = self.last_context.filter(|last| (last.0, last.1) == (asid, mode)) {
            return last;
        }
        let next = self.contexts.len() as u16;
        let number = *self.contexts.entry((asid, mode)).or_insert(next);
        self.last_context = Some((asid, mode, number));
        number
    }

    /// Whether numbers for blocks or contexts have run out, and everything is to be forgotten.
    pub fn is_full(&self) -> bool {
        self.hot.len() >= MAX_BLOCKS || self.contexts.len() >= usize::from(u16::MAX)
    }

    /// Voids a block. Links to it stay and find the way through [`End::Dead`].
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

    /// Forgets everything.
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
