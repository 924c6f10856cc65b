// SPDX-License-Identifier: MIT OR Apache-2.0
//! GNU build ids: the linker's hash of a program, library or kernel, by which its debug information is found.
//!
//! Input: an ELF file, or ELF notes alone, as the kernel shows its own. Output: [`BuildId`].

use std::fmt;
use std::path::{Path, PathBuf};

use object::Object as _;

use crate::notes::notes;

/// Type of the note with the build id, of owner `GNU` (Linux, include/uapi/linux/elf.h).
const NT_GNU_BUILD_ID: u32 = 3;

/// A build id. It has at least one byte, and 20 from GNU ld.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// A build id of these bytes; `None` if there are none.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self(bytes.to_vec()))
    }

    /// The build id of an ELF file.
    pub fn of_elf(file: &[u8]) -> Option<Self> {
        Self::of_object(&object::File::parse(file).ok()?)
    }

    /// The build id of an ELF file, of which only a few parts are read.
    pub fn of_file(path: &Path) -> Option<Self> {
        // A pipe would block.
        std::fs::metadata(path).ok().filter(|facts| facts.is_file())?;
        let cache = object::ReadCache::new(std::fs::File::open(path).ok()?);
        Self::of_object(&object::File::parse(&cache).ok()?)
    }

    /// The build id of an object file that is open already.
    pub fn of_object<'data, R: object::ReadRef<'data>>(file: &object::File<'data, R>) -> Option<Self> {
        Self::new(file.build_id().ok()??)
    }

    /// The build id among ELF notes, such as those of `/sys/kernel/notes`. Their numbers are little-endian.
    pub fn of_notes(bytes: &[u8]) -> Option<Self> {
        let found = notes(bytes).find(|note| note.owner == b"GNU\0" && note.kind == NT_GNU_BUILD_ID);
        Self::new(found?.value)
    }

    /// The build id with these hexadecimal digits, two for each byte. The inverse of [`to_string`](ToString).
    pub fn from_hex(digits: &str) -> Option<Self> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let byte = |[high, low]: &[u8; 2]| Some((digit(high)? << 4 | digit(low)?) as u8);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        Self::new(&bytes.filter(|_| rest.is_empty())?)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Path of the file with the debug information, below a folder such as `/usr/lib/debug`: `.build-id/xx/yyyy.debug`
    /// (GDB's manual, "Separate Debug Files").
    pub fn debug_path(&self) -> PathBuf {
        let (first, rest) = self.0.split_at(1);
        PathBuf::from(format!(".build-id/{}/{}.debug", Hex(first), Hex(rest)))
    }
}

/// Lower-case hexadecimal digits.
impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

struct Hex<'b>(&'b [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_among_notes() {
        let mut notes = vec![4, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0];
        notes.extend(b"Xen\0\x06\x00\0\0");
        notes.extend([4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        notes.extend(b"GNU\0\xab\x01\0\0");
        assert_eq!(BuildId::of_notes(&notes), BuildId::new(&[0xab, 1]));
        assert_eq!(BuildId::of_notes(&notes[..30]), None);
        assert_eq!(BuildId::of_notes(&[0xff; 64]), None);
    }

    #[test]
    fn written_and_read() {
        let id = BuildId::new(&[0xab, 0x01, 0xf0]).unwrap();
        assert_eq!(id.to_string(), "ab01f0");
        assert_eq!(id.debug_path().to_str(), Some(".build-id/ab/01f0.debug"));
        assert_eq!(BuildId::from_hex("ab01f0"), Some(id));
        for bad in ["", "a", "ab0", "xy", "+1", "abä"] {
            assert_eq!(BuildId::from_hex(bad), None, "{bad}");
        }
    }
}
