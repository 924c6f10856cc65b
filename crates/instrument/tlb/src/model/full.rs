// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fully associative LRU array with many entries: a list in order of use, and a hash table that finds entries without
//! comparing all of them.

use crate::model::array::GLOBAL;

const NONE: u32 = u32::MAX;

/// A fully associative LRU array. Keys are those of [`crate::model::array`]; 0 is no key.
#[derive(Debug, Clone)]
pub(crate) struct Full {
    keys: Vec<u64>,
    newer: Vec<u32>,
    older: Vec<u32>,
    newest: u32,
    oldest: u32,
    free: Vec<u32>,
    /// Slots by hash, with linear probing; at most a quarter full.
    table: Vec<u32>,
    shift: u32,
}

impl Full {
    pub fn new(entries: usize) -> Self {
        let slots = (entries * 4).next_power_of_two().max(8);
        Full {
            keys: vec![0; entries],
            newer: vec![NONE; entries],
            older: vec![NONE; entries],
            newest: NONE,
            oldest: NONE,
            free: (0..entries as u32).rev().collect(),
            table: vec![NONE; slots],
            shift: 64 - slots.trailing_zeros(),
        }
    }

    fn home(&self, key: u64) -> usize {
        ((key & !GLOBAL).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn find(&self, key: u64) -> Option<usize> {
        let mask = self.table.len() - 1;
        let mut at = self.home(key);
        loop {
            match self.table[at] {
                NONE => return None,
                slot if self.keys[slot as usize] & !GLOBAL == key => return Some(at),
                _ => at = (at + 1) & mask,
            }
        }
    }

    pub fn hit(&mut self, key: u64) -> Option<bool> {
        let slot = self.table[self.find(key)?];
        if slot != self.newest {
            self.unlink(slot);
            self.link(slot);
        }
        Some(self.keys[slot as usize] & GLOBAL != 0)
    }

    /// Inserts `key`, which must be absent.
    pub fn fill(&mut self, key: u64) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.oldest;
                self.forget(self.keys[slot as usize] & !GLOBAL);
                self.unlink(slot);
                slot
            }
        };
        self.keys[slot as usize] = key;
        let mask = self.table.len() - 1;
        let mut at = self.home(key);
        while self.table[at] != NONE {
            at = (at + 1) & mask;
        }
        self.table[at] = slot;
        self.link(slot);
    }

    pub fn remove(&mut self, key: u64) {
        let Some(at) = self.find(key) else { return };
        let slot = self.table[at];
        self.forget(key);
        self.unlink(slot);
        self.free.push(slot);
    }

    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let mut slot = self.oldest;
        while slot != NONE {
            let next = self.newer[slot as usize];
            let key = self.keys[slot as usize];
            if !keep(key) {
                self.remove(key & !GLOBAL);
            }
            slot = next;
        }
    }

    pub fn clear(&mut self) {
        *self = Full::new(self.keys.len());
    }

    /// Removes `key` from the table. Entries after it move up, so that each can still be reached from its home slot.
    fn forget(&mut self, key: u64) {
        let Some(mut hole) = self.find(key) else { return };
        let mask = self.table.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.table[at];
            if slot == NONE {
                break;
            }
            let home = self.home(self.keys[slot as usize]);
            // An entry may move to the hole only if its home slot is not between the hole and its place.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = slot;
                hole = at;
            }
        }
        self.table[hole] = NONE;
    }

    fn unlink(&mut self, slot: u32) {
        let (newer, older) = (self.newer[slot as usize], self.older[slot as usize]);
        match newer {
            NONE => self.newest = older,
            n => self.older[n as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => self.newer[o as usize] = newer,
        }
    }

    fn link(&mut self, slot: u32) {
        self.newer[slot as usize] = NONE;
        self.older[slot as usize] = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            n => self.newer[n as usize] = slot,
        }
        self.newest = slot;
    }
}
