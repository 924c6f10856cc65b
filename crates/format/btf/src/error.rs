// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the BTF reader and its lookups.

/// Reason why BTF could not be read, or a lookup failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not valid BTF.
    #[error("{origin}: offset {offset:#x}: expected {expected}")]
    Malformed {
        /// Source of the bytes, such as a file name.
        origin: String,
        /// Offset of the error, in bytes.
        offset: usize,
        /// Description of valid input at that offset.
        expected: String,
    },
    /// BTF does not contain the requested item.
    #[error("{origin}: no {what}")]
    Unknown {
        /// Source of the BTF, such as a file name.
        origin: String,
        /// The requested item.
        what: String,
    },
}
