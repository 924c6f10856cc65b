// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism list`: the runs in a folder, or static tracepoints.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use kprism_report::info;
use kprism_report::plain::plain;
use kprism_session::Progress;
use kprism_session::open::{Runs, runs_in};
use serde_json::json;

use super::output::print_json;
use crate::exit::Outcome;

/// Options of `kprism list`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Folder that holds runs
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// What else can be listed.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Static tracepoints of the kernel or a program, with their fields
    #[command(after_help = super::list_events::HELP)]
    Events(super::list_events::Args),
}

/// Prints one line a run, by name.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(What::Events(args)) = &args.what {
        return super::list_events::run(args, progress, out);
    }
    let Runs { runs, broken } = runs_in(&args.folder)?;
    if args.json {
        let mut list: Vec<_> = runs.iter().map(|(path, m)| json!({"path": path, "manifest": m})).collect();
        list.extend(broken.iter().map(|(path, e)| json!({"path": path, "error": e.to_string()})));
        print_json(&list, out)?;
    } else {
        write!(out, "{}", info::list(&runs))?;
    }
    for (_, error) in &broken {
        eprintln!("{}", plain(&format!("kprism: not a run that can be read: {error}")));
    }
    Ok(Outcome::of_rows(runs.is_empty()))
}
