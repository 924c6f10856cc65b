// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in reading and writing captures.

use std::path::{Path, PathBuf};

use kprism_image::Bytes;

/// A capture that cannot be read, or streams that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is damaged or of the wrong kind.
    #[error("{}: {place}: expected {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Place in the file: a line, an offset, a field.
        place: String,
        /// The expected contents.
        expected: String,
    },
    /// The frequency of the clock is named, and the recording tells it.
    #[error("--tsc-hz: the recording tells the frequency of its clock: {hz} Hz")]
    ClockIsTold {
        /// The recording's.
        hz: u64,
    },
    /// The path contains no known kind of capture.
    #[error("{}: no capture found: expected a PT file, a folder with *.pt and xpages.txt, a drpt2trace folder with pt.bin, an LLDB trace.json, simple-pt's ptout.sideband, or perf.data", path.display())]
    Unknown {
        /// The path.
        path: PathBuf,
    },
    /// A perf.data without Intel PT.
    #[error("{}: {what}", path.display())]
    Ordinary {
        /// The file or folder.
        path: PathBuf,
        /// Its contents, and the tool that reads them.
        what: String,
    },
    /// A PT file was given without code.
    #[error(
        "{}: no code: name the program with --code FILE@VA_HEX, or keep the packets alone with --no-decode, for \
         `script packets` and `report vms`",
        path.display()
    )]
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

/// The contents of a file, mapped if it can be. Files of /proc and the like state no length, or cannot be mapped.
pub(crate) fn read_file(path: &Path) -> Result<Bytes, ImportError> {
    match Bytes::open_stream(path) {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        _ => {
            let read = std::fs::read(path);
            read.map(Bytes::from).map_err(|source| ImportError::Io { path: path.to_owned(), source })
        }
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String, ImportError> {
    Ok(String::from_utf8_lossy(&read_file(path)?).into_owned())
}
