// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report boot`: initcalls and long functions of a traced boot.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kprism_report::boot as view;
use kprism_report::header::account_text;
use kprism_session::held;
use kprism_store::{Instrument, Kernel, Run};
use kprism_tracefs::boot::Collected;

use crate::cmd::output::{Io, print_json, write_file};
use crate::exit::Outcome;

/// Rows of each table unless told otherwise.
const ROWS: usize = 12;

/// Options of `kprism report boot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write the boot chart as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "limit"])]
    html: Option<PathBuf>,
    /// Show no more than this many rows of each table; 0 shows all
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Print as JSON, which has all rows
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub fn run(args: &Args, io: &mut Io<'_>) -> Result<Outcome> {
    if args.json && args.limit.is_some_and(|rows| rows > 0) {
        bail!("--limit does not go with `report boot --json`, which has all rows");
    }
    let run = Run::open(io.input)?;
    if !kprism_session::boot::is_boot(io.input) {
        return Err(held::missing(&run, Instrument::Boot));
    }
    let boot = kprism_session::boot::load(io.input)?;
    let account = kprism_session::boot::account(&boot, &Collected::load(io.input)?);
    if let Some(file) = &args.html {
        let release = run
            .manifest()?
            .kernel
            .map_or_else(String::new, |Kernel { release, .. }| format!(" of {release}"));
        let page = view::render(&boot, &format!("Boot{release}")).context("HTML page")?;
        write_file(file, page, io.progress)?;
    } else if args.json {
        let mut value = view::to_json(&boot);
        value["account"] = serde_json::to_value(&account).context("account")?;
        print_json(&value, io.out)?;
    } else {
        write!(io.out, "{}", view::to_text(&boot, args.limit.unwrap_or(ROWS), io.style))?;
        write!(io.out, "\n{}", account_text(Some(&account), io.style))?;
    }
    Ok(if boot.initcalls.is_empty() && boot.calls.is_empty() {
        Outcome::NothingMatched
    } else {
        Outcome::Done
    })
}
