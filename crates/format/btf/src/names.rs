// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types by name: a hash table of type numbers, without copies of names.
//!
//! **Input:** a BTF whose names were checked. **Output:** the lowest number of a kind and name.

use crate::{Btf, Kind, TypeId};

/// Type numbers at the places of their names' hashes, with linear probing. 0 is an empty place. The table is never full.
#[derive(Debug)]
pub(crate) struct Names(Vec<TypeId>);

impl Names {
    /// Lists the named types of a BTF, without the base's.
    pub fn of(btf: &Btf) -> Self {
        let count = btf.offsets.len();
        let mut table = Self(vec![0; (2 * count + 1).next_power_of_two()]);
        // In order of numbers: of equal keys the first stays. More of them would make the search through them long.
        for id in btf.first_id..btf.end_id() {
            if let Some(key) = btf.own_key(id).filter(|(_, name)| !name.is_empty()) {
                let at = table.place(btf, key);
                if table.0[at] == 0 {
                    table.0[at] = id;
                }
            }
        }
        table
    }

    pub fn find(&self, btf: &Btf, kind: Kind, name: &str) -> Option<TypeId> {
        Some(self.0[self.place(btf, (kind, name.as_bytes()))]).filter(|&id| id != 0)
    }

    /// The place of a key, or the empty one where it belongs.
    fn place(&self, btf: &Btf, key: (Kind, &[u8])) -> usize {
        let last = self.0.len() - 1;
        let mut at = hash(key) as usize & last;
        while self.0[at] != 0 && btf.own_key(self.0[at]) != Some(key) {
            at = (at + 1) & last;
        }
        at
    }
}

/// Eight bytes at a time: names are hashed in guests too, where each instruction counts.
fn hash((kind, name): (Kind, &[u8])) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut words = name.chunks_exact(8);
    let mut hash = name.len() as u64 | (kind as u64) << 32;
    let mut add = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    for word in words.by_ref() {
        add(u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    let rest = words.remainder().iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    add(rest);
    hash ^ hash >> 32
}
