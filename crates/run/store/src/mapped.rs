// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream's bytes, without reading them into memory first.
//!
//! In: a path. Out: a slice. The file is mapped, so a stream may be larger than memory, and a reader that stops early
//! has read no more than it looked at: pages come from the file as they are needed, and the kernel drops them again.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::{Advice, Mmap};

/// A file's contents.
#[derive(Debug, Default)]
pub struct Mapped(Option<Mmap>);

impl Mapped {
    /// Maps the file for a reader that goes from its start to its end.
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        let file = File::open(path)?;
        // A map of no bytes is an error to mmap(2).
        if file.metadata()?.len() == 0 {
            return Ok(Mapped(None));
        }
        // SAFETY: the map is private and read-only, and a slice of bytes has no invalid values. Recorders append to a
        // stream or write it once, they never shorten it; whoever truncates a run's file while it is being read ends
        // this process by SIGBUS, and cannot make it read other memory.
        let map = unsafe { Mmap::map(&file)? };
        // Only a hint: a kernel that refuses it reads the same bytes.
        let _ = map.advise(Advice::Sequential);
        Ok(Mapped(Some(map)))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_an_empty_file_and_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu0.pt");
        assert_eq!(Mapped::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&*Mapped::open(&path).unwrap(), b"");
        std::fs::write(&path, b"\x02\x82").unwrap();
        assert_eq!(&*Mapped::open(&path).unwrap(), b"\x02\x82");
    }
}
