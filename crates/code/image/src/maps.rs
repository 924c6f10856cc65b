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
//! Code of a file that the run keeps need not be in the dictionary. If flag bit 1 is set, the ID is the number of a line, from
//! 0, of `code.files`: a JSON object with the `path` of the file below `symbols/root`, and `offset` and `len` of the part.
//! Such code is read when the flow reaches it ([`Dict::open_files`]).
//!
//! If flag bit 2 is set, there is no fragment: the ID is a number of bytes, of which nothing is known from the offset on. Something
//! was mapped there whose contents are in no file. A mapping may have more bytes than 32 bits count: flag bits 8 to 13 are the binary
//! logarithm of the ID's unit, so that 0 there is a byte. Without bit 0, nothing was known of them in the beginning, and what comes later
//! counts from its own offset on.
//!
//! If flag bit 0 is set, the fragment belongs to a page whose contents changed at that offset, where there is a PSB,
//! and replaces the known bytes. Such records are written when their code first runs, so their offsets need not
//! increase. A file that ends within a record gives an error that tells how much was valid, so that a caller may
//! continue with it.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::code::Image;
use crate::symbols::under_root;
use crate::x86::address::is_kernel;

const DICT_MAGIC: &[u8; 8] = b"KPDICT01";
const MAP_MAGIC: &[u8; 8] = b"KPMAP001";
const MAP_RECORD: usize = 32;

/// Flag of a [`MapRecord`]: the fragment replaces the known bytes.
pub const CONFLICT: u32 = 1;

/// Flag of a [`MapRecord`]: its ID is that of a part of a file ([`FilePart`]).
pub const FILE: u32 = 2;

/// Flag of a [`MapRecord`]: nothing is known from there on; [`MapRecord::gone`] is the number of bytes.
pub const GONE: u32 = 4;

/// The lowest of six bits of the flags with [`GONE`]: the binary logarithm of the ID's unit in bytes.
const UNIT: u32 = 8;

/// Fragments of this length or more are not copied into an [`Image`], bytes.
const LARGE: usize = 4096;

/// A line of `code.files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    /// Path on the traced machine, which leads to a file below `symbols/root`.
    pub path: String,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

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
pub struct Dict {
    bytes: Bytes,
    /// Offset and length of each fragment.
    fragments: Vec<(usize, usize)>,
    files: Vec<Option<Bytes>>,
}

impl Dict {
    /// Parses `code.dict`.
    ///
    /// # Errors
    /// Fails if the header is wrong, the IDs do not count up from zero, or a record is incomplete. The fragments before
    /// the error are returned as well.
    pub fn parse(bytes: impl Into<Bytes>) -> (Self, Option<MapError>) {
        let bytes = bytes.into();
        let fail = |offset, expected| Some(MapError { file: "code.dict", offset, expected });
        let mut dict = Self { bytes: bytes.clone(), ..Self::default() };
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
            if body.len() < len {
                return (dict, fail(pos, "as many fragment bytes as the record's length says"));
            }
            dict.fragments.push((pos + 16, len));
            pos += 16 + len;
        }
        (dict, None)
    }

    /// The bytes of a fragment, or `None` if there is none with this ID.
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, len) = self.fragments.get(id as usize)?;
        self.bytes.get(start..start + len)
    }

    /// Maps the files of which `list`, the text of `code.files`, names parts. `root` is the folder with the files of the
    /// traced machine. Returns what is missing or not as it should be.
    pub fn open_files(&mut self, list: &[u8], root: &Path) -> Vec<String> {
        let mut notes = Vec::new();
        let mut known: HashMap<String, Option<Bytes>> = HashMap::new();
        for (number, line) in list.split(|&b| b == b'\n').filter(|line| !line.is_empty()).enumerate() {
            let part: FilePart = match serde_json::from_slice(line) {
                Ok(part) => part,
                Err(error) => {
                    notes.push(format!(
                        "code.files: line {}: expected path, offset, len: {error}",
                        number + 1
                    ));
                    self.files.push(None);
                    continue;
                }
            };
            let file = known.entry(part.path.clone()).or_insert_with(|| {
                let opened = match under_root(root, &part.path) {
                    Some(place) => Bytes::open(&place).map_err(|error| error.to_string()),
                    None => Err("the path leaves the folder".to_owned()),
                };
                opened
                    .map_err(|why| {
                        notes.push(format!("symbols/root{}: {why}: its code is not known", part.path))
                    })
                    .ok()
            });
            let bound = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
            let shown = file
                .as_ref()
                .map(|file| file.slice(bound(part.offset)..bound(part.offset.saturating_add(part.len))));
            if let Some(short) = shown.as_ref().filter(|shown| (shown.len() as u64) < part.len) {
                let missing = part.len - short.len() as u64;
                notes.push(format!("symbols/root{}: {missing} bytes of its code are missing", part.path));
            }
            self.files.push(shown);
        }
        notes
    }

    /// The bytes that a record stands for. `None` if it stands for none, or they are not known.
    pub fn bytes_of(&self, record: &MapRecord) -> Option<&[u8]> {
        match record.flags & (FILE | GONE) {
            _ if !record.is_understood() => None,
            0 => self.get(record.id),
            FILE => self.files.get(record.id as usize)?.as_deref(),
            _ => None,
        }
    }

    /// The same, shared, if they are many.
    fn large(&self, record: &MapRecord) -> Option<Bytes> {
        if record.flags & FILE != 0 {
            return self.files.get(record.id as usize)?.clone();
        }
        let &(start, len) = self.fragments.get(record.id as usize)?;
        (len >= LARGE).then(|| self.bytes.slice(start..start + len))
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

impl MapRecord {
    /// Returns true if this version knows all of the record's flags. Otherwise its ID may be that of something else.
    #[must_use]
    pub fn is_understood(&self) -> bool {
        let unit = if self.flags & GONE != 0 { 63 << UNIT } else { 0 };
        self.flags & !(CONFLICT | FILE | GONE | unit) == 0 && self.flags & (FILE | GONE) != FILE | GONE
    }

    /// Number of bytes of which the record says that nothing is known; 0 for a record of a fragment.
    #[must_use]
    pub fn gone(&self) -> u64 {
        if self.flags & GONE == 0 {
            return 0;
        }
        let bytes = u128::from(self.id) << (self.flags >> UNIT & 63);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The ID and the flags of the records that say of `len` bytes that nothing is known, each with the offset of its first byte: two
/// records at most, however many bytes there are.
pub fn gone_records(len: u64) -> impl Iterator<Item = (u64, u32, u32)> {
    let unit = (u64::BITS - len.leading_zeros()).saturating_sub(u32::BITS);
    let large = len >> unit << unit;
    let parts = [(0, large >> unit, unit), (large, len - large, 0)];
    // The rest is smaller than a unit of the first, and that is smaller than 2³².
    parts.into_iter().filter(|part| part.1 > 0).map(|(at, id, unit)| (at, id as u32, GONE | unit << UNIT))
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
/// which happens if the dictionary is incomplete, or whose flags are not known.
pub fn image(dict: &Dict, map: &[MapRecord]) -> (Image, usize) {
    // User code in space 0 means an import that knows one process, whatever CR3 its packets contain.
    let one_space = map.iter().all(|r| r.asid == 0) && map.iter().any(|r| !is_kernel(r.va));
    let mut image = if one_space { Image::flat() } else { Image::new() };
    let mut missing = 0;
    let from = |r: &MapRecord| if r.flags & CONFLICT != 0 { r.offset } else { 0 };
    let mut in_order: Vec<&MapRecord> = map.iter().collect();
    in_order.sort_by_key(|r| from(r));
    for record in in_order {
        if !record.is_understood() {
            missing += 1;
            continue;
        }
        if record.flags & GONE != 0 {
            let end = record.va.saturating_add(record.gone());
            match record.flags & CONFLICT {
                0 => image.begin_unknown(record.asid, record.va, end),
                _ => image.forget(record.asid, record.va, end, record.offset),
            }
            continue;
        }
        if let Some(bytes) = dict.large(record) {
            match record.flags & CONFLICT {
                0 => image.add_bytes(record.asid, record.va, &bytes),
                _ => image.replace_bytes(record.asid, record.va, &bytes, record.offset),
            }
            continue;
        }
        match dict.bytes_of(record) {
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
