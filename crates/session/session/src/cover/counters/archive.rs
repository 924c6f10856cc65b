// SPDX-License-Identifier: MIT OR Apache-2.0
//! An archive of counters: a cpio archive of `.gcda` files, in memory.

use std::fs;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use cpio::newc::Reader;
use kprism_gcov::{Data, data};

/// An archive in memory.
pub struct Archive {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Its `.gcda` files, by name, with their place in the bytes.
    files: Vec<(String, Range<usize>)>,
}

impl Archive {
    /// Names of its files, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(|(name, _)| name.as_str())
    }

    /// Parses the counters of a file, by its index.
    ///
    /// # Errors
    /// They are damaged; names the archive, and where in it the file begins.
    pub fn data(&self, index: usize) -> Result<Data> {
        let (name, place) = &self.files[index];
        data::read(&self.bytes[place.clone()])
            .with_context(|| format!("{}: offset {}: {name}", self.path.display(), place.start))
    }

    /// Opens an archive that a user names.
    ///
    /// # Errors
    /// It is none, or is damaged; names it, and the offset of the damage.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = read(path)?;
        match entries(&bytes) {
            Ok(entries) => Ok(Self::of(path, bytes, entries)),
            Err(error) if CPIO.iter().any(|magic| bytes.starts_with(magic)) => Err(damaged(error, path)),
            Err(_) if bytes.starts_with(b"adcg") || bytes.starts_with(b"gcda") => {
                bail!("{}: counters under another name: {TAKEN} (.gcda)", path.display())
            }
            Err(_) => bail!("{}: no counters: {TAKEN}", path.display()),
        }
    }

    /// Opens an archive of a run, which holds counters and nothing else. A file of another name is damage: an object
    /// that lacked in a reading before the window would be counted from the boot on.
    ///
    /// # Errors
    /// It is damaged; names it, and the offset of the damage.
    pub fn open_of_run(path: &Path) -> Result<Self> {
        let bytes = read(path)?;
        let entries = entries(&bytes).map_err(|error| damaged(error, path))?;
        if let Some(entry) = entries.iter().find(|entry| entry.is_file && !entry.is_counters()) {
            let error = anyhow!("offset {}: {:?} is not the name of counters (.gcda)", entry.at, entry.name);
            return Err(damaged(error, path));
        }
        Ok(Self::of(path, bytes, entries))
    }

    fn of(path: &Path, bytes: Vec<u8>, entries: Vec<Entry>) -> Self {
        let files = entries.into_iter().filter(Entry::is_counters).map(|entry| (entry.name, entry.contents));
        Archive { path: path.to_owned(), bytes, files: files.collect() }
    }
}

/// The inputs that coverage is read from.
const TAKEN: &str =
    "a run, a folder with .gcda files, one .gcda file, or a cpio archive of them (newc) is expected";

/// First bytes of cpio archives in the format newc, without checksums and with them.
const CPIO: [&[u8]; 2] = [b"070701", b"070702"];

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

fn damaged(error: anyhow::Error, path: &Path) -> anyhow::Error {
    error.context(format!("{}: a cpio archive that is damaged", path.display()))
}

/// A file or folder in an archive.
struct Entry {
    /// Offset of its header.
    at: u64,
    name: String,
    is_file: bool,
    contents: Range<usize>,
}

impl Entry {
    fn is_counters(&self) -> bool {
        self.name.ends_with(".gcda")
    }
}

/// Type of a file in its mode, and the type of regular files (inode(7)).
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

fn entries(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut input = Cursor::new(bytes);
    loop {
        let at = input.position();
        let reader = Reader::new(input).with_context(|| format!("offset {at}"))?;
        let (name, size) = (reader.entry().name().to_owned(), reader.entry().file_size() as usize);
        if reader.entry().is_trailer() {
            return Ok(entries);
        }
        let is_file = reader.entry().mode() & TYPE == REGULAR;
        // A header of 110 bytes, the name with its NUL, padding; then the contents.
        let start = at as usize + (110 + name.len() + 1).next_multiple_of(4);
        input = reader.finish().with_context(|| format!("offset {at}"))?;
        if start + size > bytes.len() {
            bail!("offset {at}: {name}: the archive ends within it");
        }
        entries.push(Entry { at, name, is_file, contents: start..start + size });
    }
}
