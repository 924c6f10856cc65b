// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code bytes by address space, virtual address and position in the trace.
//!
//! The input is fragments of code, with the stream offset from which each holds. The output is an [`Image`], which
//! gives the bytes at an address as packets at a stream offset see them.
//!
//! Kernels patch themselves while they run, and address spaces are reused, so the bytes at an address depend on the
//! position in the trace. An [`Image`] divides code into granules of 256 bytes and keeps the versions of each granule,
//! ordered by the stream offset from which each holds. Bytes that do not contradict known bytes are added to the
//! current version, and hold for its past too: code that was seen late was there before. Equal granules of several address spaces can
//! be stored once ([`Image::share`]).
//!
//! Large pieces, such as mapped files, are not divided: an extent only tells where in the file the code of an address is
//! ([`Image::add_bytes`]), so a file that many processes map is in memory once at most, and what the flow does not reach is
//! never read. Where a piece begins or ends inside a granule, or other code is there too, granules are made of it. A granule
//! hides the extent below it.
//!
//! An image serves the stream of one CPU, because the offsets are offsets of that stream.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use crate::bytes::Bytes;
use crate::x86::address::space;

/// Size of a granule, in bytes. It is the unit of versions and of discarding decoded blocks.
pub const GRANULE: u64 = 256;

const SIZE: usize = GRANULE as usize;

const NONE: u32 = u32::MAX;

/// The known bytes of a granule.
#[derive(Clone, PartialEq, Eq)]
pub struct Granule {
    known: [u64; SIZE / 64],
    /// Those that are not known are 0.
    bytes: [u8; SIZE],
}

/// One version of the granule at an address.
#[derive(Clone, Copy)]
struct Version {
    /// Offset in the stream of the first packet that sees this version.
    from: u64,
    /// Index of the previous version, or [`NONE`].
    older: u32,
    /// Index of its bytes.
    granule: u32,
    /// True if bytes that were known are not from here on: what comes later was not there before.
    hole: bool,
}

impl Version {
    /// The only version of a granule, from the beginning of the stream on. Its bytes are the next ones that are added to `granules`.
    fn first(granules: &[Granule]) -> Self {
        Self { from: 0, older: NONE, granule: granules.len() as u32, hole: false }
    }
}

impl Granule {
    fn new() -> Self {
        Self { known: [0; SIZE / 64], bytes: [0; SIZE] }
    }

    fn knows(&self, at: usize) -> bool {
        self.known[at / 64] >> (at % 64) & 1 == 1
    }

    /// Number of known bytes from `at` on, up to the first gap.
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

    /// The known bytes from `va` on, up to the first gap. `va` must lie in this granule.
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

    fn forget(&mut self, range: Range<usize>) {
        for i in range {
            self.known[i / 64] &= !(1 << (i % 64));
            self.bytes[i] = 0;
        }
    }

    fn hash(&self) -> u64 {
        let mut hasher = KeyHasher::default();
        self.known.iter().for_each(|word| hasher.write_u64(*word));
        let (words, _) = self.bytes.as_chunks();
        words.iter().for_each(|word| hasher.write_u64(u64::from_le_bytes(*word)));
        hasher.finish()
    }

    /// Adds only bytes that are not known yet.
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            if !self.knows(at + i) {
                self.put(at + i, &[byte]);
            }
        }
    }
}

/// The known code of a granule.
#[derive(Clone, Copy)]
pub enum Code<'a> {
    /// Bytes of fragments.
    Granule(&'a Granule),
    /// A part of a larger piece, of which all bytes are known.
    Whole(&'a [u8; SIZE]),
}

impl<'a> Code<'a> {
    /// The known bytes from `va` on, up to the first gap. `va` must lie in this granule.
    #[inline]
    pub fn bytes(self, va: u64) -> &'a [u8] {
        match self {
            Self::Granule(granule) => granule.bytes(va),
            Self::Whole(bytes) => &bytes[(va % GRANULE) as usize..],
        }
    }
}

/// Whole granules of a large piece, up to address `end`. The first is at `at` in the piece.
#[derive(Clone)]
struct Extent {
    end: u64,
    bytes: Bytes,
    at: usize,
}

/// A position in the stream from which a granule's bytes differ from before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// Stream offset. Packets from here on see the new bytes.
    pub offset: u64,
    /// Address space; 0 for the kernel's half.
    pub asid: u64,
    /// First address of the granule.
    pub va: u64,
}

/// A position in the stream at which another task continues. It is known from a source other than the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskSwitch {
    /// Stream offset. Packets from here on belong to the task.
    pub offset: u64,
    /// Address space of the task, if the stream itself does not tell it.
    pub asid: Option<u64>,
}

/// All known code for the stream of one CPU.
#[derive(Clone, Default)]
pub struct Image {
    /// Index of the newest version of each granule.
    index: HashMap<(u64, u64), u32, BuildHasherDefault<KeyHasher>>,
    versions: Vec<Version>,
    granules: Vec<Granule>,
    /// Large pieces by address space and first address. They do not overlap.
    extents: BTreeMap<(u64, u64), Extent>,
    /// Versions may have the same granule: see [`Image::share`].
    shared: bool,
    conflicts: Vec<Conflict>,
    task_switches: Vec<TaskSwitch>,
    flat: bool,
}

impl Image {
    /// An empty image that distinguishes address spaces.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty image in which all address spaces contain the same code. For traces of one process.
    pub fn flat() -> Self {
        Self { flat: true, ..Self::default() }
    }

    /// The address space under which code at `va` is stored while CR3 is `cr3`.
    #[inline]
    pub fn space(&self, cr3: u64, va: u64) -> u64 {
        if self.flat { 0 } else { space(cr3, va) }
    }

    /// Adds bytes that were there from the start, such as the text of an ELF file or raw pages. Bytes that are already
    /// known stay.
    pub fn add(&mut self, asid: u64, va: u64, bytes: &[u8]) {
        self.insert(asid, va, bytes, None);
    }

    /// Adds bytes that replace the known bytes for packets at `offset` and after. For one address, `offset` must not
    /// decrease from call to call.
    pub fn replace(&mut self, asid: u64, va: u64, bytes: &[u8], offset: u64) {
        self.insert(asid, va, bytes, Some(offset));
    }

    /// Like [`Image::add`], for large pieces: they are read when the flow reaches them.
    pub fn add_bytes(&mut self, asid: u64, va: u64, bytes: &Bytes) {
        self.insert_bytes(asid, va, bytes, None);
    }

    /// Like [`Image::replace`], for large pieces. Only parts that differ from known code are copied.
    pub fn replace_bytes(&mut self, asid: u64, va: u64, bytes: &Bytes, offset: u64) {
        self.insert_bytes(asid, va, bytes, Some(offset));
    }

    /// From `offset` on, nothing is known of these addresses: something without known contents is there. For one address, `offset`
    /// must not decrease from call to call of this and [`Image::replace`].
    pub fn forget(&mut self, asid: u64, start: u64, end: u64, offset: u64) {
        let asid = if self.flat { 0 } else { asid };
        if start >= end {
            return;
        }
        for base in self.known_within(asid, start - start % GRANULE, end) {
            let from = start.max(base) - base;
            let to = (end - base).min(GRANULE);
            self.forget_in_granule(asid, base, from as usize..to as usize, offset);
        }
    }

    /// Of these addresses nothing was known in the beginning: what replaces it is known from its offset on, and not before. Applies
    /// to granules of which nothing is known at all.
    pub fn begin_unknown(&mut self, asid: u64, start: u64, end: u64) {
        let asid = if self.flat { 0 } else { asid };
        for base in (start - start % GRANULE..end).step_by(SIZE) {
            if self.newest(asid, base).is_none() {
                self.index.insert((asid, base), self.versions.len() as u32);
                self.versions.push(Version { hole: true, ..Version::first(&self.granules) });
                self.granules.push(Granule::new());
            }
        }
    }

    /// Addresses of the granules in a range of which something is known after all changes, sorted. `start` must be that of a
    /// granule.
    fn known_within(&self, asid: u64, start: u64, end: u64) -> Vec<u64> {
        let mut bases = self.granules_within(asid, start, end);
        let before = self.extents.range(..(asid, start)).next_back();
        for (&(space, first), extent) in
            before.into_iter().chain(self.extents.range((asid, start)..(asid, end)))
        {
            if space == asid {
                bases.extend((first.max(start)..extent.end.min(end)).step_by(SIZE));
            }
        }
        bases.sort_unstable();
        bases.dedup();
        bases
    }

    fn forget_in_granule(&mut self, asid: u64, base: u64, range: Range<usize>, offset: u64) {
        let Some(newest) = self.newest(asid, base) else { return };
        let mut granule = match newest {
            Code::Granule(granule) => granule.clone(),
            Code::Whole(bytes) => Granule { known: [u64::MAX; SIZE / 64], bytes: *bytes },
        };
        if !range.clone().any(|at| granule.knows(at)) {
            return;
        }
        // The granule as it was, also where an extent had it.
        let last = *self.index.entry((asid, base)).or_insert_with(|| {
            self.versions.push(Version::first(&self.granules));
            self.granules.push(granule.clone());
            self.versions.len() as u32 - 1
        });
        granule.forget(range);
        let from = self.versions[last as usize].from;
        let next =
            Version { from: offset.max(from), older: last, granule: self.granules.len() as u32, hole: true };
        self.granules.push(granule);
        if offset <= from {
            // Of one offset the last counts.
            let older = self.versions[last as usize].older;
            self.versions[last as usize] = Version { older, ..next };
            return;
        }
        self.index.insert((asid, base), self.versions.len() as u32);
        self.versions.push(next);
        let place = self.conflicts.partition_point(|c| c.offset <= offset);
        self.conflicts.insert(place, Conflict { offset, asid, va: base });
    }

    fn insert_bytes(&mut self, asid: u64, va: u64, bytes: &Bytes, from: Option<u64>) {
        let asid = if self.flat { 0 } else { asid };
        let head = (va.wrapping_neg() % GRANULE) as usize;
        let whole = bytes.len().saturating_sub(head) / SIZE * SIZE;
        let first = va.wrapping_add(head as u64);
        let Some(end) = first.checked_add(whole as u64).filter(|_| whole > 0) else {
            return self.insert(asid, va, bytes, from);
        };
        self.insert(asid, va, &bytes[..head], from);
        // What is known there already, in order of addresses.
        let mut known: Vec<(u64, u64)> = Vec::new();
        let before = self.extents.range(..(asid, first)).next_back();
        let inside = self.extents.range((asid, first)..(asid, end));
        for (&(space, start), extent) in before.into_iter().chain(inside) {
            if space == asid && extent.end > first {
                known.push((start.max(first), extent.end.min(end)));
            }
        }
        let granules = self.granules_within(asid, first, end);
        let part = |base: u64| &bytes[head + (base - first) as usize..][..SIZE];
        for &base in &granules {
            self.insert_in_granule(asid, base, 0, part(base), from);
        }
        if from.is_some() {
            for base in known.iter().flat_map(|&(start, end)| (start..end).step_by(SIZE)) {
                let same = matches!(self.newest(asid, base), Some(Code::Whole(old)) if old == part(base));
                if !same && granules.binary_search(&base).is_err() {
                    self.insert_in_granule(asid, base, 0, part(base), from);
                }
            }
        }
        let mut start = first;
        for (next, after) in known.into_iter().chain([(end, end)]) {
            if start < next {
                let extent = Extent { end: next, bytes: bytes.clone(), at: head + (start - first) as usize };
                self.extents.insert((asid, start), extent);
            }
            start = after;
        }
        self.insert(asid, end, &bytes[head + whole..], from);
    }

    /// Addresses of the granules in a range that have versions, sorted.
    fn granules_within(&self, asid: u64, start: u64, end: u64) -> Vec<u64> {
        if (end - start) / GRANULE < self.index.len() as u64 {
            let all = (start..end).step_by(SIZE);
            return all.filter(|&base| self.index.contains_key(&(asid, base))).collect();
        }
        let within = self.index.keys().filter(|key| key.0 == asid && (start..end).contains(&key.1));
        let mut within: Vec<u64> = within.map(|key| key.1).collect();
        within.sort_unstable();
        within
    }

    /// The granule at `base` after all changes.
    fn newest(&self, asid: u64, base: u64) -> Option<Code<'_>> {
        self.granule(asid, base, u64::MAX)
    }

    fn in_extent(&self, asid: u64, base: u64) -> Option<&[u8; SIZE]> {
        let (&(space, start), extent) = self.extents.range(..=(asid, base)).next_back()?;
        if space != asid || base >= extent.end {
            return None;
        }
        extent.bytes.get(extent.at + (base - start) as usize..)?.first_chunk()
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
        let below = match self.extents.is_empty() || self.index.contains_key(&(asid, base)) {
            true => None,
            false => self.in_extent(asid, base).copied(),
        };
        if let Some(bytes) = below {
            self.index.insert((asid, base), self.versions.len() as u32);
            self.versions.push(Version::first(&self.granules));
            self.granules.push(Granule { known: [u64::MAX; SIZE / 64], bytes });
        }
        let last = match self.index.entry((asid, base)) {
            Entry::Occupied(last) => last.into_mut(),
            Entry::Vacant(vacant) => {
                vacant.insert(self.versions.len() as u32);
                self.versions.push(Version::first(&self.granules));
                let mut granule = Granule::new();
                granule.put(at, bytes);
                self.granules.push(granule);
                return;
            }
        };
        let version = &mut self.versions[*last as usize];
        if self.shared {
            // Others keep theirs.
            let own = self.granules[version.granule as usize].clone();
            version.granule = self.granules.len() as u32;
            self.granules.push(own);
        }
        let granule = &mut self.granules[version.granule as usize];
        let conflicting =
            |g: &Granule| (0..bytes.len()).any(|i| g.knows(at + i) && g.bytes[at + i] != bytes[i]);
        match from {
            Some(offset) if offset > version.from && (version.hole || conflicting(granule)) => {
                let mut next = granule.clone();
                next.put(at, bytes);
                let granule = self.granules.len() as u32;
                let version = Version { from: offset, older: *last, granule, hole: version.hole };
                *last = self.versions.len() as u32;
                self.versions.push(version);
                self.granules.push(next);
                // This is usually the end of the list. Code that was seen late may belong to an earlier change.
                let place = self.conflicts.partition_point(|c| c.offset <= offset);
                self.conflicts.insert(place, Conflict { offset, asid, va: base });
            }
            // There are several records for one new version, or this granule has no conflict.
            Some(_) => granule.put(at, bytes),
            None => granule.fill(at, bytes),
        }
    }

    /// Stores equal granules once: a program and its libraries are in the address space of each process that runs them.
    pub fn share(&mut self) {
        let mut known: HashMap<u64, u32, BuildHasherDefault<KeyHasher>> = HashMap::default();
        let mut granules: Vec<Granule> = Vec::new();
        for version in &mut self.versions {
            let granule = &self.granules[version.granule as usize];
            let next = granules.len() as u32;
            let first = *known.entry(granule.hash()).or_insert(next);
            version.granule = match granules.get(first as usize) {
                Some(equal) if equal == granule => first,
                // It is new, or another has the same hash.
                _ => {
                    granules.push(granule.clone());
                    next
                }
            };
        }
        granules.shrink_to_fit();
        self.granules = granules;
        self.shared = true;
    }

    /// The granule at address `base`, as packets at stream offset `at` see it. `base` must be a multiple of
    /// [`GRANULE`].
    pub fn granule(&self, asid: u64, base: u64, at: u64) -> Option<Code<'_>> {
        let Some(&newest) = self.index.get(&(asid, base)) else {
            return self.in_extent(asid, base).map(Code::Whole);
        };
        let mut version = &self.versions[newest as usize];
        // Most granules have one version, which needs no search.
        while version.from > at {
            version = self.versions.get(version.older as usize)?;
        }
        self.granules.get(version.granule as usize).map(Code::Granule)
    }

    /// The known bytes from `va` to the end of its granule at most, as packets at stream offset `at` see them. Empty if
    /// the byte at `va` is unknown.
    pub fn bytes(&self, asid: u64, va: u64, at: u64) -> &[u8] {
        self.granule(asid, va - va % GRANULE, at).map_or(&[], |granule| granule.bytes(va))
    }

    /// Copies known bytes from `va` on into `buf`, across granules. Returns the number of bytes copied.
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

    /// Changes of known bytes, ordered by stream offset. Decoded blocks of the granule are invalid from there on.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Sets the positions at which tasks change, for streams that do not tell them because they contain packets of user
    /// code only.
    pub fn set_task_switches(&mut self, mut switches: Vec<TaskSwitch>) {
        switches.sort_by_key(|switch| switch.offset);
        self.task_switches = switches;
    }

    /// Positions at which tasks change, ordered by stream offset.
    pub fn task_switches(&self) -> &[TaskSwitch] {
        &self.task_switches
    }

    /// Number of versions of granules.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Number of granules in memory, of 288 bytes each.
    pub fn granules(&self) -> usize {
        self.granules.len()
    }

    /// True if no code is known.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.extents.is_empty()
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("versions", &self.versions.len())
            .field("granules", &self.granules.len())
            .field("extents", &self.extents.len())
            .field("conflicts", &self.conflicts.len())
            .field("flat", &self.flat)
            .finish()
    }
}

/// Hash of the two words of a granule's key, by multiplication. The keys are addresses; an attacker who causes
/// collisions only slows the decoding of their own trace.
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
