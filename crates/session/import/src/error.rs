// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a capture.

use std::path::{Path, PathBuf};

/// A capture that cannot be read, or streams that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {place}: expected {expected}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Where in it: a line, an offset, a field.
        place: String,
        /// What should have been there.
        expected: String,
    },
    /// Nothing here looks like a capture.
    #[error("{}: no capture found: expected a PT file, a folder with *.pt and xpages.txt, a drpt2trace folder with pt.bin, an LLDB trace.json, simple-pt's ptout.sideband, or perf.data", path.display())]
    Unknown {
        /// What was looked at.
        path: PathBuf,
    },
    /// A PT file was given without code.
    #[error("{}: no code: name the program with --code FILE@VA_HEX", path.display())]
    NoCode {
        /// The PT file.
        path: PathBuf,
    },
}

impl ImportError {
    pub(crate) fn format(path: &Path, place: impl ToString, expected: impl ToString) -> Self {
        Self::Format { path: path.to_owned(), place: place.to_string(), expected: expected.to_string() }
    }
}

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, ImportError> {
    std::fs::read(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })
}

pub(crate) fn read_text(path: &Path) -> Result<String, ImportError> {
    Ok(String::from_utf8_lossy(&read_file(path)?).into_owned())
}
