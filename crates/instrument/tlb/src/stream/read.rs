// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a stream of misses. Input: bytes, of which any are accepted. Output: events, and at most one error.

use crate::model::geometry::{Access, PageSize};

use super::{
    ALLOC, Alloc, ENTRY, Event, FAULT, FAULT_END, FLUSH, FREE, Header, INVALIDATE, LAST, MAGIC, MORE, Miss,
    Place, SPACE, TASK, TOUCH, WEIGHT,
};

/// Error in a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct StreamError {
    /// Byte offset.
    pub offset: usize,
    /// The expected contents, which are missing.
    pub what: String,
}

/// Reads a stream: an iterator over events. It ends at the end, or after the first error.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    at: Place,
    entry: u64,
    header: Header,
}

impl<'a> Reader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is not one.
    pub fn new(bytes: &'a [u8]) -> Result<Self, StreamError> {
        let fail = |offset, what: String| Err(StreamError { offset, what });
        if !bytes.starts_with(MAGIC) {
            return fail(0, "expected KPTLB001".into());
        }
        let length = bytes.get(8..12).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let Some(json) = length.and_then(|n| bytes[12..].get(..n as usize)) else {
            return fail(8, "expected a header of the length given".into());
        };
        let header: Header = match serde_json::from_slice(json) {
            Ok(header) => header,
            Err(e) => return fail(12, format!("header: {e}")),
        };
        if let Some(e) = header.geometries.iter().find_map(|g| g.check().err()) {
            return fail(12, format!("header: {e}"));
        }
        Ok(Reader { bytes, offset: 12 + json.len(), at: Place::default(), entry: 0, header })
    }

    /// Returns the stream's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, StreamError> {
        let byte = self.bytes.get(self.offset).copied();
        let offset = self.offset;
        self.offset += 1;
        byte.ok_or_else(|| StreamError { offset, what: "the stream ends within an event".into() })
    }

    /// A number of seven bits a byte. Most are short and lie within the stream: eight bytes are looked at together.
    #[inline]
    fn number(&mut self) -> Result<u64, StreamError> {
        if let Some(&eight) = self.bytes.get(self.offset..).and_then(|b| b.first_chunk()) {
            let word = u64::from_le_bytes(eight);
            let ends = !word & 0x8080_8080_8080_8080;
            if ends != 0 {
                self.offset += ends.trailing_zeros() as usize / 8 + 1;
                // The bits up to the first byte that ends a number, without each byte's top bit, moved together.
                let n = word & (ends ^ (ends - 1)) & 0x7f7f_7f7f_7f7f_7f7f;
                let n = n & 0x007f_007f_007f_007f | (n & 0x7f00_7f00_7f00_7f00) >> 1;
                let n = n & 0x0000_3fff_0000_3fff | (n & 0x3fff_0000_3fff_0000) >> 2;
                return Ok(n & 0x0fff_ffff | (n & 0x0fff_ffff_0000_0000) >> 4);
            }
        }
        self.long_number()
    }

    /// A number of more than eight bytes, or at the stream's end.
    #[cold]
    fn long_number(&mut self) -> Result<u64, StreamError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(StreamError { offset: self.offset, what: "expected a number of at most ten bytes".into() })
    }

    #[inline]
    fn difference(&mut self, from: u64) -> Result<u64, StreamError> {
        let n = self.number()?;
        Ok(from.wrapping_add(n >> 1 ^ (n & 1).wrapping_neg()))
    }

    fn moved(&mut self) -> Result<(u64, u64), StreamError> {
        self.at.ns = self.difference(self.at.ns)?;
        self.at.va = self.difference(self.at.va)?;
        Ok((self.at.ns, self.at.va))
    }

    fn narrow(&mut self) -> Result<u32, StreamError> {
        let offset = self.offset;
        let n = self.number()?;
        u32::try_from(n).map_err(|_| StreamError { offset, what: format!("expected a task id, not {n}") })
    }

    #[inline]
    fn event(&mut self) -> Result<Event, StreamError> {
        let offset = self.offset;
        let head = self.byte()?;
        match head {
            SPACE => return Ok(Event::Space(self.number()?)),
            INVALIDATE => return Ok(Event::Invalidate(self.number()?)),
            FLUSH => return Ok(Event::Flush),
            FAULT => return Ok(Event::Fault(self.number()?)),
            FAULT_END => return Ok(Event::FaultEnd),
            ALLOC => {
                let function = self.byte()?;
                let (ns, va) = self.moved()?;
                let bytes = self.number()?;
                let frames = [self.number()?, self.number()?, self.number()?];
                return Ok(Event::Alloc(Alloc { ns, function, va, bytes, frames }));
            }
            FREE => {
                let (ns, va) = self.moved()?;
                return Ok(Event::Free { ns, va, bytes: self.number()? });
            }
            WEIGHT => {
                let weight = self.number()?;
                if weight == 0 {
                    return Err(StreamError {
                        offset,
                        what: "expected how many misses a sample stands for, not 0".into(),
                    });
                }
                return Ok(Event::Weight(weight));
            }
            ENTRY => {
                self.entry = self.difference(self.entry)?;
                return Ok(Event::Entry(self.entry));
            }
            TASK => return Ok(Event::Task { pid: self.narrow()?, tgid: self.narrow()? }),
            _ => {}
        }
        let (Some(access), Some(size), 0) =
            (Access::from_number(head & 3), PageSize::from_number(head >> 2 & 3), head >> 7)
        else {
            return Err(StreamError { offset, what: format!("expected an event, not {head:#04x}") });
        };
        if head & TOUCH != 0 {
            if head & (LAST | MORE) != 0 {
                return Err(StreamError { offset, what: format!("expected an event, not {head:#04x}") });
            }
            let va = self.difference(self.at.va)?;
            self.at.va = va;
            return Ok(Event::Touch { va, access, size });
        }
        let (first, last) = match head & MORE {
            0 => (1, u8::from(head & LAST != 0)),
            _ => (self.byte()?, self.byte()?),
        };
        let ns = self.difference(self.at.ns)?;
        let va = self.difference(self.at.va)?;
        let ip = self.difference(self.at.ip)?;
        self.at = Place { ns, va, ip };
        Ok(Event::Miss(Miss { ns, va, ip, access, size, first, last }))
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Event, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let event = self.event();
        if event.is_err() {
            self.offset = self.bytes.len();
        }
        Some(event)
    }
}
