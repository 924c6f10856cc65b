// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes little-endian fields of byte strings.

/// Reads one field after the other; `None` if there are not enough bytes.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The remaining bytes as 64-bit words. An incomplete word at the end is dropped.
    pub fn words(self) -> impl Iterator<Item = u64> {
        self.0.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// The remaining text, up to the first zero byte.
    pub fn text(self) -> String {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }

    /// Reads `struct perf_header_string`: a length, and that many bytes with a text.
    pub fn counted_text(&mut self) -> Option<String> {
        let len = self.u32()?;
        Some(Fields(self.take(len as usize)?).text())
    }
}

/// Appends fields.
pub trait Put {
    /// Appends these bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends 16 bits.
    fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    /// Appends 32 bits.
    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Appends 64 bits.
    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a text and at least one zero, up to the next multiple of 8.
    fn padded_text(&mut self, text: &str) {
        self.put(text.as_bytes());
        self.put(&[0; 8][text.len() % 8..]);
    }

    /// Appends a `struct perf_header_string`.
    fn counted_text(&mut self, text: &str) {
        let len = (text.len() + 1).next_multiple_of(64);
        self.u32(len as u32);
        self.put(text.as_bytes());
        self.put(&vec![0; len - text.len()]);
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
