// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code bytes by (address space, virtual address, trace position).
//!
//! Kernels patch themselves while they run, and address spaces are recycled, so "the bytes at an address"
//! depends on where in the trace one stands. An [`Image`] keeps, for each 256-byte granule of code, its
//! versions in order of the stream offset from which each holds. Bytes that contradict nothing known join
//! the current version, also in retrospect: code that was seen late was there before.
//!
//! One image serves one CPU's stream, as offsets are of that stream.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes per granule: the unit of versioning and of forgetting decoded blocks.
pub const GRANULE: u64 = 256;

const SIZE: usize = GRANULE as usize;

/// Bits of CR3 that name a page table: neither flags nor PCID.
const CR3_BASE: u64 = 0x000f_ffff_ffff_f000;

/// The address space that holds `va` while CR3 is `cr3`: all kernel addresses share space 0.
pub fn space(cr3: u64, va: u64) -> u64 {
    if va >> 63 == 1 { 0 } else { cr3 & CR3_BASE }
}

const NONE: u32 = u32::MAX;

/// A version of one granule.
#[derive(Clone)]
pub struct Granule {
    /// Stream offset of the first packet that reaches this version.
    from: u64,
    /// The version before this one, or [`NONE`].
    older: u32,
    known: [u64; SIZE / 64],
    bytes: [u8; SIZE],
}

impl Granule {
    fn new(from: u64) -> Self {
        Self { from, older: NONE, known: [0; SIZE / 64], bytes: [0; SIZE] }
    }

    fn knows(&self, at: usize) -> bool {
        self.known[at / 64] >> (at % 64) & 1 == 1
    }

    /// How many bytes from `at` on are known without a gap.
    fn run(&self, at: usize) -> usize {
        if self.known == [u64::MAX; SIZE / 64] {
            return SIZE - at;
        }
        let mut pos = at;
        while pos < SIZE {
            let ones = (!(self.known[pos / 64] >> (pos % 64))).trailing_zeros() as usize;
            let ones = ones.min(64 - pos % 64);
            pos += ones;
            if !pos.is_multiple_of(64) || ones == 0 {
                break;
            }
        }
        pos - at
    }

    /// The known bytes from `va` on, which lies in this granule, without a gap.
    #[inline]
    pub fn bytes(&self, va: u64) -> &[u8] {
        let at = (va % GRANULE) as usize;
        &self.bytes[at..at + self.run(at)]
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        for i in at..at + bytes.len() {
            self.known[i / 64] |= 1 << (i % 64);
        }
    }

    /// Adds only what is not known yet.
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            if !self.knows(at + i) {
                self.put(at + i, &[byte]);
            }
        }
    }
}

/// A place in the stream from which on a granule's bytes differ from what they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// Stream offset: packets from here on reach the new bytes.
    pub offset: u64,
    /// Address space, 0 for the kernel's half.
    pub asid: u64,
    /// First address of the granule.
    pub va: u64,
}

/// A place in the stream where another task goes on, known from outside of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Stream offset: packets from here on are the task's.
    pub offset: u64,
    /// Its address space, as if the stream named it there; none where the stream does.
    pub asid: Option<u64>,
}

/// All code known for one CPU's stream.
#[derive(Clone, Default)]
pub struct Image {
    /// Newest version of each granule.
    index: HashMap<(u64, u64), u32, BuildHasherDefault<KeyHasher>>,
    granules: Vec<Granule>,
    conflicts: Vec<Conflict>,
    turns: Vec<Turn>,
    flat: bool,
}

impl Image {
    /// An empty image with address spaces.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty image in which every address space holds the same code: for traces of one process.
    pub fn flat() -> Self {
        Self { flat: true, ..Self::default() }
    }

    /// The key under which code at `va` is stored while CR3 is `cr3`.
    #[inline]
    pub fn space(&self, cr3: u64, va: u64) -> u64 {
        if self.flat { 0 } else { space(cr3, va) }
    }

    /// Adds bytes that were there from the start, as far as they contradict nothing known: the text of an
    /// ELF file, raw pages.
    pub fn add(&mut self, asid: u64, va: u64, bytes: &[u8]) {
        self.insert(asid, va, bytes, None);
    }

    /// Adds bytes that replace what is known there, seen by packets at `offset` and after. Offsets of
    /// successive calls for one place must not decrease.
    pub fn replace(&mut self, asid: u64, va: u64, bytes: &[u8], offset: u64) {
        self.insert(asid, va, bytes, Some(offset));
    }

    fn insert(&mut self, asid: u64, va: u64, bytes: &[u8], from: Option<u64>) {
        let asid = if self.flat { 0 } else { asid };
        let mut va = va;
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = (va % GRANULE) as usize;
            let (head, tail) = rest.split_at(rest.len().min(SIZE - at));
            self.insert_in_granule(asid, va - at as u64, at, head, from);
            va = va.wrapping_add(head.len() as u64);
            rest = tail;
        }
    }

    fn insert_in_granule(&mut self, asid: u64, base: u64, at: usize, bytes: &[u8], from: Option<u64>) {
        let last = match self.index.entry((asid, base)) {
            Entry::Occupied(last) => last.into_mut(),
            Entry::Vacant(vacant) => {
                vacant.insert(self.granules.len() as u32);
                let mut granule = Granule::new(0);
                granule.put(at, bytes);
                self.granules.push(granule);
                return;
            }
        };
        let granule = &mut self.granules[*last as usize];
        let conflicting =
            |g: &Granule| (0..bytes.len()).any(|i| g.knows(at + i) && g.bytes[at + i] != bytes[i]);
        match from {
            Some(offset) if offset > granule.from && conflicting(granule) => {
                let mut next = granule.clone();
                next.from = offset;
                next.older = *last;
                next.put(at, bytes);
                *last = self.granules.len() as u32;
                self.granules.push(next);
                // Nearly always the end: code seen late may belong to a change made long before.
                let place = self.conflicts.partition_point(|c| c.offset <= offset);
                self.conflicts.insert(place, Conflict { offset, asid, va: base });
            }
            // Several records for one new version, or the granule is not the one that conflicts.
            Some(_) => granule.put(at, bytes),
            None => granule.fill(at, bytes),
        }
    }

    /// The granule at address `base`, a multiple of [`GRANULE`], as seen by packets at stream offset `at`.
    pub fn granule(&self, asid: u64, base: u64, at: u64) -> Option<&Granule> {
        let mut granule = &self.granules[*self.index.get(&(asid, base))? as usize];
        // Nearly always one version, and then no search.
        while granule.from > at {
            granule = self.granules.get(granule.older as usize)?;
        }
        Some(granule)
    }

    /// The known bytes from `va` on, up to the granule's end, as seen by packets at stream offset `at`. Empty
    /// when the byte at `va` is not known.
    pub fn bytes(&self, asid: u64, va: u64, at: u64) -> &[u8] {
        self.granule(asid, va - va % GRANULE, at).map_or(&[], |granule| granule.bytes(va))
    }

    /// Copies known bytes from `va` on into `buf`, across granules, and returns how many.
    pub fn fetch(&self, asid: u64, va: u64, at: u64, buf: &mut [u8]) -> usize {
        let mut got = 0;
        while got < buf.len() {
            let from = va.wrapping_add(got as u64);
            let bytes = self.bytes(asid, from, at);
            let n = bytes.len().min(buf.len() - got);
            buf[got..got + n].copy_from_slice(&bytes[..n]);
            got += n;
            if n == 0 || !from.wrapping_add(n as u64).is_multiple_of(GRANULE) {
                break;
            }
        }
        got
    }

    /// Where known bytes change, in order of stream offset. Decoded blocks of the granule are void from there on.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// States where tasks change, for streams that do not tell: packets of user code only.
    pub fn set_turns(&mut self, mut turns: Vec<Turn>) {
        turns.sort_by_key(|turn| turn.offset);
        self.turns = turns;
    }

    /// Where tasks change, in order of stream offset.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Number of granule versions held, about 300 bytes each.
    pub fn len(&self) -> usize {
        self.granules.len()
    }

    /// Whether no code is known at all.
    pub fn is_empty(&self) -> bool {
        self.granules.is_empty()
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("granules", &self.granules.len())
            .field("conflicts", &self.conflicts.len())
            .field("flat", &self.flat)
            .finish()
    }
}

/// Hashes the two words of a granule's key by multiplication; keys are addresses, not chosen by a foe who
/// gains from collisions beyond slowing their own decode.
#[derive(Debug, Default, Clone)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
