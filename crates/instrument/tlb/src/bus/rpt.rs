// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reverse page table: for each entry in the region, the page and process that it maps. It is kept current from
//! records and from the values written to the region, and gives the meaning of each access to the region.
//!
//! The walker reads 8 bytes of an entry (or the burst that holds them), and so does the kernel. These rules distinguish
//! them:
//! - a read of an entry known to map nothing: a walk that faults, or the kernel before it fills the entry;
//! - a read at most [`Rpt::PAIR_TICKS`] before a write to the same entry: the kernel's, which reads, changes, writes;
//!   but the walker's if only the accessed and dirty bits change, which the walker sets;
//! - the read of the entry that the kernel wrote last: the walker's, for the access that faulted;
//! - reads of a process's tables while a record says that the kernel reads them, and after the process's exit: the
//!   kernel's. If the record names a CPU, that CPU's reads of any tables; meanwhile a read by an unknown CPU stays undecided;
//! - a read of half an entry, and a write of it after which the entry still maps its page: the walker's second look, with which
//!   it sets the accessed or dirty bit (so QEMU does it);
//! - writes of one byte, or of zero bytes all over a page: a table is cleared.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::mappings::Record;
use super::trace::{Access, Kind};
use crate::model::geometry::PageSize;

/// The page that an entry maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Process id.
    pub pid: u32,
    /// Page's size.
    pub size: PageSize,
    /// First virtual address.
    pub va: u64,
}

/// Meaning of an access to the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// A TLB miss: the walker read an entry that maps a page.
    Miss {
        /// The page that the entry maps.
        mapping: Mapping,
        /// Physical address of the entry.
        entry: u64,
    },
    /// An entry that points to a table was read: by a walk on its way down, or by the kernel.
    Upper,
    /// An entry that maps nothing was read: by a walk that faults, or by the kernel before it fills the entry.
    Absent,
    /// The kernel read an entry to change it.
    Kernel,
    /// An entry was read while the kernel reads its process's tables, or destroys them.
    Census,
    /// Like [`Meaning::Census`], but on one CPU alone, and the read's CPU is unknown: the kernel's, or a walk's.
    Unsure,
    /// Half of an entry was read or written, which maps a page before and after: the walker sets its accessed or dirty bit.
    Marked,
    /// An entry now maps a page, or another page than before.
    Mapped,
    /// An entry maps nothing any more.
    Unmapped,
    /// A table was cleared.
    Clear,
    /// In the region, but the table's process is unknown.
    Unknown,
    /// Not in the region.
    Outside,
}

/// Number of accesses by meaning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that are TLB misses.
    pub misses: u64,
    /// Accesses that mean [`Meaning::Upper`].
    pub upper: u64,
    /// Accesses that mean [`Meaning::Absent`].
    pub absent: u64,
    /// Accesses that mean [`Meaning::Kernel`].
    pub kernel: u64,
    /// Accesses that mean [`Meaning::Census`].
    pub census: u64,
    /// Accesses that mean [`Meaning::Unsure`].
    pub unsure: u64,
    /// Accesses that mean [`Meaning::Marked`].
    pub marked: u64,
    /// Accesses that mean [`Meaning::Mapped`].
    pub mapped: u64,
    /// Accesses that mean [`Meaning::Unmapped`].
    pub unmapped: u64,
    /// Accesses that mean [`Meaning::Clear`].
    pub clear: u64,
    /// Accesses that mean [`Meaning::Unknown`].
    pub unknown: u64,
    /// Accesses that mean [`Meaning::Outside`].
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
            Meaning::Unsure => &mut self.unsure,
            Meaning::Marked => &mut self.marked,
            Meaning::Mapped => &mut self.mapped,
            Meaning::Unmapped => &mut self.unmapped,
            Meaning::Clear => &mut self.clear,
            Meaning::Unknown => &mut self.unknown,
            Meaning::Outside => &mut self.outside,
        } += 1;
    }

    /// Returns the number of all accesses.
    pub fn all(&self) -> u64 {
        let reads =
            self.misses + self.upper + self.absent + self.kernel + self.census + self.unknown + self.outside;
        reads + self.unsure + self.marked + self.mapped + self.unmapped + self.clear
    }
}

/// Flag: the entry of a page directory points to a table.
const LEADS: u64 = 1 << 3;

/// A page of the region: a table of one process. Its entries are stored elsewhere, so that this stays in the cache.
#[derive(Debug, Clone, Copy)]
struct Table {
    pid: u32,
    /// Its process has ended.
    gone: bool,
    /// Number of entries that map a page.
    live: u16,
    /// Size of its pages, and its first address, from a record.
    range: Option<(PageSize, u64)>,
}

/// The entries of a table: first address, the page's size from bit 1 on, bit 0 set; [`LEADS`] for an entry that points
/// to another table; 0 for none.
type Entries = [u64; 512];

fn mapping(pid: u32, entry: u64) -> Option<Mapping> {
    let size = PageSize::from_number((entry >> 1) as u8 & 3)?;
    (entry & 1 != 0).then_some(Mapping { pid, size, va: entry & !0xfff })
}

/// Maximum of pages in a region that are looked up in a list. A larger region's pages are hashed.
const DENSE: u64 = 1 << 20;
const NO_TABLE: u32 = u32::MAX;

/// The table on each page of the region. Every access reads this.
#[derive(Debug, Clone)]
enum Places {
    Dense(Vec<u32>),
    Sparse(HashMap<u64, u32, BuildHasherDefault<PageHasher>>),
}

/// All tables.
#[derive(Debug, Clone)]
struct Tables {
    first: u64,
    places: Places,
    heads: Vec<Table>,
    entries: Vec<Entries>,
}

impl Tables {
    fn new(start: u64, end: u64) -> Self {
        let pages = (end.saturating_sub(start) >> 12) + 2;
        let places = match pages {
            ..=DENSE => Places::Dense(vec![NO_TABLE; pages as usize]),
            _ => Places::Sparse(HashMap::default()),
        };
        Tables { first: start >> 12, places, heads: Vec::new(), entries: Vec::new() }
    }

    /// The table that contains an address in the region.
    #[inline(always)]
    fn at(&self, address: u64) -> Option<usize> {
        let page = (address >> 12).wrapping_sub(self.first);
        let number = match &self.places {
            Places::Dense(all) => *all.get(page as usize)?,
            Places::Sparse(all) => *all.get(&page)?,
        };
        (number != NO_TABLE).then_some(number as usize)
    }

    /// Makes the page at an address an empty table.
    fn put(&mut self, address: u64, pid: u32, range: Option<(PageSize, u64)>) -> usize {
        let head = Table { pid, gone: false, live: 0, range };
        if let Some(number) = self.at(address) {
            self.heads[number] = head;
            self.entries[number] = [0; 512];
            return number;
        }
        let number = self.heads.len();
        let page = (address >> 12).wrapping_sub(self.first);
        match &mut self.places {
            Places::Dense(all) => {
                if let Some(place) = all.get_mut(page as usize) {
                    *place = number as u32;
                }
            }
            Places::Sparse(all) => {
                all.insert(page, number as u32);
            }
        }
        self.heads.push(head);
        self.entries.push([0; 512]);
        number
    }

    fn set(&mut self, number: usize, at: usize, size: PageSize, va: u64) {
        self.drop(number, at);
        self.heads[number].live += 1;
        self.entries[number][at] = va & !0xfff | (size as u64) << 1 | 1;
    }

    fn drop(&mut self, number: usize, at: usize) {
        let entry = std::mem::take(&mut self.entries[number][at]);
        self.heads[number].live -= (entry & 1) as u16;
    }
}

/// Hashes page numbers. They are dense, so a multiplication suffices; every access makes a lookup.
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

/// The reverse page table of a region.
#[derive(Debug, Clone)]
pub struct Rpt {
    start: u64,
    end: u64,
    tables: Tables,
    /// Processes whose tables the kernel reads, with the number of nested scans.
    scanned: HashMap<u32, u32>,
    /// CPUs on which the kernel reads tables, and for which process it began.
    scanning: Vec<(u8, u32)>,
}

const PRESENT: u64 = 1;
/// Accessed and dirty: the walker sets them in the entry that it has read.
const WALKER_SETS: u64 = 1 << 5 | 1 << 6;
/// The entry of a page directory maps a page itself (SDM volume 3, table 4-17).
const LARGE: u64 = 1 << 7;

impl Rpt {
    /// Maximum of ticks between the kernel's read of an entry and its write.
    pub const PAIR_TICKS: u64 = 2_000;

    /// An empty table for a region.
    pub fn new(start: u64, end: u64) -> Self {
        Rpt { start, end, tables: Tables::new(start, end), scanned: HashMap::new(), scanning: Vec::new() }
    }

    fn inside(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Loads the entry of an address into the cache.
    #[inline(always)]
    fn peek(&self, address: u64) -> u64 {
        self.tables.at(address).map_or(0, |number| self.tables.entries[number][slot(address)])
    }

    /// Applies a record. Returns false if it does not concern the region.
    pub fn record(&mut self, record: &Record) -> bool {
        match *record {
            Record::Map { pid, size, va, entry, .. } => {
                let inside = self.inside(entry);
                if inside {
                    // A table belongs to one process. Another process has taken over the page.
                    let same = |&number: &usize| {
                        let table = &self.tables.heads[number];
                        !table.gone && table.pid == pid
                    };
                    let known = self.tables.at(entry).filter(same);
                    let number = known.unwrap_or_else(|| self.tables.put(entry, pid, None));
                    self.tables.set(number, slot(entry), size, va);
                }
                inside
            }
            Record::Unmap { entry, .. } => {
                let inside = self.inside(entry);
                if let Some(number) = self.tables.at(entry).filter(|_| inside) {
                    self.tables.drop(number, slot(entry));
                }
                inside
            }
            Record::Table { pid, size, va, table, .. } => {
                let inside = self.inside(table);
                if inside {
                    self.tables.put(table, pid, Some((size, va)));
                }
                inside
            }
            Record::Scan { pid, begin, cpu: Some(cpu), .. } => {
                self.scanning.retain(|&(on, _)| on != cpu);
                self.scanning.extend(begin.then_some((cpu, pid)));
                true
            }
            Record::Scan { pid, begin, cpu: None, .. } => {
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
            Record::Named { pid, number, .. } => {
                let tables = self.tables.heads.iter_mut().filter(|t| t.pid == number && !t.gone);
                tables.for_each(|t| t.pid = pid);
                true
            }
            Record::Exit { pid, .. } => {
                self.scanned.remove(&pid);
                self.scanning.retain(|&(_, of)| of != pid);
                self.tables.heads.iter_mut().filter(|t| t.pid == pid).for_each(|t| t.gone = true);
                true
            }
        }
    }

    /// Returns the meaning of an access. `next` is the access after it, which reveals the kernel's reads.
    #[inline(always)]
    pub fn access(&mut self, a: &Access, next: Option<&Access>) -> Meaning {
        if !self.inside(a.address) {
            return Meaning::Outside;
        }
        match a.kind {
            Kind::Read => self.read(a, next),
            Kind::Write => self.write(a),
        }
    }

    #[inline(always)]
    fn read(&self, a: &Access, next: Option<&Access>) -> Meaning {
        let entry = a.address & !7;
        let changes = |n: &&Access| {
            n.kind == Kind::Write
                && n.address & !7 == entry
                && (n.cpu == a.cpu || n.cpu.is_none() || a.cpu.is_none())
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
        let Some(number) = self.tables.at(entry) else { return Meaning::Unknown };
        if a.bytes < 8 {
            // A walk reads a whole entry. This is its second look, before it sets a bit, or the kernel's.
            return if changing.is_some() { Meaning::Marked } else { Meaning::Kernel };
        }
        let (table, values) = (&self.tables.heads[number], &self.tables.entries[number]);
        if table.gone || !self.scanned.is_empty() && self.scanned.contains_key(&table.pid) {
            return Meaning::Census;
        }
        if !self.scanning.is_empty() {
            match a.cpu {
                // Where the kernel reads tables, nothing else does.
                Some(cpu) if self.scanning.iter().any(|&(on, _)| on == cpu) => return Meaning::Census,
                None => return Meaning::Unsure,
                _ => {}
            }
        }
        // A burst holds several entries. The first one that maps a page stands for all, as a bus cannot distinguish
        // them.
        let entries = (usize::from(a.bytes) / 8).max(1);
        let first = slot(a.address & !(entries as u64 * 8 - 1));
        let found =
            (first..(first + entries).min(512)).find_map(|i| Some((i, mapping(table.pid, values[i])?)));
        match found {
            Some((i, mapping)) => Meaning::Miss { mapping, entry: (entry & !0xfff) + i as u64 * 8 },
            None if values[slot(a.address)] == LEADS => Meaning::Upper,
            None if table.range.is_some() || table.live > 0 => Meaning::Absent,
            None => Meaning::Unknown,
        }
    }

    fn write(&mut self, a: &Access) -> Meaning {
        let entry = a.address & !7;
        let Some(number) = self.tables.at(entry) else {
            // A table is cleared before a record names its process.
            return if a.bytes < 8 || a.value == Some(0) { Meaning::Clear } else { Meaning::Unknown };
        };
        let at = slot(entry);
        let known = self.tables.entries[number][at];
        if a.bytes == 4 && known != 0 && (a.address & 4 != 0 || a.value.is_some_and(|v| v & PRESENT != 0)) {
            // QEMU's walker sets the accessed and dirty bits by half an entry.
            return Meaning::Marked;
        }
        if a.bytes < 8 {
            // A byte of `rep stosb`: the kernel never changes an entry in part.
            self.tables.drop(number, at);
            return Meaning::Clear;
        }
        match (a.value, self.tables.heads[number].range) {
            (Some(0), _) if self.tables.entries[number][at] == 0 => Meaning::Clear,
            (Some(value), _) if value & PRESENT == 0 => {
                self.tables.drop(number, at);
                Meaning::Unmapped
            }
            (Some(value), Some((size, va))) => {
                // The entry of a page directory that points to a page table maps nothing itself.
                if size == PageSize::K4 || value & LARGE != 0 {
                    self.tables.set(number, at, size, va.wrapping_add((at as u64) << size.shift()));
                } else {
                    self.tables.drop(number, at);
                    self.tables.entries[number][at] = LEADS;
                }
                Meaning::Mapped
            }
            // The value or its table is unknown; records supply it.
            _ => Meaning::Mapped,
        }
    }
}

fn slot(entry: u64) -> usize {
    (entry >> 3 & 511) as usize
}

/// Number of accesses processed together.
const GROUP: usize = 64;

/// A miss on the bus: a record of the paper's complete trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusMiss {
    /// Time in ticks.
    pub time: u64,
    /// The page that missed.
    pub mapping: Mapping,
    /// Physical address of the entry.
    pub entry: u64,
}

/// Runs records and accesses, each in order of time, through a reverse page table. `each` gets every miss.
pub fn replay(
    region: (u64, u64),
    mut records: impl Iterator<Item = Record>,
    mut accesses: impl Iterator<Item = Access>,
    mut each: impl FnMut(BusMiss),
) -> Counts {
    let mut rpt = Rpt::new(region.0, region.1);
    let mut counts = Counts::default();
    let mut record = records.next();
    let mut due = record.map_or(u64::MAX, |r| r.time());
    // In groups, whose entries are all loaded before the first is needed: memory answers many requests at once as fast
    // as one.
    let mut group: Vec<Access> = Vec::with_capacity(GROUP + 1);
    loop {
        group.extend(accesses.by_ref().take(GROUP + 1 - group.len()));
        if group.is_empty() {
            return counts;
        }
        std::hint::black_box(group.iter().fold(0, |all, a| all ^ rpt.peek(a.address)));
        // The last access waits for its successor, if there is one.
        let whole = if group.len() > GROUP { GROUP } else { group.len() };
        for (at, a) in group[..whole].iter().enumerate() {
            while due <= a.time
                && let Some(now) = record
            {
                rpt.record(&now);
                record = records.next();
                due = record.map_or(u64::MAX, |r| r.time());
            }
            let meaning = rpt.access(a, group.get(at + 1));
            counts.add(&meaning);
            if let Meaning::Miss { mapping, entry } = meaning {
                each(BusMiss { time: a.time, mapping, entry });
            }
        }
        group.drain(..whole);
    }
}
