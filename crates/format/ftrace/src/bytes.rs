// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads numbers and strings from bytes, in either byte order. Returns `None` past the end.

/// Byte order of the traced machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    #[inline]
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let raw = <[u8; 2]>::try_from(bytes.get(at..)?.get(..2)?).ok()?;
        Some(if self == Order::Little { u16::from_le_bytes(raw) } else { u16::from_be_bytes(raw) })
    }

    #[inline]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let raw = <[u8; 4]>::try_from(bytes.get(at..)?.get(..4)?).ok()?;
        Some(if self == Order::Little { u32::from_le_bytes(raw) } else { u32::from_be_bytes(raw) })
    }

    #[inline]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let raw = <[u8; 8]>::try_from(bytes.get(at..)?.get(..8)?).ok()?;
        Some(if self == Order::Little { u64::from_le_bytes(raw) } else { u64::from_be_bytes(raw) })
    }

    /// Reads an unsigned number of 1, 2, 4 or 8 bytes.
    #[inline]
    pub fn number(self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        match size {
            8 => self.u64(bytes, at),
            4 => self.u32(bytes, at).map(u64::from),
            2 => self.u16(bytes, at).map(u64::from),
            1 => bytes.get(at).map(|&b| b.into()),
            _ => None,
        }
    }
}

/// A read position in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    pub order: Order,
}

impl<'a> Cursor<'a> {
    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let piece = self.bytes.get(self.at..)?.get(..size)?;
        self.at += size;
        Some(piece)
    }

    pub fn take_u64(&mut self, size: u64) -> Option<&'a [u8]> {
        self.take(usize::try_from(size).ok()?)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.order.u16(self.take(2)?, 0)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.order.u32(self.take(4)?, 0)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.order.u64(self.take(8)?, 0)
    }

    /// Reads a zero-terminated string. The result excludes the zero byte.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let end = memchr::memchr(0, rest)?;
        self.at += end + 1;
        Some(&rest[..end])
    }
}

/// Returns the bytes before the first zero byte.
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())]
}
