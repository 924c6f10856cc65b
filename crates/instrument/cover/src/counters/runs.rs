// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records which of several runs executed a line.
//!
//! Input: the coverage of each run's objects, in any order and from any number of threads ([`Marks::mark`]). Output:
//! [`Runs`]. Lines that were executed by the same runs share one list.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use kprism_gcov::{Notes, Unit};

use crate::path::{Prefixes, absolute};

/// The runs that executed each line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// Names of the runs.
    pub names: Vec<String>,
    /// Distinct sets of run numbers, each sorted.
    pub sets: Vec<Vec<u16>>,
    /// By path: line number and index into `sets`, sorted by line.
    lines: HashMap<String, Vec<(u32, u32)>>,
}

impl Runs {
    /// Returns the executed lines of a source file, sorted, with their index into [`Runs::sets`].
    pub fn of_source(&self, path: &str) -> &[(u32, u32)] {
        self.lines.get(path).map_or(&[], Vec::as_slice)
    }

    /// Returns the numbers of the runs that executed a line.
    pub fn of_line(&self, path: &str, line: u32) -> &[u16] {
        let lines = self.of_source(path);
        let found = lines.binary_search_by_key(&line, |&(line, _)| line);
        found.map_or(&[], |at| &self.sets[lines[at].1 as usize])
    }
}

/// Collects the lines that runs executed.
#[derive(Debug, Default)]
pub struct Marks {
    lines: Mutex<HashMap<String, BTreeMap<u32, Vec<u16>>>>,
    prefixes: Prefixes,
}

impl Marks {
    /// Returns a collector that renames source paths with `prefixes`.
    pub fn renaming(prefixes: Prefixes) -> Self {
        Marks { prefixes, ..Marks::default() }
    }

    /// Adds an object's coverage in a run.
    pub fn mark(&self, run: u16, notes: &Notes<'_>, unit: &Unit) {
        let mut marks = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for lines in unit.lines.chunk_by(|a, b| a.source == b.source) {
            if lines.iter().all(|line| line.count == 0) {
                continue;
            }
            let path = absolute(notes.cwd.as_deref(), &notes.sources[lines[0].source as usize]);
            let source = marks.entry(self.prefixes.map(&path).into_owned()).or_default();
            for line in lines.iter().filter(|line| line.count != 0) {
                let runs = source.entry(line.line).or_default();
                if let Err(place) = runs.binary_search(&run) {
                    runs.insert(place, run);
                }
            }
        }
    }

    /// Returns the collected lines. `names` are the names of the runs.
    pub fn finish(self, names: Vec<String>) -> Runs {
        let marks = self.lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut numbers: BTreeMap<&[u16], u32> = BTreeMap::new();
        for set in marks.values().flat_map(BTreeMap::values) {
            numbers.insert(set, 0);
        }
        for (number, place) in (0u32..).zip(numbers.values_mut()) {
            *place = number;
        }
        let lines = marks.iter().map(|(path, lines)| {
            (path.clone(), lines.iter().map(|(&line, set)| (line, numbers[set.as_slice()])).collect())
        });
        Runs { names, lines: lines.collect(), sets: numbers.keys().map(|set| set.to_vec()).collect() }
    }
}
