// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server for GDB's tracepoints. It traces a running process, or the running kernel, without stopping it.
//!
//! **In:** GDB's packets over a Unix socket or the loopback. **Out:** a BPF program for each tracepoint, and trace
//! frames with the data that they collected.
//!
//! ```text
//!           kprism-rsp                    program            kprism-bpf
//! GDB ── packets, definitions ── server ── bytecode → eBPF ── engine ── uprobe, kprobe, tracepoint
//!             ▲                    │                            │ ring
//!             └── replies ─────────┴──────── trace frames ◄─────┘
//! ```
//!
//! | module | job |
//! |---|---|
//! | [`target`] | the traced process, program or kernel: its memory and registers |
//! | [`registers`] | GDB's layout of the registers |
//! | [`program`] | a tracepoint's definition → a BPF program and the layout of its records |
//! | [`engine`] | maps, programs, links; records → trace frames |
//! | [`server`] | parses GDB's packets and writes the replies |
//! | [`tfile`] | trace frames → the file that GDB reads without a server |
//! | [`listen`] | sockets, and the check of who may connect |
//!
//! GDB believes that the program is stopped; it is not. Outside trace frames GDB sees the current memory, and the
//! registers as they were when it connected or last interrupted. All attachments belong to file descriptors of this
//! process.

pub mod engine;
mod files;
pub mod listen;
pub mod peer;
pub mod program;
pub mod registers;
pub mod server;
pub mod target;
pub mod tfile;

/// Errors of the server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be fulfilled. The text says what is possible instead.
    #[error("{0}")]
    Cannot(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Agent bytecode that cannot be translated.
    #[error(transparent)]
    Agent(#[from] kprism_expr::agent::Error),
    /// The expression cannot be compiled to a program.
    #[error(transparent)]
    Emit(#[from] kprism_expr::emit::Error),
    /// BPF or the kernel refused.
    #[error(transparent)]
    Bpf(#[from] kprism_bpf::Error),
}

impl Error {
    fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
