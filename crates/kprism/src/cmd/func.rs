// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report func`: how long functions took.

use std::io::Write;

use anyhow::{Context, Result, bail};
use kprism_profile::Filter;
use kprism_profile::TracingCost;
use kprism_profile::{Profile, Times};
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::durations as view;
use kprism_report::header::Header;
use kprism_report::{Table, tree};
use kprism_store::{Instrument, Manifest, Run};
use serde_json::json;

use super::report::print_json;
use super::shown::Shown;
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::durations::{self, Events};

/// Options of `kprism report func`.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of `func`")]
pub struct FuncArgs {
    /// Print Function, Count, Time, Average and Local as ftd does, in ns
    #[arg(long)]
    pub ftd: bool,
    /// What this function calls, most often called first; `*` and `?` allowed
    #[arg(long, value_name = "FUNC", conflicts_with_all = ["callers", "by_task", "ftd"])]
    pub callees: Option<String>,
    /// Who calls this function; `*` and `?` allowed
    #[arg(long, value_name = "FUNC", conflicts_with_all = ["by_task", "ftd"])]
    pub callers: Option<String>,
    /// The call tree, by time on a CPU
    #[arg(long, conflicts_with_all = ["callees", "callers", "by_task", "ftd"])]
    pub tree: bool,
    /// Every function of each task
    #[arg(long, conflicts_with = "ftd")]
    pub by_task: bool,
    /// What `record func --remeasure` measured first and then, side by side
    #[arg(long, conflicts_with_all = ["callees", "callers", "by_task", "ftd", "tree"])]
    pub remeasured: bool,
}

impl FuncArgs {
    /// Whether one of them was given.
    pub fn is_given(&self) -> bool {
        self.ftd
            || self.callees.is_some()
            || self.callers.is_some()
            || self.tree
            || self.by_task
            || self.remeasured
    }
}

/// Shows it.
pub fn run(
    run: &Run,
    args: &FuncArgs,
    (filter, shape): (&Filter, Options),
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let recorded = run.holds(Instrument::Durations);
    let (profile, times) = match recorded {
        true => durations::open(run, progress)?,
        false => kprism_session::flow_durations::measure(run, progress)?,
    };
    progress.clear();
    if profile.funcs.is_empty()
        && recorded
        && let Some(outcome) = events(run, filter, shown, progress, out)?
    {
        if args.is_given() {
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
        if shown.sort.is_some() || shown.json || shown.csv {
            bail!("--ftd is ftd's own table: it is sorted by time, and text");
        }
        write!(out, "{}", view::ftd(&profile, &times, filter, rows))?;
        return Ok(Outcome::Done);
    }
    if args.remeasured {
        let second = Run::open(&durations::remeasured(run))
            .context("there is no second pass in this run: record it with --remeasure")?;
        let (again, again_times) = durations::open(&second, progress)?;
        progress.clear();
        let passes = [(&profile, &times), (&again, &again_times)];
        let table = view::passes(passes, filter, durations::threshold_ns(&manifest));
        return show(table, args, &profile, &times, (&header, None), shown, out);
    }
    if args.tree {
        return show_tree(&profile, &times, &header, (filter, shape), shown, out);
    }
    let table = table(args, &profile, &times, filter, cost.as_ref());
    show(table, args, &profile, &times, (&header, cost.as_ref()), shown, out)
}

/// The table of all functions of a recording of durations, and what is said of the run: for an export.
pub fn whole(
    run: &Run,
    manifest: &Manifest,
    profile: &Profile,
    filter: &Filter,
) -> Result<(Table, serde_json::Value)> {
    let times = kprism_store::load_times(run, profile)?;
    let cost = manifest.durations.tracing_cost;
    let mut header = view::header_json(&Header::new(manifest, profile), &times.counts);
    header["tracing_cost"] = json!(cost);
    Ok((view::functions(profile, &times, filter, cost.as_ref()), header))
}

/// The events of a trace that holds no calls; nothing if it holds none either.
fn events(
    run: &Run,
    filter: &Filter,
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Option<Outcome>> {
    let Events { total, rows } = durations::events(run, filter, progress)?;
    progress.clear();
    if total == 0 {
        return Ok(None);
    }
    if rows.is_empty() {
        progress.say("no task matches");
        return Ok(Some(Outcome::NothingMatched));
    }
    let mut table = view::events(&rows);
    shown.arrange(&mut table)?;
    let account = run.manifest()?.accounts.remove(&Instrument::Durations);
    if shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
    } else if shown.json {
        print_json(&view::events_json(total, &table, account.as_ref()), out)?;
    } else {
        write!(out, "{}", view::events_text(total, &table, account.as_ref(), shown.style))?;
    }
    Ok(Some(Outcome::Done))
}

fn table(
    args: &FuncArgs,
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
    args: &FuncArgs,
    profile: &Profile,
    times: &Times,
    (header, cost): (&Header, Option<&TracingCost>),
    shown: &Shown<'_>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let outcome = shown.arrange(&mut table)?;
    if shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
        return Ok(outcome);
    }
    if shown.json {
        print_json(&view::to_json(header, &times.counts, cost, &table), out)?;
        return Ok(outcome);
    }
    if args.callees.is_none() && args.callers.is_none() && !args.by_task && !args.remeasured {
        view::select(&mut table, cost, shown.sort.map(|key| key.trim_start_matches('-')));
    }
    write!(out, "{}", view::to_text(header, profile, &times.counts, cost, &table, shown.style))?;
    Ok(outcome)
}

fn show_tree(
    profile: &Profile,
    times: &Times,
    header: &Header,
    (filter, shape): (&Filter, Options),
    shown: &Shown<'_>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if shown.sort.is_some() || shown.csv {
        bail!("the tree is no table: it is sorted by its weight, and text or JSON");
    }
    let tree = tree::by_comm(profile, filter);
    let options = Options { weight: Weight::Time, ..shape };
    if shown.json {
        let run = view::header_json(header, &times.counts);
        print_json(&json!({"run": run, "tree": calltree::to_json(profile, &tree, &options)}), out)?;
        return Ok(Outcome::Done);
    }
    let text = calltree::to_text(profile, &tree, &options, shown.style);
    writeln!(out, "{}", view::header(header, profile, &times.counts, shown.style))?;
    write!(out, "{}", calltree::limited(&text, shown.rows, shown.style))?;
    write!(out, "\n{}", header.account_text(shown.style))?;
    Ok(Outcome::Done)
}
