// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism bisect`: the commit, or the kernel, that made a command cost more.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_bisect::{Ended, Settings, bisect, render};
use kprism_gate::Rule;
use kprism_session::Progress;
use kprism_signals::Second;

use super::guest_args::{GuestArgs, PlaceArgs};
use super::output::{print_json, style};
use crate::exit::{self, Outcome};

/// Help that follows the options.
pub const HELP: &str = "\
Each commit is checked out in DIR/tree, built, and CMD is recorded in the guest. Your
working tree is not touched. Relative paths of --share, --module, --kernel and --tree
are those of the commit. Rules are those of kprism gate, with GOOD as the baseline.

  kprism bisect v1.0 HEAD --build make --share . -- /share/prog
  kprism bisect HEAD~40 HEAD --build 'make -C mod' --module mod/mine.ko \\
      --fail-if 'self_insns[mine_*] > +0' -- cat /proc/mine
  kprism bisect v6.11 v6.12 --build 'make olddefconfig bzImage modules' \\
      --tree . -- ls -R /usr
  kprism bisect linux-image-6.1.0-47-amd64 linux-image-6.1.0-56-amd64 -- ls -R /usr

Exit codes: 0 the first bad one is found, 1 it is one of several that could not be
judged, 2 error, 130 Ctrl-C.";

/// Options of `kprism bisect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The good revision: a commit, or a kernel package of Debian (linux-image-…)
    #[arg(value_name = "GOOD")]
    good: String,
    /// The bad revision
    #[arg(value_name = "BAD")]
    bad: String,
    /// Command to run in the guest
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<String>,
    /// The git repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    repo: PathBuf,
    /// Build each commit by this shell command, in the folder in which it is checked out
    #[arg(long, value_name = "CMD")]
    build: Option<String>,
    /// A revision is bad if this is true of it (can be repeated); without one, if it executes more instructions than the
    /// mean of GOOD and BAD
    #[arg(short, long = "fail-if", value_name = "RULE")]
    fail_if: Vec<String>,
    /// Folder for the runs and the commit that is checked out
    #[arg(short, long, value_name = "DIR", default_value = "kprism.bisect")]
    output: PathBuf,
    /// Keep the runs of all revisions, not only of GOOD, BAD, the first bad one and the one before it
    #[arg(long)]
    keep: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    guest: GuestArgs,
}

/// Searches, and prints the result.
pub fn run(
    args: &Args,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    // The worktree goes at the end, also after a second Ctrl-C.
    kprism_signals::catch(Second::Ignored)?;
    let settings = Settings {
        good: args.good.clone(),
        bad: args.bad.clone(),
        repository: args.repo.clone(),
        build: args.build.clone(),
        rules: args.fail_if.iter().map(|text| Rule::parse(text)).collect::<Result<_>>()?,
        output: args.output.clone(),
        keep: args.keep,
        guest: args.guest.options(),
        job: args.place.job(&args.command),
    };
    let found = bisect(&settings, progress)?;
    match args.json {
        true => print_json(&render::json(&found), out)?,
        false => write!(out, "{}", render::text(&found, style(color, progress)))?,
    }
    Ok(match found.ended {
        Ended::First { .. } => Outcome::Done,
        Ended::OneOf(_) => Outcome::NothingMatched,
        Ended::Interrupted => Outcome::Code(exit::INTERRUPTED),
    })
}
