// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: parse, call, print.
//!
//! In: arguments. Out: text, files and an exit code (see [`exit`]). This is the only crate that writes to
//! the terminal or ends the process; everything it shows is made by the libraries below it. Each command is
//! a file in `cmd/`: its options and one function. What turns a recorded run into
//! values is in [`kprism_session`].

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "kprism reads and records on x86-64; for another processor build its recorder: --bin kprism-recorder"
);

/// In place of the standard one, which ends the process if nobody reads standard error any more: what is being recorded or
/// put back then is more important than what cannot be said.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod cmd;
mod exit;
mod given;
mod progress;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use exit::Outcome;
use given::Given;
use kprism_placed::{Placed, placed};
use kprism_report::plain::{Plain, plain};
use kprism_session::errors::{is_broken_pipe, text_of};
use progress::Level;

const AFTER_HELP: &str = "\
Start with:
  kprism check                      what this machine can do
  kprism lab run -- ls -l /bin      run a command in a guest and watch its kernel
  kprism report                     where the time went
  kprism report --html report.html  the same to click through

Exit codes: 0 done, 1 nothing matched, 2 error, 3 a rule of gate fired, 4 not whole (--strict). `kprism lab
run` ends with the command's own code, or 124 after --timeout or --max-size, 125 if kprism failed, 130
after Ctrl-C.";

/// See where a stock kernel's time went, instruction by instruction, from outside
#[derive(Debug, Parser)]
#[command(name = "kprism", version, after_help = AFTER_HELP, infer_subcommands = true)]
pub struct Cli {
    /// Say more
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    quiet: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: clap::ColorChoice,
    /// Take options that are not typed from this file [default: the nearest kprism.toml in this folder or above]
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "no_options_file")]
    options_file: Option<PathBuf>,
    /// Take no options from a file
    #[arg(long, global = true)]
    no_options_file: bool,
    /// Use the tables of this profile of the file, too
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "no_options_file")]
    profile: Option<String>,
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    if kprism_tracefs::guard::was_guard() || kprism_record::probe::was_jump_guard() {
        return ExitCode::SUCCESS;
    }
    // SAFETY: no other thread runs yet.
    if unsafe { placed() } == Placed::Serves {
        return kprism_placed::serve().into();
    }
    let (mut definition, kept) = match kprism_options::definition(Cli::command(), kprism_placed::is_target())
    {
        Ok(found) => found,
        Err(error) => {
            eprintln!("kprism: {}", plain(&text_of(&error)));
            return ExitCode::from(2);
        }
    };
    // What clap refuses, it tells itself, and ends the process with 2.
    let matches = definition.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| {
        if let Some(place) = kept.place_of(&error) {
            eprintln!("kprism: {}:", plain(&place));
        }
        error.exit()
    });
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut definition).exit());
    let given = Given::of(&definition, &matches);
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => Level::Quiet,
        (_, true) => Level::Verbose,
        _ => Level::Normal,
    };
    let progress = progress::progress(level);
    if level == Level::Verbose {
        kept.lines().iter().for_each(|line| progress.say(line));
    }
    let mut raw = BufWriter::new(std::io::stdout().lock());
    let mut shown;
    let out: &mut dyn Write = match cli.command.writes_text() {
        true => {
            shown = Plain::new(raw);
            &mut shown
        }
        false => &mut raw,
    };
    let in_lab = cli.command.is_lab_run();
    let result = cmd::run(&cli.command, &given, &kept, cli.color, &progress, out).and_then(|outcome| {
        match out.flush().context("standard output") {
            // How the guest's command ended does not depend on who reads what it wrote.
            Err(error) if in_lab && is_broken_pipe(&error) => Ok(outcome),
            flushed => flushed.map(|()| outcome),
        }
    });
    progress.clear();
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kprism: {}", plain(&text_of(&error)));
            if in_lab { Outcome::Code(exit::LAB_FAILED).into() } else { ExitCode::from(2) }
        }
    }
}
