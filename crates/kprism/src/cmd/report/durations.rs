// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report durations`: how long functions took.

use std::path::PathBuf;

use anyhow::{Result, bail};
use kprism_export::durations::{View, show};
use kprism_report::calltree::Weight;
use kprism_store::{Instrument, Run};

use super::flow::ShapeArgs;
use crate::cmd::output::{Io, OutputArgs, ROWS, Select, write_html};
use crate::exit::Outcome;
use crate::given::Given;

/// Options of `kprism report durations`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    select: Select,
    /// Write all views of the durations as one HTML file instead
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print Function, Count, Time, Average and Local as ftd does, in ns
    #[arg(long)]
    ftd: bool,
    /// What this function calls, most often called first; `*` and `?` allowed
    #[arg(long, value_name = "FUNC", conflicts_with_all = ["callers", "by_task", "ftd"])]
    callees: Option<String>,
    /// Who calls this function; `*` and `?` allowed
    #[arg(long, value_name = "FUNC", conflicts_with_all = ["by_task", "ftd"])]
    callers: Option<String>,
    /// The call tree, by time on a CPU
    #[arg(long, conflicts_with_all = ["callees", "callers", "by_task", "ftd"])]
    tree: bool,
    /// Every function of each task
    #[arg(long, conflicts_with = "ftd")]
    by_task: bool,
    /// What `record durations --remeasure` measured first and then, side by side
    #[arg(long, conflicts_with_all = ["callees", "callers", "by_task", "ftd", "tree"])]
    remeasured: bool,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// Refuses options that the view would ignore.
fn honoured(args: &Args, given: &Given) -> Result<()> {
    if args.html.is_some() {
        return given.only("`report durations --html`, which writes every view", &["html"]);
    }
    match (args.tree, args.ftd) {
        (true, _) => {
            given.only("`report durations --tree`", &["limit json pids comms tree min_percent depth"])
        }
        // ftd's own table is sorted by time, and text.
        (_, true) => given.only("`report durations --ftd`", &["limit pids comms ftd"]),
        _ => given.only(
            "`report durations`",
            &["sort limit json csv pids comms callees callers by_task remeasured"],
        ),
    }
}

/// Shows it.
pub fn run(args: &Args, given: &Given, io: &mut Io<'_>) -> Result<Outcome> {
    honoured(args, given)?;
    let run = Run::open(io.input)?;
    if let Some(file) = &args.html {
        // One page holds every view of durations; a flow's has more than those.
        if !run.holds(Instrument::Durations) {
            bail!("--html writes all views of a flow: leave the subject away");
        }
        let (run, profile, manifest) = kprism_session::open_profile(io.input, io.progress)?;
        io.progress.clear();
        return write_html(&run, file, &manifest, &profile, io.progress);
    }
    // ftd's table is whole unless told otherwise.
    let shown = args.output.shown(if args.ftd { 0 } else { ROWS }, io.style);
    let empty = show(&run, &view(args), &args.select.filter(), &shown, io.progress, io.out)?;
    Ok(Outcome::of_rows(empty))
}

fn view(args: &Args) -> View<'_> {
    match (&args.callees, &args.callers) {
        (Some(name), _) => View::Callees(name),
        (_, Some(name)) => View::Callers(name),
        _ if args.ftd => View::Ftd,
        _ if args.remeasured => View::Remeasured,
        _ if args.tree => View::Tree(args.shape.options(Weight::Time, args.output.form.json)),
        _ if args.by_task => View::ByTask,
        _ => View::Functions,
    }
}
