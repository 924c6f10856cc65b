// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditional tracepoints: what a place in the code, a condition and expressions to collect become.
//!
//! **In:** `LOCATION if EXPR`, expressions, debug information. **Out:** programs in the kernel that put a binary record
//! into a ring for each hit whose condition is true; counts of what was hit, true, lost, and could not be read; and
//! from the bytes of those records, much later and on any machine, values.
//!
//! ```text
//! spec ─ plan ── kprism-expr ──┐                   ring                    hits.bin ─┐
//!                              ├─ program ─ session ─── records ── stream ─┤         ├─ stream ─ shape ─ text, JSON
//! target (file, kernel's BTF) ─┘                                           probes.json
//! ```
//!
//! | module | job |
//! |---|---|
//! | [`events`] | static tracepoints of the kernel: record, arguments, locals around them |
//! | [`locate`] | a place's text → where it is: program, kernel, BTF |
//! | [`plan`] | a probe's text and what can be named there → segments of eBPF, and how their values lie in a record |
//! | [`compiled`] | plans in a file, for a machine that has no debug information; takes any bytes |
//! | [`program`] | segments → one program: whose hit it is, condition, record; nothing is formatted |
//! | [`gdb`] | what of a record is GDB's: registers, memory that the expressions read |
//! | [`ctf`] | records → a CTF trace |
//! | [`session`] | maps, loading, attaching, reading; all of it owned by file descriptors |
//! | [`splice`] | a segment within a program, with the maps of who makes it |
//! | [`shape`] | what bytes of a record mean; shown as text or JSON |
//! | [`actions`] | what a hit does besides leaving a record: variables, counts, histograms; which hits are left out |
//! | [`tally`] | counts by keys and histograms: what they are, and what was counted |
//! | [`stream`] | `streams/probe/`: records and their description, written and read; takes any bytes |
//!
//! A record is made in one piece: reserved in the ring, filled by the segments, submitted. A segment that fails (a
//! bad read, a division by zero) costs only its own value, which is then marked in the record. A front end that
//! speaks another language than C (GDB's) has its bytecode made into the same segments.

pub mod actions;
pub mod compiled;
mod count;
pub mod ctf;
pub mod events;
pub mod gdb;
pub mod locate;
pub mod machine;
mod merge;
pub mod plan;
pub mod program;
pub mod separate;
pub mod session;
pub mod shape;
pub mod splice;
pub mod stream;
pub mod tally;

impl From<kprism_btf::Error> for Error {
    fn from(error: kprism_btf::Error) -> Self {
        Self::Btf(error.into())
    }
}

/// Why a probe cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for cannot be done, and what can.
    #[error("{0}")]
    Cannot(String),
    /// An expression cannot be compiled; the text points into it.
    #[error("{0}")]
    Expression(String),
    /// Debug information.
    #[error(transparent)]
    Dwarf(#[from] kprism_expr::dwarf::Error),
    /// The kernel's types, or no such place among them.
    #[error(transparent)]
    Btf(#[from] kprism_expr::btf::Error),
    /// No program can be made of an expression.
    #[error("{0}: {1}")]
    Emit(String, kprism_expr::emit::Error),
    /// The kernel.
    #[error(transparent)]
    Bpf(#[from] kprism_bpf::Error),
}
