// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header, and words at offsets.

use std::ops::Range;

use crate::Error;

/// Bytes of the header that are used.
pub(crate) const HEADER: usize = 24;

const MAGIC: u16 = 0xeb9f;

/// Where types and strings lie.
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
        // Type offsets are kept as u32.
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

/// The little-endian word at an offset that the caller knows to be inside.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
