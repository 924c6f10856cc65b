// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moments of what is recorded beside the flow: the sideband, intervals, records of probes, TLB misses, the kernel's log. Each is an
//! iterator in order of time.

use anyhow::{Context, Result};
use kprism_image::sideband::{MarkKind, Record};
use kprism_profile::FrameKind;
use kprism_store::{Instrument, Run};
use kprism_tlb::stream::{Context as Place, Event, Miss, Reader};
use serde_json::Value;

use super::clock::OtherClock;
use super::{Kind, Moment, Phase, Summary};
use crate::cover::Counted as CountedWindows;
use crate::files::read;
use crate::flow;
use crate::probe::Loaded as Probes;
use crate::progress::Progress;

fn arg(name: &str, value: impl Into<Value>) -> (String, Value) {
    (name.to_owned(), value.into())
}

/// Task switches, new tasks, new names, marks. The records are in memory for the decoder already; their order is made here.
pub(super) fn sideband(records: &[Record]) -> impl Iterator<Item = Moment> + '_ {
    let time = |record: &Record| match record {
        Record::Switch(s) => Some(s.t),
        Record::Comm(c) => Some(c.t),
        Record::Fork(f) => Some(f.t),
        Record::Mark(m) => Some(m.t),
        _ => None,
    };
    let mut order: Vec<(u64, bool, usize)> = records
        .iter()
        .enumerate()
        .filter_map(|(n, record)| Some((time(record)?, matches!(record, Record::Switch(_)), n)))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(ns, _, n)| one_of_sideband(ns, &records[n]))
}

fn one_of_sideband(ns: u64, record: &Record) -> Moment {
    let moment = |cpu: u32, pid: u32, comm: &str, kind, name: &str, args| Moment {
        ns,
        cpu: u16::try_from(cpu).ok(),
        pid: Some(pid),
        comm: comm.to_owned(),
        kind,
        phase: Phase::Point,
        name: name.to_owned(),
        args,
    };
    match record {
        Record::Switch(s) => {
            let args =
                vec![arg("prev_pid", s.prev_pid), arg("next_comm", s.comm.as_str()), arg("next_pid", s.pid)];
            moment(s.cpu, s.prev_pid, &s.prev_comm, Kind::Switch, "switch", args)
        }
        Record::Comm(c) => {
            moment(c.cpu, c.pid, &c.comm, Kind::Mark, "name", vec![arg("comm", c.comm.as_str())])
        }
        Record::Fork(f) => moment(
            f.cpu,
            f.ppid,
            "",
            Kind::Mark,
            "fork",
            vec![arg("child_pid", f.pid), arg("child_tgid", f.tgid)],
        ),
        Record::Mark(m) => {
            let name = match m.what {
                MarkKind::Begin => "begin",
                MarkKind::End => "end",
            };
            moment(m.cpu, m.pid, "", Kind::Mark, name, Vec::new())
        }
        _ => moment(0, 0, "", Kind::Mark, "record", Vec::new()),
    }
}

/// The windows of gcov's counters. The agent reads them right before the mark at which the command begins, and right after the
/// one at which it ends; between conditions, they were read where these were met.
pub(super) fn coverage(records: &[Record], counted: Option<&CountedWindows>) -> Vec<Moment> {
    let mut begun: Option<u64> = None;
    let mut commands = Vec::new();
    for record in records {
        let Record::Mark(mark) = record else { continue };
        match (mark.what, begun) {
            (MarkKind::Begin, None) => begun = Some(mark.t),
            (MarkKind::End, Some(from)) => {
                begun = None;
                commands.push((from, mark.t));
            }
            _ => {}
        }
    }
    let spans = match counted {
        None => commands,
        Some(counted) => {
            let (first, last) = (commands.first().map(|span| span.0), commands.last().map(|span| span.1));
            let at_marks =
                |&(from, until): &(Option<u64>, Option<u64>)| Some((from.or(first)?, until.or(last)?));
            counted.spans.iter().filter_map(at_marks).collect()
        }
    };
    let moment = |(from, until): (u64, u64)| Moment {
        ns: until,
        cpu: None,
        pid: None,
        comm: String::new(),
        kind: Kind::Coverage,
        phase: Phase::End(until.saturating_sub(from)),
        name: "coverage window".to_owned(),
        args: Vec::new(),
    };
    spans.into_iter().map(moment).collect()
}

/// The longest intervals with interrupts off, by their ends.
pub(super) fn irqs(run: &Run, progress: &Progress, summary: &mut Summary) -> Result<Vec<Moment>> {
    let (profile, _) = flow::open(run, progress)?;
    let Some(delta) = profile.deltas.iter().find(|delta| delta.name == "irqs") else { return Ok(Vec::new()) };
    let place = |node: u32| {
        let node = profile.nodes.get(node as usize)?;
        let func = profile.funcs.get(node.func as usize)?;
        (node.kind != FrameKind::Root).then(|| func.name.clone())
    };
    let moment = |interval: &kprism_profile::Interval| {
        let task = profile.tasks.get(interval.task as usize);
        Moment {
            ns: interval.start_ns.saturating_add(interval.ns),
            cpu: Some(interval.cpu),
            pid: task.map(|task| task.pid),
            comm: task.map(|task| task.comm.clone()).unwrap_or_default(),
            kind: Kind::Irqs,
            phase: Phase::End(interval.ns),
            name: "interrupts off".to_owned(),
            args: [("from", place(interval.from_node)), ("to", place(interval.to_node))]
                .into_iter()
                .filter_map(|(name, place)| Some(arg(name, place?)))
                .chain([arg("instructions", interval.insns)])
                .collect(),
        }
    };
    let mut moments: Vec<Moment> = delta.longest.iter().map(moment).collect();
    moments.sort_by_key(|moment| (moment.ns, moment.cpu));
    let others = delta.ns.count.saturating_sub(moments.len() as u64);
    if others > 0 {
        summary.notes.push(format!(
            "of intervals with interrupts off, the {} longest are listed; {others} shorter ones: kprism report delta irqs --list",
            moments.len()
        ));
    }
    Ok(moments)
}

/// Records of probes in order of time: those of each CPU were written in turns.
pub(super) fn hits(probes: &Probes, clock: &OtherClock) -> Result<Vec<Moment>> {
    let mut moments = Vec::new();
    probes.each(|hit, values| {
        let place = probes.description.probes.get(usize::from(hit.probe));
        let value = |(name, value): (&str, Result<Value, &'static str>)| {
            arg(name, value.unwrap_or_else(|why| Value::from(format!("({why})"))))
        };
        moments.push(Moment {
            ns: clock.flow_ns(hit.time_ns),
            cpu: Some(hit.cpu),
            pid: Some(hit.tid),
            comm: String::new(),
            kind: Kind::Probe,
            phase: Phase::Point,
            name: place.map(|probe| probe.place.clone()).unwrap_or_default(),
            args: values.into_iter().map(value).collect(),
        });
        Ok(true)
    })?;
    moments.sort_by_key(|moment| (moment.ns, moment.cpu));
    Ok(moments)
}

/// TLB misses of all CPUs.
pub(super) struct Misses(Vec<(u16, Vec<u8>)>);

impl Misses {
    /// Reads their streams; none if the run has none.
    pub fn open(run: &Run, vcpus: u32) -> Result<Option<Self>> {
        if !run.holds(Instrument::Tlb) {
            return Ok(None);
        }
        let mut streams = Vec::new();
        for cpu in (0..vcpus).filter(|&cpu| run.tlb_misses(cpu).is_file()) {
            let path = run.tlb_misses(cpu);
            let bytes = read(&path)?;
            Reader::new(&bytes).with_context(|| path.display().to_string())?;
            streams.push((u16::try_from(cpu).unwrap_or(u16::MAX), bytes));
        }
        Ok(Some(Misses(streams)))
    }

    /// An iterator for each CPU: each miss by itself, or counts by intervals of this length, ns. It ends where a stream is damaged.
    pub fn moments(&self, every: u64) -> Vec<Box<dyn Iterator<Item = Moment> + '_>> {
        self.0.iter().filter_map(|(cpu, bytes)| Self::of_cpu(*cpu, bytes, every)).collect()
    }

    fn of_cpu(cpu: u16, bytes: &[u8], every: u64) -> Option<Box<dyn Iterator<Item = Moment> + '_>> {
        let mut place = Place::default();
        let misses = Reader::new(bytes).ok()?.map_while(Result::ok).filter_map(move |event| {
            place.follow(&event);
            match event {
                Event::Miss(miss) => Some((place, miss)),
                _ => None,
            }
        });
        Some(match every {
            0 => Box::new(misses.map(move |(place, miss)| one_miss(cpu, &place, &miss))),
            every => Box::new(Counted { cpu, every, misses, bin: None, count: 0, first_level: 0 }),
        })
    }
}

fn one_miss(cpu: u16, place: &Place, miss: &Miss) -> Moment {
    Moment {
        ns: miss.ns,
        cpu: Some(cpu),
        pid: Some(place.pid),
        comm: String::new(),
        kind: Kind::Tlb,
        phase: Phase::Point,
        name: "TLB miss".to_owned(),
        args: vec![
            arg("address", format!("{:#x}", miss.va)),
            arg("ip", format!("{:#x}", miss.ip)),
            arg("access", format!("{:?}", miss.access).to_lowercase()),
            arg("last_level", miss.last & 1),
            arg("weight", place.weight()),
        ],
    }
}

/// Counts misses by intervals. A count comes at the end of its interval; intervals without misses have none.
struct Counted<I> {
    cpu: u16,
    every: u64,
    misses: I,
    bin: Option<u64>,
    count: u64,
    first_level: u64,
}

impl<I: Iterator<Item = (Place, Miss)>> Iterator for Counted<I> {
    type Item = Moment;

    fn next(&mut self) -> Option<Moment> {
        loop {
            let miss = self.misses.next();
            let bin = miss.as_ref().map(|(_, miss)| miss.ns / self.every);
            let full = self.bin.filter(|_| bin != self.bin).map(|of| self.moment(of));
            if full.is_some() || bin != self.bin {
                (self.bin, self.count, self.first_level) = (bin, 0, 0);
            }
            if let Some((place, miss)) = miss {
                // Of several models the first is told, as in reports.
                self.count += u64::from(miss.last & 1) * place.weight();
                self.first_level += u64::from(miss.first & 1) * place.weight();
            }
            if full.is_some() || self.bin.is_none() {
                return full;
            }
        }
    }
}

impl<I> Counted<I> {
    fn moment(&self, bin: u64) -> Moment {
        Moment {
            ns: (bin + 1).saturating_mul(self.every),
            cpu: Some(self.cpu),
            pid: None,
            comm: String::new(),
            kind: Kind::Tlb,
            phase: Phase::End(self.every),
            name: "TLB misses".to_owned(),
            args: vec![arg("misses", self.count), arg("first_level", self.first_level)],
        }
    }
}

/// Lines of the kernel's log that bear a time: `[    5.123456] text`. Their order is that of the log.
pub(super) fn console(log: &[u8], clock: OtherClock) -> impl Iterator<Item = Moment> + '_ {
    let mut last = 0;
    log.split(|&byte| byte == b'\n').filter_map(move |line| {
        let line = String::from_utf8_lossy(line);
        let (time, text) = line.trim_end_matches('\r').strip_prefix('[')?.split_once("] ")?;
        let (seconds, rest) = time.trim().split_once('.')?;
        let (seconds, rest): (u64, u64) = (seconds.parse().ok()?, format!("{rest:0<9.9}").parse().ok()?);
        let ns = seconds.checked_mul(1_000_000_000)?.checked_add(rest)?;
        last = clock.flow_ns(ns).max(last);
        Some(Moment {
            ns: last,
            cpu: None,
            pid: None,
            comm: String::new(),
            kind: Kind::Console,
            phase: Phase::Point,
            name: text.to_owned(),
            args: Vec::new(),
        })
    })
}

#[cfg(test)]
mod tests {
    use kprism_tracefs::beside::Pair;

    use super::*;

    #[test]
    fn lines_of_the_log_have_the_flows_time() {
        let pair = |ns| Pair { before: ns + 400, ns, after: ns + 600 };
        let clock = OtherClock::new(&[pair(0), pair(5_000_000_000)], 1).unwrap();
        let log = b"boot\n[    1.000002] one\r\n[    0.5] \xff two\n[x] y\n[99999999999999999999.1] z\n";
        let moments: Vec<(u64, String)> = console(log, clock).map(|m| (m.ns, m.name)).collect();
        assert_eq!(moments, [(1_000_002_500, "one".to_owned()), (1_000_002_500, "\u{fffd} two".to_owned())]);
    }

    #[test]
    fn windows_of_coverage_are_between_marks() {
        use kprism_image::sideband::Mark;
        let mark = |t, what| Record::Mark(Mark { t, what, cpu: 0, pid: 1 });
        let records = [
            mark(5, MarkKind::End),
            mark(10, MarkKind::Begin),
            mark(12, MarkKind::Begin),
            mark(30, MarkKind::End),
            mark(31, MarkKind::End),
            mark(40, MarkKind::Begin),
        ];
        let windows = |counted| -> Vec<_> {
            coverage(&records, counted).iter().map(|m| (m.ns, m.length_ns(), m.kind)).collect()
        };
        assert_eq!(windows(None), [(30, Some(20), Kind::Coverage)]);
        let spans = vec![(None, Some(13)), (Some(15), Some(16)), (Some(25), None)];
        let counted = CountedWindows { spans, ..CountedWindows::default() };
        let all = [(13, Some(3)), (16, Some(1)), (30, Some(5))];
        assert_eq!(windows(Some(&counted)), all.map(|(ns, length)| (ns, length, Kind::Coverage)));
        assert_eq!(windows(Some(&CountedWindows::default())), [], "no window, although there was a command");
    }

    #[test]
    fn misses_are_counted_by_interval() {
        let miss = |ns, last| {
            let access = kprism_tlb::Access::Load;
            let size = kprism_tlb::PageSize::K4;
            (Place::default(), Miss { ns, va: 0, ip: 0, access, size, first: 1, last })
        };
        let misses = [miss(5, 0), miss(9, 1), miss(10, 1), miss(35, 0)].into_iter();
        let counted = Counted { cpu: 3, every: 10, misses, bin: None, count: 0, first_level: 0 };
        let all: Vec<_> = counted.map(|m| (m.ns, m.args[0].1.clone(), m.args[1].1.clone())).collect();
        let row = |ns: u64, misses: u64, first: u64| (ns, Value::from(misses), Value::from(first));
        assert_eq!(all, [row(10, 1, 2), row(20, 1, 1), row(40, 0, 1)]);
    }
}
