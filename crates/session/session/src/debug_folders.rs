// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folders in which separate debug files of a run's programs are looked for, by names of functions and by source lines alike.
//!
//! Input: a run. Output: folders, in their order.

use std::path::PathBuf;

use kprism_image::separate::folders;
use kprism_store::Run;

/// Folders with debug files by build id: that in the run, where its recorder kept those that it found, then this machine's.
pub fn debug_folders(run: &Run) -> Vec<PathBuf> {
    folders([run.root().as_path()])
}
