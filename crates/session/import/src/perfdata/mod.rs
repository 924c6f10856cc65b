// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data, the output of `perf record -e intel_pt//`: reading and writing.
//!
//! **In:** a file, the same data through a pipe, or a folder (`data`, `data.N`, `kcore_dir/`); and the places of files
//! that perf does not copy ([`Search`]). **Out:** a [`crate::Capture`]. [`export`] writes perf.data.
//!
//! | file | job |
//! |---|---|
//! | `bytes` | fields of records |
//! | `record` | one record, from and to bytes |
//! | `attr` | configuration of events |
//! | `file` | header, sections, compression: bytes → records |
//! | `tasks` | records in order of time: running tasks, mappings, changes of code |
//! | `streams` | joins pieces of AUX buffers; losses |
//! | `spaces` | the process whose code a stream runs; its page explains the three methods |
//! | `place` | code at (address space, address, stream offset) |
//! | [`trace`] | tracepoints, for durations |
//! | [`mem`] | samples of memory accesses, for TLB misses |
//! | `files`, `kcore`, `bpf` | code of programs, of the kernel, of BPF programs |
//!
//! **Times.** perf's own time is TSC · mult >> shift + zero; a run's is TSC at its frequency. Records' times are
//! converted back to TSC and then to the run's time, so that records and packets agree to the tick.
//!
//! **Why not an existing reader:** AUX data, incomplete files, and writing.

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
