// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reverse page table: of each entry in the region, which page of which process it maps. Kept current from records
//! and from the values written to the region, it tells what each access to the region meant.
//!
//! Who reads? The walker reads 8 bytes (or the burst that holds them) of an entry. So does the kernel; what tells them
//! apart is:
//! - a read of an entry known to map nothing: the walker's that faults, or the kernel's look at what it is to fill;
//! - a read right before a write to the same entry, at most [`Rpt::PAIR_TICKS`] before: the kernel's, which reads,
//!   changes, writes; but if only the accessed and dirty bits change, the walker's, which sets them;
//! - the read of an entry that the kernel wrote last: the walker's, of the access that faulted;
//! - reads of a process's tables while a record says that the kernel goes through them, and after its exit: the kernel's;
//! - writes of one byte, or of zero bytes all over a page: a table is cleared.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::mappings::Record;
use super::trace::{Access, Kind};
use crate::geometry::PageSize;

/// What an entry maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Process.
    pub pid: u32,
    /// Page's size.
    pub size: PageSize,
    /// First virtual address.
    pub va: u64,
}

/// What an access to the region meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// A TLB miss: the walker read an entry that maps a page.
    Miss {
        /// What the entry maps.
        mapping: Mapping,
        /// Where the entry lies.
        entry: u64,
    },
    /// An entry that leads to a table was read: a walk on its way down, or the kernel's.
    Upper,
    /// An entry that maps nothing was read: a walk that faults, or the kernel before it fills the entry.
    Absent,
    /// The kernel read an entry to change it.
    Kernel,
    /// An entry was read while the kernel goes through its process's tables, or takes them down.
    Census,
    /// An entry came to map a page, or another one.
    Mapped,
    /// An entry maps nothing any more.
    Unmapped,
    /// A table was cleared.
    Clear,
    /// In the region, but no record says whose it is.
    Unknown,
    /// Not in the region.
    Outside,
}

/// How many accesses meant what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// TLB misses.
    pub misses: u64,
    /// See [`Meaning::Upper`].
    pub upper: u64,
    /// See [`Meaning::Absent`].
    pub absent: u64,
    /// See [`Meaning::Kernel`].
    pub kernel: u64,
    /// See [`Meaning::Census`].
    pub census: u64,
    /// See [`Meaning::Mapped`].
    pub mapped: u64,
    /// See [`Meaning::Unmapped`].
    pub unmapped: u64,
    /// See [`Meaning::Clear`].
    pub clear: u64,
    /// See [`Meaning::Unknown`].
    pub unknown: u64,
    /// See [`Meaning::Outside`].
    pub outside: u64,
}

impl Counts {
    /// Adds an access.
    pub fn add(&mut self, meaning: &Meaning) {
        *match meaning {
            Meaning::Miss { .. } => &mut self.misses,
            Meaning::Upper => &mut self.upper,
            Meaning::Absent => &mut self.absent,
            Meaning::Kernel => &mut self.kernel,
            Meaning::Census => &mut self.census,
            Meaning::Mapped => &mut self.mapped,
            Meaning::Unmapped => &mut self.unmapped,
            Meaning::Clear => &mut self.clear,
            Meaning::Unknown => &mut self.unknown,
            Meaning::Outside => &mut self.outside,
        } += 1;
    }

    /// All accesses.
    pub fn all(&self) -> u64 {
        let reads = self.misses + self.upper + self.absent + self.kernel + self.census + self.unknown + self.outside;
        reads + self.mapped + self.unmapped + self.clear
    }
}

/// An entry of a page directory that leads to a table.
const LEADS: u64 = 1 << 3;

/// A page of the region: a table of one process.
#[derive(Debug, Clone)]
struct Table {
    pid: u32,
    /// Size of the pages and first address, from a record.
    range: Option<(PageSize, u64)>,
    /// Its process is gone.
    gone: bool,
    /// Entries that map a page.
    live: u32,
    /// What each maps: first address, the page's size from bit 1 on, bit 0 set; [`LEADS`]: no page, but
    /// another table; 0 is nothing.
    entries: Box<[u64; 512]>,
}

impl Table {
    fn new(pid: u32, range: Option<(PageSize, u64)>) -> Self {
        Table { pid, range, gone: false, live: 0, entries: Box::new([0; 512]) }
    }

    fn set(&mut self, at: usize, size: PageSize, va: u64) {
        self.drop(at);
        self.live += 1;
        self.entries[at] = va & !0xfff | (size as u64) << 1 | 1;
    }

    fn drop(&mut self, at: usize) {
        self.live -= u32::from(self.entries[at] & 1 != 0);
        self.entries[at] = 0;
    }

    fn mapping(&self, at: usize) -> Option<Mapping> {
        let entry = self.entries[at];
        let size = PageSize::from_number((entry >> 1) as u8 & 3)?;
        (entry & 1 != 0).then_some(Mapping { pid: self.pid, size, va: entry & !0xfff })
    }
}

/// Hashes numbers of pages, which are dense: a multiplication is enough, and a lookup is made for every access.
#[derive(Debug, Clone, Copy, Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b.into()));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Rpt {
    start: u64,
    end: u64,
    tables: HashMap<u64, Table, BuildHasherDefault<PageHasher>>,
    /// Processes whose tables the kernel goes through, and how many times at once.
    scanned: HashMap<u32, u32>,
}

const PRESENT: u64 = 1;
/// Accessed and dirty, which the walker sets in the entry that it has read.
const WALKER_SETS: u64 = 1 << 5 | 1 << 6;
/// A page directory's entry maps a page itself (SDM volume 3, table 4-17).
const LARGE: u64 = 1 << 7;

impl Rpt {
    /// Most ticks between the kernel's read of an entry and its write.
    pub const PAIR_TICKS: u64 = 2_000;

    /// For a region of page tables.
    pub fn new(start: u64, end: u64) -> Self {
        Rpt { start, end, tables: HashMap::default(), scanned: HashMap::new() }
    }

    fn inside(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Takes a record; false if it speaks of what is not in the region.
    pub fn record(&mut self, record: &Record) -> bool {
        match *record {
            Record::Map { pid, size, va, entry, .. } => {
                let inside = self.inside(entry);
                if inside {
                    let table = self.tables.entry(entry >> 12).or_insert_with(|| Table::new(pid, None));
                    // A table is one process's; another's has taken the page over.
                    if table.gone || table.pid != pid {
                        *table = Table::new(pid, None);
                    }
                    table.set(slot(entry), size, va);
                }
                inside
            }
            Record::Unmap { entry, .. } => {
                let inside = self.inside(entry);
                if let Some(table) = self.tables.get_mut(&(entry >> 12)).filter(|_| inside) {
                    table.drop(slot(entry));
                }
                inside
            }
            Record::Table { pid, size, va, table, .. } => {
                let inside = self.inside(table);
                if inside {
                    self.tables.insert(table >> 12, Table::new(pid, Some((size, va))));
                }
                inside
            }
            Record::Scan { pid, begin, .. } => {
                if begin {
                    *self.scanned.entry(pid).or_default() += 1;
                } else if let Some(times) = self.scanned.get_mut(&pid) {
                    *times -= 1;
                    if *times == 0 {
                        self.scanned.remove(&pid);
                    }
                }
                true
            }
            Record::Exit { pid, .. } => {
                self.scanned.remove(&pid);
                self.tables.values_mut().filter(|t| t.pid == pid).for_each(|t| t.gone = true);
                true
            }
        }
    }

    /// What an access meant. `next` is the access after it, which tells the kernel's reads.
    #[inline]
    pub fn access(&mut self, a: &Access, next: Option<&Access>) -> Meaning {
        if !self.inside(a.address) {
            return Meaning::Outside;
        }
        match a.kind {
            Kind::Read => self.read(a, next),
            Kind::Write => self.write(a),
        }
    }

    fn read(&mut self, a: &Access, next: Option<&Access>) -> Meaning {
        let entry = a.address & !7;
        let changes = |n: &&Access| {
            n.kind == Kind::Write
                && n.address & !7 == entry
                && n.time.wrapping_sub(a.time) <= Self::PAIR_TICKS
        };
        let walkers = |n: &&Access| match (a.value, n.value) {
            (Some(old), Some(new)) => {
                old & PRESENT != 0 && old != new && old | WALKER_SETS == new | WALKER_SETS
            }
            _ => false,
        };
        let changing = next.filter(changes);
        if changing.is_some() && changing.filter(walkers).is_none() {
            return Meaning::Kernel;
        }
        let Some(table) = self.tables.get_mut(&(entry >> 12)) else { return Meaning::Unknown };
        if table.gone || !self.scanned.is_empty() && self.scanned.contains_key(&table.pid) {
            return Meaning::Census;
        }
        // A burst holds several entries: the first that maps stands for all, as a bus cannot tell.
        let entries = (usize::from(a.bytes) / 8).max(1);
        let first = slot(a.address & !(entries as u64 * 8 - 1));
        let found = (first..(first + entries).min(512)).find_map(|i| Some((i, table.mapping(i)?)));
        match found {
            Some((i, mapping)) => Meaning::Miss { mapping, entry: (entry & !0xfff) + i as u64 * 8 },
            None if table.entries[slot(a.address)] == LEADS => Meaning::Upper,
            None if table.range.is_some() || table.live > 0 => Meaning::Absent,
            None => Meaning::Unknown,
        }
    }

    fn write(&mut self, a: &Access) -> Meaning {
        let entry = a.address & !7;
        let Some(table) = self.tables.get_mut(&(entry >> 12)) else {
            // A table is cleared before anyone says whose it is.
            return if a.bytes < 8 || a.value == Some(0) { Meaning::Clear } else { Meaning::Unknown };
        };
        let at = slot(entry);
        if a.bytes < 8 {
            // A byte of `rep stosb`: no entry is ever changed in part.
            table.drop(at);
            return Meaning::Clear;
        }
        match (a.value, table.range) {
            (Some(0), _) if table.entries[at] == 0 => Meaning::Clear,
            (Some(value), _) if value & PRESENT == 0 => {
                table.drop(at);
                Meaning::Unmapped
            }
            (Some(value), Some((size, va))) => {
                // An entry of a page directory that leads to a page table maps nothing itself.
                if size == PageSize::K4 || value & LARGE != 0 {
                    table.set(at, size, va.wrapping_add((at as u64) << size.shift()));
                } else {
                    table.drop(at);
                    table.entries[at] = LEADS;
                }
                Meaning::Mapped
            }
            // Records tell what the value, or its table, does not.
            _ => Meaning::Mapped,
        }
    }
}

fn slot(entry: u64) -> usize {
    (entry >> 3 & 511) as usize
}

/// A miss as it comes out: the paper's trace, complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusMiss {
    /// Ticks.
    pub time: u64,
    /// What missed.
    pub mapping: Mapping,
    /// Physical address of the entry.
    pub entry: u64,
}

/// Runs records and accesses, each in order of time, through a reverse page table. `each` gets every miss.
pub fn replay(
    region: (u64, u64),
    records: impl Iterator<Item = Record>,
    mut accesses: impl Iterator<Item = Access>,
    mut each: impl FnMut(BusMiss),
) -> Counts {
    let mut rpt = Rpt::new(region.0, region.1);
    let mut counts = Counts::default();
    let mut records = records.peekable();
    let mut next = accesses.next();
    while let Some(a) = next {
        next = accesses.next();
        while let Some(record) = records.next_if(|r| r.time() <= a.time) {
            rpt.record(&record);
        }
        let meaning = rpt.access(&a, next.as_ref());
        counts.add(&meaning);
        if let Meaning::Miss { mapping, entry } = meaning {
            each(BusMiss { time: a.time, mapping, entry });
        }
    }
    counts
}
