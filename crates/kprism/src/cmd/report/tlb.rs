// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report tlb`: what missed the TLBs, whose memory that was, and what larger pages would save: the tables of
//! [`kprism_report::tlb`].

use std::path::PathBuf;

use anyhow::Result;
use kprism_export::misses::{View, page, show};
use kprism_store::Run;

use crate::cmd::output::{Io, OutputArgs, ROWS, Select, write_file};
use crate::cmd::strict::{StrictArgs, judge_own, tell_own};
use crate::exit::Outcome;

/// Options of `kprism report tlb`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which view: objects, functions, processes, threads, pages, heat, distribution, advice, counters; an overview if not
    /// given
    #[arg(value_name = "VIEW")]
    view: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    select: Select,
    /// For `counters`: a processor's own counts, as `perf stat -x, -o FILE` writes them
    #[arg(long, value_name = "FILE")]
    counters: Option<PathBuf>,
    /// Write all views as one HTML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["view", "sort", "limit", "json", "csv", "pids", "comms", "counters"])]
    html: Option<PathBuf>,
}

/// Rows of each table of the overview, unless told otherwise.
const OVERVIEW_ROWS: usize = 12;

/// Shows it.
pub fn run(args: &Args, strict: StrictArgs, io: &mut Io<'_>) -> Result<Outcome> {
    if let Some(file) = &args.html {
        let (page, account) = page(&Run::open(io.input)?, io.progress)?;
        write_file(file, page, io.progress)?;
        return judge_own(strict, &[(io.input, &account)], Outcome::Done, io.progress);
    }
    let filter = args.select.filter();
    let view = View { name: args.view.as_deref(), filter: &filter, counters: args.counters.as_deref() };
    let rows = if view.name.is_none() { OVERVIEW_ROWS } else { ROWS };
    let shown = args.output.shown(rows, io.style);
    // The account was drawn up anew: a stream may be damaged since the run's own.
    let (empty, account) = show(io.input, &view, &shown, io.progress, io.out)?;
    if shown.csv {
        tell_own(strict, io.input, &account, io.progress)?;
    }
    judge_own(strict, &[(io.input, &account)], Outcome::of_rows(empty), io.progress)
}
