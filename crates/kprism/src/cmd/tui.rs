// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism tui`: a finished run on screens, by [`kprism_terminal`].

use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_session::Progress;
use kprism_session::cover::{self, Options};
use kprism_signals::Second;
use kprism_store::Run;
use kprism_terminal::{Contents, shell};

use super::output::wants_color;
use crate::exit::Outcome;

pub const HELP: &str = "\
Keys: arrows or h j k l move, Tab shows the next screen, Enter the callers, callees and histograms of
a row, Esc goes back, / filters by a name, s sorts by the next column, ? lists all keys, q ends.

The numbers are those of `kprism report`, which is for what is not a terminal.";

/// Options of `kprism tui`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folder; or counters of gcov: a folder of .gcda, one such file, an archive
    #[arg(value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    input: PathBuf,
    /// Folder with the notes (.gcno) of the build, for coverage by counters
    #[arg(long, value_name = "DIR")]
    build_dir: Option<PathBuf>,
    /// Look for the sources of coverage below DIR, if they are not where they were compiled
    #[arg(long, value_name = "DIR")]
    source_dir: Option<PathBuf>,
}

/// Shows it.
pub fn run(args: &Args, color: clap::ColorChoice, progress: &Progress) -> Result<Outcome> {
    shell::needed(shell::REMEDY)?;
    kprism_signals::catch(Second::Ignored)?;
    let options = Options {
        build_dir: args.build_dir.clone(),
        source_dir: args.source_dir.clone(),
        ..Options::default()
    };
    let contents = read(args, &options, progress)?;
    progress.clear();
    shell::browse(&contents, wants_color(color))?;
    Ok(Outcome::Done)
}

fn read(args: &Args, options: &Options, progress: &Progress) -> Result<Contents> {
    let given = [("--build-dir", &args.build_dir), ("--source-dir", &args.source_dir)];
    for (option, folder) in given.iter().filter_map(|(option, folder)| Some((option, folder.as_ref()?))) {
        if !folder.is_dir() {
            bail!("{option} {}: no such folder", folder.display());
        }
        if !cover::is_cover(&args.input) && !cover::is_alone(&args.input) {
            bail!("{option} is for coverage by gcov's counters, and {} holds none", args.input.display());
        }
    }
    // What is not there is told as of a run.
    match args.input.exists() && cover::is_alone(&args.input) {
        true => Contents::of_counters(&args.input, options, progress),
        false => Contents::open(&Run::open(&args.input)?, options, progress),
    }
}
