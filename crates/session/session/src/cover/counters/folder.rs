// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of a folder with counters and notes.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of a folder, and of those below it.
#[derive(Debug, Default)]
pub struct Found {
    /// Counters (.gcda).
    pub data: Vec<PathBuf>,
    /// Notes (.gcno).
    pub notes: Vec<PathBuf>,
    /// Named like counters, but no regular files: reading a FIFO would never end.
    pub others: Vec<PathBuf>,
}

impl Found {
    /// Finds the files below a folder, sorted by name. Links to files are followed, links to folders are not.
    pub fn below(folder: &Path) -> std::io::Result<Self> {
        let mut found = Found::default();
        found.add(folder)?;
        Ok(found)
    }

    fn add(&mut self, folder: &Path) -> std::io::Result<()> {
        let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.add(&path)?;
                continue;
            }
            match path.extension().and_then(|suffix| suffix.to_str()) {
                Some("gcda") if path.is_file() => self.data.push(path),
                Some("gcda") => self.others.push(path),
                Some("gcno") if path.is_file() => self.notes.push(path),
                _ => {}
            }
        }
        Ok(())
    }
}
