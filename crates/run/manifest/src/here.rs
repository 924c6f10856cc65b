// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest of a recording of this machine.

use crate::{Kernel, Manifest, RunKind, date};

/// Why a recording is not whole, while it is under way.
pub const NOT_ENDED: &str = "the recorder has not ended properly";

/// The running kernel.
pub fn this_kernel() -> Kernel {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Kernel { release: release.trim().to_owned(), build_id: String::new(), ..Kernel::default() }
}

/// The manifest of a recording that has begun. It says that the recording is not whole until its end is written.
pub fn begun(command: &[String]) -> Manifest {
    let mut manifest = Manifest::new(RunKind::Host, 0);
    manifest.created = date::now();
    manifest.command = command.to_vec();
    manifest.kernel = Some(this_kernel());
    manifest.stopped = Some(NOT_ENDED.into());
    manifest
}
