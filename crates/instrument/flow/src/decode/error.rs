// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the decoder: why the flow could not be followed.

use kprism_pt::PacketErrorKind;

/// A position in the stream where the decoder lost the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Byte offset of the packet that caused it.
    pub offset: u64,
    /// Last known time, ns.
    pub ns: u64,
    /// Address of the code being walked; 0 when unknown.
    pub ip: u64,
    /// The reason.
    pub kind: FaultKind,
}

/// Reason for a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The bytes are no packet.
    #[error("bad packet: {0}")]
    Packet(PacketErrorKind),
    /// No code is known at an address that was executed.
    #[error("no code known at {0:#x}")]
    NoCode(u64),
    /// An instruction was executed of which only the first bytes are known: address and number of bytes.
    #[error("the code known at {0:#x} ends after {1} bytes, within an instruction")]
    CutCode(u64, u8),
    /// The code known at an executed address is no instruction. Other code ran there, or the flow never got there.
    #[error("the code known at {0:#x} is no instruction")]
    BadCode(u64),
    /// A branch outcome came where the code needs an address, or the other way round.
    #[error("code and packets disagree: {0}")]
    Mismatch(&'static str),
    /// A compressed return without a call since the last PSB.
    #[error("compressed return without its call")]
    NoCall,
    /// The address of an event is not on the path of the code.
    #[error("event at {0:#x}, which the code does not reach")]
    NotReached(u64),
    /// The code loops without ever needing a packet.
    #[error("endless loop without a branch to decide")]
    Endless,
    /// A packet that cannot come in this state.
    #[error("unexpected packet: {0}")]
    Unexpected(&'static str),
    /// The processor's buffer overflowed and packets were lost. The stream itself has no error.
    #[error("overflow: the processor dropped packets")]
    Overflow,
}
