// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures intervals from their beginnings and ends. Output: histograms, the longest intervals, and all of them if asked
//! to keep them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use kprism_image::code::KeyHasher;

use crate::measure::delta::Spec;
use kprism_profile::histogram::Counter;
use kprism_profile::{AllIntervals, Delta, Interval, Site};

/// Maximum of nested beginnings on one CPU or task; then the oldest is dropped.
const MAX_OPEN: usize = 256;

/// Number of longest intervals kept, by time and again by instructions.
const LONGEST: usize = 32;

/// Maximum of sites kept, by total time.
const SITES: usize = 1 << 16;

/// Maximum of intervals of one kind that are kept when all are asked for: 112 MiB.
const MAX_KEPT: usize = 1 << 21;

/// The beginning or the end of an interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub ns: u64,
    /// Of a beginning: time since then that is in no interval, ns.
    pub still_ns: u64,
    pub insns: u64,
    pub ip: u64,
    pub node: u32,
}

/// Keeps the largest few of many intervals, by a key.
#[derive(Debug, Default)]
struct Largest {
    kept: Vec<(u64, Interval)>,
    /// Keys up to this one are not among the largest.
    floor: Option<u64>,
}

impl Largest {
    #[inline]
    fn offer(&mut self, key: u64, interval: &Interval) {
        if self.floor.is_none_or(|floor| key > floor) {
            self.insert(key, interval);
        }
    }

    #[cold]
    fn insert(&mut self, key: u64, interval: &Interval) {
        // Among equal keys the earlier interval stays.
        let place = self.kept.partition_point(|(k, _)| *k >= key);
        self.kept.insert(place, (key, *interval));
        self.kept.truncate(LONGEST);
        if self.kept.len() == LONGEST {
            self.floor = self.kept.last().map(|(k, _)| *k);
        }
    }
}

/// Keeps all intervals of a time, as far as there is room.
#[derive(Debug)]
struct List {
    /// Intervals that reach into this time are kept; ns.
    time: Range<u64>,
    /// Number of intervals for which there is room.
    room: usize,
    kept: AllIntervals,
}

impl List {
    fn offer(&mut self, interval: &Interval) {
        let end = interval.start_ns.saturating_add(interval.ns);
        if interval.start_ns >= self.time.end || end < self.time.start {
            return;
        }
        if self.kept.intervals.len() < self.room {
            self.kept.intervals.push(*interval);
        } else {
            self.kept.beyond += 1;
        }
    }

    fn finish(mut self) -> AllIntervals {
        // Each CPU's, or task's, come in order of their ends.
        self.kept.intervals.sort_by_key(|i| (i.start_ns, i.cpu));
        self.kept
    }
}

/// All intervals of one kind.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    nested: bool,
    /// Beginnings without an end yet, by number of the CPU or the task.
    open: Vec<Vec<Point>>,
    ns: Counter,
    insns: Counter,
    longest: Largest,
    largest: Largest,
    list: Option<List>,
    sites: HashMap<u32, Site, BuildHasherDefault<KeyHasher>>,
    restarted: u64,
    unfinished: u64,
    /// Of a kind that leaves idle out: how often a CPU halted in one.
    halts: Option<u64>,
}

impl Intervals {
    pub fn new(nested: bool) -> Self {
        Self { nested, ..Self::default() }
    }

    /// Keeps all intervals that reach into this time, too.
    pub fn keeping(self, time: Option<Range<u64>>) -> Self {
        let list = time.map(|time| List { time, room: MAX_KEPT, kept: AllIntervals::default() });
        Self { list, ..self }
    }

    /// Whether an interval ends where its CPU halts.
    pub fn leaving_idle_out(self, leaves_idle_out: bool) -> Self {
        Self { halts: leaves_idle_out.then_some(0), ..self }
    }

    pub fn begin(&mut self, scope: usize, point: Point) {
        if scope >= self.open.len() {
            self.open.resize_with(scope + 1, Vec::new);
        }
        let open = &mut self.open[scope];
        if !self.nested && !open.is_empty() {
            self.restarted += 1;
            open.clear();
        }
        if open.len() == MAX_OPEN {
            self.unfinished += 1;
            open.remove(0);
        }
        open.push(point);
    }

    /// True if an interval has begun there, and has not ended.
    #[inline]
    pub fn is_open(&self, scope: usize) -> bool {
        self.open.get(scope).is_some_and(|open| !open.is_empty())
    }

    /// So much time just passed that is in no interval.
    pub fn pass_over(&mut self, scope: usize, ns: u64) {
        self.open.get_mut(scope).into_iter().flatten().for_each(|from| from.still_ns += ns);
    }

    pub fn end(&mut self, scope: usize, end: &Point, task: u32, cpu: u16) {
        let Some(from) = self.open.get_mut(scope).and_then(Vec::pop) else { return };
        let interval = Interval {
            task,
            cpu,
            start_ns: from.ns,
            ns: end.ns.saturating_sub(from.ns).saturating_sub(from.still_ns),
            insns: end.insns.saturating_sub(from.insns),
            from_ip: from.ip,
            to_ip: end.ip,
            from_node: from.node,
            to_node: end.node,
        };
        self.ns.add(interval.ns);
        self.insns.add(interval.insns);
        self.longest.offer(interval.ns, &interval);
        self.largest.offer(interval.insns, &interval);
        if let Some(list) = &mut self.list {
            list.offer(&interval);
        }
        let site = self.sites.entry(from.node).or_insert(Site { node: from.node, ..Site::default() });
        site.count += 1;
        site.ns += interval.ns;
        site.insns += interval.insns;
        site.max_ns = site.max_ns.max(interval.ns);
    }

    /// The CPU halts. An open interval of a kind that leaves idle out ends here; returns true if there was one: with the wake-up another
    /// one begins.
    pub fn halt(&mut self, scope: usize, at: &Point, task: u32, cpu: u16) -> bool {
        let is_open = self.is_open(scope);
        let Some(halts) = self.halts.as_mut().filter(|_| is_open) else { return false };
        *halts += 1;
        self.end(scope, at, task, cpu);
        true
    }

    /// Drops the open beginnings of a CPU or task, whose ends will not be seen.
    pub fn forget(&mut self, scope: usize) {
        if let Some(open) = self.open.get_mut(scope) {
            self.unfinished += open.len() as u64;
            open.clear();
        }
    }

    pub fn finish(self, spec: &Spec) -> Delta {
        let unfinished = self.unfinished + self.open.iter().map(|o| o.len() as u64).sum::<u64>();
        let mut longest: Vec<Interval> = self.longest.kept.iter().map(|(_, i)| *i).collect();
        longest.extend(
            self.largest.kept.iter().map(|(_, i)| *i).filter(|i| !longest.contains(i)).collect::<Vec<_>>(),
        );
        longest.sort_by_key(|i| (std::cmp::Reverse(i.ns), i.start_ns, i.cpu));
        let mut sites: Vec<Site> = self.sites.into_values().collect();
        sites.sort_by_key(|s| (std::cmp::Reverse(s.ns), s.node));
        sites.truncate(SITES);
        Delta {
            name: spec.name.clone(),
            from: spec.from.clone(),
            to: spec.to.clone(),
            scope: spec.scope.unwrap_or_default(),
            ns: self.ns.finish(),
            insns: self.insns.finish(),
            longest,
            all: self.list.map(List::finish),
            sites,
            restarted: self.restarted,
            unfinished,
            halts: self.halts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_profile::Scope;

    fn at(t: u64) -> Point {
        Point { ns: 10 * t, still_ns: 0, insns: t, ip: t, node: 1 }
    }

    fn finish(intervals: Intervals) -> Delta {
        let spec = Spec {
            name: "x".into(),
            from: "a".into(),
            to: "b".into(),
            scope: Some(Scope::Cpu),
            nested: false,
        };
        intervals.finish(&spec)
    }

    #[test]
    fn the_last_beginning_counts() {
        let mut i = Intervals::new(false);
        i.end(0, &at(1), 0, 0);
        i.begin(0, at(2));
        i.begin(0, at(5));
        i.begin(3, at(6));
        i.end(0, &at(9), 7, 0);
        let d = finish(i);
        assert_eq!((d.insns.count, d.insns.min, d.ns.max), (1, 4, 40));
        assert_eq!((d.restarted, d.unfinished, d.longest[0].task), (1, 1, 7));
    }

    #[test]
    fn nested_ones_end_first() {
        let mut i = Intervals::new(true);
        i.begin(0, at(1));
        i.begin(0, at(3));
        i.end(0, &at(4), 0, 0);
        i.end(0, &at(9), 0, 0);
        let d = finish(i);
        assert_eq!(d.longest.iter().map(|l| l.insns).collect::<Vec<_>>(), [8, 1]);
        assert_eq!(d.sites, [Site { node: 1, count: 2, ns: 90, insns: 9, max_ns: 80 }]);
    }

    #[test]
    fn waiting_is_in_none() {
        let mut i = Intervals::new(false).leaving_idle_out(true);
        assert!(!i.halt(0, &at(1), 0, 0));
        i.begin(0, at(2));
        assert!(i.halt(0, &at(5), 0, 0));
        i.begin(0, at(90));
        i.end(0, &at(91), 0, 0);
        let d = finish(i);
        assert_eq!((d.ns.count, d.ns.sum, d.ns.max, d.halts, d.unfinished), (2, 40, 30, Some(1), 0));
    }

    #[test]
    fn beginnings_that_were_dropped_are_unfinished() {
        let (mut i, more) = (Intervals::new(true), 5);
        let all = MAX_OPEN as u64 + more;
        (0..all).for_each(|t| i.begin(0, at(t)));
        (0..all).for_each(|t| i.end(0, &at(all + t), 0, 0));
        let d = finish(i);
        assert_eq!((d.ns.count, d.unfinished), (MAX_OPEN as u64, more));
    }

    /// Intervals of contexts that are not listed are in all other numbers: views tell the difference.
    #[test]
    fn contexts_beyond_the_listed_ones_are_in_the_sums() {
        let (mut i, all) = (Intervals::new(false), SITES as u32 + 3);
        for node in 0..all {
            let from = Point { node, ..at(10) };
            i.begin(0, from);
            i.end(0, &Point { node, ..at(if node < 3 { 11 } else { 12 }) }, 0, 0);
        }
        let d = finish(i);
        assert_eq!((d.ns.count, d.sites.len()), (u64::from(all), SITES));
        assert!(d.sites.iter().all(|site| site.node >= 3), "the least are left out");
    }

    #[test]
    fn all_are_kept_if_asked_for() {
        let measured = |time: Range<u64>, room: usize| {
            let mut i = Intervals::new(false).keeping(Some(time));
            i.list.as_mut().expect("asked for").room = room;
            // Those of the second CPU end later, and begin earlier.
            for cpu in [1, 0] {
                for t in 0..100 {
                    i.begin(cpu, at(20 * t + 1 - cpu as u64));
                    i.end(cpu, &at(20 * t + 5), 0, cpu as u16);
                }
            }
            finish(i).all.expect("kept")
        };
        let all = measured(0..u64::MAX, 1000);
        assert_eq!((all.intervals.len(), all.beyond), (200, 0));
        assert!(all.intervals.is_sorted_by_key(|i| (i.start_ns, i.cpu)));
        // The next ones begin where the time ends, at 400 ns.
        let some = measured(230..400, 1000).intervals;
        assert_eq!(some.iter().map(|i| (i.start_ns, i.cpu)).collect::<Vec<_>>(), [(200, 1), (210, 0)]);
        let full = measured(0..u64::MAX, 120);
        assert_eq!((full.intervals.len(), full.beyond), (120, 80));
        assert_eq!(finish(Intervals::new(false)).all, None);
    }

    #[test]
    fn only_the_longest_are_kept() {
        let mut i = Intervals::new(false);
        for t in 0..1000 {
            i.begin(0, at(2000 * t));
            i.end(0, &at(2000 * t + t % 500), 0, 0);
        }
        let d = finish(i);
        assert_eq!(d.longest.len(), LONGEST);
        assert_eq!((d.longest[0].insns, d.longest[0].start_ns), (499, 10 * 2000 * 499));
        assert_eq!(d.longest[LONGEST - 1].insns, 484);
    }
}
