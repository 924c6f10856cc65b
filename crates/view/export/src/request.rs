// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an export is asked for, and what it says of the file that it wrote.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use kprism_profile::Filter;
use kprism_report::calltree::Weight;
use kprism_session::Progress;
use kprism_session::call::Call;
use kprism_session::cover::{Options, Part};
use kprism_store::Account;

/// What is written, and where.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The run's folder; for coverage also a folder with counters of gcov.
    pub input: &'a Path,
    /// The file or folder to write; its suffix picks the format. `-.SUFFIX` is standard output.
    pub output: &'a Path,
    /// The table.
    pub subject: Subject,
    /// The view of TLB misses.
    pub view: Option<&'a str>,
    /// The tasks.
    pub filter: Filter,
    /// The system call, if only one is written.
    pub call: Call,
    /// The weight of stacks and trees; by default that of the run.
    pub weight: Option<Weight>,
    /// Where coverage is read from.
    pub cover: Options,
    /// Files for gcc are named from the build's folder on.
    pub relative: bool,
    /// Listener of the steps.
    pub progress: &'a Progress,
}

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// Nothing matched.
    pub empty: bool,
    /// The account of what was written, where it is not that of the run.
    pub account: Option<Account>,
}

impl Written {
    pub(crate) fn of_rows(empty: bool) -> Self {
        Written { empty, account: None }
    }

    pub(crate) fn with(account: Account) -> Self {
        Written { empty: false, account: Some(account) }
    }
}

/// The table that a file holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Subject {
    /// Calls, instructions and time of every function; of durations, their times
    #[default]
    Functions,
    /// Durations of functions
    Durations,
    /// Count and latency of every system call
    Syscalls,
    /// Call stacks, weighted
    Tree,
    /// Instructions and time of every task
    Tasks,
    /// Places that could not be decoded
    Errors,
    /// TLB misses
    Tlb,
    /// Intervals between markers
    Delta,
    /// Records of probes
    Probe,
    /// Initcalls of a boot
    Boot,
    /// Coverage
    Cover,
}

impl Request<'_> {
    /// True if standard output is to be written to (`-.SUFFIX`).
    pub(crate) fn is_stdout(&self) -> bool {
        self.output.to_string_lossy().starts_with("-.")
    }

    /// Lets `write` write into the file, or to `out`, and says so.
    pub(crate) fn to_file(
        &self,
        out: &mut dyn Write,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        if self.is_stdout() {
            return write(out);
        }
        let name = || self.output.display().to_string();
        let mut file = BufWriter::new(std::fs::File::create(self.output).with_context(name)?);
        write(&mut file).and_then(|()| Ok(file.flush()?)).with_context(name)?;
        self.progress.say(&format!("wrote {}", name()));
        Ok(())
    }

    /// Whose coverage is written.
    pub(crate) fn part(&self) -> Part {
        Part { filter: self.filter.clone(), call: self.call.syscall.is_some().then(|| self.call.clone()) }
    }
}
