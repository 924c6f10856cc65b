// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data: what `perf record -e intel_pt//` leaves, in both directions.
//!
//! **In:** a file, the same as it went through a pipe, or a folder (`data`, `data.N`, `kcore_dir/`); and where to
//! look for what perf does not copy ([`Search`]). **Out:** a [`crate::Capture`]. [`export`] goes the other way.
//!
//! | file | what |
//! |---|---|
//! | `bytes` | fields of records |
//! | `record` | one record, from and to bytes |
//! | `attr` | what was asked of the kernel |
//! | `file` | header, sections, compression: from bytes to records |
//! | `tasks` | records in order of time: who ran when, what was mapped, what changed |
//! | `streams` | pieces of AUX buffers put together; losses |
//! | `spaces` | which process's code a stream runs over where: the page explains the three ways |
//! | `place` | code at (address space, address, stream offset) |
//! | [`trace`] | tracepoints, for durations |
//! | [`mem`] | samples of what memory a program accessed, for TLB misses |
//! | `files`, `kcore`, `bpf` | code of programs, of the kernel, of BPF programs |
//!
//! **Times.** perf's own time is TSC · mult >> shift + zero; a run's is TSC at its frequency. Records are turned
//! back into TSC and then into the run's time, so that they and the packets agree to the tick.
//!
//! **Why own code and not a reader from a registry:** AUX data, partial files, and writing.

mod attr;
mod bpf;
mod bytes;
pub mod export;
pub(crate) mod file;
pub(crate) mod files;
pub(crate) mod kcore;
pub mod mem;
mod place;
mod read;
pub(crate) mod record;
mod spaces;
mod streams;
mod tasks;
mod timeline;
pub mod trace;

pub(crate) use read::is_perf_data;
pub use read::{Parts, Search, from_parts, read};

/// `PERFILE2`, little-endian.
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

/// Numbers of feature sections (tools/perf/util/header.h).
pub(crate) mod feature {
    pub const TRACING_DATA: u64 = 1;
    pub const BUILD_ID: u64 = 2;
    pub const RELEASE: u64 = 4;
    pub const VERSION: u64 = 5;
    pub const ARCH: u64 = 6;
    pub const CPUS: u64 = 7;
    pub const CPUID: u64 = 9;
    pub const COMMAND: u64 = 11;
    pub const EVENTS: u64 = 12;
    pub const AUXTRACE: u64 = 18;
    pub const BPF_PROG_INFO: u64 = 25;
}
