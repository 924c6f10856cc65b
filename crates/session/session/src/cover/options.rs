// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of coverage: its input, and the tasks whose code counts.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kprism_profile::Filter;
use kprism_store::Run;

use super::input::is_flow;
use crate::call::Call;
use crate::debug_folders::debug_folders;

/// Options of reading coverage.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Folder with the notes (.gcno) of the build, if they are not where it was built.
    pub build_dir: Option<PathBuf>,
    /// Count from the boot on, not only in the run's window.
    pub since_boot: bool,
    /// Count gcov's lines over every block that touches them, not only over those that gcov takes for theirs: to compare.
    pub every_block: bool,
    /// Use the recorded flow, even if the run has gcov's counters.
    pub by_flow: bool,
    /// Add what this run counted, of the same build; views then tell which run executed a line.
    pub merge: Vec<PathBuf>,
    /// Sources of OLD are in NEW, everywhere: in tables, exports, and to be read.
    pub source_prefix: Vec<(String, String)>,
    /// Look for sources below DIR, if they are not where they were; the file whose path agrees longest from its end is taken.
    pub source_dir: Option<PathBuf>,
    /// Debug information, for coverage of a flow.
    pub debug: DebugFiles,
    /// The text of sources is shown: notes tell when each was built.
    pub shows_text: bool,
}

impl Options {
    /// Refuses a folder of sources for a view that reads none of them. Of a flow, sources tell of lines without code.
    ///
    /// # Errors
    /// [`Options::source_dir`] is given, and coverage of `input` comes from counters.
    pub fn refuse_source_dir(&self, input: &Path) -> Result<()> {
        if self.source_dir.is_some() && !is_flow(input, self) {
            bail!(
                "--source-dir does not go with this view of counters: it would change nothing there; it is for \
                 `annotate` and `report cover --html`, and --source-prefix OLD=NEW changes paths"
            );
        }
        Ok(())
    }
}

/// Places of debug information, for coverage of a flow and source lines of functions.
#[derive(Debug, Clone, Default)]
pub struct DebugFiles {
    /// The kernel with debug information, for source lines of its functions.
    pub vmlinux: Option<PathBuf>,
    /// A kernel module (.ko) with debug information (can be repeated); modules that the run had from a file of the user's are in it.
    pub module_file: Vec<PathBuf>,
    /// Folder with debug information by build id (can be repeated; /usr/lib/debug is always looked at).
    pub debug_dir: Vec<PathBuf>,
}

/// The part of a flow whose coverage is counted.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// Tasks; all if empty.
    pub filter: Filter,
    /// One call of a system call or function.
    pub call: Option<Call>,
}

impl DebugFiles {
    /// Folders with debug information by build id, for what ran in `run`: the named ones, the run's, and last distributions' own.
    pub fn folders(&self, run: &Run) -> Vec<PathBuf> {
        self.debug_dir.iter().cloned().chain(debug_folders(run)).collect()
    }
}
