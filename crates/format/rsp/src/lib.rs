// SPDX-License-Identifier: MIT OR Apache-2.0
//! GDB's remote serial protocol as a server needs it: bytes in, values out, and back.
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
//! | [`command`] | a packet's text → what GDB asks |
//! | [`define`] | `QTDP` and its relatives → tracepoints; and back, for a GDB that comes later |
//! | [`buffer`] | trace frames: taken in, limited, found, written in the format of trace files |
//! | [`hex`] | numbers and bytes as GDB writes them |
//!
//! GDB's manual (appendix E) describes the packets. Nothing here does I/O, and any bytes give a value or an error
//! that says where in the packet what was expected.

pub mod buffer;
pub mod command;
pub mod define;
pub mod hex;
pub mod wire;

/// Why a packet means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("packet, offset {at}: expected {expected}")]
pub struct Error {
    /// Where in it.
    pub at: usize,
    /// What should have been there.
    pub expected: &'static str,
}
