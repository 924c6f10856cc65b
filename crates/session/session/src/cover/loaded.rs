// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage that was read, with its defects.

use std::path::Path;

use kprism_cover::Cover;
use kprism_cover::counters::Runs;
use kprism_cover::cover::Source;
use kprism_cover::executed::Inferred;
use kprism_gcov::memory::TRIES;
use kprism_store::{Account, Fate, OptionKey, Run};

use super::sources::{self, Built, CHANGED, Found};
use super::windows::Windows;

/// Coverage, and what could not be used.
pub struct Loaded {
    /// The executed lines, branches, calls and functions.
    pub cover: Cover,
    /// Objects left out or not whole, and why.
    pub problems: Vec<Problem>,
    /// Counts that reading the counters added to the window, if they were read in it.
    pub footprint: Option<Footprint>,
    /// Counters that changed while they were read from memory.
    pub unsettled: Option<Unsettled>,
    /// Of several runs, which executed what.
    pub runs: Option<Runs>,
    /// The account of the coverage.
    pub account: Account,
    /// When the code was built, or ran, for sources that are read.
    pub built: Built,
    /// Lines without code whose counts follow from lines around them; counters have none.
    pub inferred: Option<Inferred>,
    /// Windows between conditions that this is of, and of several runs the name of each.
    pub windows: Vec<(Option<String>, Windows)>,
    /// Runs all of whose counters were cleared in the window, and how many objects show it.
    pub resets: Vec<(String, usize)>,
}

impl Loaded {
    /// Counts sources that changed after the code was built in the account. Coverage of a flow, which reads sources to
    /// tell of lines without code, has counted them.
    pub fn count_changed(&mut self, changed: Vec<String>) {
        if self.inferred.is_none() {
            let account = std::mem::take(&mut self.account);
            self.account = account.at(Fate::Guessed, CHANGED, changed.len() as u64, changed);
        }
    }

    /// Reads the text of a source, and counts it in the account if it changed after the code was built.
    pub fn read_source(&mut self, source: &Source, folder: Option<&Path>) -> SourceText {
        let found = sources::of_source(source, folder);
        let changed = found.changed(&source.path, &self.built);
        self.count_changed(changed.iter().cloned().collect());
        let short = found.short();
        let missing = (found == Found::Missing)
            .then(|| format!("{}: no source; --source-dir names its folder", source.path));
        let text = found.text();
        let lines = text.as_ref().map_or(0, |text| u32::try_from(text.lines().count()).unwrap_or(u32::MAX));
        let last = lines.max(source.lines.last().map_or(0, |line| line.line));
        SourceText { text, last, short, missing, changed }
    }
}

/// The text of a source with coverage, and remarks on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceText {
    /// The text; None if the file is nowhere, or is not the one that was compiled.
    pub text: Option<String>,
    /// The last line of the text or, if that is later, with code.
    pub last: u32,
    /// The file ends before its code does: the remark on it.
    pub short: Option<String>,
    /// The file is nowhere: the remark on it.
    pub missing: Option<String>,
    /// The file changed after the code was built, or ran: the remark on it.
    pub changed: Option<String>,
}

/// An object that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Its fate.
    pub kind: ProblemKind,
    /// Its name, and why.
    pub text: String,
}

/// Fate of an object that is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// It is not in the result.
    LeftOut,
    /// Its counters were reset; earlier counts are not in the result.
    Reset,
    /// Its module was unloaded, and its counts with it.
    Unloaded,
}

/// The cost of reading the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Counters that a reading adds to: it was taken out of the window.
    pub counters: usize,
    /// Those to which readings did not always add the same.
    pub varying: usize,
    /// Functions whose counts in the window have the reading's in them.
    pub unsure: usize,
}

/// Functions that ran while their counters were read from the memory of a kernel that went on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Unsettled {
    /// Those that were never twice the same: their counts are from different times.
    pub functions: u64,
    /// Of these, functions that the reading itself executes.
    pub reading: u64,
    /// Readings that were done again.
    pub again: u64,
}

impl Unsettled {
    /// In words, if there are any.
    pub fn to_text(self) -> Option<String> {
        (self.functions > 0).then(|| {
            format!(
                "{} functions changed while they were read, at each of {} readings ({} of them are run by the reading itself): \
                 their counters are from different times",
                self.functions,
                TRIES + 1,
                self.reading
            )
        })
    }

    /// Its name in the manifest.
    pub const OPTION: OptionKey = OptionKey::Unsettled;

    pub(super) fn of(run: &Path) -> Option<Self> {
        let manifest = Run::open(run).and_then(|run| run.manifest()).ok()?;
        serde_json::from_value(manifest.option(Self::OPTION)?.clone()).ok()
    }
}
