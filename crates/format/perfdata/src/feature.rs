// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of feature sections (`HEADER_…` in tools/perf/util/header.h).

/// Formats of tracepoints, as trace-cmd writes them.
pub const TRACING_DATA: u64 = 1;
/// Build ids of the files seen.
pub const BUILD_ID: u64 = 2;
/// Release of the kernel.
pub const RELEASE: u64 = 4;
/// Version of perf.
pub const VERSION: u64 = 5;
/// Architecture, as uname says it.
pub const ARCH: u64 = 6;
/// Number of CPUs.
pub const CPUS: u64 = 7;
/// Vendor, family, model and stepping of the CPU.
pub const CPUID: u64 = 9;
/// The command line of perf.
pub const COMMAND: u64 = 11;
/// Names of the events, with their attributes and ids.
pub const EVENTS: u64 = 12;
/// Places of the AUXTRACE records.
pub const AUXTRACE: u64 = 18;
/// Programs of BPF: [`crate::bpf`].
pub const BPF_PROG_INFO: u64 = 25;
