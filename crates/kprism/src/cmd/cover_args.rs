// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that several commands share: those of coverage, of debug information, and of one call.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kprism_session::call::{Call, Which};
use kprism_session::cover::sources::parse_prefix;
use kprism_session::cover::{DebugFiles, Options, is_alone, is_cover, is_flow};

use crate::given::Given;

/// Options on where coverage is read from.
#[derive(Debug, Clone, clap::Args)]
pub struct CoverageArgs {
    /// Folder with the notes (.gcno) of the build, if they are not where it was built
    #[arg(long, value_name = "DIR", help_heading = "Coverage")]
    pub build_dir: Option<PathBuf>,
    /// Count from the boot on, not only in the run's window
    #[arg(long, help_heading = "Coverage")]
    pub since_boot: bool,
    /// Use the recorded flow, even if the run has gcov's counters
    #[arg(long, help_heading = "Coverage")]
    pub by_flow: bool,
    /// Add what this run counted, of the same build; views then tell which run executed a line (can be repeated)
    #[arg(long, value_name = "RUN", help_heading = "Coverage")]
    pub merge: Vec<PathBuf>,
    /// Replace the beginning OLD of source paths by NEW: in tables, in exports, and when sources are read (can be repeated)
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_prefix, help_heading = "Coverage")]
    pub source_prefix: Vec<(String, String)>,
    /// Look for sources below DIR, if they are not where they were; the file whose path agrees longest from its end is taken
    #[arg(long, value_name = "DIR", help_heading = "Coverage")]
    pub source_dir: Option<PathBuf>,
    #[command(flatten)]
    pub debug: DebugArgs,
}

/// Places of debug information, for coverage of a flow and source lines of functions.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Debug information")]
pub struct DebugArgs {
    /// The kernel with debug information, for source lines of its functions
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,
    /// A kernel module (.ko) with debug information (can be repeated); modules that the lab loaded from a file are found
    #[arg(long, value_name = "FILE")]
    pub module_file: Vec<PathBuf>,
    /// Folder with debug information by build id (can be repeated; /usr/lib/debug is always looked at)
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
}

/// Places of debug information and sources, for pages that show a function's source.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Source beside the flow")]
pub struct PlaceArgs {
    /// Look for sources below DIR, if they are not where they were compiled
    #[arg(long, value_name = "DIR")]
    pub source_dir: Option<PathBuf>,
    /// The kernel with debug information, for source lines of its functions
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,
    /// Folder with debug information by build id (can be repeated; /usr/lib/debug is always looked at)
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
}

impl PlaceArgs {
    /// As the library takes the debug information.
    ///
    /// # Errors
    /// A file or folder is not there.
    pub fn files(&self) -> Result<DebugFiles> {
        let folders = self.debug_dir.iter().map(|folder| ("--debug-dir", folder));
        for (option, folder) in folders.chain(self.source_dir.iter().map(|folder| ("--source-dir", folder))) {
            if !folder.is_dir() {
                bail!("{option} {}: no such folder", folder.display());
            }
        }
        if let Some(file) = self.vmlinux.as_ref().filter(|file| !file.is_file()) {
            bail!("--vmlinux {}: no such file", file.display());
        }
        let (vmlinux, debug_dir) = (self.vmlinux.clone(), self.debug_dir.clone());
        Ok(DebugFiles { vmlinux, module_file: Vec::new(), debug_dir })
    }
}

/// Options that choose one call of a system call or function.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CallArgs {
    /// Only one call of this system call, the slowest if --call does not say another
    #[arg(long, value_name = "NAME", group = "callee")]
    pub syscall: Option<String>,
    /// The same of this function: NAME, NAME@MODULE, or its address (0x…)
    #[arg(long, value_name = "FUNC", group = "callee")]
    pub func: Option<String>,
    /// Which call: `slowest`, `median`, `fastest`, or its number, from 1, in order of time
    #[arg(long, value_name = "WHICH", requires = "callee", default_value = "slowest")]
    pub call: Which,
}

/// Ids of the options of [`CoverageArgs`].
pub const COVERAGE: &str = "build_dir since_boot by_flow merge source_prefix source_dir vmlinux \
    module_file debug_dir";

impl CoverageArgs {
    /// Refuses options that coverage of these inputs would ignore, and folders that are not there. `both` says that the
    /// counters and the flow of each input are read.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self, given: &Given, inputs: &[&Path], both: bool) -> Result<()> {
        let folders = [("--build-dir", &self.build_dir), ("--source-dir", &self.source_dir)];
        let folders = folders.into_iter().filter_map(|(option, folder)| Some((option, folder.as_ref()?)));
        for (option, folder) in folders.chain(self.debug.debug_dir.iter().map(|dir| ("--debug-dir", dir))) {
            if !folder.is_dir() {
                bail!("{option} {}: no such folder", folder.display());
            }
        }
        if let Some(run) = self.merge.iter().find(|run| !run.exists()) {
            bail!("--merge {}: no such file or folder", run.display());
        }
        let from = self.options();
        let all: Vec<&Path> = inputs.iter().copied().chain(self.merge.iter().map(PathBuf::as_path)).collect();
        if all.iter().all(|input| is_alone(input)) {
            given.none_of(
                "counters outside a run, which have no flow and no window",
                &["by_flow", "since_boot"],
            )?;
        }
        if !both && !all.iter().any(|input| is_flow(input, &from)) {
            given.none_of("gcov's counters", &["vmlinux", "module_file", "debug_dir"])?;
        }
        if !both && all.iter().all(|input| is_flow(input, &from)) {
            given.none_of("coverage from a flow", &["build_dir", "since_boot"])?;
        }
        if !all.iter().any(|input| is_cover(input)) {
            given.none_of("inputs without counters of a window", &["since_boot"])?;
        }
        Ok(())
    }

    /// As the library takes them.
    pub fn options(&self) -> Options {
        Options {
            every_block: false,
            build_dir: self.build_dir.clone(),
            since_boot: self.since_boot,
            by_flow: self.by_flow,
            merge: self.merge.clone(),
            source_prefix: self.source_prefix.clone(),
            source_dir: self.source_dir.clone(),
            debug: self.debug.files(),
            shows_text: false,
        }
    }
}

impl DebugArgs {
    /// As the library takes them.
    pub fn files(&self) -> DebugFiles {
        DebugFiles {
            vmlinux: self.vmlinux.clone(),
            module_file: self.module_file.clone(),
            debug_dir: self.debug_dir.clone(),
        }
    }
}

impl CallArgs {
    /// As the library takes it.
    pub fn call(&self) -> Call {
        Call::new(self.syscall.clone(), self.func.clone(), self.call)
    }

    /// True if one call is asked for.
    pub fn is_given(&self) -> bool {
        self.syscall.is_some() || self.func.is_some()
    }
}
