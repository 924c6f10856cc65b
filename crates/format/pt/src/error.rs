// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of packet decoding, with their offset.

use thiserror::Error;

/// A packet that could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("PT packet at offset {offset:#x}: {kind}")]
pub struct PacketError {
    /// Byte offset of the packet's first byte, from the start of the slice given to the reader.
    pub offset: usize,
    /// Reason for the failure.
    pub kind: PacketErrorKind,
}

/// Reason why a packet could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PacketErrorKind {
    /// The packet is longer than the rest of the stream. Normal at the end of a recording.
    #[error("cut off by the end of the stream")]
    Truncated,
    /// No packet in the SDM starts with this opcode. Holds the opcode's bytes in print order: `0x2..` with the second
    /// byte in the low half for the `02` page, `0xc3..` with the third byte for `02 c3`.
    #[error("unknown opcode {0:#06x}")]
    BadOpcode(u16),
    /// The opcode is known, but the SDM does not allow this payload. Holds the opcode as in
    /// [`PacketErrorKind::BadOpcode`].
    #[error("payload not allowed for opcode {0:#06x}")]
    BadPayload(u16),
}
