// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that programs allocate: the allocating functions, their recognition by a recorder, and the allocation to
//! which an address belonged at a time.
//!
//! A recorder sees code as it is translated, without its file. So a function is recognised by its first bytes and its
//! offset in a page, which no loader changes. [`signatures`] makes such [`Signature`]s from an ELF file.

use std::collections::{BTreeMap, HashMap};

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use super::recent::Recent;
use crate::stream::Alloc;

/// The effect of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// Allocates the number of bytes in its n-th argument (from 0).
    Allocates(u8),
    /// Allocates its first argument times its second.
    AllocatesArray,
    /// Frees its first argument, and allocates the number of bytes in its n-th.
    Reallocates(u8),
    /// Allocates the number of bytes in its third argument, and stores the address where its first points.
    AllocatesTo,
    /// Frees its first argument.
    Frees,
    /// Unmaps the number of bytes in its second argument.
    Unmaps,
}

/// Functions that a recorder follows.
pub const FUNCTIONS: [(&str, Does); 19] = [
    ("malloc", Does::Allocates(0)),
    ("calloc", Does::AllocatesArray),
    ("realloc", Does::Reallocates(1)),
    ("free", Does::Frees),
    ("mmap", Does::Allocates(1)),
    ("munmap", Does::Unmaps),
    ("memalign", Does::Allocates(1)),
    ("aligned_alloc", Does::Allocates(1)),
    ("posix_memalign", Does::AllocatesTo),
    ("valloc", Does::Allocates(0)),
    ("mmap64", Does::Allocates(1)),
    ("_Znwm", Does::Allocates(0)),
    ("_Znam", Does::Allocates(0)),
    ("_ZnwmSt11align_val_t", Does::Allocates(0)),
    ("_ZnamSt11align_val_t", Does::Allocates(0)),
    ("_ZnwmRKSt9nothrow_t", Does::Allocates(0)),
    ("_ZnamRKSt9nothrow_t", Does::Allocates(0)),
    ("mi_malloc", Does::Allocates(0)),
    ("mi_free", Does::Frees),
];

/// The first bytes of a function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// Index in [`FUNCTIONS`].
    pub function: u8,
    /// Offset of its start in its page.
    pub offset: u16,
    /// The bytes at the function's start.
    pub bytes: Vec<u8>,
}

/// Maximum of bytes compared.
const BYTES: u64 = 32;
/// Minimum of bytes: fewer do not distinguish functions.
const ENOUGH: usize = 12;

/// Signatures of the functions that an ELF file defines. Empty if it is no ELF file.
pub fn signatures(elf: &[u8]) -> Vec<Signature> {
    let Ok(file) = object::File::parse(elf) else { return Vec::new() };
    let mut found = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        // `malloc@@GLIBC_2.2.5` in some symbol tables.
        let name = symbol.name().unwrap_or_default().split('@').next().unwrap_or_default();
        let Some(function) = FUNCTIONS.iter().position(|f| f.0 == name) else { continue };
        if symbol.kind() != SymbolKind::Text || symbol.is_undefined() {
            continue;
        }
        let size = if symbol.size() == 0 { BYTES } else { symbol.size().min(BYTES) };
        let code = symbol
            .section_index()
            .and_then(|i| file.section_by_index(i).ok()?.data_range(symbol.address(), size).ok()?);
        if let Some(bytes) = code.filter(|b| b.len() >= ENOUGH) {
            let offset = (symbol.address() & 0xfff) as u16;
            found.push(Signature { function: function as u8, offset, bytes: bytes.to_vec() });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Formats signatures, one per line: function, offset in the page, and bytes in hexadecimal.
pub fn to_text(signatures: &[Signature]) -> String {
    let line = |s: &Signature| {
        let bytes: String = s.bytes.iter().map(|b| format!("{b:02x}")).collect();
        format!("{} {:03x} {bytes}\n", FUNCTIONS[usize::from(s.function)].0, s.offset)
    };
    signatures.iter().map(line).collect()
}

/// Parses the output of [`to_text`].
///
/// # Errors
/// The text names the line and the expected form.
pub fn from_text(text: &str) -> Result<Vec<Signature>, String> {
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?;
        let function = FUNCTIONS.iter().position(|f| f.0 == name)? as u8;
        let offset = u16::from_str_radix(words.next()?, 16).ok().filter(|&o| o < 4096)?;
        let hex = words.next()?;
        let byte = |i: usize| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        (bytes.len() >= ENOUGH).then_some(Signature { function, offset, bytes })
    };
    text.lines()
        .enumerate()
        .map(|(n, line)| {
            parse(line).ok_or_else(|| {
                format!(
                    "line {}: expected a function, its offset in the page and its bytes, not '{line}'",
                    n + 1
                )
            })
        })
        .collect()
}

/// An allocation site: a place in a program's code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    /// Process id.
    pub tgid: u32,
    /// Index in [`FUNCTIONS`].
    pub function: u8,
    /// Return addresses; see [`Alloc::frames`].
    pub frames: [u64; 3],
}

impl Site {
    /// The function's name.
    pub fn name(&self) -> &'static str {
        FUNCTIONS.get(usize::from(self.function)).map_or("[unknown function]", |f| f.0)
    }

    /// Returns true if its allocations are whole pages.
    pub fn is_mapping(&self) -> bool {
        matches!(self.name(), "mmap" | "mmap64")
    }
}

#[derive(Debug, Clone, Copy)]
struct Step {
    ns: u64,
    tgid: u32,
    start: u64,
    end: u64,
    /// The object; [`NONE`] if the range is freed, and all of the allocation if `end` is `start`.
    object: u32,
}

const NONE: u32 = u32::MAX;

/// By process: start, end and object. No two overlap.
type Live = HashMap<u32, BTreeMap<u64, (u64, u32)>>;

/// The owner of each piece of memory over time. Filled in order of time, then queried in about that order: a query for
/// an earlier time than the last starts again from the beginning.
#[derive(Debug, Clone, Default)]
pub struct Allocations {
    steps: Vec<Step>,
    sites: HashMap<Site, u32>,
    /// By object: current and maximum number of bytes.
    bytes: HashMap<u32, (u64, u64)>,
    live: Live,
    /// Number of steps applied to `live`.
    taken: usize,
    /// Of `live`.
    recent: Recent,
}

impl Allocations {
    /// Adds an allocation. Returns the site's object, which is `next` if the site is new.
    pub(crate) fn alloc(&mut self, site: &Site, a: &Alloc, next: u32) -> u32 {
        let object = *self.sites.entry(site.clone()).or_insert(next);
        let end = a.va.saturating_add(a.bytes.max(1));
        let entry = self.bytes.entry(object).or_default();
        entry.0 = entry.0.saturating_add(a.bytes);
        entry.1 = entry.1.max(entry.0);
        self.step(Step { ns: a.ns, tgid: site.tgid, start: a.va, end, object });
        object
    }

    /// Adds a release of memory.
    pub(crate) fn free(&mut self, tgid: u32, ns: u64, va: u64, bytes: u64) {
        let end = va.saturating_add(bytes);
        let whole = self.live.get(&tgid).and_then(|l| l.get(&va)).copied();
        if let Some((until, object)) = whole
            && let Some(now) = self.bytes.get_mut(&object)
        {
            now.0 = now.0.saturating_sub(until - va);
        }
        if bytes == 0 && whole.is_none() {
            return;
        }
        self.step(Step { ns, tgid, start: va, end, object: NONE });
    }

    /// Maximum of bytes that an object had at any time.
    pub(crate) fn most(&self, object: u32) -> u64 {
        self.bytes.get(&object).map_or(0, |b| b.1)
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
        self.taken = self.steps.len();
        self.recent.clear();
        apply(&mut self.live, &step);
    }

    /// The object that had `va` at this time.
    pub(crate) fn find(&mut self, tgid: u32, va: u64, ns: u64) -> Option<u32> {
        if self.steps.is_empty() {
            return None;
        }
        if self.taken > 0 && self.steps[self.taken - 1].ns > ns {
            self.live.clear();
            self.recent.clear();
            self.taken = 0;
        }
        while let Some(step) = self.steps.get(self.taken).filter(|s| s.ns <= ns) {
            self.recent.clear();
            apply(&mut self.live, step);
            self.taken += 1;
        }
        if let Some(found) = self.recent.get(tgid, va) {
            return found;
        }
        let live = self.live.get(&tgid)?;
        let before = live.range(..=va).next_back().map(|(&start, &(end, object))| (start, end, object));
        let (range, found) = match before {
            Some((start, end, object)) if va < end => ((start, end - 1), Some(object)),
            // Nothing is allocated between two neighbours.
            _ => {
                let next = live.range(va..).next().map_or(u64::MAX, |(&start, _)| start - 1);
                ((before.map_or(0, |b| b.1), next), None)
            }
        };
        self.recent.put(tgid, va, range, found);
        found
    }
}

fn apply(live: &mut Live, step: &Step) {
    let map = live.entry(step.tgid).or_default();
    if step.object == NONE && step.end == step.start {
        map.remove(&step.start);
        return;
    }
    // The range is free now: cuts ranges that begin before it, drops those inside, keeps parts beyond it.
    if let Some((&s, &(e, object))) = map.range(..step.start).next_back().filter(|(_, v)| v.0 > step.start) {
        map.insert(s, (step.start, object));
        if e > step.end {
            map.insert(step.end, (e, object));
        }
    }
    while let Some((&s, &(e, object))) = map.range(step.start..step.end).next() {
        map.remove(&s);
        if e > step.end {
            map.insert(step.end, (e, object));
        }
    }
    if step.object != NONE {
        map.insert(step.start, (step.end, step.object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(ns: u64, va: u64, bytes: u64) -> Alloc {
        Alloc { ns, function: 0, va, bytes, frames: [0x1000, 0, 0] }
    }

    #[test]
    fn memory_belongs_to_who_has_it_then() {
        let mut all = Allocations::default();
        let site = |n| Site { tgid: 7, function: 0, frames: [n, 0, 0] };
        assert_eq!(all.alloc(&site(1), &alloc(10, 0x5000, 0x100), 0), 0);
        all.free(7, 20, 0x5000, 0);
        assert_eq!(all.alloc(&site(2), &alloc(30, 0x5080, 0x100), 1), 1);
        assert_eq!(all.alloc(&site(1), &alloc(40, 0x6000, 0x4000), 2), 0);
        // A part of a mapping is unmapped.
        all.free(7, 50, 0x7000, 0x1000);
        for (ns, va, expected) in [
            (5, 0x5000, None),
            (10, 0x50ff, Some(0)),
            (10, 0x5100, None),
            (25, 0x5000, None),
            (30, 0x50ff, Some(1)),
            (45, 0x7800, Some(0)),
            (50, 0x6fff, Some(0)),
            (50, 0x7800, None),
            (50, 0x8000, Some(0)),
            (12, 0x5010, Some(0)),
        ] {
            assert_eq!(all.find(7, va, ns), expected, "{va:#x} at {ns}");
            assert_eq!(all.find(8, va, ns), None);
        }
        assert_eq!((all.most(0), all.most(1)), (0x4000, 0x100));
    }

    #[test]
    fn signatures_of_the_c_library_come_back() {
        let path = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6");
        let elf = std::fs::read(path).unwrap();
        let found = signatures(&elf);
        for name in ["malloc", "calloc", "realloc", "free", "mmap", "munmap", "posix_memalign"] {
            assert!(found.iter().any(|s| FUNCTIONS[usize::from(s.function)].0 == name), "{name}");
        }
        assert_eq!(from_text(&to_text(&found)), Ok(found));
        assert_eq!(signatures(b"no ELF"), []);
        assert!(from_text("malloc 1000 00").is_err_and(|e| e.contains("line 1")));
    }
}
