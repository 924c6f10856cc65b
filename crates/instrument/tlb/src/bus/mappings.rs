// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings as dumped by the kernel: the paper's 13-byte records, in pairs (the physical page of a virtual page; the
//! address of the entry that maps it), and a wider form with times, 2 MB pages and ends.
//!
//! The paper gives the first record's fields: type 1, process 4, physical page 3, virtual page 5 bytes. Of the second
//! record it gives the length, 13 bytes, and the content, the entry's physical address, but not the layout; that is
//! this project's.

use super::BusError;
use super::trace::{u32_at, u64_at};
use crate::model::geometry::PageSize;

/// Magic number of a file of 13-byte records. A bare dump has none and is read with [`Reader::bare`].
pub const NARROW: &[u8; 8] = b"KPPTE001";
/// Magic number of a file of wide records.
pub const WIDE: &[u8; 8] = b"KPPTE002";

/// Bytes of a record.
const NARROW_LENGTH: usize = 13;
const WIDE_LENGTH: usize = 40;

/// Types of records. A page's size is in bits 4 and 5 of a mapping's type.
const MAP: u8 = 1;
const ENTRY: u8 = 2;
const UNMAP: u8 = 3;
const EXIT: u8 = 4;
const TABLE: u8 = 5;
const SCAN: u8 = 6;
const NAMED: u8 = 7;

/// A record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A process's page is on this physical page. The entry at `entry` maps it.
    Map {
        /// Ticks of the bus trace's clock; 0 in narrow records, which are valid from the beginning on.
        time: u64,
        /// Process id.
        pid: u32,
        /// Page's size.
        size: PageSize,
        /// First virtual address.
        va: u64,
        /// First physical address.
        physical: u64,
        /// Physical address of the entry.
        entry: u64,
    },
    /// The entry maps nothing any more.
    Unmap {
        /// Time in ticks.
        time: u64,
        /// Process id.
        pid: u32,
        /// Physical address of the entry.
        entry: u64,
    },
    /// A page of the region is a table of this process, for the range that begins at `va`. From then on, values written
    /// to the table can be interpreted without further records.
    Table {
        /// Time in ticks.
        time: u64,
        /// Process id.
        pid: u32,
        /// Size of the pages its entries map.
        size: PageSize,
        /// First virtual address of the range it maps.
        va: u64,
        /// Physical address of the table.
        table: u64,
    },
    /// From here on (or, with `begin` false, no more) the kernel itself reads the process's tables: fork, mprotect,
    /// munmap. On the bus its reads look like walks. If a CPU is given, it is that CPU's reads of any tables, and others walk
    /// meanwhile.
    Scan {
        /// Time in ticks.
        time: u64,
        /// Process id.
        pid: u32,
        /// True at the beginning, false at the end.
        begin: bool,
        /// The CPU; `None` for any.
        cpu: Option<u8>,
    },
    /// The tables of process `number` are from here on those of process `pid`, which had no number when they were made: fork
    /// copies an address space before it gives the process one.
    Named {
        /// Time in ticks.
        time: u64,
        /// Process id.
        pid: u32,
        /// What stood for it.
        number: u32,
    },
    /// The process's address space is being destroyed: from here on, reads of its tables are the kernel's. The
    /// process's number may be used again, with other tables.
    Exit {
        /// Time in ticks.
        time: u64,
        /// Process id.
        pid: u32,
    },
}

impl Record {
    /// The same, at another time.
    pub fn at(mut self, now: u64) -> Self {
        match &mut self {
            Record::Map { time, .. }
            | Record::Unmap { time, .. }
            | Record::Table { time, .. }
            | Record::Scan { time, .. }
            | Record::Named { time, .. }
            | Record::Exit { time, .. } => *time = now,
        }
        self
    }

    /// Time from which it is valid, in ticks.
    pub fn time(&self) -> u64 {
        match *self {
            Record::Map { time, .. }
            | Record::Unmap { time, .. }
            | Record::Table { time, .. }
            | Record::Scan { time, .. }
            | Record::Named { time, .. }
            | Record::Exit { time, .. } => time,
        }
    }
}

/// Form of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The paper's form, with 3 bytes for a physical page's number. So it covers at most 64 GiB of memory, and holds no
    /// times, ends or tables.
    Narrow,
    /// The wide form, which holds all records.
    Wide,
}

impl Form {
    /// The form that a file's first 8 bytes name.
    pub fn of(magic: &[u8]) -> Option<Self> {
        match magic {
            b if b.starts_with(NARROW) => Some(Form::Narrow),
            b if b.starts_with(WIDE) => Some(Form::Wide),
            _ => None,
        }
    }

    /// Bytes of a record; of the narrow form, of a pair.
    pub fn length(self) -> usize {
        match self {
            Form::Narrow => 2 * NARROW_LENGTH,
            Form::Wide => WIDE_LENGTH,
        }
    }

    /// Reads a record, which begins at `offset` of its file.
    ///
    /// # Errors
    /// It is cut short, or of no known type.
    pub fn record(self, bytes: &[u8], offset: usize) -> Result<Record, BusError> {
        match self {
            Form::Narrow => narrow(bytes, offset),
            Form::Wide => wide(bytes, offset),
        }
    }
}

fn part(bytes: &[u8], at: usize, length: usize, offset: usize) -> Result<&[u8], BusError> {
    let what = || BusError::new(offset + at, format!("the file ends within a record of {length} bytes"));
    bytes.get(at..at + length).ok_or_else(what)
}

fn narrow(bytes: &[u8], offset: usize) -> Result<Record, BusError> {
    let first = part(bytes, 0, NARROW_LENGTH, offset)?;
    let Some(size) = map_size(first[0]) else {
        return Err(BusError::new(offset, format!("expected a mapping (type 1), not {:#04x}", first[0])));
    };
    let second = part(bytes, NARROW_LENGTH, NARROW_LENGTH, offset)?;
    let (pid, other) = (u32_at(first, 1), u32_at(second, 1));
    if second[0] != ENTRY || pid != other {
        let what = format!(
            "expected the entry (type 2) of process {pid}, not type {:#04x} of process {other}",
            second[0]
        );
        return Err(BusError::new(offset + NARROW_LENGTH, what));
    }
    let (physical, va) = pages(first);
    Ok(Record::Map { time: 0, pid, size, va, physical, entry: u64_at(second, 5) })
}

/// The physical and the virtual address of a record of 13 bytes.
pub(super) fn pages(record: &[u8]) -> (u64, u64) {
    (u64::from(u32_at(record, 4) >> 8) << 12, extend((u64_at(record, 5) >> 24) << 12))
}

fn wide(bytes: &[u8], offset: usize) -> Result<Record, BusError> {
    let r = part(bytes, 0, WIDE_LENGTH, offset)?;
    let (kind, pid) = (u32_at(r, 0), u32_at(r, 4));
    let (time, va, physical, entry) = (u64_at(r, 8), u64_at(r, 16), u64_at(r, 24), u64_at(r, 32));
    let size = || PageSize::from_number((kind >> 4) as u8);
    let record = match (kind & 15) as u8 {
        _ if kind >> 6 != 0 => None,
        MAP => size().map(|size| Record::Map { time, pid, size, va, physical, entry }),
        TABLE => size().map(|size| Record::Table { time, pid, size, va, table: entry }),
        UNMAP if kind >> 4 == 0 => Some(Record::Unmap { time, pid, entry }),
        SCAN if kind >> 4 == 0 && va <= 1 && physical <= 256 => {
            let cpu = physical.checked_sub(1).map(|cpu| cpu as u8);
            Some(Record::Scan { time, pid, begin: va == 1, cpu })
        }
        NAMED if kind >> 4 == 0 && va >> 32 == 0 => Some(Record::Named { time, pid, number: va as u32 }),
        EXIT if kind >> 4 == 0 => Some(Record::Exit { time, pid }),
        _ => None,
    };
    record.ok_or_else(|| BusError::new(offset, format!("expected a record's type, not {kind:#x}")))
}

/// Writes a file in memory.
#[derive(Debug)]
pub struct Writer {
    /// The bytes written.
    pub bytes: Vec<u8>,
    form: Form,
}

impl Writer {
    /// A file with its magic number.
    pub fn new(form: Form) -> Self {
        let magic = if form == Form::Narrow { NARROW } else { WIDE };
        Writer { bytes: magic.to_vec(), form }
    }

    /// Adds a record. Returns false, and writes nothing, if this form cannot hold it.
    pub fn record(&mut self, record: &Record) -> bool {
        match self.form {
            Form::Narrow => self.narrow(record),
            Form::Wide => {
                self.wide(record);
                true
            }
        }
    }

    fn narrow(&mut self, record: &Record) -> bool {
        let Record::Map { time: 0, pid, size, va, physical, entry } = *record else { return false };
        let (page, number) = (physical >> 12, va >> 12 & ((1 << 40) - 1));
        if page >> 24 != 0 || va & 0xfff != 0 || physical & 0xfff != 0 || extend(number << 12) != va {
            return false;
        }
        self.bytes.push(MAP | (size as u8) << 4);
        self.bytes.extend(pid.to_le_bytes());
        self.bytes.extend(&page.to_le_bytes()[..3]);
        self.bytes.extend(&number.to_le_bytes()[..5]);
        self.bytes.push(ENTRY);
        self.bytes.extend(pid.to_le_bytes());
        self.bytes.extend(entry.to_le_bytes());
        true
    }

    fn wide(&mut self, record: &Record) {
        let (kind, pid, words) = match *record {
            Record::Map { time, pid, size, va, physical, entry } => {
                (MAP | (size as u8) << 4, pid, [time, va, physical, entry])
            }
            Record::Unmap { time, pid, entry } => (UNMAP, pid, [time, 0, 0, entry]),
            Record::Table { time, pid, size, va, table } => {
                (TABLE | (size as u8) << 4, pid, [time, va, 0, table])
            }
            Record::Scan { time, pid, begin, cpu } => {
                (SCAN, pid, [time, begin.into(), cpu.map_or(0, |cpu| u64::from(cpu) + 1), 0])
            }
            Record::Named { time, pid, number } => (NAMED, pid, [time, number.into(), 0, 0]),
            Record::Exit { time, pid } => (EXIT, pid, [time, 0, 0, 0]),
        };
        self.bytes.extend(u32::from(kind).to_le_bytes());
        self.bytes.extend(pid.to_le_bytes());
        words.iter().for_each(|w| self.bytes.extend(w.to_le_bytes()));
    }
}

/// Sign-extends an address. Narrow records hold 40 bits of a virtual page's number, so 52 bits of the address.
fn extend(va: u64) -> u64 {
    ((va << 12) as i64 >> 12) as u64
}

/// Reads a file's records.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    form: Form,
}

impl<'a> Reader<'a> {
    /// Reads the magic number.
    ///
    /// # Errors
    /// The file begins with neither magic number.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BusError> {
        let form = Form::of(bytes).ok_or_else(|| BusError::new(0, "expected KPPTE001 or KPPTE002"))?;
        Ok(Reader { bytes, offset: 8, form })
    }

    /// Reads a bare dump of 13-byte records, as the paper's kernel writes it.
    pub fn bare(bytes: &'a [u8]) -> Self {
        Reader { bytes, offset: 0, form: Form::Narrow }
    }
}

fn map_size(kind: u8) -> Option<PageSize> {
    if kind & 15 == MAP { PageSize::from_number(kind >> 4) } else { None }
}

impl Iterator for Reader<'_> {
    type Item = Result<Record, BusError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let record = self.form.record(self.bytes.get(self.offset..).unwrap_or_default(), self.offset);
        self.offset += self.form.length();
        if record.is_err() {
            self.offset = self.bytes.len();
        }
        Some(record)
    }
}
