// SPDX-License-Identifier: MIT OR Apache-2.0
//! Function durations: tables of functions, by task, of callers and callees, and the columns of ftd.

use std::collections::BTreeMap;

use kprism_durations::cost::{Cost, INFLATED};
use kprism_durations::rows::{self, Row};
use kprism_profile::{Counts, Histogram, Profile, Times};
use serde_json::{Value, json};

use crate::header::Header;
use crate::table::{Cell, Style, Table};
use kprism_profile::Filter;
use kprism_profile::units;

/// Columns of the table of functions. The text shows those in [`SHOWN`].
const COLUMNS: &[(&str, &str)] = &[
    ("count", "count"),
    ("total_ns", "total"),
    ("average_ns", "average"),
    ("tracing", "tracing"),
    ("tracing_ns", "tracing"),
    ("tracing_as_path_ns", "as a path"),
    ("self_ns", "self"),
    ("local_ns", "local"),
    ("off_cpu_ns", "off CPU"),
    ("interrupts_ns", "interrupts"),
    ("min_ns", "min"),
    ("p50_ns", "p50"),
    ("p90_ns", "p90"),
    ("p99_ns", "p99"),
    ("max_ns", "max"),
    ("sum_ns", "sum"),
    ("unfinished", "unfinished"),
    ("gapped", "gapped"),
    ("inflated", ""),
    ("function", "function"),
    ("module", "module"),
];

/// The columns that fit a terminal.
pub const SHOWN: &[&str] = &[
    "count",
    "total_ns",
    "average_ns",
    "inflated",
    "tracing",
    "self_ns",
    "off_cpu_ns",
    "interrupts_ns",
    "min_ns",
    "p50_ns",
    "p99_ns",
    "max_ns",
    "function",
    "module",
];

/// The cost of tracing, as a sentence.
#[must_use]
pub fn cost_line(cost: &Cost) -> String {
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

fn average(row: &Row) -> u64 {
    row.sum_ns.checked_div(row.calls).unwrap_or(0)
}

/// A table of functions over the selected tasks, longest total first. `cost` is the cost of tracing, if known.
/// Functions of which no call ended are left out.
#[must_use]
pub fn functions(profile: &Profile, times: &Times, filter: &Filter, cost: Option<&Cost>) -> Table {
    let mut rows = rows::functions(profile, times, &filter.tasks(profile));
    rows.retain(|row| row.calls > 0);
    let nothing = kprism_profile::FuncTimes::default();
    // Histograms cover all tasks together.
    let whole = *filter == Filter::default();
    let of_all = |cell: Cell| if whole { cell } else { Cell::Nothing };
    let mark = |row: &Row| cost.map_or("", |cost| cost.mark(row).text());
    let cells = |row: &Row| {
        let func = &profile.funcs[row.func as usize];
        let of = times.funcs.get(row.func as usize).unwrap_or(&nothing);
        let h: &Histogram = &of.durations;
        vec![
            Cell::Int(row.calls),
            Cell::Ns(row.total_ns),
            Cell::Ns(average(row)),
            cost.and_then(|cost| cost.percent(row)).map_or(Cell::Nothing, Cell::Percent),
            cost.and_then(|cost| cost.of(row)).map_or(Cell::Nothing, Cell::Ns),
            cost.map_or(Cell::Nothing, |cost| Cell::Ns(cost.as_path(row))),
            Cell::Ns(row.self_ns),
            Cell::Ns(row.local_ns),
            Cell::Ns(row.off_ns),
            Cell::Ns(row.irq_ns),
            of_all(Cell::Ns(h.min)),
            of_all(Cell::Ns(h.percentile(50.0))),
            of_all(Cell::Ns(h.percentile(90.0))),
            of_all(Cell::Ns(h.percentile(99.0))),
            of_all(Cell::Ns(h.max)),
            Cell::Ns(row.sum_ns),
            of_all(Cell::Int(of.unfinished)),
            of_all(Cell::Int(of.gapped)),
            Cell::Text(mark(row).into()),
            Cell::Text(func.name.clone()),
            Cell::Text(func.module.clone()),
        ]
    };
    sorted(COLUMNS, rows.iter().map(cells).collect())
}

/// A table that compares two passes of one command by function, longest total of the first pass first. All calls of the
/// first pass are at least `least_ns` long; of the second pass such calls are counted.
#[must_use]
pub fn passes(passes: [(&Profile, &Times); 2], filter: &Filter, least_ns: u64) -> Table {
    let [(first, times), (second, again)] = passes;
    let mut rows = rows::functions(first, times, &filter.tasks(first));
    rows.retain(|row| row.calls > 0);
    let of_second = rows::functions(second, again, &filter.tasks(second));
    let key = |profile: &Profile, row: &Row| {
        let func = &profile.funcs[row.func as usize];
        (func.name.clone(), func.module.clone())
    };
    let found: BTreeMap<_, &Row> = of_second.iter().map(|row| (key(second, row), row)).collect();
    let max = |times: &Times, row: &Row| times.funcs.get(row.func as usize).map_or(0, |f| f.durations.max);
    let cells = |row: &Row| {
        let (name, module) = key(first, row);
        let mut cells = vec![Cell::Int(row.calls), Cell::Ns(average(row)), Cell::Ns(max(times, row))];
        let then = found.get(&(name.clone(), module.clone())).filter(|row| row.calls > 0);
        cells.extend(then.map_or_else(
            || vec![Cell::Int(0), Cell::Int(0), Cell::Nothing, Cell::Nothing],
            |row| {
                let bins = again.funcs.get(row.func as usize).map_or(&[][..], |f| &f.durations.bins);
                let long = bins.iter().filter(|bin| bin.low >= least_ns).map(|bin| bin.count).sum();
                vec![Cell::Int(row.calls), Cell::Int(long), Cell::Ns(average(row)), Cell::Ns(max(again, row))]
            },
        ));
        cells.insert(0, Cell::Ns(row.total_ns));
        cells.extend([then.map_or(Cell::Nothing, |row| Cell::Ns(row.total_ns))]);
        cells.extend([Cell::Text(name), Cell::Text(module)]);
        cells
    };
    sorted(PASSES, rows.iter().map(cells).collect())
}

const PASSES: &[(&str, &str)] = &[
    ("total_ns", "total"),
    ("count", "count"),
    ("average_ns", "average"),
    ("max_ns", "max"),
    ("again_count", "again: count"),
    ("again_long", "as long"),
    ("again_average_ns", "average"),
    ("again_max_ns", "max"),
    ("again_total_ns", "total"),
    ("function", "function"),
    ("module", "module"),
];

/// A table of functions by task.
#[must_use]
pub fn by_task(profile: &Profile, times: &Times, filter: &Filter) -> Table {
    let mut rows = rows::by_task(profile, times, &filter.tasks(profile));
    rows.retain(|(_, row)| row.calls > 0);
    let cells = |(task, row): &(u32, Row)| {
        let task = &profile.tasks[*task as usize];
        let mut cells = vec![Cell::Int(task.pid.into()), Cell::Text(task.comm.clone())];
        cells.extend(plain(profile, row));
        cells
    };
    let mut columns = vec![("pid", "pid"), ("comm", "comm")];
    columns.extend(PLAIN);
    sorted(&columns, rows.iter().map(cells).collect())
}

const PLAIN: &[(&str, &str)] = &[
    ("count", "count"),
    ("total_ns", "total"),
    ("average_ns", "average"),
    ("self_ns", "self"),
    ("off_cpu_ns", "off CPU"),
    ("interrupts_ns", "interrupts"),
    ("function", "function"),
    ("module", "module"),
];

fn plain(profile: &Profile, row: &Row) -> Vec<Cell> {
    let mut cells = numbers(row);
    let func = &profile.funcs[row.func as usize];
    cells.extend([Cell::Text(func.name.clone()), Cell::Text(func.module.clone())]);
    cells
}

fn numbers(row: &Row) -> Vec<Cell> {
    vec![
        Cell::Int(row.calls),
        Cell::Ns(row.total_ns),
        Cell::Ns(average(row)),
        Cell::Ns(row.self_ns),
        Cell::Ns(row.off_ns),
        Cell::Ns(row.irq_ns),
    ]
}

/// For each function, true if its name matches; glob characters are allowed.
#[must_use]
pub fn named(profile: &Profile, name: &str) -> Vec<bool> {
    profile.funcs.iter().map(|f| kprism_image::glob::glob(name, &f.name)).collect()
}

/// A table of the functions called by a function, most calls first.
#[must_use]
pub fn callees(profile: &Profile, times: &Times, filter: &Filter, name: &str) -> Table {
    let is = named(profile, name);
    let rows = rows::callees(profile, times, &filter.tasks(profile), |f| is[f as usize]);
    let rows = rows.iter().filter(|row| row.calls > 0).map(|row| plain(profile, row)).collect();
    let mut table = Table::new(PLAIN, rows);
    let known = table.sort_by("count");
    debug_assert!(known.is_ok());
    table
}

/// A table of the callers of a function, longest total first.
#[must_use]
pub fn callers(profile: &Profile, times: &Times, filter: &Filter, name: &str) -> Table {
    let is = named(profile, name);
    let rows = rows::callers(profile, times, &filter.tasks(profile), |f| is[f as usize]);
    let cells = |(caller, row): &(Option<u32>, Row)| {
        let mut cells = numbers(row);
        match caller {
            Some(func) => {
                let func = &profile.funcs[*func as usize];
                cells.extend([Cell::Text(func.name.clone()), Cell::Text(func.module.clone())]);
            }
            None => cells.extend([Cell::Text("(no traced function)".into()), Cell::Text(String::new())]),
        }
        cells
    };
    sorted(PLAIN, rows.iter().filter(|(_, row)| row.calls > 0).map(cells).collect())
}

fn sorted(columns: &[(&'static str, &'static str)], cells: Vec<Vec<Cell>>) -> Table {
    let mut table = Table::new(columns, cells);
    let known = table.sort_by("total_ns");
    debug_assert!(known.is_ok(), "a table sorts by a column of its own");
    table
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
        plural(profile.funcs.len() as u64, "function"),
        units::duration(header.span_ns),
        units::printable(&header.clock),
    );
    let lost = plural(counts.lost, "lost event");
    out += ", ";
    out += &if counts.lost == 0 { lost } else { style.alert(&lost) };
    let notes = [
        (
            counts.lost_uncounted,
            "place where events were lost uncounted",
            "places where events were lost uncounted",
        ),
        (counts.unfinished, "call without an end", "calls without an end"),
        (counts.orphans, "end without a call", "ends without a call"),
        (counts.clock_jumps, "call across a jump of the clock", "calls across a jump of the clock"),
    ];
    for (n, one, many) in notes.into_iter().filter(|(n, ..)| *n > 0) {
        out += &format!(", {} {}", units::grouped(n), if n == 1 { one } else { many });
    }
    out.push('\n');
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
    run
}
