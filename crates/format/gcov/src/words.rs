// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words, counters, strings and records of both file types, in either byte order.

use std::borrow::Cow;

use crate::error::{Error, Result};
use crate::version::Version;

/// Tag of a function's record, in notes and data.
pub(crate) const FUNCTION: u32 = 0x0100_0000;

/// Header of notes and data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// True for big-endian files.
    pub big_endian: bool,
    /// Version of the compiler.
    pub version: Version,
    /// Stamp that identifies the compilation; equal in notes and data.
    pub stamp: u32,
    /// Checksum of the object's contents (GCC 12 and later; 0 before).
    pub checksum: u32,
}

/// A read position in the bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte.
    pub at: usize,
    /// True after a zero tag, the end of the records.
    pub ended: bool,
    big_endian: bool,
    in_bytes: bool,
}

/// A record: tag, length and contents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub tag: u32,
    /// Length as written: in words or bytes; negative for counters that are all zero.
    pub length: i32,
    /// Contents of the record.
    pub contents: Words<'a>,
}

impl<'a> Words<'a> {
    /// Parses the header. Returns it with the position after it. `magic` is `gcno` or `gcda`.
    pub fn open(bytes: &'a [u8], magic: &'static str) -> Result<(Header, Self)> {
        let word = bytes.get(..4).unwrap_or(bytes);
        let mut reversed = word.to_vec();
        reversed.reverse();
        let big_endian = word == magic.as_bytes();
        if !big_endian && reversed != magic.as_bytes() {
            return Err(Error::Magic { expected: magic, found: word.to_vec() });
        }
        let mut words = Words { bytes, at: 4, ended: false, big_endian, in_bytes: false };
        let version = Version(words.word("the version")?);
        if !version.is_known() {
            return Err(Error::Version { found: version });
        }
        words.in_bytes = version.in_bytes();
        let stamp = words.word("the stamp")?;
        let checksum = if version.in_bytes() { words.word("the checksum")? } else { 0 };
        Ok((Header { big_endian, version, stamp, checksum }, words))
    }

    /// Number of bytes left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Reads a word.
    #[inline]
    pub fn word(&mut self, what: &'static str) -> Result<u32> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<4>());
        let bytes = *bytes.ok_or_else(|| self.truncated(what))?;
        self.at += 4;
        Ok(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// Reads this many counters. The low word of each comes first, in either byte order.
    pub fn counters(&mut self, count: usize) -> Result<Vec<i64>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = count.checked_mul(8).and_then(|size| rest.get(..size)) else {
            return Err(self.truncated("a counter"));
        };
        self.at += bytes.len();
        let (words, big_endian) = (bytes.as_chunks::<8>().0, self.big_endian);
        let counter = |word: &[u8; 8]| match big_endian {
            true => i64::from_be_bytes(*word).rotate_left(32),
            false => i64::from_le_bytes(*word),
        };
        Ok(words.iter().map(counter).collect())
    }

    /// Kept out of line, because it is rarely needed.
    #[cold]
    fn truncated(&self, what: &'static str) -> Error {
        Error::Truncated { offset: self.bytes.len(), what }
    }

    /// Reads a string; None if its length is 0.
    pub fn string(&mut self, what: &'static str) -> Result<Option<Cow<'a, str>>> {
        Ok(self.raw_string(what)?.map(String::from_utf8_lossy))
    }

    /// Reads a string's bytes up to the terminating zero; None if its length is 0.
    pub fn raw_string(&mut self, what: &'static str) -> Result<Option<&'a [u8]>> {
        let length = self.word(what)? as usize;
        if length == 0 {
            return Ok(None);
        }
        let length = if self.in_bytes { length } else { length.saturating_mul(4) };
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.truncated(what))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes.split(|&byte| byte == 0).next())
    }

    /// Reads the next record; None at the end, which is a zero tag or the end of the file.
    pub fn record(&mut self) -> Result<Option<Record<'a>>> {
        if self.left() == 0 {
            return Ok(None);
        }
        let tag = self.word("a record's tag")?;
        if tag == 0 {
            self.ended = true;
            return Ok(None);
        }
        let length = self.word("a record's length")? as i32;
        let mut contents = *self;
        // Counters that are all zero have a negative length and no contents.
        let size = usize::try_from(length).unwrap_or(0).saturating_mul(self.unit());
        let end = self.at.checked_add(size).filter(|&end| end <= self.bytes.len());
        self.at = end.ok_or_else(|| self.truncated("a record"))?;
        contents.bytes = &self.bytes[..self.at];
        Ok(Some(Record { tag, length, contents }))
    }

    fn unit(&self) -> usize {
        if self.in_bytes { 1 } else { 4 }
    }
}

impl Record<'_> {
    /// Number of words in the record; for counters that are all zero, the number of omitted words.
    pub fn words(&self) -> usize {
        self.length.unsigned_abs() as usize * self.contents.unit() / 4
    }
}
