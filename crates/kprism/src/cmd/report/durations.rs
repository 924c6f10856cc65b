// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report durations`: how long functions took.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kprism_profile::{Filter, Profile, Times, TracingCost};
use kprism_report::calltree::{self, Weight};
use kprism_report::durations as view;
use kprism_report::header::Header;
use kprism_report::{Table, tree};
use kprism_session::durations::{self, Events};
use kprism_store::{Instrument, Run};
use serde_json::json;

use super::flow::ShapeArgs;
use super::page::write_html;
use crate::cmd::output::{Io, OutputArgs, ROWS, Select, Shown, print_json};
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
    show_run(&run, args, &shown, io)
}

/// Shows durations of a run that holds nothing else.
pub fn overview(run: &Run, shown: &Shown<'_>, select: &Select, io: &mut Io<'_>) -> Result<Outcome> {
    let args = Args {
        output: OutputArgs::default(),
        select: select.clone(),
        html: None,
        ftd: false,
        callees: None,
        callers: None,
        tree: false,
        by_task: false,
        remeasured: false,
        shape: ShapeArgs { min_percent: 1.0, depth: 40 },
    };
    show_run(run, &args, shown, io)
}

fn show_run(run: &Run, args: &Args, shown: &Shown<'_>, io: &mut Io<'_>) -> Result<Outcome> {
    let filter = &args.select.filter();
    let progress = io.progress;
    let recorded = run.holds(Instrument::Durations);
    let (profile, times) = match recorded {
        true => durations::open(run, progress)?,
        false => kprism_session::durations::flow::measure(run, progress)?,
    };
    progress.clear();
    if profile.funcs.is_empty()
        && recorded
        && let Some(outcome) = events(run, filter, shown, io)?
    {
        if args.ftd
            || args.tree
            || args.by_task
            || args.remeasured
            || args.callees.is_some()
            || args.callers.is_some()
        {
            progress.say("no calls of functions were traced: callers, callees and the tree are not known");
        }
        return Ok(outcome);
    }
    let manifest = run.manifest()?;
    let header = Header::new(&manifest, &profile);
    let cost = manifest.durations.tracing_cost;
    if !filter.tasks(&profile).contains(&true) {
        progress.say("no task matches");
        return Ok(Outcome::NothingMatched);
    }
    if args.ftd {
        let rows = (shown.rows > 0).then_some(shown.rows);
        write!(io.out, "{}", view::ftd(&profile, &times, filter, rows))?;
        return Ok(Outcome::Done);
    }
    if args.remeasured {
        let second = Run::open(&run.remeasured())
            .context("there is no second pass in this run: record it with --remeasure")?;
        let (again, again_times) = durations::open(&second, progress)?;
        progress.clear();
        let passes = [(&profile, &times), (&again, &again_times)];
        let table = view::passes(passes, filter, durations::threshold_ns(&manifest));
        return show(table, args, &profile, &times, (&header, None), shown, io);
    }
    if args.tree {
        return show_tree(&profile, &times, &header, args, shown, io);
    }
    let table = table(args, &profile, &times, filter, cost.as_ref());
    show(table, args, &profile, &times, (&header, cost.as_ref()), shown, io)
}

/// The events of a trace that holds no calls; nothing if it holds none either.
fn events(run: &Run, filter: &Filter, shown: &Shown<'_>, io: &mut Io<'_>) -> Result<Option<Outcome>> {
    let Events { total, rows } = durations::events(run, filter, io.progress)?;
    io.progress.clear();
    if total == 0 {
        return Ok(None);
    }
    if rows.is_empty() {
        io.progress.say("no task matches");
        return Ok(Some(Outcome::NothingMatched));
    }
    let mut table = view::events(&rows);
    shown.arrange(&mut table)?;
    let account = run.manifest()?.accounts.remove(&Instrument::Durations);
    if shown.csv {
        io.out.write_all(table.to_csv().as_bytes())?;
    } else if shown.json {
        print_json(&view::events_json(total, &table, account.as_ref()), io.out)?;
    } else {
        write!(io.out, "{}", view::events_text(total, &table, account.as_ref(), shown.style))?;
    }
    Ok(Some(Outcome::Done))
}

fn table(
    args: &Args,
    profile: &Profile,
    times: &Times,
    filter: &Filter,
    cost: Option<&TracingCost>,
) -> Table {
    match (&args.callees, &args.callers) {
        (Some(name), _) => view::callees(profile, times, filter, name),
        (_, Some(name)) => view::callers(profile, times, filter, name),
        _ if args.by_task => view::by_task(profile, times, filter),
        _ => view::functions(profile, times, filter, cost),
    }
}

fn show(
    mut table: Table,
    args: &Args,
    profile: &Profile,
    times: &Times,
    (header, cost): (&Header, Option<&TracingCost>),
    shown: &Shown<'_>,
    io: &mut Io<'_>,
) -> Result<Outcome> {
    let outcome = Outcome::of_rows(shown.arrange(&mut table)?);
    if shown.csv {
        io.out.write_all(table.to_csv().as_bytes())?;
        return Ok(outcome);
    }
    if shown.json {
        print_json(&view::to_json(header, &times.counts, cost, &table), io.out)?;
        return Ok(outcome);
    }
    if args.callees.is_none() && args.callers.is_none() && !args.by_task && !args.remeasured {
        view::select(&mut table, cost, shown.sort.map(|key| key.trim_start_matches('-')));
    }
    write!(io.out, "{}", view::to_text(header, profile, &times.counts, cost, &table, shown.style))?;
    Ok(outcome)
}

fn show_tree(
    profile: &Profile,
    times: &Times,
    header: &Header,
    args: &Args,
    shown: &Shown<'_>,
    io: &mut Io<'_>,
) -> Result<Outcome> {
    let tree = tree::by_comm(profile, &args.select.filter());
    let options = args.shape.options(Weight::Time);
    if shown.json {
        let run = view::header_json(header, &times.counts);
        print_json(&json!({"run": run, "tree": calltree::to_json(profile, &tree, &options)}), io.out)?;
        return Ok(Outcome::Done);
    }
    let text = calltree::to_text(profile, &tree, &options, shown.style);
    writeln!(io.out, "{}", view::header(header, profile, &times.counts, shown.style))?;
    write!(io.out, "{}", calltree::limited(&text, shown.rows, shown.style))?;
    write!(io.out, "\n{}", header.account_text(shown.style))?;
    Ok(Outcome::Done)
}
