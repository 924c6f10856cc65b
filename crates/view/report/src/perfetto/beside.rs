// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events beside the calls, on the same timeline: kernel events with their values, arrows from a waker to the task that
//! it woke, times on a CPU, interrupts off, records of probes with counters of their values, TLB misses as counters, where the
//! flow was recorded, the kernel's log, marks.
//!
//! In: [`Beside`], one by one in order of time; intervals at their ends. Out: packets of the trace, at once: memory does not grow
//! with the trace. Tracks are described when they are first used.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use kprism_profile::{Profile, units};
use serde_json::Value;

use super::proto::{
    COUNTER, CounterDescriptor, DebugAnnotation, INSTANT, SLICE_BEGIN, SLICE_END, TrackDescriptor, TrackEvent,
};
use super::{CATEGORIES, Moment, Switch, Track, Writer, begin, uuid};

/// Kind of what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An event of the kernel's tracepoints.
    Event,
    /// Events were lost.
    Lost,
    /// A switch from `pid` to the task in the argument `next_pid`.
    Switch,
    /// Interrupts were off for `length` ns.
    Irqs,
    /// The flow of the CPU is recorded from here on.
    Begins,
    /// The flow of the CPU is not recorded from here on.
    Ends,
    /// gcov's counters were read `length` ns before, and then.
    Coverage,
    /// A record of a probe.
    Probe,
    /// So many TLB misses, the argument `misses`, in the last `length` ns.
    Misses,
    /// A line of the kernel's log.
    Console,
    /// A mark.
    Mark,
}

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub struct Beside<'m> {
    /// Kind.
    pub what: What,
    /// Time, ns.
    pub ns: u64,
    /// Length of the interval that ends then, ns.
    pub length: u64,
    /// CPU number.
    pub cpu: Option<u16>,
    /// Thread that ran.
    pub pid: Option<u32>,
    /// Name.
    pub name: &'m str,
    /// Values.
    pub args: &'m [(String, Value)],
}

/// A trace to which more can be added.
pub struct Timeline<'a, W: Write> {
    writer: Writer<'a, W>,
    /// Tracks of tasks in the profile, by thread id.
    tasks: HashMap<u32, u64>,
    /// Tracks that were described, by name and parent.
    tracks: BTreeMap<(String, u64), u64>,
    /// By CPU: the task that is on it, if it is no idle task.
    on: BTreeMap<u16, u32>,
    /// By CPU: whether its recorded part is open.
    recorded: BTreeMap<u16, bool>,
    /// By track of a counter: the end of its last interval, ns.
    counted: BTreeMap<u64, u64>,
    /// By thread id: arrows from those who woke it since it was last on a CPU.
    woken: HashMap<u32, Vec<u64>>,
    arrows: u64,
    /// By CPU: the end of its flow, ns.
    ends: Vec<u64>,
    last_ns: u64,
}

/// First track id of those made here.
const TRACKS: u64 = 6 << 40;
/// Arrows that may wait for one task: a task that does not run does not make memory grow.
const MOST_ARROWS: usize = 64;

fn category(name: &str) -> Vec<u64> {
    CATEGORIES.iter().position(|c| *c == name).map(|at| at as u64 + 1).into_iter().collect()
}

fn value(name: &str, value: &Value) -> DebugAnnotation {
    let mut annotation = DebugAnnotation { name: Some(units::printable(name)), ..DebugAnnotation::default() };
    match value {
        Value::String(text) => annotation.string_value = Some(units::printable(text)),
        Value::Number(number) if number.is_u64() => annotation.uint_value = number.as_u64(),
        Value::Number(number) if number.is_i64() => annotation.int_value = number.as_i64(),
        other => annotation.string_value = Some(units::printable(&other.to_string())),
    }
    annotation
}

impl<'a, W: Write> Timeline<'a, W> {
    /// Writes the profile's part of the trace.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn begin(
        profile: &Profile,
        switches: &[Switch],
        moments: &[Moment],
        out: &'a mut W,
    ) -> io::Result<Self> {
        let writer = begin(profile, switches, moments, out)?;
        let task = |(n, task): (usize, &kprism_profile::Task)| (task.pid, uuid(Track::Task(n as u32)));
        let mut on = BTreeMap::new();
        for switch in switches {
            if let Ok(cpu) = u16::try_from(switch.cpu) {
                on.entry(cpu).or_insert(switch.prev_pid);
            }
        }
        let mut timeline = Timeline {
            writer,
            tasks: profile
                .tasks
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, task)| task.pid != 0)
                .map(task)
                .collect(),
            tracks: BTreeMap::new(),
            on: BTreeMap::new(),
            recorded: BTreeMap::new(),
            counted: BTreeMap::new(),
            woken: HashMap::new(),
            arrows: 0,
            ends: profile.totals.per_cpu.iter().map(|of| of.last_ns).collect(),
            last_ns: 0,
        };
        for (cpu, pid) in on {
            let first = profile.totals.per_cpu.get(usize::from(cpu)).map_or(0, |of| of.first_ns);
            if first > 0 {
                timeline.runs(first, cpu, pid)?;
            }
        }
        timeline.last_ns = timeline.ends.iter().copied().max().unwrap_or(0);
        Ok(timeline)
    }

    /// Adds what happened.
    ///
    /// # Errors
    /// Writing fails.
    pub fn add(&mut self, of: &Beside<'_>) -> io::Result<()> {
        self.last_ns = self.last_ns.max(of.ns);
        let cpu = of.cpu.map_or_else(|| "?".to_owned(), |cpu| cpu.to_string());
        match of.what {
            What::Event | What::Lost => self.event(of, &format!("Kernel events CPU {cpu}")),
            What::Switch => self.switch(of),
            What::Irqs => {
                let track = self.track(&format!("Interrupts off CPU {cpu}"), 0, None)?;
                self.slice(track, "interrupts off", of)
            }
            What::Coverage => {
                let track = self.track("Coverage window", 0, None)?;
                self.slice(track, "coverage window", of)
            }
            What::Begins | What::Ends => self.window(of),
            What::Probe => {
                self.point(of, "Probes", "probe")?;
                self.values(of)
            }
            What::Misses => self.misses(of, &format!("TLB misses CPU {cpu}")),
            What::Console => self.point(of, "Kernel log", "kernel log"),
            What::Mark => self.point(of, "Marks", "mark"),
        }
    }

    /// Ends what is open.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(mut self) -> io::Result<()> {
        let ns = self.last_ns;
        for (cpu, pid) in std::mem::take(&mut self.on) {
            // Events may come long after the flow.
            let end = self.ends.get(usize::from(cpu)).copied().filter(|&end| end > 0).unwrap_or(ns);
            self.leaves(end, pid)?;
        }
        for (cpu, open) in std::mem::take(&mut self.recorded) {
            if open {
                let track = self.track(&format!("Recorded flow CPU {cpu}"), 0, None)?;
                self.end(track, ns)?;
            }
        }
        for (track, end) in std::mem::take(&mut self.counted) {
            self.counter(track, end, 0)?;
        }
        Ok(())
    }

    fn track(&mut self, name: &str, parent: u64, unit: Option<&str>) -> io::Result<u64> {
        if let Some(track) = self.tracks.get(&(name.to_owned(), parent)) {
            return Ok(*track);
        }
        let track = TRACKS + self.tracks.len() as u64;
        self.tracks.insert((name.to_owned(), parent), track);
        self.writer.track(TrackDescriptor {
            uuid: Some(track),
            name: Some(units::printable(name)),
            parent_uuid: (parent != 0).then_some(parent),
            counter: unit.map(|unit| CounterDescriptor { unit_name: Some(unit.to_owned()) }),
            ..TrackDescriptor::default()
        })?;
        Ok(track)
    }

    fn annotations(of: &Beside<'_>) -> Vec<DebugAnnotation> {
        let mut all: Vec<_> = of.args.iter().map(|(name, of)| value(name, of)).collect();
        // A field of the event may have the same name.
        if let Some(pid) = of.pid.filter(|_| of.args.iter().all(|(name, _)| name != "running_pid")) {
            all.push(value("running_pid", &pid.into()));
        }
        all
    }

    fn point(&mut self, of: &Beside<'_>, track: &str, kind: &str) -> io::Result<()> {
        let track = self.track(track, 0, None)?;
        let event = TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(track),
            category_iids: category(kind),
            debug_annotations: Self::annotations(of),
            ..TrackEvent::default()
        };
        self.writer.event(of.ns, Some(&units::printable(of.name)), event)
    }

    /// A kernel event. One that wakes a task begins an arrow.
    fn event(&mut self, of: &Beside<'_>, track: &str) -> io::Result<()> {
        let track = self.track(track, 0, None)?;
        let woken = of.args.iter().find(|(name, _)| name == "pid").and_then(|(_, pid)| pid.as_u64());
        let woken =
            woken.filter(|_| matches!(of.name, "sched:sched_waking")).and_then(|pid| u32::try_from(pid).ok());
        let mut flow_ids = Vec::new();
        if let Some(pid) = woken {
            let waiting = self.woken.entry(pid).or_default();
            if waiting.len() < MOST_ARROWS {
                self.arrows += 1;
                waiting.push(self.arrows);
                flow_ids.push(self.arrows);
            }
        }
        let event = TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(track),
            category_iids: category("kernel event"),
            debug_annotations: Self::annotations(of),
            flow_ids,
            ..TrackEvent::default()
        };
        self.writer.event(of.ns, Some(&units::printable(of.name)), event)
    }

    fn switch(&mut self, of: &Beside<'_>) -> io::Result<()> {
        let Some(cpu) = of.cpu else { return Ok(()) };
        let next = of.args.iter().find(|(name, _)| name == "next_pid").and_then(|(_, pid)| pid.as_u64());
        if let Some(pid) = self.on.remove(&cpu) {
            self.leaves(of.ns, pid)?;
        }
        match next.and_then(|pid| u32::try_from(pid).ok()) {
            Some(pid) => self.runs(of.ns, cpu, pid),
            None => Ok(()),
        }
    }

    fn running_track(&mut self, pid: u32) -> io::Result<u64> {
        match self.tasks.get(&pid).copied() {
            Some(parent) => self.track("on CPU", parent, None),
            None => self.track(&format!("on CPU: {pid}"), 0, None),
        }
    }

    /// A task other than the idle one begins to run. Arrows from those who woke it end here.
    fn runs(&mut self, ns: u64, cpu: u16, pid: u32) -> io::Result<()> {
        if pid == 0 {
            return Ok(());
        }
        self.on.insert(cpu, pid);
        let track = self.running_track(pid)?;
        let event = TrackEvent {
            r#type: Some(SLICE_BEGIN),
            track_uuid: Some(track),
            category_iids: category("on CPU"),
            debug_annotations: vec![value("cpu", &cpu.into())],
            terminating_flow_ids: self.woken.remove(&pid).unwrap_or_default(),
            ..TrackEvent::default()
        };
        self.writer.event(ns, Some("running"), event)
    }

    fn leaves(&mut self, ns: u64, pid: u32) -> io::Result<()> {
        let track = self.running_track(pid)?;
        self.end(track, ns)
    }

    fn end(&mut self, track: u64, ns: u64) -> io::Result<()> {
        let end = TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(track), ..TrackEvent::default() };
        self.writer.event(ns, None, end)
    }

    fn slice(&mut self, track: u64, kind: &str, of: &Beside<'_>) -> io::Result<()> {
        let begin = TrackEvent {
            r#type: Some(SLICE_BEGIN),
            track_uuid: Some(track),
            category_iids: category(kind),
            debug_annotations: Self::annotations(of),
            ..TrackEvent::default()
        };
        self.writer.event(of.ns.saturating_sub(of.length), Some(&units::printable(of.name)), begin)?;
        self.end(track, of.ns)
    }

    /// Recorded parts of a CPU's flow.
    fn window(&mut self, of: &Beside<'_>) -> io::Result<()> {
        let Some(cpu) = of.cpu else { return Ok(()) };
        let track = self.track(&format!("Recorded flow CPU {cpu}"), 0, None)?;
        let begins = of.what == What::Begins;
        match (self.recorded.insert(cpu, begins).unwrap_or(false), begins) {
            (false, true) => {
                let event = TrackEvent {
                    r#type: Some(SLICE_BEGIN),
                    track_uuid: Some(track),
                    category_iids: category("recorded"),
                    ..TrackEvent::default()
                };
                self.writer.event(of.ns, Some("recorded"), event)
            }
            (true, false) => self.end(track, of.ns),
            _ => Ok(()),
        }
    }

    fn counter(&mut self, track: u64, ns: u64, count: i64) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(track),
            counter_value: Some(count),
            ..TrackEvent::default()
        };
        self.writer.event(ns, None, event)
    }

    /// A count holds from the beginning of its interval; between intervals it is 0.
    fn misses(&mut self, of: &Beside<'_>, name: &str) -> io::Result<()> {
        let count = of.args.iter().find(|(name, _)| name == "misses").and_then(|(_, count)| count.as_i64());
        let track = self.track(name, 0, Some("misses"))?;
        let begin = of.ns.saturating_sub(of.length);
        if let Some(end) = self.counted.insert(track, of.ns).filter(|&end| end < begin) {
            self.counter(track, end, 0)?;
        }
        self.counter(track, begin, count.unwrap_or(0))
    }

    /// A counter for each number that a probe collected.
    fn values(&mut self, of: &Beside<'_>) -> io::Result<()> {
        for (name, number) in of.args {
            if let Some(number) = number.as_i64() {
                let track = self.track(&format!("{} {name}", of.name), 0, Some(""))?;
                self.counter(track, of.ns, number)?;
            }
        }
        Ok(())
    }
}
