// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data, the output of `perf record -e intel_pt//`: what its records mean.
//!
//! **In:** a file, the same data through a pipe, or a folder (`data`, `data.N`, `kcore_dir/`), whose records
//! `kprism-perfdata` parses; and the places of files that perf does not copy ([`Search`]). **Out:** a
//! [`crate::Capture`]. [`export`] writes perf.data.
//!
//! | file | job |
//! |---|---|
//! | `tasks` | records in order of time: running tasks, mappings, changes of code |
//! | `streams` | joins pieces of AUX buffers; losses |
//! | `spaces` | the process whose code a stream runs; its page explains the three methods |
//! | `place` | code at (address space, address, stream offset) |
//! | `passing` | names of kernel code that comes and goes |
//! | `recording` | the files of a recording without Intel PT, as one |
//! | `comms` | names of threads over time |
//! | [`trace`] | tracepoints, for durations |
//! | `sample` | fields of samples |
//! | [`mem`] | samples of memory accesses, for TLB misses |
//! | `ordinary` | what a file without Intel PT holds |
//! | `cores` | switch records of one CPU, in a file of their own |
//! | `files`, `kcore` | code of programs, of the kernel |
//!
//! **Times.** A run's times are perf's own: TSC · mult >> shift + zero, modulo 2^64, with the recording's values. So records keep
//! their times, and packets get those that `perf script` gives them.

mod comms;
mod cores;
mod evidence;
pub mod export;
pub(crate) mod files;
mod filter;
pub(crate) mod kcore;
pub mod mem;
mod ordinary;
mod passing;
mod place;
mod read;
mod recording;
mod sample;
mod spaces;
mod streams;
mod tasks;
mod timeline;
pub mod trace;

use kprism_image::BuildId;

pub(crate) use cores::switches_of_cpu;
pub(crate) use read::is_perf_data;
pub use read::{Parts, Search, from_parts, read};
pub use recording::Files;

/// Build ids of files by path, without those that say nothing.
fn build_ids(all: &[(String, Vec<u8>)]) -> impl Iterator<Item = (String, BuildId)> {
    all.iter().filter_map(|(path, id)| Some((path.clone(), BuildId::new(id)?)))
}
