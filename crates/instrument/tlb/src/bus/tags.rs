// SPDX-License-Identifier: MIT OR Apache-2.0
//! HMTT's kernel trace, in step with the bus. Its kernel writes a record of 13 bytes to a file for each mapping that it
//! makes or takes away, and with each record reads an address that stands for nothing else: a tag, which the boards see. So
//! the n-th tag on the bus says when the n-th record became true.
//!
//! In: bytes of the file, as far as they are asked for; accesses. Out: accesses that are no tags, and records with times.
//! The layout is that of the reader that HMTT's authors published with their traces of SPEC 2017. It names a record for the
//! entry of a page table (`0xed`) but does not read it: its fields here are the narrow form's (`docs/tlb-format.md`).

use std::collections::HashMap;

use super::BusError;
use super::mappings::{self, Record};
use super::trace::{Access, u32_at, u64_at};
use super::words::Heard;
use crate::model::geometry::PageSize;

/// Bytes of a record.
pub const LENGTH: usize = 13;
/// Bytes of a mark: one of the four characters, over and over.
pub const MARK: usize = 16;

const BEGIN: u8 = b'@';
const DUMP: u8 = b'#';
const DUMPED: u8 = b'&';
const END: u8 = b'$';
const SET: u8 = 0xec;
const FREE: [u8; 3] = [0xfc, 0x22, 0x33];
const ENTRY: u8 = 0xed;
const FREE_ENTRY: u8 = 0xfd;

/// Bytes of addresses that are tags: 64 times 1 MiB, each with 256 kinds of tag in 4096 bytes.
const SPAN: u64 = 64 << 20;

/// A piece of the kernel's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A mark between parts.
    Mark(u8),
    /// A page is mapped: process, virtual and physical address.
    Set(u32, u64, u64),
    /// A page is no longer mapped: process, virtual address.
    Free(u32, u64),
    /// Physical address of the entry of the record before.
    Entry(u64),
    /// A record that has no meaning here.
    Other,
}

impl Piece {
    /// Reads a piece at the begin of `bytes`, which is at `offset` of its file. Returns it and its length.
    ///
    /// # Errors
    /// It is cut short, or of no known type.
    pub fn read(bytes: &[u8], offset: usize) -> Result<(Self, usize), BusError> {
        let Some(record) = bytes.get(..LENGTH) else {
            return Err(BusError::new(offset, format!("the file ends within a record of {LENGTH} bytes")));
        };
        let kind = record[0];
        if [BEGIN, DUMP, DUMPED, END].contains(&kind) && record.iter().all(|byte| *byte == kind) {
            return Ok((Piece::Mark(kind), MARK.min(bytes.len())));
        }
        let pid = u32_at(record, 1);
        let (physical, va) = mappings::pages(record);
        let piece = match kind {
            SET => Piece::Set(pid, va, physical),
            ENTRY => Piece::Entry(u64_at(record, 5)),
            FREE_ENTRY => Piece::Other,
            _ if FREE.contains(&kind) => Piece::Free(pid, va),
            _ => {
                let what = format!("expected a record of the kernel (0xec, 0xed, 0xfc …), not {kind:#04x}");
                return Err(BusError::new(offset, what));
            }
        };
        Ok((piece, LENGTH))
    }
}

/// Counts of what did not fit together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Tags on the bus.
    pub tags: u64,
    /// Tags whose record is missing in the file, or of another kind: one of the two was lost.
    pub out_of_step: u64,
    /// Records of mappings without their entry's address.
    pub without_entry: u64,
    /// Records of pages that were never mapped.
    pub never_mapped: u64,
}

/// The kernel's file, in step with the bus. `I` gives its pieces.
#[derive(Debug)]
pub struct Tags<I: Iterator<Item = Result<Piece, BusError>>> {
    pieces: std::iter::Peekable<I>,
    first: u64,
    entries: HashMap<(u32, u64), u64>,
    /// Counts of tags and records that do not fit together.
    pub steps: Steps,
    /// Damage of the file: it is used up to there.
    pub damage: Option<BusError>,
}

impl<I: Iterator<Item = Result<Piece, BusError>>> Tags<I> {
    /// Tags at addresses from `first` on.
    pub fn new(pieces: I, first: u64) -> Self {
        Tags {
            pieces: pieces.peekable(),
            first,
            entries: HashMap::new(),
            steps: Steps::default(),
            damage: None,
        }
    }

    fn next(&mut self) -> Option<Piece> {
        match self.pieces.next()? {
            Ok(piece) => Some(piece),
            Err(error) => {
                self.damage.get_or_insert(error);
                None
            }
        }
    }

    /// Gives `each` the mappings that were there before recording began: up to the mark that ends their dump.
    pub fn dumped(&mut self, mut each: impl FnMut(Record)) {
        let mut dump = false;
        while let Some(piece) = self.next() {
            match piece {
                Piece::Mark(DUMP) => dump = true,
                Piece::Mark(DUMPED) => return,
                Piece::Set(pid, va, physical) if dump => {
                    self.set(0, pid, va, physical).into_iter().for_each(&mut each);
                }
                _ => {}
            }
        }
    }

    fn set(&mut self, time: u64, pid: u32, va: u64, physical: u64) -> Option<Record> {
        let Some(Ok(Piece::Entry(entry))) = self.pieces.peek() else {
            self.steps.without_entry += 1;
            return None;
        };
        let entry = *entry;
        self.next();
        self.entries.insert((pid, va), entry);
        Some(Record::Map { time, pid, size: PageSize::K4, va, physical, entry })
    }

    /// Handles an access.
    pub fn hear(&mut self, access: &Access) -> Heard {
        let at = access.address.wrapping_sub(self.first);
        if at >= SPAN {
            return Heard::Access;
        }
        // The second half of a tag's page says where in the program the kernel was.
        let kind = (at & 0xf_ffff) >> 12;
        if at & 0x800 != 0 || !matches!(kind, 0 | 1) {
            return Heard::Nothing;
        }
        self.steps.tags += 1;
        while let Some(Ok(Piece::Other | Piece::Entry(_))) = self.pieces.peek() {
            self.next();
        }
        let record = match (kind, self.pieces.peek()) {
            (0, Some(Ok(Piece::Set(pid, va, physical)))) => {
                let (pid, va, physical) = (*pid, *va, *physical);
                self.next();
                self.set(access.time, pid, va, physical)
            }
            (1, Some(Ok(Piece::Free(pid, va)))) => {
                let page = (*pid, *va);
                self.next();
                let entry = self.entries.remove(&page);
                self.steps.never_mapped += u64::from(entry.is_none());
                entry.map(|entry| Record::Unmap { time: access.time, pid: page.0, entry })
            }
            (_, Some(Err(_))) => {
                self.next();
                self.steps.out_of_step += 1;
                None
            }
            _ => {
                self.steps.out_of_step += 1;
                None
            }
        };
        record.map_or(Heard::Nothing, Heard::Record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::trace::Kind;

    fn record(kind: u8, pid: u32, low: u64) -> Vec<u8> {
        [&[kind], pid.to_le_bytes().as_slice(), &low.to_le_bytes()].concat()
    }

    fn pieces(bytes: &[u8]) -> impl Iterator<Item = Result<Piece, BusError>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            let piece = Piece::read(rest, at);
            at = piece.as_ref().map_or(bytes.len(), |(_, length)| at + length);
            Some(piece.map(|(piece, _)| piece))
        })
    }

    #[test]
    fn tags_and_records_go_together() {
        let page = |va: u64, ppn: u64| va >> 12 << 24 | ppn;
        let bytes = [
            record(SET, 9, page(0x9000, 1)), // before recording began
            vec![b'@'; MARK],
            vec![b'#'; MARK],
            record(SET, 7, page(0x7fff_0000_1000, 0xabc)),
            record(ENTRY, 7, 0x1000_0008),
            vec![b'&'; MARK],
            record(SET, 7, page(0x2000, 0xdef)),
            record(ENTRY, 7, 0x1000_0010),
            record(FREE_ENTRY, 7, 0),
            record(0x22, 7, page(0x2000, 0xdef)),
            record(SET, 7, page(0x3000, 1)),
            record(0xfc, 7, page(0x5000, 1)),
            vec![b'$'; MARK],
        ]
        .concat();
        let mut tags = Tags::new(pieces(&bytes), 0x4000_0000);
        let mut dumped = Vec::new();
        tags.dumped(|record| dumped.push(record));
        let map =
            |time, va, physical, entry| Record::Map { time, pid: 7, size: PageSize::K4, va, physical, entry };
        assert_eq!(dumped, [map(0, 0x7fff_0000_1000, 0xab_c000, 0x1000_0008)]);
        let mut tag = |time, offset| {
            tags.hear(&Access {
                time,
                address: 0x4000_0000 + offset,
                kind: Kind::Read,
                bytes: 64,
                value: None,
                cpu: None,
            })
        };
        assert_eq!(tag(1, 1u64 << 30), Heard::Access);
        assert_eq!(tag(1, 0x800), Heard::Nothing);
        assert_eq!(tag(2, 0), Heard::Record(map(2, 0x2000, 0xde_f000, 0x1000_0010)));
        // A tag of another kind than the record: the record waits for its own.
        assert_eq!(tag(3, 0), Heard::Nothing);
        let gone = Record::Unmap { time: 4, pid: 7, entry: 0x1000_0010 };
        assert_eq!(tag(4, (5u64 << 20) + 0x1000), Heard::Record(gone));
        assert_eq!(tag(5, 0), Heard::Nothing);
        assert_eq!(tag(6, 0x1000), Heard::Nothing);
        assert_eq!(tag(7, 0), Heard::Nothing);
        assert_eq!(tags.steps, Steps { tags: 6, out_of_step: 2, without_entry: 1, never_mapped: 1 });
        let error = Piece::read(&record(0x77, 1, 1), 39).unwrap_err();
        assert_eq!(
            error.to_string(),
            "byte 39: expected a record of the kernel (0xec, 0xed, 0xfc …), not 0x77"
        );
    }
}
