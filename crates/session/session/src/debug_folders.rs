// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folders in which separate debug files of a run's programs are looked for, by names of functions and by source lines alike.
//!
//! Input: a run. Output: folders, in their order.

use std::path::PathBuf;

use kprism_image::separate::GLOBAL;
use kprism_image::symbols::under_root;
use kprism_store::Run;

/// Folders with debug files by build id: that in the run, where its recorder kept those that it found, then this machine's.
pub fn debug_folders(run: &Run) -> Vec<PathBuf> {
    under_root(&run.root(), GLOBAL).into_iter().chain([PathBuf::from(GLOBAL)]).collect()
}
