// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report boot`: initcalls and long functions of a traced boot.

use std::path::PathBuf;

use anyhow::{Context, Result};
use kprism_report::header::{account_text, conditions, head};
use kprism_report::{boot as view, shape};
use kprism_session::held;
use kprism_store::{Instrument, Kernel, Run};

use crate::cmd::output::{Io, default_rows, print_json, write_file};
use crate::exit::Outcome;

/// Rows of each table unless told otherwise.
const ROWS: usize = 12;

/// Options of `kprism report boot`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write the boot chart as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "limit"])]
    html: Option<PathBuf>,
    /// Show no more than this many rows of each table; 0 shows all. JSON has all unless told otherwise
    #[arg(long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub fn run(args: &Args, io: &mut Io<'_>) -> Result<Outcome> {
    let run = Run::open(io.input)?;
    if !kprism_session::boot::is_boot(io.input) {
        return Err(held::missing(&run, Instrument::Boot));
    }
    let boot = kprism_session::boot::load(io.input)?;
    let manifest = run.manifest()?;
    let account = kprism_session::boot::account_of_run(io.input, &boot)?;
    io.progress.shown(&account);
    let rows = args.limit.unwrap_or(default_rows(args.json, ROWS));
    if let Some(file) = &args.html {
        let release = run
            .manifest()?
            .kernel
            .map_or_else(String::new, |Kernel { release, .. }| format!(" of {release}"));
        let page = view::render(&boot, &format!("Boot{release}"), &account, &manifest.conditions(None))
            .context("HTML page")?;
        write_file(file, page, io.progress)?;
    } else if args.json {
        print_json(&view::to_json(&boot, shape::run(Some(&manifest), Some(&account)), rows), io.out)?;
    } else {
        write!(io.out, "{}", head(Some(&account), io.style))?;
        write!(io.out, "{}", conditions(&manifest.conditions(None), io.style))?;
        write!(io.out, "{}", view::to_text(&boot, rows, io.style))?;
        write!(io.out, "{}", account_text(Some(&account), io.style))?;
    }
    Ok(if boot.initcalls.is_empty() && boot.calls.is_empty() {
        Outcome::NothingMatched
    } else {
        Outcome::Done
    })
}
