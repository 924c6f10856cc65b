// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorder's code files: a dictionary of fragments shared by all CPUs, and each CPU's map of which
//! fragment lies where from which stream offset on.
//!
//! Both are little-endian, a header of eight bytes and then records:
//!
//! | file | header | record |
//! |---|---|---|
//! | `code.dict` | `KPDICT01` | id u32, len u16, pad u16, va u64, bytes\[len\] |
//! | `cpuN.map` | `KPMAP001` | offset u64, asid u64, va u64, id u32, flags u32 |
//!
//! Flag bit 0: the fragment belongs to a page whose contents changed at that offset, where a PSB stands; it
//! replaces what was known there. Such records come as their code is first run, so their offsets need not
//! increase. A file cut short in a record is an error that says how much was good, so that a caller may go on with it.

use crate::code::Image;

const DICT_MAGIC: &[u8; 8] = b"KPDICT01";
const MAP_MAGIC: &[u8; 8] = b"KPMAP001";
const MAP_RECORD: usize = 32;

/// Flag of a [`MapRecord`]: the fragment replaces what was known there.
pub const CONFLICT: u32 = 1;

/// A malformed file: where, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: offset {offset}: expected {expected}")]
pub struct MapError {
    /// Which kind of file: `code.dict` or `cpu.map`.
    pub file: &'static str,
    /// Byte offset in it.
    pub offset: usize,
    /// What should have been there.
    pub expected: &'static str,
}

/// The fragments of a run, by id.
#[derive(Debug, Clone, Default)]
pub struct Dict<'a> {
    fragments: Vec<&'a [u8]>,
}

impl<'a> Dict<'a> {
    /// Reads `code.dict`.
    ///
    /// # Errors
    /// When the header is wrong, ids do not count up from zero, or a record is cut short. The fragments
    /// before the fault come back as well.
    pub fn parse(bytes: &'a [u8]) -> (Self, Option<MapError>) {
        let fail = |offset, expected| Some(MapError { file: "code.dict", offset, expected });
        let mut dict = Self::default();
        if !bytes.starts_with(DICT_MAGIC) {
            return (dict, fail(0, "the header KPDICT01"));
        }
        let mut pos = DICT_MAGIC.len();
        while pos < bytes.len() {
            let rest = &bytes[pos..];
            let Some((head, body)) = rest.split_first_chunk::<16>() else {
                return (dict, fail(pos, "a record head of 16 bytes"));
            };
            let id = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let len = usize::from(u16::from_le_bytes([head[4], head[5]]));
            if id as usize != dict.fragments.len() {
                return (dict, fail(pos, "fragment ids counting up from 0"));
            }
            let Some(fragment) = body.get(..len) else {
                return (dict, fail(pos, "as many fragment bytes as the record's length says"));
            };
            dict.fragments.push(fragment);
            pos += 16 + len;
        }
        (dict, None)
    }

    /// The bytes of a fragment.
    pub fn get(&self, id: u32) -> Option<&'a [u8]> {
        self.fragments.get(id as usize).copied()
    }

    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.fragments.len()
    }

    /// Whether there are no fragments.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }
}

/// One line of a CPU's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRecord {
    /// Packets at this stream offset and after see the fragment.
    pub offset: u64,
    /// Address space: CR3 without its low 12 bits, 0 for the kernel's half.
    pub asid: u64,
    /// Where the fragment lies.
    pub va: u64,
    /// Which fragment.
    pub id: u32,
    /// See [`CONFLICT`].
    pub flags: u32,
}

/// Reads one `cpuN.map`: the records before the first fault, and the fault.
pub fn parse_map(bytes: &[u8]) -> (Vec<MapRecord>, Option<MapError>) {
    let fail = |offset, expected| Some(MapError { file: "cpu.map", offset, expected });
    if !bytes.starts_with(MAP_MAGIC) {
        return (Vec::new(), fail(0, "the header KPMAP001"));
    }
    let body = &bytes[MAP_MAGIC.len()..];
    let (records, rest) = body.as_chunks::<MAP_RECORD>();
    let word = |r: &[u8; MAP_RECORD], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&r[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let records = records
        .iter()
        .map(|r| MapRecord {
            offset: word(r, 0),
            asid: word(r, 8),
            va: word(r, 16),
            id: word(r, 24) as u32,
            flags: (word(r, 24) >> 32) as u32,
        })
        .collect();
    let fault = (!rest.is_empty()).then(|| bytes.len() - rest.len());
    (records, fault.and_then(|at| fail(at, "whole records of 32 bytes")))
}

/// Builds the image of one CPU's stream. Returns also how many records named no fragment of the dictionary,
/// which happens when the dictionary was cut short.
pub fn image(dict: &Dict<'_>, map: &[MapRecord]) -> (Image, usize) {
    // User code in space 0: an import that knows of one process, whatever CR3 its packets speak of.
    let one_space = map.iter().all(|r| r.asid == 0) && map.iter().any(|r| r.va >> 63 == 0);
    let mut image = if one_space { Image::flat() } else { Image::new() };
    let mut missing = 0;
    let from = |r: &MapRecord| if r.flags & CONFLICT != 0 { r.offset } else { 0 };
    let mut in_order: Vec<&MapRecord> = map.iter().collect();
    in_order.sort_by_key(|r| from(r));
    for record in in_order {
        match dict.get(record.id) {
            Some(bytes) if record.flags & CONFLICT != 0 => {
                image.replace(record.asid, record.va, bytes, record.offset);
            }
            Some(bytes) => image.add(record.asid, record.va, bytes),
            None => missing += 1,
        }
    }
    (image, missing)
}
