// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditional tracepoints: compiles a place in the code, a condition and expressions to BPF programs, and reads their
//! records.
//!
//! **In:** `LOCATION if EXPR`, expressions, debug information. **Out:** programs in the kernel that put a binary record
//! into a ring for each hit whose condition is true; counts of hits, true conditions, lost records and failed reads.
//! Later, and on any machine, the values in those records.
//!
//! ```text
//! text ───────┐                                            ring
//! file, BTF ─ place ─ plan ─ program ─ attach ── records ── stream ── view: words, CTF
//!                  (kprism-expr)                         hits.bin, probes.json
//! ```
//!
//! The folders stand in the order of the data:
//!
//! | module | job |
//! |---|---|
//! | [`place`] | a place's text and debug information → code addresses, with the names in scope, and a plan for each |
//! | [`plan`] | a request and the names in scope → segments of eBPF, and the layout of a record; plans in a file |
//! | [`program`] | a plan → one program: filter by process, condition, record; nothing is formatted |
//! | [`attach`] | plans → maps, loaded and attached programs; file descriptors own all of it; rings → records |
//! | [`stream`] | `streams/probe/`: records, the types of their bytes, counts; written and read; takes any bytes |
//! | [`view`] | counts in words; records as a CTF trace |
//! | [`written`] | a file of probes → requests, with their places in the file |
//!
//! A record is made in one piece: reserved in the ring, filled by the segments, submitted. If a segment fails (a bad
//! read, a division by zero), only its own value is missing, and the record marks it. A front end for another language
//! than C (GDB's) compiles its bytecode to the same segments.

pub mod attach;
pub mod place;
pub mod plan;
pub mod program;
pub mod stream;
pub mod view;
pub mod written;

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

/// An error that points into an expression.
#[derive(Debug)]
pub struct Pointed {
    /// The expression.
    pub text: String,
    /// Offset of the error in it, bytes.
    pub at: usize,
    /// The message, with the expression and the remedy.
    pub shown: String,
}

impl std::fmt::Display for Pointed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Error {
    /// An error in an expression.
    pub(crate) fn expression(text: &str, error: &kprism_expr::error::Error) -> Self {
        let shown = error.render(text);
        Self::Expression(Pointed { text: text.to_owned(), at: error.span.start, shown })
    }
}

/// Errors in making a probe.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be fulfilled. The text says what is possible instead.
    #[error("{0}")]
    Cannot(String),
    /// An expression cannot be compiled. The message points into it.
    #[error("{0}")]
    Expression(Pointed),
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
