// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in a trace: [`FtraceError`] ends the reading, a [`Fault`] costs only a part of it.

/// Reason why a trace cannot be read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FtraceError {
    /// The data at a place is invalid.
    #[error("{place}: expected {expected}")]
    Format {
        /// The place: an offset, a line, or a file in the archive.
        place: String,
        /// Description of valid data.
        expected: String,
    },
    /// The file needs a feature that this program does not have.
    #[error("{what}")]
    Unsupported {
        /// The feature, and a remedy.
        what: String,
    },
}

impl FtraceError {
    pub(crate) fn format(place: impl ToString, expected: impl ToString) -> Self {
        FtraceError::Format { place: place.to_string(), expected: expected.to_string() }
    }
}

/// A place that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Offset in bytes; in a text, the line number from 1.
    pub at: u64,
    /// Description of valid data.
    pub expected: &'static str,
}

/// The faults of one stream. All are counted; only the first ones are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// The first faults.
    pub first: Vec<Fault>,
    /// Number of all faults.
    pub count: u64,
}

/// Limit of the faults that are kept.
const KEPT: usize = 16;

impl Faults {
    pub(crate) fn add(&mut self, at: u64, expected: &'static str) {
        self.count += 1;
        if self.first.len() < KEPT {
            self.first.push(Fault { at, expected });
        }
    }
}
