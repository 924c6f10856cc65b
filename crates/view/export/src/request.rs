// SPDX-License-Identifier: MIT OR Apache-2.0
//! The request for an export, and the account of the file that was written.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use kprism_profile::Filter;
use kprism_report::calltree::Weight;
use kprism_session::Progress;
use kprism_session::call::Call;
use kprism_session::cover::{Options, Part};
use kprism_store::Account;

/// A request: the data and the file to write them to.
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
    /// The call of a system call or function, if only one is written.
    pub call: Call,
    /// The weight of stacks and trees; by default that of the run.
    pub weight: Option<Weight>,
    /// Sources of coverage.
    pub cover: Options,
    /// Files for gcc are named from the build's folder on.
    pub relative: bool,
    /// Listener of the steps.
    pub progress: &'a Progress,
}

/// Result of an export.
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

/// Declares [`Subject`]: a row gives a variant, its words on a command line and its meaning.
macro_rules! subjects {
    ($($variant:ident, $words:expr, $meaning:literal;)*) => {
        /// The table that a file holds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Subject {
            $(#[doc = $meaning] $variant,)*
        }

        impl Subject {
            /// All of them, each with its words on a command line, the present one first, and its meaning.
            pub const ALL: &[(Subject, &[&str], &str)] = &[$((Subject::$variant, &$words, $meaning),)*];
        }
    };
}

subjects! {
    Functions, ["functions"], "Calls, instructions and time of every function; of durations, their times";
    Durations, ["durations", "func"], "Durations of functions";
    Syscalls, ["syscalls"], "Count and latency of every system call";
    Tree, ["tree"], "Call stacks, weighted";
    Tasks, ["tasks"], "Instructions and time of every task";
    Errors, ["errors"], "Places that could not be decoded";
    Tlb, ["tlb"], "TLB misses";
    Delta, ["delta"], "Intervals between markers";
    Probe, ["probe"], "Records of probes";
    Boot, ["boot"], "Initcalls of a boot";
    Cover, ["cover"], "Coverage";
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

    /// Tasks and call whose coverage is written.
    pub(crate) fn part(&self) -> Part {
        Part { filter: self.filter.clone(), call: self.call.callee.is_some().then(|| self.call.clone()) }
    }
}
