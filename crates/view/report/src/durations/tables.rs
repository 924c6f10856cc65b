// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of function durations. A column is one entry of a list: its key, its head, and the cell it shows of a row.

use std::collections::BTreeMap;

use kprism_durations::cost;
use kprism_durations::rows::{self, Row};
use kprism_profile::TracingCost;
use kprism_profile::{Filter, Func, FuncTimes, Profile, Task, Times};

use crate::table::{Cell, Table};

/// A column of a table with rows of type `T`.
struct Column<T> {
    /// Name for programs.
    key: &'static str,
    /// Name for people.
    head: &'static str,
    /// The cell of a row.
    cell: fn(&T) -> Cell,
}

/// Columns of a function.
struct Line<'a> {
    row: &'a Row,
    /// `None`: no traced function.
    func: Option<&'a Func>,
    task: Option<&'a Task>,
    /// Histograms, which cover all tasks together; `None` if tasks were chosen.
    times: Option<&'a FuncTimes>,
    cost: Option<&'a TracingCost>,
}

impl<'a> Line<'a> {
    fn new(profile: &'a Profile, row: &'a Row) -> Self {
        Line { row, func: Some(&profile.funcs[row.func as usize]), task: None, times: None, cost: None }
    }

    fn of_times(&self, cell: impl Fn(&FuncTimes) -> Cell) -> Cell {
        self.times.map_or(Cell::Nothing, cell)
    }

    fn of_cost(&self, cell: impl Fn(&TracingCost) -> Option<Cell>) -> Cell {
        self.cost.and_then(cell).unwrap_or(Cell::Nothing)
    }
}

/// A list of columns: the key, the head, and the cell of a row.
macro_rules! columns {
    ($($key:literal, $head:literal, $cell:expr;)*) => {
        vec![$(Column { key: $key, head: $head, cell: $cell }),*]
    };
}

/// Columns of the table of functions. The text shows those in [`SHOWN`].
fn of_functions<'a>() -> Vec<Column<Line<'a>>> {
    columns! {
        "count", "count", |l| Cell::Int(l.row.calls);
        "total_ns", "total", |l| Cell::Ns(l.row.total_ns);
        "average_ns", "average", |l| Cell::Ns(average(l.row));
        "tracing", "tracing", |l| l.of_cost(|c| cost::known_percent(c, l.row).map(Cell::Percent));
        "tracing_ns", "tracing", |l| l.of_cost(|c| cost::known(c, l.row).map(Cell::Ns));
        "tracing_as_path_ns", "as a path", |l| l.of_cost(|c| Some(Cell::Ns(cost::as_path(c, l.row))));
        "self_ns", "self", |l| Cell::Ns(l.row.self_ns);
        "local_ns", "local", |l| Cell::Ns(l.row.local_ns);
        "off_cpu_ns", "off CPU", |l| Cell::Ns(l.row.off_ns);
        "interrupts_ns", "interrupts", |l| Cell::Ns(l.row.irq_ns);
        "min_ns", "min", |l| l.of_times(|of| Cell::Ns(of.durations.min));
        "p50_ns", "p50", |l| l.of_times(|of| Cell::Ns(of.durations.percentile(50.0)));
        "p90_ns", "p90", |l| l.of_times(|of| Cell::Ns(of.durations.percentile(90.0)));
        "p99_ns", "p99", |l| l.of_times(|of| Cell::Ns(of.durations.percentile(99.0)));
        "max_ns", "max", |l| l.of_times(|of| Cell::Ns(of.durations.max));
        "sum_ns", "sum", |l| Cell::Ns(l.row.sum_ns);
        "unfinished", "unfinished", |l| l.of_times(|of| Cell::Int(of.unfinished));
        "gapped", "gapped", |l| l.of_times(|of| Cell::Int(of.gapped));
        "inflated", "", |l| Cell::Text(l.cost.map_or("", |c| cost::mark(c, l.row).text()).into());
        "function", "function", |l| Cell::Text(l.func.map_or("(no traced function)".into(), |f| f.name.clone()));
        "module", "module", |l| Cell::Text(l.func.map_or_else(String::new, |f| f.module.clone()));
    }
}

/// Columns of the table of functions by task.
fn of_tasks<'a>() -> Vec<Column<Line<'a>>> {
    let mut columns: Vec<Column<Line<'a>>> = columns! {
        "pid", "pid", |l| l.task.map_or(Cell::Nothing, |task| Cell::Int(task.pid.into()));
        "comm", "comm", |l| l.task.map_or(Cell::Nothing, |task| Cell::Text(task.comm.clone()));
    };
    columns.extend(plain());
    columns
}

/// The columns of functions that fit a terminal.
const SHOWN: &[&str] = &[
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

/// The columns of functions in tables by task, of callers and callees.
const PLAIN: &[&str] =
    &["count", "total_ns", "average_ns", "self_ns", "off_cpu_ns", "interrupts_ns", "function", "module"];

/// Keeps only the columns of [`functions`] that fit a terminal, and `also`. Columns of the tracer's share are kept if it
/// is known.
pub fn select(table: &mut Table, cost: Option<&TracingCost>, also: Option<&str>) {
    let mut keys: Vec<&str> = SHOWN.to_vec();
    keys.retain(|key| cost.is_some() || !["tracing", "inflated"].contains(key));
    keys.retain(|key| *key != "tracing" || cost.is_some_and(|cost| !cost.dropped));
    // A column that was asked for is shown.
    if let Some(key) = also.filter(|key| !keys.contains(key)) {
        keys.insert(keys.len() - 2, key);
    }
    table.select(&keys);
}

pub(super) fn average(row: &Row) -> u64 {
    row.sum_ns.checked_div(row.calls).unwrap_or(0)
}

/// The table of these rows, sorted by `key`.
fn sorted<T>(columns: &[Column<T>], rows: impl Iterator<Item = T>, key: &str) -> Table {
    let heads: Vec<(&'static str, &'static str)> = columns.iter().map(|c| (c.key, c.head)).collect();
    let cells = rows.map(|row| columns.iter().map(|c| (c.cell)(&row)).collect()).collect();
    let mut table = Table::new(&heads, cells);
    let known = table.sort_by(key);
    debug_assert!(known.is_ok(), "a table sorts by a column of its own");
    table
}

/// Those of the columns of functions that are in [`PLAIN`].
fn plain<'a>() -> Vec<Column<Line<'a>>> {
    let mut columns = of_functions();
    columns.retain(|column| PLAIN.contains(&column.key));
    columns
}

/// A table of functions over the selected tasks, longest total first. `cost` is the cost of tracing, if known.
/// Functions of which no call ended are left out.
#[must_use]
pub fn functions(profile: &Profile, times: &Times, filter: &Filter, cost: Option<&TracingCost>) -> Table {
    let mut rows = rows::functions(profile, times, &filter.tasks(profile));
    rows.retain(|row| row.calls > 0);
    let nothing = FuncTimes::default();
    // Histograms cover all tasks together.
    let whole = *filter == Filter::default();
    let lines = rows.iter().map(|row| {
        let of = times.funcs.get(row.func as usize).unwrap_or(&nothing);
        Line { times: whole.then_some(of), cost, ..Line::new(profile, row) }
    });
    sorted(&of_functions(), lines, "total_ns")
}

/// A function in two passes of one command.
struct Passes<'a> {
    func: &'a Func,
    row: &'a Row,
    max_ns: u64,
    /// Of the second pass: its row, the number of calls as long as all of the first pass, the longest call.
    again: Option<(&'a Row, u64, u64)>,
}

/// Columns of the table of two passes.
fn of_passes<'a>() -> Vec<Column<Passes<'a>>> {
    columns! {
        "total_ns", "total", |p| Cell::Ns(p.row.total_ns);
        "count", "count", |p| Cell::Int(p.row.calls);
        "average_ns", "average", |p| Cell::Ns(average(p.row));
        "max_ns", "max", |p| Cell::Ns(p.max_ns);
        "again_count", "again: count", |p| Cell::Int(p.again.map_or(0, |(row, ..)| row.calls));
        "again_long", "as long", |p| Cell::Int(p.again.map_or(0, |(_, long, _)| long));
        "again_average_ns", "average", |p| p.again.map_or(Cell::Nothing, |(row, ..)| Cell::Ns(average(row)));
        "again_max_ns", "max", |p| p.again.map_or(Cell::Nothing, |(.., max)| Cell::Ns(max));
        "again_total_ns", "total", |p| p.again.map_or(Cell::Nothing, |(row, ..)| Cell::Ns(row.total_ns));
        "function", "function", |p| Cell::Text(p.func.name.clone());
        "module", "module", |p| Cell::Text(p.func.module.clone());
    }
}

/// A table that compares two passes of one command by function, longest total of the first pass first. All calls of the
/// first pass are at least `least_ns` long; of the second pass such calls are counted.
#[must_use]
pub fn passes(passes: [(&Profile, &Times); 2], filter: &Filter, least_ns: u64) -> Table {
    let [(first, times), (second, again)] = passes;
    let mut rows = rows::functions(first, times, &filter.tasks(first));
    rows.retain(|row| row.calls > 0);
    let of_second = rows::functions(second, again, &filter.tasks(second));
    let key = |func: &'_ Func| (func.name.clone(), func.module.clone());
    let found: BTreeMap<_, &Row> =
        of_second.iter().map(|row| (key(&second.funcs[row.func as usize]), row)).collect();
    let max = |times: &Times, row: &Row| times.funcs.get(row.func as usize).map_or(0, |f| f.durations.max);
    let lines = rows.iter().map(|row| {
        let func = &first.funcs[row.func as usize];
        let then = found.get(&key(func)).filter(|row| row.calls > 0);
        let again = then.map(|&row| {
            let bins = again.funcs.get(row.func as usize).map_or(&[][..], |f| &f.durations.bins);
            let long = bins.iter().filter(|bin| bin.low >= least_ns).map(|bin| bin.count).sum();
            (row, long, max(again, row))
        });
        Passes { func, row, max_ns: max(times, row), again }
    });
    sorted(&of_passes(), lines, "total_ns")
}

/// A table of functions by task.
#[must_use]
pub fn by_task(profile: &Profile, times: &Times, filter: &Filter) -> Table {
    let rows = rows::by_task(profile, times, &filter.tasks(profile));
    let rows = rows.iter().filter(|(_, row)| row.calls > 0);
    let lines = rows.map(|(task, row)| {
        let task = Some(&profile.tasks[*task as usize]);
        Line { task, ..Line::new(profile, row) }
    });
    sorted(&of_tasks(), lines, "total_ns")
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
    let rows = rows.iter().filter(|row| row.calls > 0);
    sorted(&plain(), rows.map(|row| Line::new(profile, row)), "count")
}

/// A table of the callers of a function, longest total first.
#[must_use]
pub fn callers(profile: &Profile, times: &Times, filter: &Filter, name: &str) -> Table {
    let is = named(profile, name);
    let rows = rows::callers(profile, times, &filter.tasks(profile), |f| is[f as usize]);
    let rows = rows.iter().filter(|(_, row)| row.calls > 0);
    let lines = rows.map(|(caller, row)| {
        let func = caller.map(|func| &profile.funcs[func as usize]);
        Line { row, func, task: None, times: None, cost: None }
    });
    sorted(&plain(), lines, "total_ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_columns_exist() {
        for key in SHOWN.iter().chain(PLAIN) {
            assert!(of_functions().iter().any(|column| column.key == *key), "{key}");
        }
    }
}
