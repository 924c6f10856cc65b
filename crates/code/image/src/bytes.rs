// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that several users share: in memory, or in a file that is mapped.
//!
//! The input is a vector or a path; the output is a slice. A mapped file may be larger than memory: the kernel reads its
//! pages as they are needed, and drops them again. So a reader that stops early reads only the part that it looked at, and
//! code that a flow never reaches is never read.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Advice, Mmap, UncheckedAdvice};

/// A part of a vector or of a mapped file, shared by its clones.
#[derive(Clone, Default)]
pub struct Bytes {
    owner: Option<Arc<Owner>>,
    start: usize,
    end: usize,
}

enum Owner {
    Memory(Vec<u8>),
    File(Mmap),
    /// Removed with its last user, unless it was moved.
    Temporary(Mmap, PathBuf),
}

impl Owner {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(map) | Self::Temporary(map, _) => map,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Self::Temporary(_, path) = self {
            // It may have been moved.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Maps a file. `None` if it is empty, because mmap(2) refuses a mapping of length 0.
fn map(path: &Path) -> io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the mapping is private and read-only, and a slice of bytes has no invalid values. Recorders append to a file or
    // write it once, and never shorten it. A process that truncates a file while it is being read ends this process by SIGBUS,
    // but cannot make it read other memory.
    unsafe { Mmap::map(&file) }.map(Some)
}

impl Bytes {
    fn new(owner: Owner) -> Self {
        let end = owner.bytes().len();
        Self { owner: Some(Arc::new(owner)), start: 0, end }
    }

    /// Maps a file.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(map(path)?.map_or_else(Self::default, |map| Self::new(Owner::File(map))))
    }

    /// Maps a file for a reader that reads it from start to end.
    ///
    /// # Errors
    /// As [`Bytes::open`].
    pub fn open_stream(path: &Path) -> io::Result<Self> {
        let Some(map) = map(path)? else { return Ok(Self::default()) };
        // This is only a hint. If the kernel refuses it, the same bytes are read.
        let _ = map.advise(Advice::Sequential);
        Ok(Self::new(Owner::File(map)))
    }

    /// Maps a file that is removed with its last user, unless [`Bytes::move_to`] moved it.
    ///
    /// # Errors
    /// As [`Bytes::open`].
    pub fn open_temporary(path: PathBuf) -> io::Result<Self> {
        let Some(map) = map(&path)? else {
            let _ = std::fs::remove_file(path);
            return Ok(Self::default());
        };
        let _ = map.advise(Advice::Sequential);
        Ok(Self::new(Owner::Temporary(map, path)))
    }

    /// Gives the temporary file with these bytes another path. Returns false if there is no such file, or if it cannot be
    /// moved there.
    pub fn move_to(&self, path: &Path) -> bool {
        match self.owner.as_deref() {
            Some(Owner::Temporary(map, from)) if self.len() == map.len() => {
                std::fs::rename(from, path).is_ok()
            }
            _ => false,
        }
    }

    /// Frees the memory that holds pages of a mapped file. They are read again when they are needed.
    pub fn release(&self) {
        if let Some(Owner::File(map) | Owner::Temporary(map, _)) = self.owner.as_deref() {
            // SAFETY: the mapping is of a file and nothing writes to it, so a dropped page is read from the file again and
            // has the same bytes.
            let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    /// The part in this range, cut where the bytes end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.start.saturating_add(range.end).min(self.end);
        let start = self.start.saturating_add(range.start).min(end);
        Self { owner: self.owner.clone(), start, end }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.owner.as_deref().map_or(&[], |owner| &owner.bytes()[self.start..self.end])
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(Owner::Memory(bytes))
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<&Vec<u8>> for Bytes {
    fn from(bytes: &Vec<u8>) -> Self {
        bytes.clone().into()
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl PartialEq<Vec<u8>> for Bytes {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_an_empty_file_and_none() {
        let dir = std::env::temp_dir().join(format!("kprism-bytes-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("cpu0.pt");
        assert_eq!(Bytes::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&*Bytes::open_stream(&path).unwrap(), b"");
        std::fs::write(&path, b"\x02\x82\x03").unwrap();
        let bytes = Bytes::open(&path).unwrap();
        assert_eq!(&*bytes, b"\x02\x82\x03");
        bytes.release();
        assert_eq!(&*bytes.slice(1..2), b"\x82");
        assert_eq!(&*bytes.slice(2..usize::MAX), b"\x03");
        assert_eq!(&*bytes.slice(7..9), b"");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_temporary_file_is_moved_or_removed() {
        let dir = std::env::temp_dir().join(format!("kprism-temporary-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, to) = (dir.join("a"), dir.join("b"));
        for moves in [true, false] {
            std::fs::write(&path, b"1234").unwrap();
            let bytes = Bytes::open_temporary(path.clone()).unwrap();
            assert!(!bytes.slice(1..4).move_to(&to), "a part of a file is not the file");
            assert_eq!(moves && bytes.move_to(&to), moves);
            assert_eq!(&*bytes, b"1234");
            drop(bytes);
            assert_eq!((path.exists(), to.exists()), (false, moves));
            let _ = std::fs::remove_file(&to);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
