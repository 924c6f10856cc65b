// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of functions in the page: each function's numbers and histogram, and the longest calls for the timeline.

use std::cmp::Reverse;

use kprism_durations::cost;
use kprism_durations::rows;
use kprism_profile::TracingCost;
use kprism_profile::{FrameKind, Profile, Slice, Times};
use serde::Serialize;

use super::intervals::{Values, values};
use super::names::Names;
use kprism_profile::Filter;

/// Maximum of functions in the page: those with the longest total.
const FUNCTIONS: usize = 500;
/// Maximum of calls in the timeline: the longest.
const SLICES: usize = 20_000;

/// The data of durations in the page.
#[derive(Serialize)]
pub(super) struct Durations {
    calls: u64,
    functions: Vec<Function>,
    functions_omitted: usize,
    slices: Slices,
    slices_omitted: u64,
    lost: u64,
    unfinished: u64,
    /// The cost of tracing as a sentence, if it was measured.
    cost: Option<String>,
}

#[derive(Serialize)]
struct Function {
    func: u32,
    count: u64,
    total_ns: u64,
    average_ns: u64,
    self_ns: u64,
    off_cpu_ns: u64,
    interrupts_ns: u64,
    gapped: u64,
    /// The tracer's share of the total in percent, if known.
    tracing: Option<f64>,
    /// `!` or `?`: see `cost`.
    mark: &'static str,
    ns: Values,
}

/// In columns; callers before callees. Times are relative to `from_ns`.
#[derive(Default, Serialize)]
struct Slices {
    from_ns: u64,
    to_ns: u64,
    task: Vec<u32>,
    cpu: Vec<u16>,
    func: Vec<u32>,
    depth: Vec<u16>,
    start_ns: Vec<u64>,
    ns: Vec<u64>,
    interrupt: Vec<u8>,
}

pub(super) fn embed(
    profile: &Profile,
    times: &Times,
    cost: Option<&TracingCost>,
    names: &mut Names,
) -> Durations {
    let mut all = rows::functions(profile, times, &Filter::default().tasks(profile));
    all.retain(|row| row.calls > 0);
    all.sort_by_key(|row| (Reverse(row.total_ns), row.func));
    let functions_omitted = all.len().saturating_sub(FUNCTIONS);
    all.truncate(FUNCTIONS);
    let nothing = kprism_profile::FuncTimes::default();
    let function = |row: &rows::Row| {
        let of = times.funcs.get(row.func as usize).unwrap_or(&nothing);
        Function {
            func: names.func(profile, row.func),
            count: row.calls,
            total_ns: row.total_ns,
            average_ns: row.sum_ns.checked_div(row.calls).unwrap_or(0),
            self_ns: row.self_ns,
            off_cpu_ns: row.off_ns,
            interrupts_ns: row.irq_ns,
            gapped: of.gapped,
            tracing: cost.and_then(|c| cost::known_percent(c, row)),
            mark: cost.map_or("", |c| cost::mark(c, row).text()),
            ns: values(&of.durations),
        }
    };
    Durations {
        calls: times.counts.calls,
        functions: all.iter().map(function).collect(),
        functions_omitted,
        slices: slices(profile, names),
        slices_omitted: times.counts.calls.saturating_sub(profile.slices.len().min(SLICES) as u64),
        lost: times.counts.lost,
        unfinished: times.counts.unfinished,
        cost: cost.map(crate::durations::cost_line),
    }
}

fn slices(profile: &Profile, names: &mut Names) -> Slices {
    let length = |slice: &Slice| slice.end_ns.saturating_sub(slice.start_ns);
    let mut longest: Vec<&Slice> = profile.slices.iter().collect();
    longest.sort_by_key(|slice| Reverse(length(slice)));
    longest.truncate(SLICES);
    longest.sort_by_key(|slice| (slice.task, slice.start_ns, Reverse(slice.end_ns), slice.depth));
    let from_ns = longest.iter().map(|slice| slice.start_ns).min().unwrap_or(0);
    let to_ns = longest.iter().map(|slice| slice.end_ns).max().unwrap_or(0);
    let mut columns = Slices { from_ns, to_ns, ..Slices::default() };
    for slice in longest {
        columns.task.push(slice.task);
        columns.cpu.push(slice.cpu);
        columns.func.push(names.func(profile, slice.func));
        columns.depth.push(slice.depth);
        columns.start_ns.push(slice.start_ns - from_ns);
        columns.ns.push(length(slice));
        columns.interrupt.push((slice.kind == FrameKind::Interrupt).into());
    }
    columns
}
