// SPDX-License-Identifier: MIT OR Apache-2.0
//! Function durations: tables of functions, by task, of callers and callees, and the columns of ftd.

use kprism_durations::cost::INFLATED;
use kprism_durations::rows;
use kprism_profile::TracingCost;
use kprism_profile::units;
use kprism_profile::{Counts, Filter, Profile, Times};
use serde_json::{Value, json};

use crate::header::Header;
use crate::shape;
use crate::table::{Style, Table};

mod events;
mod tables;

pub use events::{events, events_json, events_text};
use tables::average;
pub use tables::{by_task, callees, callers, functions, named, passes, select};

/// The cost of tracing, as a sentence.
#[must_use]
pub fn cost_line(cost: &TracingCost) -> String {
    let call = units::duration(cost.call_ns);
    match cost.slowdown.filter(|_| cost.dropped) {
        Some(factor) => format!(
            "tracing cost {call} a call, of calls left out too, which nobody counted: a path of many calls took \
             {factor:.1} times as long, work that calls nothing no longer than it does; ? marks totals of which, as \
             with that path, {INFLATED} % and more would be tracing: --remeasure tells"
        ),
        None if cost.dropped => {
            format!("tracing cost {call} a call, of calls left out too, which nobody counted")
        }
        None => format!(
            "tracing cost {call} a call; ! marks totals and averages of which it is {INFLATED} % and more"
        ),
    }
}

/// The columns of ftd (paper 2, figure 5), in ftd's format: every call counts, times are in ns, local time is the time
/// not spent in callees. `rows` is the maximum number of rows.
#[must_use]
pub fn ftd(profile: &Profile, times: &Times, filter: &Filter, rows: Option<usize>) -> String {
    let mut all = rows::functions(profile, times, &filter.tasks(profile));
    all.retain(|row| row.calls > 0);
    all.sort_by(|a, b| {
        b.sum_ns
            .cmp(&a.sum_ns)
            .then_with(|| profile.funcs[b.func as usize].name.cmp(&profile.funcs[a.func as usize].name))
    });
    let line = |cells: [&str; 5]| {
        format!("{:<35} {:>5} {:>10} {:>8} {:>10}\n", cells[0], cells[1], cells[2], cells[3], cells[4])
    };
    let mut out =
        format!("{:<35} {:<5} {:<10} {:<8} {:<10}\n", "Function", "Count", "Time", "Average", "Local");
    out += &line(["-".repeat(35).as_str(), "-----", "----------", "--------", "----------"]);
    for row in all.iter().take(rows.unwrap_or(usize::MAX)) {
        let numbers = [row.calls, row.sum_ns, average(row), row.local_ns].map(|n| n.to_string());
        let name = units::printable(&profile.funcs[row.func as usize].name);
        out += &line([&name, &numbers[0], &numbers[1], &numbers[2], &numbers[3]]);
    }
    out
}

/// The lines above a report of durations: what was measured, and what was lost.
#[must_use]
pub fn header(header: &Header, profile: &Profile, counts: &Counts, style: Style) -> String {
    let title = if header.command.is_empty() { &header.source } else { &header.command };
    let mut out = style.bold(&units::printable(title));
    if !header.kernel.is_empty() {
        out += &format!(" on {}", units::printable(&header.kernel));
    }
    let plural = |n: u64, one: &str| format!("{} {one}{}", units::grouped(n), if n == 1 { "" } else { "s" });
    out += &format!(
        "\n{}, {} of {} in {} ({} clock)",
        plural(header.cpus, "CPU"),
        plural(counts.calls, "call"),
        plural(profile.called_functions() as u64, "function"),
        units::duration(header.span_ns),
        units::printable(&header.clock),
    );
    out.push('\n');
    out += &crate::header::head(header.account.as_ref(), style);
    out += &crate::header::conditions(&header.guest, style);
    let units = header.account.iter().flat_map(|account| &account.entries).map(|entry| entry.unit.as_str());
    if units.into_iter().any(|unit| unit == "calls without an end") {
        return out;
    }
    // The account of a flow has none of these, and tables of an older kprism have these counts alone.
    let notes = [
        (counts.lost, "lost event", "lost events"),
        (
            counts.lost_uncounted,
            "place where events were lost uncounted",
            "places where events were lost uncounted",
        ),
        (counts.unfinished, "call without an end", "calls without an end"),
        (counts.orphans, "end without a call", "ends without a call"),
        (counts.clock_jumps, "call across a jump of the clock", "calls across a jump of the clock"),
    ];
    let notes = notes.into_iter().filter(|(n, ..)| *n > 0);
    let notes: Vec<String> = notes
        .map(|(n, one, many)| format!("{} {}", units::grouped(n), if n == 1 { one } else { many }))
        .collect();
    if !notes.is_empty() {
        out += &style.alert(&notes.join(", "));
        out.push('\n');
    }
    out
}

/// The header as JSON.
#[must_use]
pub fn header_json(header: &Header, counts: &Counts) -> Value {
    let mut run = header.to_json();
    if header.instructions == 0 {
        // These were not counted, because the run is not a flow.
        for key in ["instructions", "lost_bytes", "decode_errors", "overflows"] {
            run[key] = Value::Null;
        }
    }
    run["durations"] = json!(counts);
    if !header.filtered.is_empty() {
        run["filtered"] = json!(header.filtered);
    }
    run
}

/// A table with what is said of the run, as JSON.
#[must_use]
pub fn to_json(header: &Header, counts: &Counts, cost: Option<&TracingCost>, table: &Table) -> Value {
    let mut run = header_json(header, counts);
    run["tracing_cost"] = json!(cost);
    shape::report(run, table)
}

/// A table with what is said of the run, as text.
#[must_use]
pub fn to_text(
    of: &Header,
    profile: &Profile,
    counts: &Counts,
    cost: Option<&TracingCost>,
    table: &Table,
    style: Style,
) -> String {
    let mut out = header(of, profile, counts, style);
    of.filtered.iter().for_each(|line| {
        out += line;
        out.push('\n');
    });
    if let Some(cost) = cost {
        out += &cost_line(cost);
        out.push('\n');
    }
    out + &format!("\n{}{}", table.to_text(style), of.account_text(style))
}
