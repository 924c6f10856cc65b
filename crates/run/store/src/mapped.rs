// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access to a stream's bytes without reading them into memory first.
//!
//! The input is a path; the output is a slice. The file is mapped, so a stream may be larger than memory, and a reader
//! that stops early reads only the part that it looked at. The kernel loads pages from the file as they are needed, and
//! drops them again.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::{Advice, Mmap};

/// The contents of a file.
#[derive(Debug, Default)]
pub struct Mapped(Option<Mmap>);

impl Mapped {
    /// Maps a file for a reader that reads it from start to end.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        let file = File::open(path)?;
        // mmap(2) refuses a mapping of length 0.
        if file.metadata()?.len() == 0 {
            return Ok(Mapped(None));
        }
        // SAFETY: the mapping is private and read-only, and a slice of bytes has no invalid values. Recorders append to
        // a stream or write it once, and never shorten it. A process that truncates a run's file while it is being read
        // ends this process by SIGBUS, but cannot make it read other memory.
        let map = unsafe { Mmap::map(&file)? };
        // This is only a hint. If the kernel refuses it, the same bytes are read.
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
