// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from gcov's counters: finds counters and notes, and puts them together on all CPUs.
//!
//! Counters are named after the object on the machine that built the kernel: notes are looked for beside it there, or
//! below `--build-dir`, under as much of the path's end as is found there.
//!
//! | step | file |
//! |---|---|
//! | files of a folder; an archive in memory | `folder.rs`, `archive.rs` |
//! | the counters of one input, and those from before its window | `recorded.rs` |
//! | which files of several inputs are the same object | `same_object.rs` |
//! | the counters of several inputs, by object | `many.rs` |
//! | the notes of an object | `notes.rs` |
//! | counters and notes of all objects merged | `merge.rs` |
//! | an account of what is in the result | `account.rs` |

use std::path::Path;

use anyhow::{Result, bail};

use super::input::is_alone;
use super::loaded::{Loaded, Unsettled};
use super::options::Options;
use super::sources::Built;
use crate::progress::Progress;

mod account;
mod archive;
mod folder;
mod many;
mod merge;
mod notes;
mod recorded;
mod same_object;

pub use account::{ANEW, NEVER_RAN, RESETS};
pub(super) use account::{TORN, anew_text, reset_text};
pub(super) use many::{Before, Many};
pub(super) use notes::read_notes;

/// Reads coverage from counters.
pub(super) fn load(input: &Path, options: &Options, progress: &Progress) -> Result<Loaded> {
    progress.step("reading coverage");
    let mut all = Many::open(input, options)?;
    let wants_ages = options.shows_text && is_alone(input);
    let (mut loaded, mut seen) = merge::merge(&all, options, wants_ages);
    let resets = all.drop_windows_cut_by_resets(&seen.before);
    if !resets.is_empty() {
        (loaded, seen) = merge::merge(&all, options, wants_ages);
    }
    loaded.resets = resets;
    loaded.unsettled = Unsettled::of(input);
    loaded.account = account::account(&all, &loaded, &seen.gaps);
    if !is_alone(input) {
        loaded.built = Built::of_run(input);
    }
    progress.clear();
    if loaded.cover.objects == 0 {
        bail!("none of {} objects could be used; the first: {}", all.objects.len(), loaded.problems[0].text);
    }
    Ok(loaded)
}
