// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mark: a place in the flow at which an analysis begins, ends or counts something. The stack of a chunk makes marks
//! from marked instructions, kernel entries and marked functions; the stitcher passes them on in order.

use crate::decode::marks::Op;
use kprism_profile::FrameKind;

/// Kind of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// An instruction ran.
    Insn(Op),
    /// The CPU enters the kernel at its entry `func`.
    Enter { kind: FrameKind, func: u32 },
    /// The CPU leaves a kernel entry, to user code or to the kernel.
    Leave { user: bool },
    /// A system call has ended. Its record follows.
    SyscallDone,
    /// A requested function, or the body of a system call, begins.
    Begin { func: u32, body: bool },
    /// Like [`What::Begin`]; it ends with the frame at the base of the span.
    Tail { func: u32, body: bool },
    /// The function ends.
    End { func: u32 },
    /// The CPU has stood still for so long, though it had work; ns.
    Still { ns: u64 },
    /// The flow continues at the same place, after tracing was off for a while.
    Off,
}

/// A mark in a chunk. Counters are the chunk's, the node is the span's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub what: What,
    pub node: u32,
    pub ns: u64,
    pub insns: u64,
    pub ip: u64,
}
