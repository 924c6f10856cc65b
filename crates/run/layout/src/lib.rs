// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths in folders that other programs than kprism write too: a run folder in the guest, and a kernel's build folder.
//!
//! Input: the path of such a folder. Output: paths in it. The guest's agent writes gcov's counters into a run folder
//! where there is no kprism, and is too small for the dependencies of `kprism-store`. `kprism_store::Run` hands out
//! the paths in a run for everyone else. The lab and the readers of debug information look into a kernel's build folder
//! ([`KernelBuild`]).

#![forbid(unsafe_code)]

mod kernel_build;

use std::path::{Path, PathBuf};

pub use kernel_build::KernelBuild;

/// Names of the archives of the readings before the window, in order of time. Their differences show the cost of a
/// reading.
const IDLE: [&str; 4] = ["idle-1.cpio", "idle-2.cpio", "idle-3.cpio", "idle-4.cpio"];

/// Paths of gcov's counters in a run folder: `newc` archives of `.gcda` files, one for each reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcovFiles {
    folder: PathBuf,
}

impl GcovFiles {
    /// Name of the archive of the reading right before the window.
    pub const BEFORE: &'static str = "before.cpio";
    /// Name of the archive of the reading right after the window.
    pub const AFTER: &'static str = "counters.cpio";
    /// Name of the archive of what was counted in windows between conditions, added up.
    pub const WINDOWS: &'static str = "windows.cpio";
    /// Number of readings before that right before the window.
    pub const IDLE_READINGS: usize = IDLE.len();

    /// The paths in this run folder. It need not be there.
    pub fn of(run: &Path) -> Self {
        GcovFiles { folder: run.join("streams/gcov") }
    }

    /// The folder of all of them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The readings before that right before the window, in order of time.
    pub fn idle(&self) -> [PathBuf; IDLE.len()] {
        IDLE.map(|name| self.folder.join(name))
    }

    /// The reading right before the window.
    pub fn before(&self) -> PathBuf {
        self.folder.join(Self::BEFORE)
    }

    /// The reading right after the window; of a run without a window, the only one.
    pub fn after(&self) -> PathBuf {
        self.folder.join(Self::AFTER)
    }

    /// The counts in windows between conditions, added up. No reading: [`before`](Self::before) and [`after`](Self::after)
    /// are there too.
    pub fn windows(&self) -> PathBuf {
        self.folder.join(Self::WINDOWS)
    }

    /// All readings, in order of time.
    pub fn all(&self) -> impl Iterator<Item = PathBuf> {
        self.idle().into_iter().chain([self.before(), self.after()])
    }
}
