// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a recording without Intel PT, together: one, or those of perf's folder (`perf record --threads`).
//!
//! In: a path. Out: [`Contents`] of all files, with the records that perf compressed (`-z`) unpacked.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use kprism_image::Bytes;
use kprism_perfdata::{Contents, MAGIC};

use crate::ImportError;
use crate::error::read_file;

/// A recording's files: one, or `data`, `data.0`, … of a folder, of which only the first has attributes and formats.
#[derive(Debug, Default)]
pub struct Files(Vec<(Bytes, Unpacked)>);

/// Records that perf compressed in a file (`perf record -z`).
#[derive(Debug, Default)]
struct Unpacked {
    /// The records; empty if the file has no compressed ones.
    records: Vec<u8>,
    /// Why they end early.
    note: Option<String>,
}

impl Files {
    /// Unpacks the records that perf compressed. Each file has a compressed stream of its own.
    #[must_use]
    pub fn new(data: Vec<Bytes>) -> Self {
        let unpacked = |(number, bytes): (usize, Bytes)| {
            let mut contents = Contents::default();
            whole_or_records(number, &bytes, &mut contents);
            let unpacked = match &contents.compressed[..] {
                [] => Unpacked::default(),
                parts => {
                    let (records, note) = kprism_perfdata::unpack(parts);
                    Unpacked { records, note }
                }
            };
            drop(contents);
            (bytes, unpacked)
        };
        Self(data.into_iter().enumerate().map(unpacked).collect())
    }

    /// Bytes that were compressed, unpacked: with the files' own, the most that can be read.
    #[must_use]
    pub fn unpacked_len(&self) -> usize {
        self.0.iter().map(|(_, unpacked)| unpacked.records.len()).sum()
    }

    /// Reads the files of a recording.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let data = paths(path).iter().map(|path| read_file(path)).collect::<Result<_, _>>()?;
        Ok(Self::new(data))
    }

    /// What all files hold, file by file.
    pub(super) fn contents(&self) -> Contents<'_> {
        let mut contents = Contents::default();
        for (number, (bytes, unpacked)) in self.0.iter().enumerate() {
            whole_or_records(number, bytes, &mut contents);
            let records = &unpacked.records;
            kprism_perfdata::records(records, 0..records.len(), &mut contents);
            contents.notes.extend(unpacked.note.clone());
        }
        contents
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
