// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resolution of an address to its function: the interface between code and symbols.
//!
//! The input is an address in an address space at a time; the output is a [`FuncRef`], and later a [`FuncInfo`] with
//! the name. The flow decoder resolves once per basic block. It needs an identity and the entry address, because a jump
//! to an entry is a tail call, while a call to another address of the same function is not a call. It needs the name
//! only at the end.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::x86::address::is_kernel;

/// The function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuncRef {
    /// Identity, which is the same for every address of the function, including its `.cold` part. IDs should count up
    /// from 0, because tables are indexed by them; results are renumbered by order of appearance.
    pub id: u32,
    /// Virtual address of the function's first instruction.
    pub entry: u64,
    /// False if `id` stands for a region without symbols, in which an entry has no meaning.
    pub known: bool,
    /// First address of the range in which every address gives the same result.
    pub start: u64,
    /// End of that range, exclusive. The range contains at least the resolved address.
    pub end: u64,
}

/// Name and location of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FuncInfo {
    /// Symbol, or an address in hexadecimal if there is none.
    pub name: String,
    /// `[kernel]`, `[module]`, `[vdso]`, or the path of a mapped file; empty if unknown.
    pub module: String,
    /// Virtual address of the first instruction.
    pub start: u64,
    /// True if the function runs in ring 0.
    pub kernel: bool,
}

/// A range of addresses whose functions change at a time, because a mapping was added or removed or a module was
/// loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// Time of the change, in ns of the trace clock.
    pub at_ns: u64,
    /// Address space; 0 for the kernel's half.
    pub asid: u64,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

/// Resolver of functions. It is called from several threads at once.
pub trait Resolve: Sync {
    /// The function at `va` of address space `asid` (0 for the kernel's half) at time `at_ns`.
    fn function_at(&self, asid: u64, va: u64, at_ns: u64) -> FuncRef;

    /// Name and location of a function that [`Resolve::function_at`] returned.
    fn describe(&self, id: u32) -> FuncInfo;

    /// All changes, sorted by time. An address in such a range is resolved again after the change.
    fn changes(&self) -> &[Change] {
        &[]
    }
}

/// A resolver for runs without symbols. Each mapped file is one region; outside of mapped files, each page of 4 KiB is
/// one, numbered when it is first seen.
///
/// These numbers depend on the order of the calls, which [`FuncRef::id`] allows.
#[derive(Debug, Default)]
pub struct Regions {
    /// The mapped files, sorted by start.
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
    /// Name of the region, usually the path of the file.
    pub module: String,
}

#[derive(Debug, Default)]
struct Pages {
    ids: HashMap<u64, u32>,
    pages: Vec<u64>,
}

impl Regions {
    /// Regions for these files. If two overlap, addresses from the start of the later one belong to the later one.
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
        // A mapped region may begin or end inside the page, so the result holds for this address only.
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
        FuncInfo { name: format!("{start:#x}"), module, start, kernel: is_kernel(start) }
    }
}
