// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism view`: runs in a browser, served on loopback.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kprism_profile::parse;
use kprism_serve::data::Sources;
use kprism_serve::{Door, Settings, Site, browser, serve};
use kprism_session::Progress;
use kprism_session::open::runs_in;
use kprism_signals::Second;
use kprism_store::{Run, StoreError};

use super::cover_args::PlaceArgs;
use crate::exit::Outcome;

pub const HELP: &str = "\
Examples:
  kprism view                         the run in kprism.data
  kprism view plain.data traced.data  two runs, and both side by side
  kprism view --idle 30m runs/        all runs in a folder, until nobody looks for half an hour

From another machine: ssh -L 8000:127.0.0.1:8000 HOST, there kprism view --port 8000 --no-open, and open the
address that it prints. The address holds a secret: whoever has it, and reaches the port, sees the runs.";

/// Options of `kprism view`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run folders, or folders with runs
    #[arg(value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub runs: Vec<PathBuf>,
    /// Listen on this port of 127.0.0.1 [default: one that is free]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Print the address only: do not open a browser
    #[arg(long)]
    pub no_open: bool,
    /// End when nobody asked for anything for this time, such as 30m
    #[arg(long, value_name = "TIME", value_parser = parse::long_duration)]
    pub idle: Option<Duration>,
    /// Folder with the notes (.gcno) of the build, for coverage by gcov's counters, if they are not where it was built
    #[arg(long, value_name = "DIR", help_heading = "Coverage")]
    pub build_dir: Option<PathBuf>,
    #[command(flatten)]
    pub places: PlaceArgs,
}

/// The runs that the words name: runs themselves, and those in folders.
fn named(words: &[PathBuf], progress: &Progress) -> Result<Vec<PathBuf>> {
    let mut runs: Vec<PathBuf> = Vec::new();
    for word in words {
        match Run::open(word) {
            Ok(_) => runs.push(word.clone()),
            Err(StoreError::NotARun { .. }) if word.is_dir() => {
                let found = runs_in(word)?;
                for (path, error) in &found.broken {
                    progress.note(&format!("{}: left out: {error}", path.display()));
                }
                if found.runs.is_empty() {
                    bail!("{}: neither a run nor a folder with runs", word.display());
                }
                runs.extend(found.runs.into_iter().map(|(path, _)| path));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut seen = BTreeSet::new();
    runs.retain(|run| seen.insert(run.clone()));
    Ok(runs)
}

/// Refuses notes that are not there, or that no run can use.
fn refuse_build_dir(args: &Args, runs: &[PathBuf]) -> Result<()> {
    let Some(folder) = &args.build_dir else { return Ok(()) };
    if !folder.is_dir() {
        bail!("--build-dir {}: no such folder", folder.display());
    }
    let is_cover = |path: &PathBuf| {
        Run::open(path).is_ok_and(|run| run.instruments().contains(&kprism_store::Instrument::Cover))
    };
    if !runs.iter().any(is_cover) {
        bail!("--build-dir is for coverage by gcov's counters, and no run here has any");
    }
    Ok(())
}

/// Serves until the user ends it.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let (debug, folder, build_dir) =
        (args.places.files()?, args.places.source_dir.clone(), args.build_dir.clone());
    let sources = Sources { debug, folder, build_dir };
    let runs = named(&args.runs, progress)?;
    refuse_build_dir(args, &runs)?;
    let address = (Ipv4Addr::LOCALHOST, args.port.unwrap_or(0));
    let listener = TcpListener::bind(address).with_context(|| {
        format!("127.0.0.1:{}: cannot listen; without --port a free port is taken", address.1)
    })?;
    let door = Door::new(listener.local_addr()?.port()).context("/dev/urandom")?;
    let url = door.url();
    let site = Site::new(Settings { runs, sources });
    kprism_signals::catch(Second::EndsProcess)?;
    writeln!(out, "{url}")?;
    out.flush()?;
    let lead = if args.no_open { None } else { opened(&url, progress) };
    progress.say("serving; Ctrl-C ends");
    serve(listener, door, site, args.idle).context("serving")?;
    drop(lead);
    Ok(Outcome::Done)
}

/// Opens the browser. Without one, the printed address is for the user to open.
fn opened(url: &str, progress: &Progress) -> Option<browser::Lead> {
    match browser::open(url) {
        Ok(lead) => lead,
        Err(error) => {
            progress.note(&format!("no browser was opened ({error}): open the address yourself"));
            None
        }
    }
}
