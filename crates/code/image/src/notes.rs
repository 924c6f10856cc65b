// SPDX-License-Identifier: MIT OR Apache-2.0
//! ELF notes: records with an owner's name, a type and a value, padded to 4 bytes (System V ABI, "Note Section").
//!
//! Input: the bytes of a note section, or of `/sys/kernel/notes`. Output: its notes. A truncated note ends them.

/// A note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'n> {
    /// Name of the owner, with its final zero byte.
    pub owner: &'n [u8],
    /// Type; each owner has types of its own.
    pub kind: u32,
    /// Value.
    pub value: &'n [u8],
}

/// Iterates over notes. Numbers are little-endian.
pub fn notes(mut bytes: &[u8]) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (name, len, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let start = name.checked_next_multiple_of(4)?.checked_add(12)?;
        let owner = bytes.get(12..)?.get(..name)?;
        let value = bytes.get(start..)?.get(..len)?;
        // The last note may lack its padding.
        let next = start.checked_add(len)?.checked_next_multiple_of(4)?;
        bytes = bytes.get(next..).unwrap_or_default();
        Some(Note { owner, kind, value })
    })
}
