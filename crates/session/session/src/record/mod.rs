// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording on this machine: what a user asks for in, a run out.
//!
//! [`probes`] compiles probes, [`probe`] attaches them and writes their records; [`watch`] waits for a command, processes, a
//! time, or Ctrl-C, for every recorder that runs beside what it records.

mod kept;
pub mod probe;
pub mod probes;
pub mod watch;

use kprism_store::Kernel;

/// The running kernel.
pub fn this_kernel() -> Kernel {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Kernel { release: release.trim().to_owned(), build_id: String::new() }
}
