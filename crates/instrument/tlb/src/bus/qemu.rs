// SPDX-License-Identifier: MIT OR Apache-2.0
//! QEMU as a bus monitor: reads lines of its trace events `memory_region_ops_read` and `_write`, and returns accesses
//! and records.
//!
//! ```text
//! 4711@1733000000.123456:memory_region_ops_read cpu 0 mr 0x55d0 addr 0x190000008 value 0x67 size 8 name 'cxl-fixed-memory-region'
//! ```
//!
//! The guest's module writes its records on the same bus: three words each to a page of the region, the mailbox. It
//! announces the mailbox by a magic number followed by the page's own address. So records and accesses are in one
//! order, and no two clocks have to be compared. QEMU gives microseconds. Times here are nanoseconds; each is at least
//! one later than the last, to keep that order.

use super::mappings::Record;
use super::trace::{Access, Kind, MOST_CPU};
use crate::model::geometry::PageSize;

/// The first word that the module writes to the mailbox: `HPTAT001`.
const HELLO: u64 = u64::from_le_bytes(*b"HPTAT001");
const TABLE: u32 = 5;
const DIRECTORY: u32 = TABLE | 1 << 4;
const SCAN: u32 = 6;
const REGION: u32 = 16;
const VMA: u32 = 17;
const VMA_FILE: u32 = 18;
const VMA_NAME: u32 = 19;
const COUNTS: u32 = 20;
const MISSED: u32 = 22;
/// Longest path accepted, bytes.
const PATH: usize = 4096;
/// Maximum of mappings accepted: 65530 is Linux's own limit for a process (vm.max_map_count); execve starts anew
/// several times.
const VMAS: usize = 1 << 20;

/// A mapping at the time its address space ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vma {
    /// Process id.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// True if it is executable.
    pub executable: bool,
    /// Path, `[heap]`, `[stack]`, or empty.
    pub path: Vec<u8>,
}

/// Content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// An access to the region.
    Access(Access),
    /// A record of the module.
    Record(Record),
    /// A part of a record, or a line about something else.
    Nothing,
}

/// The state of the monitor.
#[derive(Debug, Clone, Default)]
pub struct Monitor {
    mailbox: Option<u64>,
    /// A page to whose first word the magic number was written.
    announced: Option<u64>,
    words: [u64; 2],
    last: u64,
    /// The region: first address and end.
    pub region: Option<(u64, u64)>,
    /// Mappings of address spaces that ended.
    pub vmas: Vec<Vma>,
    /// Number of tables placed in the region, and of those that were not, for lack of memory there.
    pub tables: (u64, u64),
    /// Number of missed brackets around the kernel's own reads.
    pub missed: u64,
    /// Number of writes to the mailbox.
    pub mailbox_writes: u64,
    /// Number of accesses to the region before the module announced itself.
    pub before: u64,
    /// Number of lines that are no accesses of a CXL window.
    pub others: u64,
    /// Number of records of unknown type.
    pub unknown: u64,
}

impl Monitor {
    /// Handles a line.
    pub fn line(&mut self, line: &[u8]) -> Line {
        let Some((micros, access)) = parse(line) else {
            self.others += 1;
            return Line::Nothing;
        };
        let time = micros.saturating_mul(1000).max(self.last.saturating_add(1));
        self.last = time;
        let access = Access { time, ..access };
        let Some(mailbox) = self.mailbox else {
            self.before += 1;
            self.listen(&access);
            return Line::Nothing;
        };
        if access.kind == Kind::Write && access.address & !0xfff == mailbox {
            self.mailbox_writes += 1;
            return self.word(&access).map_or(Line::Nothing, Line::Record);
        }
        Line::Access(access)
    }

    /// Waits for the module's announcement.
    fn listen(&mut self, a: &Access) {
        if a.kind != Kind::Write || a.bytes != 8 {
            return;
        }
        if a.address & 0xfff == 0 && a.value == Some(HELLO) {
            self.announced = Some(a.address);
        } else if self.announced.is_some_and(|page| a.address == page + 8 && a.value == Some(page)) {
            self.mailbox = self.announced;
            self.words = [HELLO, 0];
        }
    }

    fn word(&mut self, a: &Access) -> Option<Record> {
        let value = a.value.unwrap_or(0);
        match a.address & 0xfff {
            at @ (0 | 8) => {
                self.words[at as usize / 8] = value;
                None
            }
            16 => self.record(a.time, a.cpu, [self.words[0], self.words[1], value]),
            _ => None,
        }
    }

    fn record(&mut self, time: u64, cpu: Option<u8>, [head, one, two]: [u64; 3]) -> Option<Record> {
        let (kind, pid) = (head as u32, (head >> 32) as u32);
        match kind {
            TABLE => return Some(Record::Table { time, pid, size: PageSize::K4, va: one, table: two }),
            DIRECTORY => return Some(Record::Table { time, pid, size: PageSize::M2, va: one, table: two }),
            SCAN => return Some(Record::Scan { time, pid, begin: one != 0, cpu }),
            REGION => self.region = Some((one, two)),
            VMA if self.vmas.len() < VMAS => {
                self.vmas.push(Vma { pid, start: one, end: two, ..Vma::default() });
            }
            VMA_FILE => {
                if let Some(vma) = self.vmas.last_mut() {
                    (vma.offset, vma.executable) = (one, two != 0);
                }
            }
            VMA_NAME => {
                if let Some(vma) = self.vmas.last_mut().filter(|vma| vma.path.len() < PATH) {
                    let bytes = [one.to_le_bytes(), two.to_le_bytes()].concat();
                    vma.path.extend(bytes.into_iter().take_while(|&b| b != 0));
                }
            }
            COUNTS => self.tables = (one, two),
            MISSED => self.missed = one,
            // The rest of the announcement.
            _ if head == HELLO => {}
            _ => self.unknown += 1,
        }
        None
    }
}

/// Parses a line: microseconds and the access, if it is an access to a CXL window.
fn parse(line: &[u8]) -> Option<(u64, Access)> {
    let at = line.iter().position(|&b| b == b'@')?;
    let (seconds, rest) = number(&line[at + 1..], 10)?;
    let (micros, rest) = number(rest.strip_prefix(b".")?, 10)?;
    let rest = rest.strip_prefix(b":memory_region_ops_")?;
    let (kind, rest) = match rest.strip_prefix(b"read cpu ") {
        Some(rest) => (Kind::Read, rest),
        None => (Kind::Write, rest.strip_prefix(b"write cpu ")?),
    };
    let (cpu, rest) = match rest.strip_prefix(b"-") {
        // The access is not a CPU's.
        Some(rest) => (None, number(rest, 10)?.1),
        None => {
            number(rest, 10).map(|(cpu, rest)| (u8::try_from(cpu).ok().filter(|c| *c <= MOST_CPU), rest))?
        }
    };
    let (_, rest) = number(rest.strip_prefix(b" mr 0x")?, 16)?;
    let (address, rest) = number(rest.strip_prefix(b" addr 0x")?, 16)?;
    let (value, rest) = number(rest.strip_prefix(b" value 0x")?, 16)?;
    let (size, rest) = number(rest.strip_prefix(b" size ")?, 10)?;
    rest.strip_prefix(b" name 'cxl-fixed-memory-region")?;
    let bytes = u8::try_from(size).ok().filter(|b| b.is_power_of_two() && *b <= 128)?;
    let micros = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
    (address >> 48 == 0)
        .then_some((micros, Access { time: 0, address, kind, bytes, value: Some(value), cpu }))
}

fn number(bytes: &[u8], base: u32) -> Option<(u64, &[u8])> {
    let mut n = 0u64;
    let mut length = 0;
    while let Some(digit) = bytes.get(length).and_then(|&b| char::from(b).to_digit(base)) {
        n = n.checked_mul(base.into())?.checked_add(digit.into())?;
        length += 1;
    }
    (length > 0).then_some((n, &bytes[length..]))
}
