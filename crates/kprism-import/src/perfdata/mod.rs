// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data.

mod attr;
mod bytes;
pub mod export;
pub(crate) mod record;
mod timeline;

/// `PERFILE2`, little-endian.
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

/// Numbers of feature sections (tools/perf/util/header.h).
pub(crate) mod feature {
    pub const BUILD_ID: u64 = 2;
    pub const RELEASE: u64 = 4;
    pub const VERSION: u64 = 5;
    pub const ARCH: u64 = 6;
    pub const CPUS: u64 = 7;
    pub const CPUID: u64 = 9;
    pub const COMMAND: u64 = 11;
    pub const EVENTS: u64 = 12;
    pub const AUXTRACE: u64 = 18;
    pub const COMPRESSED: u64 = 27;
}
