// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an export was asked for, and the file that it writes.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use kprism_session::Progress;

use crate::cmd::cover_args::{CallArgs, CoverageArgs};
use crate::cmd::output::Select;
use crate::cmd::report::flow::By;
use crate::cmd::strict::StrictArgs;
use crate::given::Given;

/// What an export was asked for.
pub struct Request<'a> {
    /// The options.
    pub args: &'a Args,
    /// Those that were typed.
    pub given: &'a Given,
    /// Listener of the steps.
    pub progress: &'a Progress,
}

/// Options of `kprism export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Table to write as .json or .csv
    #[arg(value_enum, default_value_t = Subject::Functions)]
    pub subject: Subject,
    /// Which view, for `tlb`: objects (default), functions, processes, threads, pages, heat, distribution, advice
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// File to write; its suffix picks the format. `-.SUFFIX` writes to standard output
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    pub output: PathBuf,
    #[command(flatten)]
    pub select: Select,
    #[command(flatten)]
    pub one: CallArgs,
    /// Weigh folded stacks by instructions, or by time on a CPU as those of durations always are
    #[arg(long, value_enum)]
    pub by: Option<By>,
    #[command(flatten)]
    pub cover: CoverageArgs,
    /// Name .gcda files from the build's folder on, for gcc's -fprofile-prefix-path=BUILD (GCC 12)
    #[arg(long, help_heading = "Coverage")]
    pub relative: bool,
}

/// The table that a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// Calls, instructions and time of every function; of durations, their times
    Functions,
    /// Durations of functions
    #[value(alias = "func")]
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
    pub fn is_stdout(&self) -> bool {
        self.args.output.to_string_lossy().starts_with("-.")
    }

    /// Lets `write` write into the file, or to `out`, and says so.
    pub fn to_file(
        &self,
        out: &mut dyn Write,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        if self.is_stdout() {
            return write(out);
        }
        let name = || self.args.output.display().to_string();
        let mut file = BufWriter::new(std::fs::File::create(&self.args.output).with_context(name)?);
        write(&mut file).and_then(|()| Ok(file.flush()?)).with_context(name)?;
        self.progress.say(&format!("wrote {}", name()));
        Ok(())
    }
}
