// SPDX-License-Identifier: MIT OR Apache-2.0
//! From an address to the function that holds it: the seam between code and symbols.
//!
//! The flow decoder asks once per basic block. It needs an identity, the entry address (a jump there is a
//! tail call, a call elsewhere in the same function is no call) and, at the very end, a name.

use std::collections::HashMap;
use std::sync::Mutex;

/// The function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuncRef {
    /// Identity, the same for every address of the function, its `.cold`/`.part` pieces included. Numbers should
    /// count up from 0, as tables are indexed by them; results are renumbered by order of appearance.
    pub id: u32,
    /// Virtual address of its first instruction.
    pub entry: u64,
    /// False when `id` stands for a region without symbols, where an entry means nothing.
    pub known: bool,
    /// Addresses around the one asked for that get the same answer, from here ...
    pub start: u64,
    /// ... to here, exclusive. At least the address itself.
    pub end: u64,
}

/// Name and place of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FuncInfo {
    /// Symbol, or an address in hex where there is none.
    pub name: String,
    /// `[kernel]`, `[module]`, `[vdso]` or the path of a mapped file; empty when unknown.
    pub module: String,
    /// Virtual address of the first instruction.
    pub start: u64,
    /// Whether it runs in ring 0.
    pub kernel: bool,
}

/// A range of addresses whose functions change at some time: a mapping came or went, a module loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// When, in ns of the trace clock.
    pub at_ns: u64,
    /// Address space, 0 for the kernel's half.
    pub asid: u64,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

/// Finds functions. Called from several threads at once.
pub trait Resolve: Sync {
    /// The function at `va` of address space `asid` (0 for the kernel's half) at time `at_ns`.
    fn function_at(&self, asid: u64, va: u64, at_ns: u64) -> FuncRef;

    /// Name and place of a function that [`Resolve::function_at`] returned.
    fn describe(&self, id: u32) -> FuncInfo;

    /// All changes, sorted by time. What was resolved in such a range before is asked again after it.
    fn changes(&self) -> &[Change] {
        &[]
    }
}

/// A resolver for runs without symbols: each mapped file is one region, and elsewhere each 4 KiB page,
/// numbered on first sight.
///
/// Those numbers depend on the order of asking, which is fine: see [`FuncRef::id`].
#[derive(Debug, Default)]
pub struct Regions {
    /// Sorted, apart from each other.
    mapped: Vec<Region>,
    seen: Mutex<Pages>,
}

/// A mapped file in [`Regions`].
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// What to call it, mostly the file's path.
    pub module: String,
}

#[derive(Debug, Default)]
struct Pages {
    ids: HashMap<u64, u32>,
    pages: Vec<u64>,
}

impl Regions {
    /// Regions for these files. Where two overlap, the one that starts later has the addresses from there.
    pub fn new(mut mapped: Vec<Region>) -> Self {
        mapped.sort();
        Self { mapped, seen: Mutex::default() }
    }
}

impl Resolve for Regions {
    fn function_at(&self, _asid: u64, va: u64, _at_ns: u64) -> FuncRef {
        let after = self.mapped.partition_point(|r| r.start <= va);
        if let Some(index) = after.checked_sub(1)
            && va < self.mapped[index].end
        {
            let Region { start, end, .. } = self.mapped[index];
            let end = self.mapped.get(index + 1).map_or(end, |next| next.start.min(end));
            return FuncRef { id: index as u32, entry: start, known: false, start, end };
        }
        let page = va & !0xfff;
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        let next = seen.pages.len() as u32;
        let id = *seen.ids.entry(page).or_insert(next);
        if id == next {
            seen.pages.push(page);
        }
        // The region may end inside the page, so the answer is for this address only.
        let (start, end) = (va, va.saturating_add(1));
        FuncRef { id: self.mapped.len() as u32 + id, entry: page, known: false, start, end }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        let (start, module) = match self.mapped.get(id as usize) {
            Some(region) => (region.start, region.module.clone()),
            None => {
                let seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
                (seen.pages.get(id as usize - self.mapped.len()).copied().unwrap_or(0), String::new())
            }
        };
        FuncInfo { name: format!("{start:#x}"), module, start, kernel: start >> 63 == 1 }
    }
}
