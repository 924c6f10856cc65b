// SPDX-License-Identifier: MIT OR Apache-2.0
//! GDB's remote serial protocol, server side: parses packets and formats replies.
//!
//! ```text
//! connection ── wire ── packet ── command ──┬── a question about memory, registers, threads
//!                                           └── define: a tracepoint, its condition and actions
//! records of the probes ── buffer: trace frames ── what `tfind` finds, what `tsave` writes
//! ```
//!
//! | module | job |
//! |---|---|
//! | [`wire`] | framing: checksums, escapes, acknowledgements, the interrupt |
//! | [`command`] | parses packets into commands |
//! | [`define`] | parses tracepoints from `QTDP` and related packets; formats them for a GDB that connects later |
//! | [`buffer`] | stores trace frames within a limit, finds them, and formats them for trace files |
//! | [`hex`] | numbers and bytes in GDB's notation |
//!
//! GDB's manual (appendix E) describes the packets. Nothing here does I/O. Any bytes give a value, or an error with the
//! offset in the packet and a description of valid input.

pub mod buffer;
pub mod command;
pub mod define;
pub mod hex;
pub mod wire;

/// Error in a packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("packet, offset {at}: expected {expected}")]
pub struct Error {
    /// Offset in the packet, in bytes.
    pub at: usize,
    /// Description of valid input at that offset.
    pub expected: &'static str,
}
