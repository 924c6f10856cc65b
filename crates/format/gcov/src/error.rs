// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a notes or data file: where, and what was expected there.

use crate::version::Version;

/// Why a file was not understood, or only in part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes end within something.
    #[error("offset {offset}: the file ends here, within {what}: it is truncated")]
    Truncated {
        /// Where.
        offset: usize,
        /// Within what.
        what: &'static str,
    },
    /// It does not begin as such a file does.
    #[error("offset 0: not a {expected} file: it begins with {found:02x?}")]
    Magic {
        /// `gcno` or `gcda`.
        expected: &'static str,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Written by a compiler whose format is not known.
    #[error("offset 4: version {found}: formats of GCC 4.7 to 16 are known")]
    Version {
        /// The version it names.
        found: Version,
    },
    /// A value is out of its range.
    #[error("offset {offset}: {what} is {found}, expected {expected}")]
    Value {
        /// Where.
        offset: usize,
        /// What it is.
        what: &'static str,
        /// What it says.
        found: u64,
        /// What it may say.
        expected: String,
    },
    /// Notes and data are of different builds.
    #[error(
        "the data's stamp {data:#010x} is not the notes' {notes:#010x}: they are of different builds; \
         use the .gcno files of the very build that runs"
    )]
    Stamp {
        /// The data's.
        data: u32,
        /// The notes'.
        notes: u32,
    },
    /// A function of the same ident is not the same function.
    #[error("function {function}: {what} of notes and data differ: they are of different builds")]
    Mismatch {
        /// Its name.
        function: String,
        /// Checksums, or number of counters.
        what: &'static str,
    },
}

/// Shorthand for this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
