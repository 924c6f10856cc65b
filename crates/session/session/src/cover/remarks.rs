// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remarks on coverage that was read, in words.

use std::path::Path;

use anyhow::Result;
use kprism_cover::path::is_below;
use kprism_store::Fate;

use super::counters::{TORN, reset_text};
use super::load;
use super::loaded::{Loaded, Unsettled};
use super::options::{Options, Part};
use super::windows::Windows;
use crate::progress::Progress;

/// Why counts of windows can be below 0.
const CUT: &str = "their functions were under way where a window opened or closed (docs/cover.md)";

/// Objects left out that are named.
const NAMED: usize = 5;

/// Reads coverage, and tells what is wrong with it.
///
/// # Errors
/// As of [`load`].
pub fn load_and_tell(input: &Path, from: &Options, who: &Part, progress: &Progress) -> Result<Loaded> {
    let loaded = load(input, from, who, progress)?;
    for windows in &loaded.windows {
        if let Some(remark) = windows.1.remark() {
            progress.error(&format!("kprism: {}{remark}", of_run(windows)));
        }
    }
    for (run, objects) in &loaded.resets {
        progress.error(&format!("kprism: {}", reset_text(run, *objects)));
    }
    tell_problems(&loaded.problems.iter().map(|problem| problem.text.clone()).collect::<Vec<_>>(), progress);
    // Reading takes the same way each time: its own is taken out of the window.
    if let Some(told) = loaded.unsettled.filter(|u| u.functions > u.reading).and_then(Unsettled::to_text) {
        progress.error(&format!("kprism: {told}"));
    }
    for (old, new) in &from.source_prefix {
        if !loaded.cover.sources.iter().any(|source| is_below(new, &source.path)) {
            progress.note(&format!("--source-prefix {old}={new}: no source is below {old}"));
        }
    }
    let torn = loaded.torn();
    if torn > 0 {
        progress.error(&format!(
            "kprism: {torn} lines have counts that cannot be (below 0): {}",
            match loaded.windows.is_empty() {
                true =>
                    "counters were changed by several CPUs at once; build with CFLAGS_GCOV+=-fprofile-update=prefer-atomic",
                false => CUT,
            }
        ));
    }
    Ok(loaded)
}

/// Tells of objects that were left out, or are not whole: the number and the first ones.
pub fn tell_problems(problems: &[String], progress: &Progress) {
    if !problems.is_empty() {
        let first: String = problems.iter().take(NAMED).map(|problem| format!("\n  {problem}")).collect();
        progress.error(&format!("kprism: {} objects left out, or not whole:{first}", problems.len()));
    }
}

/// The run's name before what is said of its windows, if there are several runs.
fn of_run((name, _): &(Option<String>, Windows)) -> String {
    name.as_ref().map_or_else(String::new, |name| format!("{name}: "))
}

impl Loaded {
    /// Number of lines with counts that cannot be.
    pub fn torn(&self) -> u64 {
        self.account.count(Fate::NotUnderstood, TORN).unwrap_or(0)
    }

    /// The windows between conditions that this is of, in words.
    pub fn windows_texts(&self) -> Vec<String> {
        self.windows.iter().map(|windows| format!("{}{}", of_run(windows), windows.1.to_text())).collect()
    }

    /// Remarks at the end of a recording: what reading the counters adds, what changed meanwhile, what could not be used.
    pub fn of_recording(&self) -> Vec<String> {
        let mut texts = Vec::new();
        texts.extend(
            self.windows.iter().map(|(_, windows)| windows.remark().unwrap_or_else(|| windows.to_text())),
        );
        if let Some(footprint) = self.footprint {
            texts.push(format!(
                "reading the counters changes {} of them, {} by varying amounts; this is subtracted, except in {} functions",
                footprint.counters, footprint.varying, footprint.unsure
            ));
        }
        texts.extend(self.unsettled.and_then(Unsettled::to_text));
        if let Some(first) = self.problems.first() {
            let all = self.problems.len();
            texts.push(format!("{all} objects left out, or not whole; the first: {}", first.text));
        }
        texts.extend(self.resets.iter().map(|(run, objects)| reset_text(run, *objects)));
        let torn = self.torn();
        if torn > 0 {
            let why = match self.windows.is_empty() {
                true => "they were changed while they were read, or by several CPUs at once",
                false => CUT,
            };
            texts.push(format!("{torn} lines have counts that cannot be: {why}"));
        }
        texts
    }
}
