// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism export`: a run for other tools; the file's suffix picks the format.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_export::{Request, Subject, choose, write};
use kprism_report::calltree::Weight;
use kprism_session::Progress;

use super::cover_args::{CallArgs, CoverageArgs};
use super::output::{Select, words};
use super::strict::{StrictArgs, judge_own, tell_own};
use crate::exit::Outcome;
use crate::given::Given;

/// Options of `kprism export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Table to write as .json or .csv
    #[arg(value_parser = words(Subject::ALL), default_value = "functions")]
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
    #[arg(long, value_parser = words(Weight::ALL))]
    by: Option<Weight>,
    #[command(flatten)]
    cover: CoverageArgs,
    /// Name .gcda files from the build's folder on, for gcc's -fprofile-prefix-path=BUILD (GCC 12)
    #[arg(long, help_heading = "Coverage")]
    relative: bool,
}

/// Writes it.
pub fn run(args: &Args, given: &Given, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let request = Request {
        input: &args.input,
        output: &args.output,
        subject: args.subject,
        view: args.name.as_deref(),
        filter: args.select.filter(),
        call: args.one.call(),
        weight: args.by,
        cover: args.cover.options(),
        relative: args.relative,
        progress,
    };
    let format = choose(&request)?;
    let (view, honoured) = format.honours(request.subject);
    given.only(view, &[honoured])?;
    if honoured.split_whitespace().any(|option| option == "build_dir") {
        args.cover.check(given, &[&args.input], false)?;
    }
    let written = write(&request, format, out)?;
    let outcome = Outcome::of_rows(written.empty);
    match written.account {
        Some(account) => {
            tell_own(args.strict, &args.input, &account, progress)?;
            judge_own(args.strict, &[(&args.input, &account)], outcome, progress)
        }
        None => Ok(outcome),
    }
}
