// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with BTF, or with what is asked of it.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes that are no BTF.
    #[error("{origin}: offset {offset:#x}: expected {expected}")]
    Malformed {
        /// Where the bytes came from.
        origin: String,
        /// Where in them.
        offset: usize,
        /// What should have been there.
        expected: String,
    },
    /// Something that BTF should know and does not.
    #[error("{origin}: no {what}")]
    Unknown {
        /// Whose BTF.
        origin: String,
        /// What was looked for.
        what: String,
    },
}
