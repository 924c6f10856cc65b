// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism top`: a recording with its counts on screens while it goes on, by [`kprism_terminal::top`].
//!
//! The command line behind `top` is checked here as it will be read, so that a mistake is told before the terminal is taken.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{CommandFactory as _, FromArgMatches as _};
use kprism_profile::parse;
use kprism_session::Progress;
use kprism_signals::Second;
use kprism_terminal::shell;
use kprism_terminal::top::{REMEDY, Settings, in_batch, on_terminal};

use super::output::wants_color;
use super::{Command, lab};
use crate::Cli;
use crate::exit::Outcome;
use crate::given::Given;

pub const HELP: &str = "\
Examples:
  kprism top record probe 'vfs_read' --by '$comm' --hist 'count' -a
  kprism top record durations --aggregate -T 'vfs_*' -- find /usr
  kprism top lab run -- make -j4
  kprism top observe --all -- qemu-system-x86_64 -kernel bzImage -append console=ttyS0 -nographic
  kprism top --batch --interval 5s record probe 'vfs_read' --by '$comm' -a > log

The same is recorded into the same run folder as without `top`. What the recorder and its command print is
a screen of its own. q and Ctrl-C end the recording, and once more the screens: keys are those of `kprism
tui`, and space pauses. Of `lab run` and `observe` the streams are decoded again and again in the
background, by a fifth of a CPU at most; the last line tells how many bytes are not decoded yet. QEMU of
`observe` has no standard input: a console or a monitor on it is seen on the screen, and takes no keys.

Exit codes: those of the command that records; 2 if there is no terminal and no --batch.";

/// Options of `kprism top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Time between two readings, from 100ms on
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print a block of plain text each time instead; what the command prints goes to standard error
    #[arg(long)]
    batch: bool,
    /// Rows of each table with --batch
    #[arg(long, value_name = "ROWS", default_value_t = 10, requires = "batch")]
    limit: usize,
    /// Command that records: `record probe …`, `record durations --aggregate …`, `lab run …` or `observe …`, with its options
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = parse::duration(text)?;
    match time < Duration::from_millis(100) {
        true => Err("a reading takes some time: 100ms at least".to_owned()),
        false => Ok(time),
    }
}

const CAN: &str =
    "`kprism top` goes before `record probe`, `record durations --aggregate`, `lab run` and `observe`";

/// Records and shows it.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let globals = ["verbose", "quiet", "options_file", "no_options_file", "profile"];
    if let Some(option) = given.first(&globals) {
        bail!("{option} is for the recorder: write it behind the words of the command that records");
    }
    let (run, live) = recorded(&args.command)?;
    if !args.batch {
        shell::needed(REMEDY)?;
    }
    kprism_signals::catch(Second::Ignored)?;
    let mut arguments = args.command.clone();
    if live {
        let text = format!("--current={}us", args.interval.as_micros());
        arguments.insert(2, text.into());
    }
    let program = std::env::current_exe().context("this program's file")?;
    let settings = Settings { program, arguments, run, interval: args.interval, rows: args.limit };
    if args.batch {
        return Ok(Outcome::Code(in_batch(&settings, out)?));
    }
    let (code, said) = on_terminal(&settings, wants_color(color))?;
    // What it said last, such as the folder, would be gone with the screens.
    let last = said.len().saturating_sub(LAST);
    said[last..].iter().for_each(|line| progress.say(line));
    Ok(Outcome::Code(code))
}

/// Lines of the recorder that are said when the screens are gone.
const LAST: usize = 8;

/// The run folder of a command line that records, and whether the recorder has to be asked for its counts so far.
fn recorded(command: &[OsString]) -> Result<(PathBuf, bool)> {
    let is_option = |word: &OsString| word.to_string_lossy().starts_with('-');
    // `observe` is one word, the others are two.
    let words = if command.first().is_some_and(|word| word == "observe") { 1 } else { 2 };
    if command.len() < 2 || command.iter().take(words).any(is_option) {
        bail!("{CAN}; its options stand behind these words");
    }
    let line: Vec<OsString> = [OsString::from("kprism")].iter().chain(command).cloned().collect();
    let (mut definition, _) = kprism_options::definition_of(Cli::command(), &line)?;
    let matches = definition.try_get_matches_from_mut(&line).unwrap_or_else(|error| error.exit());
    let cli = Cli::from_arg_matches(&matches)?;
    match &cli.command {
        Command::Lab(lab::Command::Run(args)) => Ok((args.folder()?, false)),
        Command::Observe(args) => Ok((args.folder()?, false)),
        Command::Record(args) => Ok((args.growing()?, true)),
        _ => bail!("{CAN}"),
    }
}
