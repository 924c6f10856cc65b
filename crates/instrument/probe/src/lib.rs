// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditional tracepoints: compiles a place in the code, a condition and expressions to BPF programs, and reads their
//! records.
//!
//! **In:** `LOCATION if EXPR`, expressions, debug information. **Out:** programs in the kernel that put a binary record
//! into a ring for each hit whose condition is true; counts of hits, true conditions, lost records and failed reads.
//! Later, and on any machine, the values in those records.
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
//! | [`listed`] | a static tracepoint as it is listed |
//! | [`locate`] | finds a place by its text: program, kernel, BTF |
//! | [`plan`] | a probe's text and the names in scope → segments of eBPF, and the layout of a record |
//! | [`compiled`] | plans in a file, for a machine without debug information; takes any bytes |
//! | [`program`] | segments → one program: filter by process, condition, record; nothing is formatted |
//! | [`gdb`] | the part of a record for GDB: registers, and the memory that the expressions read |
//! | [`ctf`] | records → a CTF trace |
//! | [`session`] | creates maps, loads, attaches and reads; file descriptors own all of it |
//! | [`splice`] | inserts a segment into a program and resolves its maps |
//! | [`shape`] | the type of a record's bytes; shown as text or JSON |
//! | [`actions`] | further effects of a hit: variables, counts, histograms; hits that are skipped |
//! | [`tally`] | counts by keys and histograms: their definition and their values |
//! | [`summary`] | counts of hits, records and losses in words |
//! | [`stream`] | `streams/probe/`: records and their description, written and read; takes any bytes |
//!
//! A record is made in one piece: reserved in the ring, filled by the segments, submitted. If a segment fails (a bad
//! read, a division by zero), only its own value is missing, and the record marks it. A front end for another language
//! than C (GDB's) compiles its bytecode to the same segments.

pub mod actions;
pub mod compiled;
mod count;
pub mod ctf;
pub mod events;
pub mod gdb;
mod item;
mod layout;
pub mod listed;
pub mod locate;
pub mod machine;
mod merge;
pub mod plan;
pub mod program;
pub mod session;
pub mod shape;
pub mod splice;
pub mod stream;
pub mod summary;
pub mod tally;

impl From<kprism_expr::dwarf::Error> for Error {
    fn from(error: kprism_expr::dwarf::Error) -> Self {
        match error {
            // The place may be there, but not in the file that was named.
            kprism_expr::dwarf::Error::DebugOnly(_) => Self::Cannot(error.to_string()),
            error => Self::Dwarf(error),
        }
    }
}

impl From<kprism_btf::Error> for Error {
    fn from(error: kprism_btf::Error) -> Self {
        Self::Btf(error.into())
    }
}

/// Errors in making a probe.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be fulfilled. The text says what is possible instead.
    #[error("{0}")]
    Cannot(String),
    /// An expression cannot be compiled. The text points into it.
    #[error("{0}")]
    Expression(String),
    /// Debug information cannot be read, or does not contain the place.
    #[error(transparent)]
    Dwarf(kprism_expr::dwarf::Error),
    /// The kernel's BTF cannot be read, or does not contain the place.
    #[error(transparent)]
    Btf(#[from] kprism_expr::btf::Error),
    /// An expression cannot be compiled to a program.
    #[error("{0}: {1}")]
    Emit(String, kprism_expr::emit::Error),
    /// BPF or the kernel refused.
    #[error(transparent)]
    Bpf(#[from] kprism_bpf::Error),
}
