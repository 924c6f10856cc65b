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
    /// Its bytes, and whether there is a hole in them.
    contents: Contents,
}

// A run has millions of versions.
const _: () = assert!(size_of::<Version>() == 16);

/// Index of a version's bytes, and in the highest bit whether the version has a hole: bytes that were known are not from here on, so
/// what comes later was not there before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Contents(u32);

impl Contents {
    const HOLE: u32 = 1 << 31;

    /// # Panics
    /// There are 2³¹ granules, which take 600 GB of memory: a larger number would be another granule's.
    fn new(granule: usize, hole: bool) -> Self {
        assert!(granule < Self::HOLE as usize, "more code than an image can hold: 2³¹ granules");
        Self(granule as u32 | if hole { Self::HOLE } else { 0 })
    }

    fn granule(self) -> usize {
        (self.0 & !Self::HOLE) as usize
    }

    fn has_hole(self) -> bool {
        self.0 & Self::HOLE != 0
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
    /// Ends of the ranges of which nothing was known in the beginning, by address space and first granule. They do not overlap.
    unknown_first: BTreeMap<(u64, u64), u64>,
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
        if start >= end {
            return;
        }
        // A mapping may have terabytes: its granules are made when there is code for them.
        let (mut start, mut end) = (start - start % GRANULE, end);
        while let Some((&(space, first), &last)) = self.unknown_first.range(..=(asid, end)).next_back()
            && space == asid
            && last >= start
        {
            self.unknown_first.remove(&(space, first));
            (start, end) = (start.min(first), end.max(last));
        }
        self.unknown_first.insert((asid, start), end);
    }

    /// True if nothing was known of this granule in the beginning, unless it is known from elsewhere.
    fn began_unknown(&self, asid: u64, base: u64) -> bool {
        let range = self.unknown_first.range(..=(asid, base)).next_back();
        range.is_some_and(|(&(space, _), &end)| space == asid && base < end)
    }

    /// Addresses of the granules in a range of which nothing was known in the beginning. `start` must be that of a granule.
    fn unknown_within(&self, asid: u64, start: u64, end: u64) -> Vec<u64> {
        let before = self.unknown_first.range(..(asid, start)).next_back();
        let inside = self.unknown_first.range((asid, start)..(asid, end));
        let mut bases = Vec::new();
        for (&(space, first), &last) in before.into_iter().chain(inside) {
            if space == asid {
                bases.extend((first.max(start)..last.min(end)).step_by(SIZE));
            }
        }
        bases
    }

    /// Adds a version. Returns its number.
    fn add_version(&mut self, from: u64, older: u32, granule: Granule, hole: bool) -> u32 {
        let contents = Contents::new(self.granules.len(), hole);
        self.granules.push(granule);
        self.versions.push(Version { from, older, contents });
        self.versions.len() as u32 - 1
    }

    /// Number of the newest version of a granule. The part of an extent becomes a version, and so does a granule of which nothing was
    /// known in the beginning.
    fn version_of(&mut self, asid: u64, base: u64) -> Option<u32> {
        if let Some(&last) = self.index.get(&(asid, base)) {
            return Some(last);
        }
        let (granule, hole) = match self.in_extent(asid, base) {
            Some(bytes) => (Granule { known: [u64::MAX; SIZE / 64], bytes: *bytes }, false),
            None if self.began_unknown(asid, base) => (Granule::new(), true),
            None => return None,
        };
        let first = self.add_version(0, NONE, granule, hole);
        self.index.insert((asid, base), first);
        Some(first)
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
        let Some(last) = self.version_of(asid, base) else { return };
        granule.forget(range);
        let Version { from, older, .. } = self.versions[last as usize];
        if offset <= from {
            // Of one offset the last counts.
            let contents = Contents::new(self.granules.len(), true);
            self.granules.push(granule);
            self.versions[last as usize] = Version { from, older, contents };
            return;
        }
        let next = self.add_version(offset, last, granule, true);
        self.index.insert((asid, base), next);
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
        for base in self.unknown_within(asid, first, end) {
            // An extent hides what began unknown, and is compared below.
            if self.in_extent(asid, base).is_none() {
                self.version_of(asid, base);
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
        let Some(last) = self.version_of(asid, base) else {
            let mut granule = Granule::new();
            granule.put(at, bytes);
            let first = self.add_version(0, NONE, granule, false);
            self.index.insert((asid, base), first);
            return;
        };
        let Version { from: since, contents, .. } = self.versions[last as usize];
        let hole = contents.has_hole();
        let known = &self.granules[contents.granule()];
        let conflicting =
            |g: &Granule| (0..bytes.len()).any(|i| g.knows(at + i) && g.bytes[at + i] != bytes[i]);
        if let Some(offset) = from
            && offset > since
            && (hole || conflicting(known))
        {
            let mut next = known.clone();
            next.put(at, bytes);
            let next = self.add_version(offset, last, next, hole);
            self.index.insert((asid, base), next);
            // This is usually the end of the list. Code that was seen late may belong to an earlier change.
            let place = self.conflicts.partition_point(|c| c.offset <= offset);
            self.conflicts.insert(place, Conflict { offset, asid, va: base });
            return;
        }
        let granule = self.own_granule(last);
        match from {
            // There are several records for one new version, or this granule has no conflict.
            Some(_) => granule.put(at, bytes),
            None => granule.fill(at, bytes),
        }
    }

    /// The bytes of a version, to change them: other versions that have the same keep theirs.
    fn own_granule(&mut self, version: u32) -> &mut Granule {
        let version = &mut self.versions[version as usize];
        if self.shared {
            let own = self.granules[version.contents.granule()].clone();
            version.contents = Contents::new(self.granules.len(), version.contents.has_hole());
            self.granules.push(own);
        }
        &mut self.granules[version.contents.granule()]
    }

    /// Stores equal granules once: a program and its libraries are in the address space of each process that runs them.
    pub fn share(&mut self) {
        let mut known: HashMap<u64, u32, BuildHasherDefault<KeyHasher>> = HashMap::default();
        let mut granules: Vec<Granule> = Vec::new();
        for version in &mut self.versions {
            let granule = &self.granules[version.contents.granule()];
            let next = granules.len();
            let first = *known.entry(granule.hash()).or_insert(next as u32) as usize;
            let number = match granules.get(first) {
                Some(equal) if equal == granule => first,
                // It is new, or another has the same hash.
                _ => {
                    granules.push(granule.clone());
                    next
                }
            };
            version.contents = Contents::new(number, version.contents.has_hole());
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
        self.granules.get(version.contents.granule()).map(Code::Granule)
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
            .field("unknown_first", &self.unknown_first.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_keeps_its_hole_and_its_granule_in_one_word() {
        for (granule, hole) in [(0, false), (0, true), ((1 << 31) - 1, false), ((1 << 31) - 1, true)] {
            let contents = Contents::new(granule, hole);
            assert_eq!((contents.granule(), contents.has_hole()), (granule, hole));
        }
    }

    #[test]
    #[should_panic(expected = "more code than an image can hold")]
    fn a_granule_beyond_the_last_number_is_no_other_one() {
        let _ = Contents::new(1 << 31, false);
    }
}
