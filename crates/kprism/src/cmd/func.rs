// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report func`: how long functions took.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_durations::cost::Cost;
use kprism_profile::Filter;
use kprism_profile::{Profile, Times};
use kprism_report::calltree::{self, Options, Weight};
use kprism_report::durations as view;
use kprism_report::header::Header;
use kprism_report::{Style, Table, tree};
use kprism_store::{Instrument, Manifest, Run};
use serde_json::json;

use super::func_events;
use super::report::print_json;
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::durations;

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

/// What `report` was asked for beside.
pub struct View<'a> {
    /// Tasks to take.
    pub filter: Filter,
    /// Column to sort by.
    pub sort: Option<&'a str>,
    /// Rows to show; 0 shows all.
    pub rows: usize,
    /// Print as JSON.
    pub json: bool,
    /// Print as CSV.
    pub csv: bool,
    /// Shape of a tree.
    pub tree: Options,
    /// Colours.
    pub style: Style,
}

/// Shows it.
pub fn run(
    run: &Run,
    args: &FuncArgs,
    view: &View<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let (profile, times) = if run.holds(Instrument::Durations) {
        durations::open(run, progress)?
    } else {
        kprism_session::flow_durations::measure(run, progress)?
    };
    progress.clear();
    if profile.funcs.is_empty()
        && run.holds(Instrument::Durations)
        && let Some(outcome) = func_events::run(run, view, progress, out)?
    {
        if args.is_given() {
            progress.say("no calls of functions were traced: callers, callees and the tree are not known");
        }
        return Ok(outcome);
    }
    let manifest = run.manifest()?;
    let header = Header::new(&manifest, &profile);
    let cost = cost(&manifest);
    if !view.filter.tasks(&profile).contains(&true) {
        progress.say("no task matches");
        return Ok(Outcome::NothingMatched);
    }
    if args.ftd {
        let rows = (view.rows > 0).then_some(view.rows);
        if view.sort.is_some() || view.json || view.csv {
            bail!("--ftd is ftd's own table: it is sorted by time, and text");
        }
        write!(out, "{}", view::ftd(&profile, &times, &view.filter, rows))?;
        return Ok(Outcome::Done);
    }
    if args.remeasured {
        let second = Run::open(&durations::remeasured(run))
            .context("there is no second pass in this run: record it with --remeasure")?;
        let (again, again_times) = durations::open(&second, progress)?;
        progress.clear();
        let least = manifest.options.get("settings").map_or(0, least_ns);
        let passes = [(&profile, &times), (&again, &again_times)];
        let table = view::passes(passes, &view.filter, least);
        return show(table, args, &profile, &times, (&header, None), view, out);
    }
    if args.tree {
        return show_tree(&profile, &times, &header, view, out);
    }
    let table = table(args, &profile, &times, &view.filter, cost.as_ref());
    show(table, args, &profile, &times, (&header, cost.as_ref()), view, out)
}

/// The table of all functions of a recording of durations, and what is said of the run: for an export.
pub fn whole(
    run: &Run,
    manifest: &Manifest,
    profile: &Profile,
    filter: &Filter,
) -> Result<(Table, serde_json::Value)> {
    let times = kprism_store::load_times(run, profile)?;
    let cost = cost(manifest);
    let mut header = view::header_json(&Header::new(manifest, profile), &times.counts);
    header["tracing_cost"] = json!(cost);
    Ok((view::functions(profile, &times, filter, cost.as_ref()), header))
}

/// What tracing cost, where it was measured.
fn cost(manifest: &Manifest) -> Option<Cost> {
    serde_json::from_value(manifest.other.get("tracing_cost")?.clone()).ok()
}

/// The threshold of a recording's settings, ns.
fn least_ns(settings: &serde_json::Value) -> u64 {
    let time: Option<Duration> = serde_json::from_value(settings["longer_than"].clone()).ok().flatten();
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn table(args: &FuncArgs, profile: &Profile, times: &Times, filter: &Filter, cost: Option<&Cost>) -> Table {
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
    (header, cost): (&Header, Option<&Cost>),
    view: &View<'_>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if let Some(key) = view.sort {
        table.sort_by(key)?;
    }
    let outcome = if table.rows.is_empty() { Outcome::NothingMatched } else { Outcome::Done };
    if view.rows > 0 {
        table.limit(view.rows);
    }
    if view.csv {
        out.write_all(table.to_csv().as_bytes())?;
        return Ok(outcome);
    }
    if view.json {
        let mut run = view::header_json(header, &times.counts);
        run["tracing_cost"] = json!(cost);
        print_json(&json!({"run": run, "rows": table.to_json(), "hidden": table.hidden}), out)?;
        return Ok(outcome);
    }
    if args.callees.is_none() && args.callers.is_none() && !args.by_task && !args.remeasured {
        let mut keys = view::SHOWN.to_vec();
        keys.retain(|key| cost.is_some() || !["tracing", "inflated"].contains(key));
        keys.retain(|key| *key != "tracing" || cost.is_some_and(|cost| !cost.dropped));
        // A column that was asked for is shown.
        if let Some(key) = view.sort.map(|key| key.trim_start_matches('-')).filter(|key| !keys.contains(key))
        {
            keys.insert(keys.len() - 2, key);
        }
        table.select(&keys);
    }
    write!(out, "{}", view::header(header, profile, &times.counts, view.style))?;
    if let Some(cost) = cost {
        writeln!(out, "{}", view::cost_line(cost))?;
    }
    write!(out, "\n{}\n{}", table.to_text(view.style), header.account_text(view.style))?;
    Ok(outcome)
}

fn show_tree(
    profile: &Profile,
    times: &Times,
    header: &Header,
    view: &View<'_>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if view.sort.is_some() || view.csv {
        bail!("the tree is no table: it is sorted by its weight, and text or JSON");
    }
    let tree = tree::by_comm(profile, &view.filter);
    let options = Options { weight: Weight::Time, ..view.tree };
    if view.json {
        let run = view::header_json(header, &times.counts);
        print_json(&json!({"run": run, "tree": calltree::to_json(profile, &tree, &options)}), out)?;
        return Ok(Outcome::Done);
    }
    let text = calltree::to_text(profile, &tree, &options, view.style);
    writeln!(out, "{}", view::header(header, profile, &times.counts, view.style))?;
    let keep = if view.rows == 0 { usize::MAX } else { view.rows + 1 };
    let total = text.lines().count();
    for line in text.lines().take(keep) {
        writeln!(out, "{line}")?;
    }
    if total > keep {
        let note = format!("… {} more lines (--limit 0 shows all)", total - keep);
        writeln!(out, "{}", view.style.dim(&note))?;
    }
    write!(out, "\n{}", header.account_text(view.style))?;
    Ok(Outcome::Done)
}
