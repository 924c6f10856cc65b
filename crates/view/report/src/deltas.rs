// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intervals between markers: a table of all kinds, and one kind in detail, with its histograms, the places where its
//! intervals began, the longest ones, and a list of all.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use kprism_profile::{Bin, Delta, Filter, FrameKind, Histogram, Interval, NO_PARENT, Profile, Scope, Site};
use serde_json::{Value, json};

use crate::table::{Cell, Style, Table};
use kprism_profile::units;

/// Number of frames of a stack that fit in a line.
const FRAMES: usize = 3;

/// Width of the longest bar of a histogram.
const BAR: u64 = 48;

/// A table of all kinds of intervals that occurred, in the order of the request.
pub fn summary(profile: &Profile) -> Table {
    let cells = profile
        .deltas
        .iter()
        .map(|d| {
            vec![
                Cell::Int(d.ns.count),
                Cell::Ns(d.ns.sum),
                Cell::Ns(d.ns.mean() as u64),
                Cell::Ns(d.ns.percentile(50.0)),
                Cell::Ns(d.ns.percentile(90.0)),
                Cell::Ns(d.ns.percentile(99.0)),
                Cell::Ns(d.ns.max),
                Cell::Count(d.insns.percentile(50.0)),
                Cell::Count(d.insns.max),
                Cell::Text(d.name.clone()),
            ]
        })
        .collect();
    Table::new(
        &[
            ("count", "count"),
            ("total_ns", "total"),
            ("mean_ns", "mean"),
            ("p50_ns", "p50"),
            ("p90_ns", "p90"),
            ("p99_ns", "p99"),
            ("max_ns", "max"),
            ("p50_instructions", "p50 insns"),
            ("max_instructions", "max insns"),
            ("name", "interval"),
        ],
        cells,
    )
}

/// A table of executions of the requested instruction patterns, by function.
pub fn counts(profile: &Profile) -> Table {
    let mut rows: Vec<_> = profile.counts.iter().collect();
    rows.sort_by_key(|c| Reverse(c.count));
    let cells = rows
        .into_iter()
        .map(|c| {
            let func = &profile.funcs[c.func as usize];
            vec![
                Cell::Int(c.count),
                Cell::Text(c.pattern.clone()),
                Cell::Text(func.name.clone()),
                Cell::Text(func.module.clone()),
            ]
        })
        .collect();
    Table::new(
        &[("count", "count"), ("pattern", "instructions"), ("function", "function"), ("module", "module")],
        cells,
    )
}

/// Intervals that began in contexts with the same innermost frames.
pub(crate) struct SiteGroup {
    /// The innermost frames.
    pub stack: String,
    /// Sum over the group.
    pub sum: Site,
    /// The context with the most time: an index into [`Profile::nodes`].
    pub heaviest: u32,
    /// Number of contexts.
    pub contexts: usize,
}

/// Places where intervals began, by total time.
pub(crate) fn site_groups(profile: &Profile, delta: &Delta) -> Vec<SiteGroup> {
    let mut groups: BTreeMap<String, SiteGroup> = BTreeMap::new();
    // Sites are sorted by time, so the first of a group is its heaviest.
    for site in &delta.sites {
        let stack = stack(profile, site.node, FRAMES);
        let group = groups.entry(stack.clone()).or_insert_with(|| SiteGroup {
            stack,
            sum: Site::default(),
            heaviest: site.node,
            contexts: 0,
        });
        group.contexts += 1;
        let sum = &mut group.sum;
        sum.count += site.count;
        sum.ns = sum.ns.saturating_add(site.ns);
        sum.insns = sum.insns.saturating_add(site.insns);
        sum.max_ns = sum.max_ns.max(site.max_ns);
    }
    let mut groups: Vec<SiteGroup> = groups.into_values().collect();
    groups.sort_by_key(|g| Reverse(g.sum.ns));
    groups
}

/// A table of the places where intervals began, by total time. Contexts with the same innermost frames share a row.
pub fn sites(profile: &Profile, delta: &Delta) -> Table {
    let cells = site_groups(profile, delta)
        .into_iter()
        .map(|SiteGroup { stack, sum: s, .. }| {
            vec![
                Cell::Percent(units::percent(s.ns, delta.ns.sum)),
                Cell::Int(s.count),
                Cell::Ns(s.ns),
                Cell::Ns(s.max_ns),
                Cell::Count(s.insns),
                Cell::Text(stack),
            ]
        })
        .collect();
    Table::new(
        &[
            ("percent", "share"),
            ("count", "count"),
            ("total_ns", "total"),
            ("max_ns", "max"),
            ("instructions", "insns"),
            ("stack", "began in"),
        ],
        cells,
    )
}

/// A table of the longest intervals; of all, if all are known.
pub fn longest(profile: &Profile, delta: &Delta) -> Table {
    let all = delta.all.as_ref().filter(|all| all.beyond == 0);
    match all {
        Some(all) => {
            let mut intervals: Vec<&Interval> = all.intervals.iter().collect();
            intervals.sort_by_key(|i| (Reverse(i.ns), i.start_ns, i.cpu));
            table_of(profile, intervals)
        }
        None => table_of(profile, &delta.longest),
    }
}

/// A choice of single intervals.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Tasks that ran when the interval ended.
    pub tasks: Filter,
    /// CPUs on which it ended; empty takes all.
    pub cpus: Vec<u16>,
    /// A time into which it reaches, in ns.
    pub time: Range<u64>,
}

/// A table of all intervals of the choice, in order of time, and the number of intervals for which there was no room. `None`: only the
/// longest are known.
pub fn list(profile: &Profile, delta: &Delta, choice: &Choice) -> Option<(Table, u64)> {
    let known = delta.known()?;
    let tasks = choice.tasks.tasks(profile);
    let takes = |i: &&Interval| {
        let task = tasks.get(i.task as usize).copied().unwrap_or(false);
        let cpu = choice.cpus.is_empty() || choice.cpus.contains(&i.cpu);
        let time = i.start_ns < choice.time.end && i.start_ns.saturating_add(i.ns) >= choice.time.start;
        task && cpu && time
    };
    Some((table_of(profile, known.intervals.iter().filter(takes)), known.beyond))
}

/// A table with a row for each interval.
fn table_of<'a>(profile: &Profile, intervals: impl IntoIterator<Item = &'a Interval>) -> Table {
    let cells = intervals
        .into_iter()
        .map(|i| {
            let task = &profile.tasks[i.task as usize];
            vec![
                Cell::Ns(i.ns),
                Cell::Int(i.insns),
                Cell::Int(i.start_ns),
                Cell::Int(i.cpu.into()),
                Cell::Text(format!("{} [{}]", task.comm, task.pid)),
                Cell::Text(stack(profile, i.from_node, FRAMES)),
                Cell::Text(stack(profile, i.to_node, 1)),
            ]
        })
        .collect();
    Table::new(
        &[
            ("ns", "time"),
            ("instructions", "insns"),
            ("start_ns", "began at ns"),
            ("cpu", "CPU"),
            ("task", "task"),
            ("from", "began in"),
            ("to", "ended in"),
        ],
        cells,
    )
}

/// A table of both histograms' bins as counted: from `low` up to `high`, exclusive.
pub fn bins(delta: &Delta) -> Table {
    let rows = [("ns", &delta.ns), ("instructions", &delta.insns)];
    let cells = rows
        .into_iter()
        .flat_map(|(of, h)| h.bins.iter().map(move |b| (of, b)))
        .map(|(of, b)| {
            vec![Cell::Text(of.to_owned()), Cell::Int(b.low), Cell::Int(b.high), Cell::Int(b.count)]
        })
        .collect();
    Table::new(&[("of", "of"), ("low", "low"), ("high", "high"), ("count", "count")], cells)
}

/// A line with an interval's name, its markers, and whose time it is.
pub fn title(delta: &Delta, style: Style) -> String {
    let scope = match delta.scope {
        Scope::Cpu => "on one CPU",
        Scope::Task => "in one task",
    };
    format!("{}: from {} to {}, {scope}\n", style.bold(&delta.name), delta.from, delta.to)
}

/// Number of intervals that the table of the longest does not have.
fn not_listed(delta: &Delta, longest: &Table) -> u64 {
    delta.ns.count.saturating_sub((longest.rows.len() + longest.hidden) as u64)
}

/// One kind of interval as text. `rows` limits each list.
pub fn to_text(profile: &Profile, delta: &Delta, rows: usize, style: Style) -> String {
    let mut out = title(delta, style);
    if delta.ns.count == 0 {
        out.push_str("none\n");
    }
    for (head, histogram, unit) in [
        ("time", &delta.ns, units::duration as fn(u64) -> String),
        ("instructions", &delta.insns, units::count),
    ] {
        if histogram.count > 0 {
            out.push('\n');
            draw(&mut out, head, histogram, unit, style);
        }
    }
    let listed: u64 = delta.sites.iter().map(|s| s.count).sum();
    for (note, n) in [
        ("began in contexts that are not listed, the least of them", delta.ns.count.saturating_sub(listed)),
        ("began again before they ended; the later beginning counted", delta.restarted),
        ("had no end: data was lost, or the recording ended", delta.unfinished),
        (
            "times the CPU halted in one: it ended there, and another one begins where the CPU wakes",
            delta.halts.unwrap_or(0),
        ),
    ] {
        if n > 0 {
            let _ = writeln!(out, "{} {note}", units::grouped(n));
        }
    }
    if delta.has_idle() && delta.ns.count > 0 {
        out.push_str("an older kprism measured them: what the CPU waited is in them\n");
    }
    let longest = longest(profile, delta);
    let not_listed = not_listed(delta, &longest);
    for mut table in [sites(profile, delta), longest] {
        if !table.rows.is_empty() {
            if rows > 0 {
                table.limit(rows);
            }
            let _ = write!(out, "\n{}", table.to_text(style));
        }
    }
    if not_listed > 0 {
        let more = units::grouped(not_listed);
        let note = format!("{more} more are not among the longest: kprism report delta --list");
        let _ = writeln!(out, "{}", style.dim(&note));
    }
    out
}

/// Draws a histogram with one row for each power of two.
fn draw(out: &mut String, head: &str, h: &Histogram, unit: fn(u64) -> String, style: Style) {
    let _ = writeln!(
        out,
        "{}  {} intervals, mean {}, p50 {}, p90 {}, p99 {}, max {}",
        style.bold(head),
        units::grouped(h.count),
        unit(h.mean() as u64),
        unit(h.percentile(50.0)),
        unit(h.percentile(90.0)),
        unit(h.percentile(99.0)),
        unit(h.max),
    );
    let octaves = octaves(h);
    let most = octaves.iter().map(|(_, n)| *n).max().unwrap_or(1);
    for (low, n) in octaves {
        let bar = "█".repeat(((n * BAR).div_ceil(most)) as usize);
        let end = if low == 0 { 1 } else { low.saturating_mul(2) };
        let range = format!("{} – {}", unit(low), unit(end));
        let _ = writeln!(out, "{range:>26}  {:>12}  {bar}", units::grouped(n));
    }
}

/// Counts by power of two, from the first nonempty one to the last: smallest value and count.
fn octaves(h: &Histogram) -> Vec<(u64, u64)> {
    let octave = |bin: &Bin| if bin.low == 0 { 0 } else { bin.low.ilog2() as usize + 1 };
    let (Some(first), Some(last)) = (h.bins.first(), h.bins.last()) else { return Vec::new() };
    let (first, last) = (octave(first), octave(last));
    let mut counts = vec![0; last - first + 1];
    for bin in &h.bins {
        counts[octave(bin) - first] += bin.count;
    }
    let low = |i: usize| if first + i == 0 { 0 } else { 1 << (first + i - 1) };
    counts.into_iter().enumerate().map(|(i, n)| (low(i), n)).collect()
}

/// The innermost frames of a context, innermost first, as `a < b < c`. An interrupt's entry is the last: the interrupted code did not
/// call it.
pub fn stack(profile: &Profile, node: u32, frames: usize) -> String {
    let mut names = Vec::new();
    let mut at = node;
    while let Some(n) = profile.nodes.get(at as usize).filter(|n| n.parent != NO_PARENT) {
        if names.len() == frames {
            names.push("…");
            break;
        }
        names.push(profile.funcs[n.func as usize].name.as_str());
        if n.kind == FrameKind::Interrupt {
            break;
        }
        at = n.parent;
    }
    if names.is_empty() { "[unknown]".to_owned() } else { names.join(" < ") }
}

/// One kind of interval as JSON, `rows` of each of its lists (0: all), and the number of rows left out.
pub fn to_json(profile: &Profile, delta: &Delta, rows: usize) -> (Value, usize) {
    let mut lists = [sites(profile, delta), longest(profile, delta)];
    let not_listed = not_listed(delta, &lists[1]);
    if rows > 0 {
        lists.iter_mut().for_each(|table| table.limit(rows));
    }
    let [sites, longest] = &lists;
    let histogram = |h: &Histogram| {
        json!({
            "count": h.count, "sum": h.sum, "min": h.min, "max": h.max,
            "p50": h.percentile(50.0), "p90": h.percentile(90.0), "p99": h.percentile(99.0),
            "p999": h.percentile(99.9),
            "bins": h.bins.iter().map(|b| json!([b.low, b.high, b.count])).collect::<Vec<_>>(),
        })
    };
    let value = json!({
        "name": delta.name, "from": delta.from, "to": delta.to,
        "scope": match delta.scope { Scope::Cpu => "cpu", Scope::Task => "task" },
        "ns": histogram(&delta.ns), "instructions": histogram(&delta.insns),
        "restarted": delta.restarted, "unfinished": delta.unfinished,
        "halts": delta.halts,
        "sites": sites.to_json(),
        "longest": longest.to_json(),
        "not_listed": not_listed,
    });
    (value, sites.hidden + longest.hidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_profile::{AllIntervals, Func, Node, Task};

    #[test]
    fn intervals_in_contexts_that_are_not_listed_are_told() {
        let mut delta = Delta::default();
        (delta.ns.count, delta.insns.count) = (5, 5);
        delta.sites.push(Site { count: 3, ..Site::default() });
        let text = to_text(&Profile::default(), &delta, 0, Style::default());
        assert!(text.contains("2 began in contexts that are not listed"), "{text}");
    }

    /// Intervals that an interrupt began are one row, whatever it interrupted.
    #[test]
    fn a_stack_ends_with_the_interrupt() {
        let func = |name: &str| Func { name: name.to_owned(), kernel: true, ..Func::default() };
        let funcs = ["memset", "memcpy", "asm_sysvec_timer", "hrtimer_interrupt"].map(func).to_vec();
        let node = |parent, func, kind| Node { parent, func, calls: 1, insns: 0, ns: 0, kind };
        let (call, interrupt) = (FrameKind::Call, FrameKind::Interrupt);
        let nodes = vec![
            node(NO_PARENT, 0, FrameKind::Root),
            node(0, 0, call),
            node(1, 2, interrupt),
            node(0, 1, call),
            node(3, 2, interrupt),
            node(4, 3, call),
        ];
        let profile = Profile { funcs, nodes, ..Profile::default() };
        assert_eq!(stack(&profile, 5, FRAMES), "hrtimer_interrupt < asm_sysvec_timer");
        let site = |node| Site { node, count: 1, ns: 10, ..Site::default() };
        let delta = Delta { sites: vec![site(2), site(4)], ..Delta::default() };
        let rows = sites(&profile, &delta).rows;
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0][1], &rows[0][5]), (&Cell::Int(2), &Cell::Text("asm_sysvec_timer".to_owned())));
    }

    /// Two intervals of one task each, of which one is among the longest.
    #[test]
    fn a_list_has_all_or_is_not_known() {
        let task = |pid, comm: &str| Task { pid, tgid: pid, comm: comm.to_owned(), ..Task::default() };
        let profile = Profile { tasks: vec![task(7, "sh"), task(8, "ls")], ..Profile::default() };
        let interval = |task, cpu, start_ns, ns| Interval { task, cpu, start_ns, ns, ..Interval::default() };
        let all = vec![interval(0, 0, 100, 20), interval(1, 1, 300, 90)];
        let mut delta = Delta { longest: vec![all[1]], ..Delta::default() };
        (delta.ns.count, delta.insns.count) = (2, 2);
        let whole = Choice { tasks: Filter::default(), cpus: Vec::new(), time: 0..u64::MAX };
        assert_eq!(list(&profile, &delta, &whole), None);
        let text = to_text(&profile, &delta, 0, Style::default());
        assert!(text.contains("1 more are not among the longest: kprism report delta --list"), "{text}");
        assert_eq!(to_json(&profile, &delta, 0).0["not_listed"], 1);
        delta.all = Some(AllIntervals { intervals: all, beyond: 0 });
        assert_eq!(to_json(&profile, &delta, 0).0["not_listed"], 0);
        assert_eq!(longest(&profile, &delta).rows[0][0], Cell::Ns(90));
        let lengths = |choice: &Choice| {
            let (table, beyond) = list(&profile, &delta, choice).expect("all are known");
            assert_eq!(beyond, 0);
            table.rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&whole), [Cell::Ns(20), Cell::Ns(90)]);
        let sh = Filter { pids: Vec::new(), comms: vec!["s*".to_owned()] };
        assert_eq!(lengths(&Choice { tasks: sh, ..whole.clone() }), [Cell::Ns(20)]);
        assert_eq!(lengths(&Choice { cpus: vec![1], ..whole.clone() }), [Cell::Ns(90)]);
        assert_eq!(lengths(&Choice { time: 110..300, ..whole }), [Cell::Ns(20)]);
    }

    #[test]
    fn powers_of_two() {
        let bin = |low, count| Bin { low, high: low + 1, count };
        let h = Histogram { bins: vec![bin(0, 1), bin(1, 2), bin(5, 3), bin(7, 4)], ..Histogram::default() };
        assert_eq!(octaves(&h), [(0, 1), (1, 2), (2, 0), (4, 7)]);
        assert_eq!(octaves(&Histogram::default()), []);
    }
}
