// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of functions as text, JSON and CSV: recorded ones, or those of a flow.

use std::io::Write;

use anyhow::{Context as _, Result};
use kprism_profile::{Filter, Profile, Times, TracingCost};
use kprism_report::calltree::{self, Options};
use kprism_report::durations as view;
use kprism_report::header::Header;
use kprism_report::{Shown, Table, tree};
use kprism_session::Progress;
use kprism_session::durations::{self, Events};
use kprism_store::{Instrument, Run};
use serde_json::{Value, json};

/// The ways to look at durations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum View<'a> {
    /// A row for each function.
    Functions,
    /// A row for each function of each task.
    ByTask,
    /// The functions that this one calls; a pattern.
    Callees(&'a str),
    /// The functions that call this one; a pattern.
    Callers(&'a str),
    /// The first pass of a recording, and the second.
    Remeasured,
    /// The call tree.
    Tree(Options),
    /// Function, Count, Time, Average and Local, as ftd prints them.
    Ftd,
}

/// Shows a run's durations. Returns true if there is nothing to show.
///
/// # Errors
/// The run holds neither durations nor a flow, there is no such column, or something cannot be read or written.
pub fn show(
    run: &Run,
    of: &View<'_>,
    filter: &Filter,
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<bool> {
    let recorded = run.holds(Instrument::Durations);
    let (profile, times, found) = match recorded {
        true => {
            let (profile, times) = durations::open(run, progress)?;
            (profile, times, None)
        }
        false => {
            let (profile, times, account) = durations::flow::measure(run, progress)?;
            (profile, times, Some(account))
        }
    };
    progress.clear();
    if profile.funcs.is_empty()
        && recorded
        && let Some(empty) = events(run, filter, shown, progress, out)?
    {
        if *of != View::Functions {
            progress.say("no calls of functions were traced: callers, callees and the tree are not known");
        }
        return Ok(empty);
    }
    let manifest = run.manifest()?;
    let mut header = Header::new(&manifest, &profile);
    if let Some(found) = found {
        header.read_again(&manifest.with_recording(found));
    }
    let header = &header;
    let cost = manifest.durations.tracing_cost.as_ref();
    if !filter.tasks(&profile).contains(&true) {
        progress.say("no task matches");
        return Ok(true);
    }
    let table = match *of {
        View::Functions => view::functions(&profile, &times, filter, cost),
        View::ByTask => view::by_task(&profile, &times, filter),
        View::Callees(name) => view::callees(&profile, &times, filter, name),
        View::Callers(name) => view::callers(&profile, &times, filter, name),
        View::Ftd => {
            let rows = (shown.rows > 0).then_some(shown.rows);
            write!(out, "{}", view::ftd(&profile, &times, filter, rows))?;
            return Ok(false);
        }
        View::Tree(options) => {
            show_tree(&profile, &times, header, (filter, &options), shown, out)?;
            return Ok(false);
        }
        View::Remeasured => {
            let second = Run::open(&run.remeasured())
                .context("there is no second pass in this run: record it with --remeasure")?;
            let (again, again_times) = durations::open(&second, progress)?;
            progress.clear();
            let passes = [(&profile, &times), (&again, &again_times)];
            view::passes(passes, filter, durations::threshold_ns(&manifest))
        }
    };
    let cost = cost.filter(|_| *of != View::Remeasured);
    show_table(table, *of == View::Functions, (&profile, &times), (header, cost), shown, out)
}

/// The events of a trace that holds no calls; nothing if it holds none either.
fn events(
    run: &Run,
    filter: &Filter,
    shown: &Shown<'_>,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Option<bool>> {
    let Events { total, rows } = durations::events(run, filter, progress)?;
    progress.clear();
    if total == 0 {
        return Ok(None);
    }
    if rows.is_empty() {
        progress.say("no task matches");
        return Ok(Some(true));
    }
    let mut table = view::events(&rows);
    shown.arrange(&mut table)?;
    let account = run.manifest()?.account(Instrument::Durations);
    if shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
    } else if shown.json {
        json_to(out, &view::events_json(total, &table, account.as_ref()))?;
    } else {
        write!(out, "{}", view::events_text(total, &table, account.as_ref(), shown.style))?;
    }
    Ok(Some(false))
}

fn show_table(
    mut table: Table,
    of_functions: bool,
    (profile, times): (&Profile, &Times),
    (header, cost): (&Header, Option<&TracingCost>),
    shown: &Shown<'_>,
    out: &mut dyn Write,
) -> Result<bool> {
    let empty = shown.arrange(&mut table)?;
    if shown.csv {
        out.write_all(table.to_csv().as_bytes())?;
    } else if shown.json {
        json_to(out, &view::to_json(header, &times.counts, cost, &table))?;
    } else {
        if of_functions {
            view::select(&mut table, cost, shown.sort.map(|key| key.trim_start_matches('-')));
        }
        write!(out, "{}", view::to_text(header, profile, &times.counts, cost, &table, shown.style))?;
    }
    Ok(empty)
}

fn show_tree(
    profile: &Profile,
    times: &Times,
    header: &Header,
    (filter, options): (&Filter, &Options),
    shown: &Shown<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    let tree = tree::by_comm(profile, filter);
    if shown.json {
        let run = view::header_json(header, &times.counts);
        let (tree, hidden) = calltree::to_json(profile, &tree, options, shown.rows);
        return json_to(out, &json!({"run": run, "tree": tree, "hidden": hidden}));
    }
    let text = calltree::to_text(profile, &tree, options, shown.style);
    writeln!(out, "{}", view::header(header, profile, &times.counts, shown.style))?;
    write!(out, "{}", calltree::limited(&text, shown.rows, shown.style))?;
    write!(out, "{}", header.account_text(shown.style))?;
    Ok(())
}

fn json_to(out: &mut dyn Write, value: &Value) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    Ok(writeln!(out)?)
}
