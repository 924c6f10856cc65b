// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export`: a run for other tools; the file's suffix picks the format.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_export::{Of, Request, choose, write};
use kprism_session::Progress;

use super::cover::no_text;
use super::cover_args::{CallArgs, CoverageArgs};
use super::output::Select;
use super::report::flow::By;
use super::strict::{StrictArgs, judge_own};
use crate::exit::Outcome;
use crate::given::Given;

/// Options of `kprism export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Table to write as .json or .csv
    #[arg(value_enum, default_value_t = Subject::Functions)]
    subject: Subject,
    /// Which view, for `tlb`: objects (default), functions, processes, threads, pages, heat, distribution, advice
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgs,
    /// File to write; its suffix picks the format. `-.SUFFIX` writes to standard output
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    output: PathBuf,
    #[command(flatten)]
    select: Select,
    #[command(flatten)]
    one: CallArgs,
    /// Weigh folded stacks by instructions, or by time on a CPU as those of durations always are
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    cover: CoverageArgs,
    /// Name .gcda files from the build's folder on, for gcc's -fprofile-prefix-path=BUILD (GCC 12)
    #[arg(long, help_heading = "Coverage")]
    relative: bool,
}

/// The table that a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
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

impl From<Subject> for kprism_export::Subject {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Functions => kprism_export::Subject::Functions,
            Subject::Durations => kprism_export::Subject::Durations,
            Subject::Syscalls => kprism_export::Subject::Syscalls,
            Subject::Tree => kprism_export::Subject::Tree,
            Subject::Tasks => kprism_export::Subject::Tasks,
            Subject::Errors => kprism_export::Subject::Errors,
            Subject::Tlb => kprism_export::Subject::Tlb,
            Subject::Delta => kprism_export::Subject::Delta,
            Subject::Probe => kprism_export::Subject::Probe,
            Subject::Boot => kprism_export::Subject::Boot,
            Subject::Cover => kprism_export::Subject::Cover,
        }
    }
}

/// Writes it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let request = Request {
        input: &args.input,
        output: &args.output,
        subject: args.subject.into(),
        view: args.name.as_deref(),
        filter: args.select.filter(),
        call: args.one.call(),
        weight: args.by.map(Into::into),
        cover: args.cover.options(),
        relative: args.relative,
        progress,
    };
    let format = choose(&request)?;
    let (view, honoured) = format.honours(request.subject);
    given.only(view, &[honoured])?;
    if format.is_checked() {
        args.cover.check(given, &[&args.input], false)?;
    }
    if format.of == Of::Coverage {
        no_text(&args.input, &request.cover)?;
    }
    let written = write(&request, format, out)?;
    let outcome = Outcome::of_rows(written.empty);
    match written.account {
        Some(account) => judge_own(args.strict, &[(&args.input, &account)], outcome, progress),
        None => Ok(outcome),
    }
}
