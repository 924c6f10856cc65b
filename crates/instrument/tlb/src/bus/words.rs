// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's words on the bus: it writes its records to a page of the region, the mailbox, three words each. It
//! announces the mailbox by a magic number followed by the page's own address. So records and accesses are in one order,
//! and no two clocks have to be compared.
//!
//! In: accesses with values. Out: accesses that are not to the mailbox, and records.

use super::mappings::Record;
use super::trace::{Access, Kind};
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
const NAMED: u32 = 23;
const COMM: u32 = 24;
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

/// Meaning of an access on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// An access to the region.
    Access,
    /// The last word of this record.
    Record(Record),
    /// A part of a record, or an access before the module announced itself.
    Nothing,
}

/// State of the module's words so far.
#[derive(Debug, Clone, Default)]
pub struct Words {
    mailbox: Option<u64>,
    /// A page to whose first word the magic number was written.
    announced: Option<u64>,
    words: [u64; 2],
    /// The region: first address and end.
    pub region: Option<(u64, u64)>,
    /// Process ids and names, as address spaces ended.
    pub names: Vec<(u32, String)>,
    /// Mappings of address spaces that ended.
    pub vmas: Vec<Vma>,
    /// Number of tables placed in the region, and of those that were not, for lack of memory there.
    pub tables: (u64, u64),
    /// Number of missed brackets around the kernel's own reads.
    pub missed: u64,
    /// Number of address spaces that are not followed, as too many were at once.
    pub overlooked: u64,
    /// Number of writes to the mailbox.
    pub mailbox_writes: u64,
    /// Number of accesses to the region before the module announced itself.
    pub before: u64,
    /// Number of records of unknown type.
    pub unknown: u64,
}

impl Words {
    /// Handles an access.
    pub fn hear(&mut self, access: &Access) -> Heard {
        let Some(mailbox) = self.mailbox else {
            self.before += 1;
            self.listen(access);
            return Heard::Nothing;
        };
        if access.kind == Kind::Write && access.address & !0xfff == mailbox {
            self.mailbox_writes += 1;
            return self.word(access).map_or(Heard::Nothing, Heard::Record);
        }
        Heard::Access
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
            NAMED => return Some(Record::Named { time, pid, number: one as u32 }),
            COMM if self.names.len() < VMAS => {
                let bytes = [one.to_le_bytes(), two.to_le_bytes()].concat();
                let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                self.names.push((pid, String::from_utf8_lossy(&bytes[..end]).into_owned()));
            }
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
            MISSED => (self.missed, self.overlooked) = (one, two),
            // The rest of the announcement.
            _ if head == HELLO => {}
            _ => self.unknown += 1,
        }
        None
    }
}
