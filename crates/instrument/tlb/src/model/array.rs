// SPDX-License-Identifier: MIT OR Apache-2.0
//! One array of translations, looked up by key.
//!
//! A key is a page of an address space: page number, page size, address space, and a bit that distinguishes it from an
//! empty entry. Another bit beside the key marks a global translation; lookups do not compare it.

use crate::model::full::Full;
use crate::model::geometry::{self, PageSize, Policy};

/// Flag beside a key: the translation survives loads of CR3.
pub(crate) const GLOBAL: u64 = 1 << 63;
const VALID: u64 = 1 << 62;
/// Bits of a page number: 57 address bits less 12.
const NUMBER: u64 = (1 << 45) - 1;

/// Number of ways from which entries are hashed instead of compared one by one.
const MANY: usize = 24;

/// The key of the page at `va`.
#[inline(always)]
pub(crate) fn key(va: u64, size: PageSize, space: u16) -> u64 {
    VALID | u64::from(space & 0x7fff) << 47 | (size as u64) << 45 | (va >> size.shift()) & NUMBER
}

/// One array of translations.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    sets: u64,
    /// 2^64 / sets, rounded up: remainders by multiplication (Lemire, Kaser, Kurz 2019).
    magic: u64,
    ways: usize,
    /// No entry was ever filled.
    unused: bool,
    store: Store,
}

#[derive(Debug, Clone)]
enum Store {
    /// Sets one after another, each from the most to the least recently used.
    Lru(Vec<u64>),
    Plru {
        keys: Vec<u64>,
        bits: Vec<u64>,
    },
    Random {
        keys: Vec<u64>,
        state: u64,
    },
    Full(Full),
}

impl Array {
    pub fn new(a: &geometry::Array) -> Self {
        let (entries, ways, sets) = (a.entries as usize, a.ways() as usize, u64::from(a.sets()));
        let keys = vec![0; entries];
        let store = match a.policy {
            Policy::Lru if sets == 1 && ways >= MANY => Store::Full(Full::new(entries)),
            Policy::Lru => Store::Lru(keys),
            Policy::Plru if ways > 64 => Store::Full(Full::new(entries)),
            Policy::Plru => Store::Plru { keys, bits: vec![0; sets as usize] },
            Policy::Random => Store::Random { keys, state: 0x9e37_79b9_7f4a_7c15 },
        };
        Array { sets, magic: (u64::MAX / sets).wrapping_add(1), ways, unused: true, store }
    }

    /// Returns true if no entry was ever filled.
    #[inline(always)]
    pub fn is_unused(&self) -> bool {
        self.unused
    }

    /// Index of the first entry in the set of `key`.
    #[inline(always)]
    fn set(&self, key: u64) -> usize {
        let number = key & NUMBER;
        let set = if self.sets & (self.sets - 1) == 0 {
            number & (self.sets - 1)
        } else {
            // Exact as long as the number's bits (45) and the sets' bits (16) are at most 64 together.
            ((u128::from(number.wrapping_mul(self.magic)) * u128::from(self.sets)) >> 64) as u64
        };
        set as usize * self.ways
    }

    /// If `key` is present, marks it used and returns whether it is global.
    #[inline(always)]
    pub fn hit(&mut self, key: u64) -> Option<bool> {
        let (at, ways) = (self.set(key), self.ways);
        match &mut self.store {
            Store::Lru(keys) => {
                let set = &mut keys[at..at + ways];
                let found = match ways {
                    4 => to_front::<4>(set, key),
                    8 => to_front::<8>(set, key),
                    12 => to_front::<12>(set, key),
                    _ => to_front_any(set, key),
                };
                found.map(|k| k & GLOBAL != 0)
            }
            Store::Plru { keys, bits } => {
                let way = keys[at..at + ways].iter().position(|k| k & !GLOBAL == key)?;
                touch(&mut bits[at / ways], way, ways);
                Some(keys[at + way] & GLOBAL != 0)
            }
            Store::Random { keys, .. } => {
                keys[at..at + ways].iter().find(|&k| k & !GLOBAL == key).map(|k| k & GLOBAL != 0)
            }
            Store::Full(full) => full.hit(key),
        }
    }

    /// Looks up the keys of several places in order, as [`hit`](Array::hit), and fills those that are absent, as
    /// [`fill`](Array::fill). `each` gets the place, and whether the key was present. For the usual numbers of ways no
    /// branch depends on that: with random accesses such a branch would be unpredictable.
    #[inline(always)]
    pub fn hit_or_fill_all(
        &mut self,
        places: impl Iterator<Item = u32>,
        key: impl Fn(u32) -> u64,
        mut each: impl FnMut(u32, bool),
    ) {
        self.unused = false;
        let sets = self.sets;
        if let Store::Lru(keys) = &mut self.store
            && sets.is_power_of_two()
        {
            match self.ways {
                4 => return rotate_all::<4>(keys, sets, places, key, each),
                6 => return rotate_all::<6>(keys, sets, places, key, each),
                8 => return rotate_all::<8>(keys, sets, places, key, each),
                12 => return rotate_all::<12>(keys, sets, places, key, each),
                16 => return rotate_all::<16>(keys, sets, places, key, each),
                _ => {}
            }
        }
        for place in places {
            let key = key(place);
            let hit = self.hit(key).is_some();
            if !hit {
                self.fill(key, false);
            }
            each(place, hit);
        }
    }

    /// Inserts a translation that is absent. If its set is full, it replaces another.
    #[inline(always)]
    pub fn fill(&mut self, key: u64, global: bool) {
        self.unused = false;
        let (at, ways) = (self.set(key), self.ways);
        let entry = key | if global { GLOBAL } else { 0 };
        match &mut self.store {
            Store::Lru(keys) => {
                let set = &mut keys[at..at + ways];
                // Empty entries are at the end, because removal closes gaps.
                match ways {
                    4 => push_front::<4>(set, entry),
                    8 => push_front::<8>(set, entry),
                    12 => push_front::<12>(set, entry),
                    _ => {
                        set.copy_within(0..ways - 1, 1);
                        set[0] = entry;
                    }
                }
            }
            Store::Plru { keys, bits } => {
                let bits = &mut bits[at / ways];
                let set = &mut keys[at..at + ways];
                let way = set.iter().position(|&k| k == 0).unwrap_or_else(|| victim(*bits, ways));
                set[way] = entry;
                touch(bits, way, ways);
            }
            Store::Random { keys, state } => {
                let set = &mut keys[at..at + ways];
                let way = set.iter().position(|&k| k == 0).unwrap_or_else(|| {
                    *state ^= *state << 13;
                    *state ^= *state >> 7;
                    *state ^= *state << 17;
                    ((u128::from(*state) * ways as u128) >> 64) as usize
                });
                set[way] = entry;
            }
            Store::Full(full) => full.fill(entry),
        }
    }

    /// Removes one translation.
    pub fn remove(&mut self, key: u64) {
        let (at, ways) = (self.set(key), self.ways);
        match &mut self.store {
            Store::Lru(keys) => {
                let set = &mut keys[at..at + ways];
                if let Some(way) = set.iter().position(|k| k & !GLOBAL == key) {
                    set.copy_within(way + 1.., way);
                    set[ways - 1] = 0;
                }
            }
            Store::Plru { keys, .. } | Store::Random { keys, .. } => {
                for k in &mut keys[at..at + ways] {
                    if *k & !GLOBAL == key {
                        *k = 0;
                    }
                }
            }
            Store::Full(full) => full.remove(key),
        }
    }

    /// Removes all but global translations.
    pub fn drop_unless_global(&mut self) {
        self.retain(|entry| entry & GLOBAL != 0);
    }

    /// Removes those of an address space, but for global ones.
    pub fn drop_space(&mut self, space: u16) {
        self.retain(|entry| entry & GLOBAL != 0 || (entry >> 47) as u16 & 0x7fff != space);
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let ways = self.ways;
        match &mut self.store {
            Store::Lru(keys) => {
                for set in keys.chunks_exact_mut(ways) {
                    let mut kept = 0;
                    for way in 0..ways {
                        if keep(set[way]) {
                            set[kept] = set[way];
                            kept += 1;
                        }
                    }
                    set[kept..].fill(0);
                }
            }
            Store::Plru { keys, .. } | Store::Random { keys, .. } => {
                keys.iter_mut().filter(|k| !keep(**k)).for_each(|k| *k = 0);
            }
            Store::Full(full) => full.retain(keep),
        }
    }

    /// Removes all translations.
    pub fn clear(&mut self) {
        match &mut self.store {
            Store::Lru(keys) | Store::Plru { keys, .. } | Store::Random { keys, .. } => keys.fill(0),
            Store::Full(full) => full.clear(),
        }
    }
}

/// Moves the entry of `key` to the front. The common numbers of ways are compile-time constants, so there are no loops,
/// and no branches that random accesses make unpredictable.
#[inline(always)]
fn to_front<const WAYS: usize>(set: &mut [u64], key: u64) -> Option<u64> {
    let set: &mut [u64; WAYS] = set.try_into().ok()?;
    let mut way = WAYS;
    for (i, k) in set.iter().enumerate() {
        if k & !GLOBAL == key {
            way = i;
        }
    }
    if way == WAYS {
        return None;
    }
    let found = set[way];
    for i in (1..WAYS).rev() {
        set[i] = if i <= way { set[i - 1] } else { set[i] };
    }
    set[0] = found;
    Some(found)
}

#[inline(always)]
fn rotate_all<const WAYS: usize>(
    keys: &mut [u64],
    sets: u64,
    places: impl Iterator<Item = u32>,
    key: impl Fn(u32) -> u64,
    mut each: impl FnMut(u32, bool),
) {
    let (all, _) = keys.as_chunks_mut::<WAYS>();
    for place in places {
        let key = key(place);
        let set = (key & NUMBER & (sets - 1)) as usize;
        each(place, rotate(&mut all[set], key));
    }
}

/// Puts `key` in front, in place of its old entry or else of the last one. Returns whether it was present.
#[inline(always)]
fn rotate<const WAYS: usize>(set: &mut [u64; WAYS], key: u64) -> bool {
    let old = *set;
    // The mask is all ones from the way that holds `key` on: the entries after it stay.
    let mut behind = 0u64;
    set[0] = key;
    for way in 0..WAYS - 1 {
        behind |= if old[way] == key { u64::MAX } else { 0 };
        set[way + 1] = old[way + 1] & behind | old[way] & !behind;
    }
    (behind | if old[WAYS - 1] == key { 1 } else { 0 }) != 0
}

fn to_front_any(set: &mut [u64], key: u64) -> Option<u64> {
    let way = set.iter().position(|k| k & !GLOBAL == key)?;
    let found = set[way];
    set.copy_within(0..way, 1);
    set[0] = found;
    Some(found)
}

#[inline(always)]
fn push_front<const WAYS: usize>(set: &mut [u64], entry: u64) {
    if let Ok(set) = <&mut [u64; WAYS]>::try_from(set) {
        for i in (1..WAYS).rev() {
            set[i] = set[i - 1];
        }
        set[0] = entry;
    }
}

/// Marks `way` used: every bit on its path in the tree points away from it.
fn touch(bits: &mut u64, way: usize, ways: usize) {
    if ways.is_power_of_two() {
        let mut node = 1;
        let mut half = ways / 2;
        while half > 0 {
            let right = way & half != 0;
            *bits = if right { *bits & !(1 << node) } else { *bits | 1 << node };
            node = node * 2 + usize::from(right);
            half /= 2;
        }
    } else {
        *bits |= 1 << way;
        if bits.count_ones() as usize == ways {
            *bits = 1 << way;
        }
    }
}

/// The way to replace: the one to which the tree's bits point, or the first without its used bit.
fn victim(bits: u64, ways: usize) -> usize {
    if !ways.is_power_of_two() {
        return (bits.trailing_ones() as usize).min(ways - 1);
    }
    let (mut node, mut way) = (1, 0);
    while node < ways {
        let right = (bits >> node & 1) as usize;
        way = way * 2 + right;
        node = node * 2 + right;
    }
    way
}
