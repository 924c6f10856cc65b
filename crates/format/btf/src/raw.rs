// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BTF header, and access to words at offsets.

use std::ops::Range;

use crate::{Error, LONGEST_NAME};

/// Size in bytes of the header fields that are read.
pub(crate) const HEADER: usize = 24;

const MAGIC: u16 = 0xeb9f;

/// Ranges of the types and strings in the file.
pub(crate) struct Header {
    pub types: Range<usize>,
    pub strings: Range<usize>,
}

impl Header {
    pub fn read(origin: &str, bytes: &[u8]) -> Result<Self, Error> {
        let wrong = |offset, expected: &str| Error::Malformed {
            origin: origin.into(),
            offset,
            expected: expected.into(),
        };
        if bytes.len() < HEADER {
            return Err(wrong(bytes.len(), "a header of 24 bytes"));
        }
        // Type offsets are stored as u32.
        if u32::try_from(bytes.len()).is_err() {
            return Err(wrong(0, "less than 4 GiB"));
        }
        let magic = u16::from_le_bytes([bytes[0], bytes[1]]);
        if magic == MAGIC.swap_bytes() {
            return Err(wrong(0, "little-endian BTF (this is big-endian)"));
        }
        if magic != MAGIC {
            return Err(wrong(0, "the magic number 0xeb9f"));
        }
        if bytes[2] != 1 {
            return Err(wrong(2, "version 1"));
        }
        let length = u32_at(bytes, 4) as usize;
        if length < HEADER || length > bytes.len() {
            return Err(wrong(4, "the header's length, from 24 to the end"));
        }
        let section = |at: usize, what: &str| {
            let start = length.checked_add(u32_at(bytes, at) as usize);
            let end = start.and_then(|start| start.checked_add(u32_at(bytes, at + 4) as usize));
            match (start, end) {
                (Some(start), Some(end)) if end <= bytes.len() => Ok(start..end),
                _ => Err(wrong(at, what)),
            }
        };
        let types = section(8, "types within the file")?;
        let strings = section(16, "strings within the file")?;
        Ok(Self { types, strings })
    }
}

/// Reads a little-endian word. Panics if it is not inside `bytes`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// True if each offset within these strings is that of a valid name: all is ASCII, the last byte is NUL, and no string is
/// longer than allowed. The kernel's are. Then a name need not be read to be checked.
pub(crate) fn plain(strings: &[u8]) -> bool {
    let mut start = 0;
    let short = memchr::memchr_iter(0, strings).all(|end| {
        let length = end - std::mem::replace(&mut start, end + 1);
        length < LONGEST_NAME
    });
    short && start == strings.len() && strings.is_ascii()
}
