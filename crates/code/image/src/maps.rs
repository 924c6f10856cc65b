// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorder's code files: a dictionary of fragments that all CPUs share, and for each CPU a map that tells which
//! fragment lies at which address from which stream offset on.
//!
//! The input is the bytes of these files; the output is a [`Dict`], [`MapRecord`]s, and the [`Image`] built from them.
//! The dictionary is separate so that code that several CPUs run is stored once. Both files are little-endian and
//! consist of a header of eight bytes followed by records:
//!
//! | file | header | record |
//! |---|---|---|
//! | `code.dict` | `KPDICT01` | id u32, len u16, pad u16, va u64, bytes\[len\] |
//! | `cpuN.map` | `KPMAP001` | offset u64, asid u64, va u64, id u32, flags u32 |
//!
//! If flag bit 0 is set, the fragment belongs to a page whose contents changed at that offset, where there is a PSB,
//! and replaces the known bytes. Such records are written when their code first runs, so their offsets need not
//! increase. A file that ends within a record gives an error that tells how much was valid, so that a caller may
//! continue with it.

use crate::code::Image;
use crate::x86::address::is_kernel;

const DICT_MAGIC: &[u8; 8] = b"KPDICT01";
const MAP_MAGIC: &[u8; 8] = b"KPMAP001";
const MAP_RECORD: usize = 32;

/// Flag of a [`MapRecord`]: the fragment replaces the known bytes.
pub const CONFLICT: u32 = 1;

/// An error in a file, with its position and the expected contents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: offset {offset}: expected {expected}")]
pub struct MapError {
    /// Kind of the file: `code.dict` or `cpu.map`.
    pub file: &'static str,
    /// Byte offset in the file.
    pub offset: usize,
    /// Contents expected at that offset.
    pub expected: &'static str,
}

/// The fragments of a run, by ID.
#[derive(Debug, Clone, Default)]
pub struct Dict<'a> {
    fragments: Vec<&'a [u8]>,
}

impl<'a> Dict<'a> {
    /// Parses `code.dict`.
    ///
    /// # Errors
    /// Fails if the header is wrong, the IDs do not count up from zero, or a record is incomplete. The fragments before
    /// the error are returned as well.
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

    /// The bytes of a fragment, or `None` if there is none with this ID.
    pub fn get(&self, id: u32) -> Option<&'a [u8]> {
        self.fragments.get(id as usize).copied()
    }

    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.fragments.len()
    }

    /// True if there are no fragments.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }
}

/// One record of a CPU's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRecord {
    /// Stream offset. Packets from here on see the fragment.
    pub offset: u64,
    /// Address space: CR3 without its low 12 bits, 0 for the kernel's half.
    pub asid: u64,
    /// Address of the fragment.
    pub va: u64,
    /// ID of the fragment in the dictionary.
    pub id: u32,
    /// Flags; see [`CONFLICT`].
    pub flags: u32,
}

/// Parses a `cpuN.map`. Returns the records before the first error, and the error.
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

/// Builds the image of one CPU's stream. Also returns the number of records whose fragment is not in the dictionary,
/// which happens if the dictionary is incomplete.
pub fn image(dict: &Dict<'_>, map: &[MapRecord]) -> (Image, usize) {
    // User code in space 0 means an import that knows one process, whatever CR3 its packets contain.
    let one_space = map.iter().all(|r| r.asid == 0) && map.iter().any(|r| !is_kernel(r.va));
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
    image.share();
    (image, missing)
}
