// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of several runs, by object.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kprism_cover::counters::window::{Windowed, is_reset};

use super::recorded::{Counters, Recorded};
use super::same_object::{Names, Objects, Shared};
use crate::cover::options::Options;
use crate::cover::windows::Counted;

/// The counters of several runs, by object.
pub struct Inputs {
    /// The runs, each with its name and its counters.
    pub runs: Vec<(String, Recorded)>,
    /// Paths of objects, without suffix; the runs that have them, and where.
    pub objects: Vec<Shared>,
    /// Notes in the folders whose objects have no counters in any of them. None if no input is a folder: a run or an
    /// archive does not say which objects it could have had.
    pub never_ran: Option<Vec<PathBuf>>,
}

/// The fate of the counters that a run has from before its window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resets {
    /// Objects that had counted more then than at the end.
    pub restarted: usize,
    /// Those that had counted something, and no more since.
    pub unchanged: usize,
}

impl Resets {
    /// Adds an object's counters.
    pub fn add(&mut self, windowed: &Windowed) {
        self.restarted += usize::from(windowed.restarted);
        self.unchanged += usize::from(windowed.unchanged);
    }
}

/// The notes of folders that no counters belong to, each once.
fn never_ran<'r>(runs: impl Iterator<Item = &'r Recorded> + Clone) -> Option<Vec<PathBuf>> {
    let folders = runs.filter_map(|recorded| match &recorded.counters {
        Counters::Files(files, Some(folder)) => Some((files, &recorded.notes, folder)),
        _ => None,
    });
    folders.clone().next()?;
    let below = |path: &Path, folder: &Path| path.strip_prefix(folder).unwrap_or(path).with_extension("");
    let mut known: HashSet<PathBuf> = HashSet::new();
    for (files, _, folder) in folders.clone() {
        known.extend(files.iter().map(|path| below(path, folder)));
    }
    let mut never = Vec::new();
    for (_, notes, folder) in folders {
        never.extend(notes.iter().filter(|path| known.insert(below(path, folder))).cloned());
    }
    Some(never)
}

impl Inputs {
    /// Opens a run and those to be added to it.
    pub fn open(input: &Path, options: &Options) -> Result<Self> {
        let mut runs = Vec::new();
        for path in std::iter::once(input).chain(options.merge.iter().map(PathBuf::as_path)) {
            runs.push((path.display().to_string(), Recorded::open(path, options.since_boot)?));
        }
        let mut objects = Objects::default();
        for (run, (_, recorded)) in runs.iter().enumerate() {
            for index in 0..recorded.len() {
                let names = match runs.len() {
                    // Nothing to be compared with: the stamp need not be read.
                    1 => Names::default(),
                    _ => recorded.counters.names(index),
                };
                objects.add(names, recorded.object(index), (run, index));
            }
        }
        let never_ran = never_ran(runs.iter().map(|(_, recorded)| recorded));
        let objects = objects.all;
        Ok(Inputs { runs, objects, never_ran })
    }

    /// gcov's counters of windows between conditions: the runs, and what is known of each.
    pub fn counted(&self) -> impl Iterator<Item = (&str, &Counted)> {
        self.runs
            .iter()
            .filter_map(|(name, run)| Some((name.as_str(), run.windows.as_ref()?.counted.as_ref()?)))
    }

    /// Runs in one of whose windows all counters were cleared, and how many objects show it.
    pub fn resets_in_windows(&self) -> Vec<(String, usize)> {
        let of = |(name, counted): (&str, &Counted)| {
            counted.resets.iter().map(|objects| (name.to_owned(), *objects)).collect::<Vec<_>>()
        };
        self.counted().flat_map(of).collect()
    }

    /// Counters of an object in the window of each of its runs, and what reading them added.
    pub fn windows(&self, object: usize) -> impl Iterator<Item = (usize, Result<Windowed>)> {
        self.objects[object].1.iter().map(|&(run, index)| {
            let (name, recorded) = &self.runs[run];
            (run, recorded.window(index).with_context(|| name.clone()))
        })
    }

    /// If all of a run's counters were cleared in its window, drops the run's readings from before it: a reset is of all
    /// objects, so differences with those would be wrong even where none is negative. `before` has one element for each
    /// run. Returns the names of these runs, and how many objects show it.
    pub fn drop_windows_cut_by_resets(&mut self, before: &[Resets]) -> Vec<(String, usize)> {
        let mut resets = Vec::new();
        for ((name, recorded), before) in self.runs.iter_mut().zip(before) {
            if is_reset(before.restarted, before.unchanged) {
                recorded.earlier.clear();
                resets.push((name.clone(), before.restarted));
            }
        }
        resets
    }
}
