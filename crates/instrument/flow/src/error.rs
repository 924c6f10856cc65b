// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why the flow could not be followed.

use kprism_pt::PacketErrorKind;

/// A place in the stream where the decoder lost the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Byte offset of the packet at fault.
    pub offset: u64,
    /// Time known there, ns.
    pub ns: u64,
    /// Address of the code being walked; 0 when unknown.
    pub ip: u64,
    /// What was wrong.
    pub kind: FaultKind,
}

/// What was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The bytes are no packet.
    #[error("bad packet: {0}")]
    Packet(PacketErrorKind),
    /// No code is known at an address that was executed.
    #[error("no code known at {0:#x}")]
    NoCode(u64),
    /// Of the instruction at an address that was executed, only the first bytes are known: so many.
    #[error("the code known at {0:#x} ends after {1} bytes, within an instruction")]
    CutCode(u64, u8),
    /// The code known at an address that was executed is no instruction: it is other code than what ran, or the flow
    /// never was there.
    #[error("the code known at {0:#x} is no instruction")]
    BadCode(u64),
    /// A branch outcome came where the code wants an address, or the other way round.
    #[error("code and packets disagree: {0}")]
    Mismatch(&'static str),
    /// A compressed return without a call since the last PSB.
    #[error("compressed return without its call")]
    NoCall,
    /// An event's address is not on the way the code goes.
    #[error("event at {0:#x}, which the code does not reach")]
    NotReached(u64),
    /// Code that never needs a packet.
    #[error("endless loop without a branch to decide")]
    Endless,
    /// A packet that cannot come in this state.
    #[error("unexpected packet: {0}")]
    Unexpected(&'static str),
    /// The processor's buffer overflowed: packets were lost, which is no fault of the stream.
    #[error("overflow: the processor dropped packets")]
    Overflow,
}
