// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a recording together: one, or those of perf's folder (`perf record --threads`, `--kcore`).
//!
//! In: a path. Out: [`Contents`] of all files, with the records that perf compressed (`-z`) unpacked.

use std::fs;
use std::io::Read as _;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kprism_image::Bytes;
use kprism_perfdata::{Contents, MAGIC};

use crate::ImportError;
use crate::error::read_file;

/// A recording's files: one, or `data`, `data.0`, … of a folder, of which only the first has attributes and formats.
#[derive(Debug, Default)]
pub struct Files(Vec<File>);

/// A file, and what the first reading unpacked.
#[derive(Debug, Default)]
struct File {
    bytes: Bytes,
    unpacked: OnceLock<Unpacked>,
}

/// Records that perf compressed in a file (`perf record -z`).
#[derive(Debug, Default)]
struct Unpacked {
    /// The records; empty if the file has no compressed ones.
    records: Vec<u8>,
    /// Why they end early.
    note: Option<String>,
}

impl Unpacked {
    fn new(parts: &[&[u8]]) -> Self {
        if parts.is_empty() {
            return Self::default();
        }
        let (records, note) = kprism_perfdata::unpack(parts);
        Self { records, note }
    }
}

impl Files {
    /// Files that are in memory, in the order of their names.
    #[must_use]
    pub fn new(data: Vec<Bytes>) -> Self {
        Self(data.into_iter().map(|bytes| File { bytes, unpacked: OnceLock::new() }).collect())
    }

    /// Bytes that were compressed, unpacked: with the files' own, the most that can be read.
    #[must_use]
    pub fn unpacked_len(&self) -> usize {
        if self.0.iter().any(|file| file.unpacked.get().is_none()) {
            drop(self.contents());
        }
        self.0.iter().filter_map(|file| file.unpacked.get()).map(|unpacked| unpacked.records.len()).sum()
    }

    /// Reads the files of a recording.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let data = paths(path).iter().map(|path| read_file(path)).collect::<Result<_, _>>()?;
        Ok(Self::new(data))
    }

    /// What all files hold, file by file. Each has a compressed stream of its own.
    pub(super) fn contents(&self) -> Contents<'_> {
        let mut contents = Contents::default();
        for (number, file) in self.0.iter().enumerate() {
            whole_or_records(number, &file.bytes, &mut contents);
            let packed = take(&mut contents.compressed);
            let unpacked = file.unpacked.get_or_init(|| Unpacked::new(&packed));
            let records = &unpacked.records;
            kprism_perfdata::records(records, 0..records.len(), &mut contents);
            contents.notes.extend(unpacked.note.clone());
            // perf compresses no record twice.
            let again = take(&mut contents.compressed).len();
            if again > 0 {
                contents
                    .notes
                    .push(format!("compressed records inside compressed ones are not read: {again}"));
            }
        }
        contents
    }

    /// Gives the memory of mapped files back: what is needed again is read again.
    pub(super) fn release(&self) {
        self.0.iter().for_each(|file| file.bytes.release());
    }
}

/// Only the first file of a folder has a head.
fn whole_or_records<'a>(number: usize, bytes: &'a [u8], contents: &mut Contents<'a>) {
    match number {
        0 => kprism_perfdata::read(bytes, contents),
        _ => kprism_perfdata::records(bytes, 0..bytes.len(), contents),
    }
}

/// The files of a recording: the file, or `data`, `data.0` and so on in perf's folder.
pub(super) fn paths(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let parts = (0..).map(|number| path.join(format!("data.{number}"))).take_while(|part| part.is_file());
    [path.join("data")].into_iter().chain(parts).collect()
}

/// Returns true if a path, a file or perf's folder, begins as perf.data does and `holds` what is looked for.
pub(super) fn detect(path: &Path, holds: impl FnOnce(&[u8]) -> bool) -> bool {
    let (file, mut head) = (paths(path).swap_remove(0), [0; 8]);
    let begins = fs::File::open(&file).and_then(|mut file| file.read_exact(&mut head)).is_ok();
    begins && head == *MAGIC && Bytes::open(&file).is_ok_and(|bytes| holds(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PERF_RECORD_COMPRESSED, with records packed as perf does.
    fn packed(records: &[u8]) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Uncompressed;
        let stream = ruzstd::encoding::compress_to_vec(records, level);
        let mut out = (81u64 | (8 + stream.len() as u64) << 48).to_le_bytes().to_vec();
        out.extend(stream);
        out
    }

    /// A pipe's head, and these records.
    fn piped(records: &[u8]) -> Bytes {
        let head = [MAGIC.as_slice(), &16u64.to_le_bytes()].concat();
        [head, records.to_vec()].concat().into()
    }

    #[test]
    fn a_file_gives_the_same_each_time_it_is_read() {
        // A record of an unknown type.
        let record = (99u64 | 8 << 48).to_le_bytes();
        let files = Files::new(vec![piped(&packed(&record)), packed(&record.repeat(2)).into()]);
        for _ in 0..2 {
            let contents = files.contents();
            assert_eq!((contents.events.len(), contents.notes.len()), (3, 0), "{:?}", contents.notes);
        }
        assert_eq!(files.unpacked_len(), 24);
        assert_eq!(Files::new(vec![piped(&packed(&record))]).unpacked_len(), 8, "before it is read");
    }

    #[test]
    fn records_that_are_compressed_twice_are_told() {
        let twice = Files::new(vec![piped(&packed(&packed(&[7; 64])))]);
        let contents = twice.contents();
        assert_eq!((contents.events.len(), contents.compressed.len()), (0, 0));
        assert_eq!(contents.notes, ["compressed records inside compressed ones are not read: 1"]);
    }
}
