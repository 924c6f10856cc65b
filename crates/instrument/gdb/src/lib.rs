// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server for GDB's tracepoints, of a running process or of the running kernel, neither of which it stops.
//!
//! **In:** GDB's packets over a Unix socket or the loopback. **Out:** a BPF program for each tracepoint, and trace
//! frames of what they collected.
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
//! | [`target`] | whose memory and registers: a process, a program that is started, the kernel |
//! | [`registers`] | how GDB lays them out |
//! | [`program`] | a tracepoint's definition → one program and what its records hold |
//! | [`engine`] | maps, programs, links; records → trace frames |
//! | [`server`] | what GDB asks → what it is told |
//! | [`tfile`] | trace frames → the file that GDB reads without a server |
//! | [`listen`] | sockets, and who may connect |
//!
//! GDB believes that the program is stopped; it is not. What it sees outside trace frames is memory as it is at that
//! moment, and registers as they were when it connected, or last interrupted. All attachments belong to file
//! descriptors of this process.

pub mod engine;
mod files;
pub mod listen;
mod peer;
pub mod program;
pub mod registers;
pub mod server;
pub mod target;
pub mod tfile;

/// Why something cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for cannot be done, and what can.
    #[error("{0}")]
    Cannot(String),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// Agent bytecode that cannot be translated.
    #[error(transparent)]
    Agent(#[from] kprism_expr::agent::Error),
    /// No program can be made of it.
    #[error(transparent)]
    Emit(#[from] kprism_expr::emit::Error),
    /// The kernel.
    #[error(transparent)]
    Bpf(#[from] kprism_bpf::Error),
}

impl Error {
    fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
