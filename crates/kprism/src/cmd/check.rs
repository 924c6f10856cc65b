// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism check`: what this machine can do, and the remedy for the rest.

use std::io::Write;

use anyhow::Result;
use kprism_placed::is_target;
use kprism_record::check::{State, machine, recorders, to_text};
use kprism_remote::Target;
use kprism_session::Progress;

use super::on;
use crate::exit::Outcome;

/// Options of `kprism check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Look at this machine instead, through ssh
    #[arg(long, value_name = "ssh:[USER@]HOST[:PORT]")]
    pub on: Option<Target>,
}

/// Looks and prints. Ends with 1 if something is missing that the lab needs.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(target) = on::other(&args.on) {
        return on::look(target, progress, out);
    }
    let items = if is_target() { recorders() } else { machine() };
    let missing = items.iter().any(|i| i.state == State::Missing);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &items)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", to_text(&items))?;
    }
    Ok(if missing { Outcome::NothingMatched } else { Outcome::Done })
}
