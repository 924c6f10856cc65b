// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a trace: [`FtraceError`] ends the reading, a [`Fault`] costs a part of it.

/// Why a trace cannot be read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FtraceError {
    /// A place holds something else than it should.
    #[error("{place}: expected {expected}")]
    Format {
        /// Where: an offset, a line, a file within.
        place: String,
        /// What should have been there.
        expected: String,
    },
    /// What a file says of itself needs something that this program does not do.
    #[error("{what}")]
    Unsupported {
        /// What, and the remedy.
        what: String,
    },
}

impl FtraceError {
    pub(crate) fn format(place: impl ToString, expected: impl ToString) -> Self {
        FtraceError::Format { place: place.to_string(), expected: expected.to_string() }
    }
}

/// A place that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Offset in bytes, or in a text the line from 1.
    pub at: u64,
    /// What should have been there.
    pub expected: &'static str,
}

/// The faults of one stream: all are counted, the first are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// The first of them.
    pub first: Vec<Fault>,
    /// How many in all.
    pub count: u64,
}

/// Faults that are kept.
const KEPT: usize = 16;

impl Faults {
    pub(crate) fn add(&mut self, at: u64, expected: &'static str) {
        self.count += 1;
        if self.first.len() < KEPT {
            self.first.push(Fault { at, expected });
        }
    }
}
