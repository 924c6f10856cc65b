// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings as the kernel dumps them: the paper's records of 13 bytes, in pairs (which physical page a virtual page is
//! on; where the entry that says so lies), and a wider form with times, 2 MB pages and ends.
//!
//! The paper gives the first record's fields: type 1, process 4, physical page 3, virtual page 5 bytes. It gives the
//! second's length and content, 13 bytes with the entry's physical address, not its layout, which is ours.

use super::BusError;
use super::trace::{u32_at, u64_at};
use crate::geometry::PageSize;

/// What a file of 13-byte records begins with; a bare dump, which has none, is read with [`Reader::bare`].
pub const NARROW: &[u8; 8] = b"KPPTE001";
/// What a file of wide records begins with.
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

/// A record: what the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A process's page is on this physical page, by the entry at `entry`.
    Map {
        /// Ticks of the bus trace's clock; 0 in narrow records, which hold from the beginning on.
        time: u64,
        /// Process.
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
        /// Ticks.
        time: u64,
        /// Process.
        pid: u32,
        /// Physical address of the entry.
        entry: u64,
    },
    /// A page of the region is a table of this process, for the range that begins at `va`: what the values written to
    /// it say can then be followed without further records.
    Table {
        /// Ticks.
        time: u64,
        /// Process.
        pid: u32,
        /// Size of the pages its entries map.
        size: PageSize,
        /// First virtual address of the range it maps.
        va: u64,
        /// Physical address of the table.
        table: u64,
    },
    /// From here on (or, with `begin` false, no more) the kernel itself goes through the process's tables: fork,
    /// mprotect, munmap. On the bus its reads look like walks. With a CPU, it does so there alone: other threads of the
    /// process walk meanwhile.
    Scan {
        /// Ticks.
        time: u64,
        /// Process.
        pid: u32,
        /// Beginning or end.
        begin: bool,
        /// On this CPU; on any, if none.
        cpu: Option<u8>,
    },
    /// The process's address space goes away: what is read of its tables from here on, the kernel reads. The
    /// process's number may come again, with other tables.
    Exit {
        /// Ticks.
        time: u64,
        /// Process.
        pid: u32,
    },
}

impl Record {
    /// When it holds from.
    pub fn time(&self) -> u64 {
        match *self {
            Record::Map { time, .. }
            | Record::Unmap { time, .. }
            | Record::Table { time, .. }
            | Record::Scan { time, .. }
            | Record::Exit { time, .. } => time,
        }
    }
}

/// Which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The paper's: 3 bytes of a physical page's number, so 64 GiB of memory at most; no times, ends or tables.
    Narrow,
    /// Everything.
    Wide,
}

/// Writes a file into memory.
#[derive(Debug)]
pub struct Writer {
    /// What was written.
    pub bytes: Vec<u8>,
    form: Form,
}

impl Writer {
    /// A file with its head.
    pub fn new(form: Form) -> Self {
        let magic = if form == Form::Narrow { NARROW } else { WIDE };
        Writer { bytes: magic.to_vec(), form }
    }

    /// Adds a record; false, and nothing is written, if this form cannot hold it.
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
            Record::Exit { time, pid } => (EXIT, pid, [time, 0, 0, 0]),
        };
        self.bytes.extend(u32::from(kind).to_le_bytes());
        self.bytes.extend(pid.to_le_bytes());
        words.iter().for_each(|w| self.bytes.extend(w.to_le_bytes()));
    }
}

/// Virtual pages have 40 bits of a number in narrow records: 52 of an address, the upper ones as bit 51.
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
    /// Reads the head.
    ///
    /// # Errors
    /// It is not one.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BusError> {
        let form = match bytes {
            b if b.starts_with(NARROW) => Form::Narrow,
            b if b.starts_with(WIDE) => Form::Wide,
            _ => return Err(BusError::new(0, "expected KPPTE001 or KPPTE002")),
        };
        Ok(Reader { bytes, offset: 8, form })
    }

    /// A bare dump of 13-byte records, as the paper's kernel writes it.
    pub fn bare(bytes: &'a [u8]) -> Self {
        Reader { bytes, offset: 0, form: Form::Narrow }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], BusError> {
        let record = self.bytes.get(self.offset..self.offset.saturating_add(length));
        let offset = self.offset;
        self.offset = self.offset.saturating_add(length);
        record
            .ok_or_else(|| BusError::new(offset, format!("the file ends within a record of {length} bytes")))
    }

    fn narrow(&mut self) -> Result<Record, BusError> {
        let offset = self.offset;
        let first = self.take(NARROW_LENGTH)?;
        let Some(size) = map_size(first[0]) else {
            return Err(BusError::new(offset, format!("expected a mapping (type 1), not {:#04x}", first[0])));
        };
        let (at, second) = (self.offset, self.take(NARROW_LENGTH)?);
        let (pid, other) = (u32_at(first, 1), u32_at(second, 1));
        if second[0] != ENTRY || pid != other {
            let what = format!(
                "expected the entry (type 2) of process {pid}, not type {:#04x} of process {other}",
                second[0]
            );
            return Err(BusError::new(at, what));
        }
        let physical = u64::from(u32_at(first, 4) >> 8) << 12;
        let va = extend((u64_at(first, 5) >> 24) << 12);
        Ok(Record::Map { time: 0, pid, size, va, physical, entry: u64_at(second, 5) })
    }

    fn wide(&mut self) -> Result<Record, BusError> {
        let offset = self.offset;
        let r = self.take(WIDE_LENGTH)?;
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
            EXIT if kind >> 4 == 0 => Some(Record::Exit { time, pid }),
            _ => None,
        };
        record.ok_or_else(|| BusError::new(offset, format!("expected a record's type, not {kind:#x}")))
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
        let record = match self.form {
            Form::Narrow => self.narrow(),
            Form::Wide => self.wide(),
        };
        if record.is_err() {
            self.offset = self.bytes.len();
        }
        Some(record)
    }
}
