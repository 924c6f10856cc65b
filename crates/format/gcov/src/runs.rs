// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of several runs executed a line.
//!
//! In: for each run, the coverage of its objects, in any order and from any number of threads ([`Marks::mark`]). Out:
//! [`Runs`]. Lines that the same runs executed share one list of those.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use crate::notes::Notes;
use crate::path::{Prefixes, absolute};
use crate::unit::Unit;

/// Which runs executed which lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// What the runs are called.
    pub names: Vec<String>,
    /// Numbers of runs, each list once, in order.
    pub sets: Vec<Vec<u16>>,
    /// By path: line, and which of the sets; by line.
    lines: HashMap<String, Vec<(u32, u32)>>,
}

impl Runs {
    /// The lines of a source file that any of the runs executed, by line, with the number of the set of those.
    pub fn of_source(&self, path: &str) -> &[(u32, u32)] {
        self.lines.get(path).map_or(&[], Vec::as_slice)
    }

    /// The runs that executed a line.
    pub fn of_line(&self, path: &str, line: u32) -> &[u16] {
        let lines = self.of_source(path);
        let found = lines.binary_search_by_key(&line, |&(line, _)| line);
        found.map_or(&[], |at| &self.sets[lines[at].1 as usize])
    }
}

/// Takes in what runs executed.
#[derive(Debug, Default)]
pub struct Marks {
    lines: Mutex<HashMap<String, BTreeMap<u32, Vec<u16>>>>,
    prefixes: Prefixes,
}

impl Marks {
    /// One that gives sources the names that `prefixes` tells.
    pub fn renaming(prefixes: Prefixes) -> Self {
        Marks { prefixes, ..Marks::default() }
    }

    /// Adds an object of a run.
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

    /// What they were, the runs called by `names`.
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
