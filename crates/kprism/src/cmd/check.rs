// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism check`: what this machine can do, and the remedy for the rest.

use std::io::Write;

use anyhow::Result;
use kprism_record::check::{State, machine};

use crate::exit::Outcome;

/// Options of `kprism check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Looks and prints. Ends with 1 if something is missing that the lab needs.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Outcome> {
    let items = machine();
    let missing = items.iter().any(|i| i.state == State::Missing);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &items)?;
        writeln!(out)?;
    } else {
        for item in &items {
            let mark = match item.state {
                State::Ok => "ok",
                State::Optional => "--",
                State::Missing => "MISSING",
            };
            writeln!(out, "{mark:<8}{:<18}{}", item.name, item.found)?;
            if !item.remedy.is_empty() {
                writeln!(out, "{:<26}{}", "", item.remedy)?;
            }
        }
        writeln!(out)?;
        let verdict = if missing {
            "kprism lab run will not work yet: see MISSING above"
        } else {
            "kprism lab run can work here"
        };
        writeln!(out, "{verdict}")?;
    }
    Ok(if missing { Outcome::NothingMatched } else { Outcome::Done })
}
