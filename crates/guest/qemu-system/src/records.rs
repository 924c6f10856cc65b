// SPDX-License-Identifier: GPL-2.0-or-later
//! Map records that wait for a snapshot. Records that no held byte needs are dropped. So their number depends on the
//! amount of known code, not on the time until a snapshot is taken.
//!
//! Two kinds are dropped: records of a page's older versions, if its new version began before the oldest held byte; and
//! all records of an address space that the code map had dropped before that byte, because it is recorded anew if it
//! comes back. Both kinds are recognised by the flags that [`crate::codemap`] adds for the ring.

use std::collections::{HashMap, HashSet};

use crate::codemap::{CONFLICT, CROSSES, FORGOTTEN, PAGE};

/// Size of a map record, bytes: offset, address space, address, fragment, flags.
pub const RECORD: usize = 32;
/// Size in bytes below which nothing is dropped.
const FEW: usize = 1 << 20;

/// The words of one record.
#[derive(Debug, Clone, Copy)]
struct Record {
    offset: u64,
    asid: u64,
    va: u64,
    flags: u32,
}

fn read(record: &[u8]) -> Record {
    let word = |at: usize| record[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    Record { offset: word(0), asid: word(8), va: word(16), flags: (word(24) >> 32) as u32 }
}

/// Offset from which a record replaces earlier ones; 0 if it is valid from the start.
fn from(record: &Record) -> u64 {
    if record.flags & CONFLICT != 0 { record.offset } else { 0 }
}

/// The waiting records.
#[derive(Debug)]
pub struct Records {
    bytes: Vec<u8>,
    /// Size at which unneeded records are searched.
    limit: usize,
    few: usize,
    /// Number of records dropped so far.
    pub dropped: u64,
}

impl Records {
    pub fn new() -> Self {
        Records { bytes: Vec::new(), limit: FEW, few: FEW, dropped: 0 }
    }

    /// Adds records made when the stream was at most `end` bytes long. `oldest` is the offset of the first held byte.
    pub fn push(&mut self, records: &[u8], end: u64, oldest: u64) {
        for record in records.chunks_exact(RECORD) {
            self.bytes.extend_from_slice(record);
            if read(record).flags & FORGOTTEN != 0 {
                let at = self.bytes.len() - RECORD;
                self.bytes[at..at + 8].copy_from_slice(&end.to_le_bytes());
            }
        }
        if self.bytes.len() >= self.limit {
            self.drop_unneeded(oldest);
            self.limit = self.few.max(2 * self.bytes.len());
        }
    }

    /// Drops records that only bytes before `oldest` need.
    fn drop_unneeded(&mut self, oldest: u64) {
        // A record on two pages is valid from the later of their offsets.
        let mut versions: HashMap<(u64, u64), u64> = HashMap::new();
        for record in self.bytes.chunks_exact(RECORD).map(read) {
            let since = from(&record);
            if record.flags & (CROSSES | FORGOTTEN) == 0 && (1..=oldest).contains(&since) {
                let version = versions.entry((record.asid, record.va / PAGE)).or_default();
                *version = since.max(*version);
            }
        }
        let replaced = |record: &Record, page: u64| {
            versions.get(&(record.asid, page)).is_some_and(|&version| from(record) < version)
        };
        let mut forgotten = HashSet::new();
        let mut kept: Vec<&[u8]> = Vec::new();
        for bytes in self.bytes.rchunks_exact(RECORD) {
            let record = read(bytes);
            if record.flags & FORGOTTEN != 0 {
                if record.offset <= oldest {
                    forgotten.insert(record.asid);
                } else {
                    kept.push(bytes);
                }
                continue;
            }
            let page = record.va / PAGE;
            let both = record.flags & CROSSES == 0 || replaced(&record, page.wrapping_add(1));
            if forgotten.contains(&record.asid) || both && replaced(&record, page) {
                self.dropped += 1;
            } else {
                kept.push(bytes);
            }
        }
        kept.reverse();
        self.bytes = kept.concat();
    }

    /// Takes the records for a snapshot that ends at `end`, without the flags for the ring. Records of code that comes
    /// later stay.
    pub fn take(&mut self, end: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for bytes in std::mem::take(&mut self.bytes).chunks_exact(RECORD) {
            let record = read(bytes);
            if record.flags & FORGOTTEN != 0 {
                continue;
            } else if holds_from(bytes).is_some_and(|at| at >= end) {
                self.bytes.extend_from_slice(bytes);
            } else {
                out.extend_from_slice(&bytes[..RECORD - 4]);
                out.extend_from_slice(&(record.flags & CONFLICT).to_le_bytes());
            }
        }
        self.limit = self.few;
        out
    }

    /// Memory used, bytes.
    pub fn footprint(&self) -> usize {
        self.bytes.capacity()
    }
}

/// Offset from which a record replaces earlier ones; `None` if it is valid from the start.
pub fn holds_from(record: &[u8]) -> Option<u64> {
    let record = read(record);
    (record.flags & CONFLICT != 0).then_some(record.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64, asid: u64, va: u64, flags: u32) -> Vec<u8> {
        let words = [at, asid, va].map(u64::to_le_bytes);
        [words.as_flattened(), &7u32.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    /// The records left after everything before `oldest` is dropped, as (offset, address).
    fn left(all: &[Vec<u8>], oldest: u64) -> Vec<(u64, u64)> {
        let mut records = Records { few: 0, limit: 0, ..Records::new() };
        records.push(&all.concat(), 500, oldest);
        assert_eq!(records.bytes.len() / RECORD + records.dropped as usize, all.len());
        records.take(1000).chunks_exact(RECORD).map(|r| (read(r).offset, read(r).va)).collect()
    }

    #[test]
    fn replaced_versions_go() {
        let kernel = !0 << 31;
        let all = [
            record(0, 0, kernel, 0),
            record(0, 0, kernel + 0xffe, CROSSES),
            record(100, 0, kernel + 8, CONFLICT),
            record(300, 0, kernel + 8, CONFLICT),
            record(0, 0, kernel + 0x2000, 0),
        ];
        let [first, crosses, second, third, other] =
            [(0, kernel), (0, kernel + 0xffe), (100, kernel + 8), (300, kernel + 8), (0, kernel + 0x2000)];
        assert_eq!(left(&all, 99), [first, crosses, second, third, other]);
        assert_eq!(left(&all, 100), [crosses, second, third, other]);
        // No other record holds its second half.
        assert_eq!(left(&all, 400), [crosses, third, other]);
        let next_page = record(200, 0, kernel + 0x1000, CONFLICT);
        assert_eq!(left(&[&all[..], &[next_page]].concat(), 400), [third, other, (200, kernel + 0x1000)]);
    }

    #[test]
    fn forgotten_address_spaces_go() {
        let all = [
            record(0, 0x5000, 0x1000, 0),
            record(0, 0x6000, 0x1000, 0),
            record(0, 0x5000, 0, FORGOTTEN),
            record(510, 0x5000, 0x1000, CONFLICT),
        ];
        let offsets = |oldest| -> Vec<u64> {
            let mut records = Records { few: 0, limit: 0, ..Records::new() };
            records.push(&all.concat(), 500, oldest);
            records.take(1000).chunks_exact(RECORD).map(|r| read(r).offset).collect()
        };
        assert_eq!(offsets(499), [0, 0, 510]);
        assert_eq!(offsets(500), [0, 510]);
    }
}
