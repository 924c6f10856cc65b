// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from gcov's counters: finds counters and notes, and puts them together on all CPUs.
//!
//! Counters are named after the object on the machine that built the kernel: notes are looked for beside it there, or
//! below `--build-dir`, at the longest tail of the path that exists there.
//!
//! | step | file |
//! |---|---|
//! | files of a folder; an archive in memory | `folder.rs`, `archive.rs` |
//! | the counters of one input, and those from before its window | `recorded.rs` |
//! | which files of several inputs are the same object | `same_object.rs` |
//! | the counters of several inputs, by object | `many.rs` |
//! | the notes of an object | `notes.rs` |
//! | counters and notes of all objects merged | `merge_objects.rs` |
//! | an account of what is in the result | `account.rs` |

use std::path::Path;

use anyhow::{Result, bail};
use kprism_store::Account;

use self::merge_objects::Merged;
use super::input::is_alone;
use super::loaded::{Loaded, Unsettled};
use super::options::Options;
use super::sources::Built;
use crate::progress::Progress;

mod account;
mod archive;
mod folder;
mod many;
mod merge_objects;
mod notes;
mod recorded;
mod same_object;

pub use account::{NEVER_RAN, RESET_OBJECTS, RESETS};
pub(super) use account::{TORN, reset_object_text, reset_text};
pub(super) use many::{Inputs, Resets};
pub(super) use notes::read_notes;

/// Reads coverage from counters.
pub(super) fn load(input: &Path, options: &Options, progress: &Progress) -> Result<Loaded> {
    progress.step("reading coverage");
    let mut all = Inputs::open(input, options)?;
    let wants_ages = options.shows_text && is_alone(input);
    let mut merged = merge_objects::merge(&all, options, wants_ages);
    let mut resets = all.drop_windows_cut_by_resets(&merged.facts.resets);
    if !resets.is_empty() {
        // The first merge found the resets; windows that they cut are left out of the second.
        merged = merge_objects::merge(&all, options, wants_ages);
    }
    let Merged { cover, runs, facts } = merged;
    resets.extend(all.resets_in_windows());
    let several = all.runs.len() > 1;
    let mut windows = Vec::new();
    for (name, run) in &all.runs {
        let Some(found) = &run.windows else { continue };
        windows.push((several.then(|| name.clone()), found.clone()));
    }
    let were_read_before = all.runs.iter().any(|(_, run)| run.earlier.len() > 1);
    let mut loaded = Loaded {
        cover,
        problems: facts.problems,
        footprint: were_read_before.then_some(facts.footprint),
        unsettled: Unsettled::of(input),
        runs,
        account: Account::new(),
        built: if is_alone(input) { facts.built } else { Built::of_run(input) },
        inferred: None,
        windows,
        resets,
    };
    loaded.account = account::account(&all, &loaded, &facts.gaps);
    progress.clear();
    if loaded.cover.objects == 0 {
        bail!("none of {} objects could be used; the first: {}", all.objects.len(), loaded.problems[0].text);
    }
    Ok(loaded)
}
