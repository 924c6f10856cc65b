// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of notes and data files, with their offset.

use crate::version::Version;

/// Reason why a file cannot be read, or does not match another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file ends within a record.
    #[error("offset {offset}: the file ends here, within {what}: it is truncated")]
    Truncated {
        /// Offset of the end of the file.
        offset: usize,
        /// The part that is incomplete.
        what: &'static str,
    },
    /// The magic number is wrong.
    #[error("offset 0: not a {expected} file: it begins with {found:02x?}")]
    Magic {
        /// `gcno` or `gcda`.
        expected: &'static str,
        /// The first bytes of the file.
        found: Vec<u8>,
    },
    /// The compiler's version has an unknown format.
    #[error("offset 4: version {found}: formats of GCC 4.7 to 16 are known")]
    Version {
        /// Version in the file.
        found: Version,
    },
    /// A value is out of its range.
    #[error("offset {offset}: {what} is {found}, expected {expected}")]
    Value {
        /// Offset of the value.
        offset: usize,
        /// Name of the value.
        what: &'static str,
        /// The value found.
        found: u64,
        /// Description of valid values.
        expected: String,
    },
    /// Notes and data are from different builds.
    #[error(
        "the data's stamp {data:#010x} is not the notes' {notes:#010x}: they are of different builds; \
         use the .gcno files of the very build that runs"
    )]
    Stamp {
        /// Stamp of the data.
        data: u32,
        /// Stamp of the notes.
        notes: u32,
    },
    /// Notes and data are of different compilers.
    #[error(
        "the data's version is GCC {data}, the notes' is {notes}: they are of different builds; use the .gcno files of the \
         very build that runs"
    )]
    Versions {
        /// Version of the data.
        data: Version,
        /// Version of the notes.
        notes: Version,
    },
    /// Two functions have the same number but differ.
    #[error("function {function}: {what} of notes and data differ: they are of different builds")]
    Mismatch {
        /// Name of the function.
        function: String,
        /// The part that differs: checksums or number of counters.
        what: &'static str,
    },
}

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
