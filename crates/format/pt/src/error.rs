// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a packet, and where.

use thiserror::Error;

/// A packet that could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("PT packet at offset {offset:#x}: {kind}")]
pub struct PacketError {
    /// Byte offset of the packet's first byte, from the start of the slice given to the reader.
    pub offset: usize,
    /// What is wrong with it.
    pub kind: PacketErrorKind,
}

/// Why a packet could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PacketErrorKind {
    /// The packet's opcode asks for more bytes than the stream has. Normal at the end of a recording.
    #[error("cut off by the end of the stream")]
    Truncated,
    /// No packet of the SDM starts like this. Holds the opcode's bytes as they would be printed: `0x2..`
    /// with the second byte in the low half for the `02` page, `0xc3..` for the third byte of `02 c3`.
    #[error("unknown opcode {0:#06x}")]
    BadOpcode(u16),
    /// The opcode is known and the payload is not one that the SDM allows. Holds the opcode as in
    /// [`PacketErrorKind::BadOpcode`].
    #[error("payload not allowed for opcode {0:#06x}")]
    BadPayload(u16),
}
