// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of a record: values, and memory that is kept for GDB.

use serde::{Deserialize, Serialize};

use crate::stream::shape::Shape;

/// Effect of a probe's hit on the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordingEffect {
    /// None: the hit is recorded.
    #[default]
    Record,
    /// Other probes are recorded from then on.
    Start,
    /// Other probes are not recorded, until the next start.
    Pause,
    /// The recording ends.
    Stop,
}

impl RecordingEffect {
    /// Returns true if a hit does not change the recording.
    pub fn is_record(&self) -> bool {
        *self == Self::Record
    }
}

/// A collected value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The expression.
    pub name: String,
    /// Its type in C.
    #[serde(rename = "type")]
    pub ty: String,
    /// Offset in the record.
    pub at: u32,
    /// Type of the bytes; `None` if the value is not available at this place.
    pub shape: Option<Shape>,
    /// The reason why it is not available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The part of a record for GDB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Offset of the registers, in the order of `struct pt_regs`. The part begins here.
    pub registers: u32,
    /// The memory pieces.
    pub memory: Vec<Memory>,
}

/// A piece of memory that an expression read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Index of the item that read it. The piece is absent if that item could not be read.
    pub item: u32,
    /// Offset of its address in the record.
    pub address: u32,
    /// Offset of its bytes in the record.
    pub bytes: u32,
    /// Number of bytes.
    pub size: u32,
    /// True if the actual length precedes the bytes.
    pub text: bool,
}
