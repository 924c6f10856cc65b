// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that a run holds, in one order of time.
//!
//! Input: a run and [`Wanted`]. Output: [`Moment`]s, one by one, to a function ([`each`]) or as an iterator ([`iter`]);
//! then a [`Summary`]: how many of each source, by how much their times can be wrong, and which sources could not be placed.
//!
//! The flow is replayed, and the other sources are merged into it as it goes: each is an iterator in order of time, of which one
//! moment is held. What was recorded beside the flow is read into memory first. The order is that of [`Moment::ns`]; at equal times the
//! sources come in the order of [`Kind`]'s declaration, then the lower CPU, then as recorded.
//!
//! Intervals come at their ends ([`Phase::End`]), and those whose beginning can be named at that time ([`Phase::Begin`]) there,
//! too. A listing by the time at which intervals begin would have to hold back all that happened since.

mod beside;
mod clock;
mod flow;
mod kernel;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::Result;
use kprism_image::glob::glob;
use kprism_profile::Ending;
use kprism_store::{Account, Instrument, Run};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cover::Windows;
use crate::progress::Progress;
use crate::{flow as decoded, probe};

use clock::OtherClock;
pub use kernel::{DAT, Events, events, fits};

/// Kind of a moment. The order is that of moments at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Beginning and end of the command, new tasks, new names.
    Mark,
    /// A CPU switches to another task.
    Switch,
    /// The recorded part of the flow of a CPU begins or ends.
    Window,
    /// The time between two readings of gcov's counters.
    Coverage,
    /// Interrupts were off.
    Irqs,
    /// A system call.
    Syscall,
    /// A call of a function.
    Call,
    /// An event of a packet of Intel PT.
    Packet,
    /// An event of the kernel's own tracepoints.
    Event,
    /// Events that were lost before here.
    Lost,
    /// A record of a probe.
    Probe,
    /// TLB misses.
    Tlb,
    /// A line of the kernel's log.
    Console,
}

impl Kind {
    /// All kinds, with their words and meanings.
    pub const ALL: &[(Kind, &[&str], &str)] = &[
        (Kind::Mark, &["mark"], "Beginning and end of the command, new tasks, new names of tasks"),
        (Kind::Switch, &["switch"], "Task switches"),
        (Kind::Window, &["window"], "Where the recorded part of the flow begins and ends"),
        (Kind::Coverage, &["coverage"], "The time between two readings of gcov's counters"),
        (Kind::Irqs, &["irqs"], "Interrupts off: the longest intervals"),
        (Kind::Syscall, &["syscall"], "System calls"),
        (Kind::Call, &["call"], "Calls of functions; only if asked for"),
        (Kind::Packet, &["packet"], "Events of packets: PTWRITE, power, PEBS"),
        (Kind::Event, &["event"], "Events of the kernel's tracepoints"),
        (Kind::Lost, &["lost"], "Events that were lost"),
        (Kind::Probe, &["probe"], "Records of probes"),
        (Kind::Tlb, &["tlb"], "TLB misses, counted by interval"),
        (Kind::Console, &["console"], "Lines of the kernel's log"),
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, words, _)| words[0])
    }
}

/// The part of an interval that a moment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// None: it has no length.
    Point,
    /// The beginning.
    Begin,
    /// The end; the beginning was so many ns before.
    End(u64),
    /// A call goes off its stack, and this is not its end, or not the time of its end: its length is not known.
    Unended {
        /// Time since its beginning, ns.
        ns: u64,
        /// The reason; never [`Ending::Seen`].
        ending: Ending,
    },
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Time by the clock of the run, ns.
    pub ns: u64,
    /// CPU, if there is one.
    pub cpu: Option<u16>,
    /// Thread that ran, if it is known.
    pub pid: Option<u32>,
    /// The thread's name at that time; empty if unknown.
    pub comm: String,
    /// Kind.
    pub kind: Kind,
    /// The part of an interval.
    pub phase: Phase,
    /// Name: of a function, a system call, an event. Not made safe for terminals.
    pub name: String,
    /// Further values, in order.
    pub args: Vec<(String, Value)>,
}

impl Moment {
    /// Length of the interval that ends here, ns.
    pub fn length_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::End(ns) => Some(ns),
            Phase::Point | Phase::Begin | Phase::Unended { .. } => None,
        }
    }

    /// Time since the beginning of the interval that ends here or is cut here, ns; 0 for others.
    fn since_begin(&self) -> u64 {
        match self.phase {
            Phase::End(ns) | Phase::Unended { ns, .. } => ns,
            Phase::Point | Phase::Begin => 0,
        }
    }

    /// The reason why an interval is off its stack here, if that is not its end.
    pub fn unended(&self) -> Option<Ending> {
        match self.phase {
            Phase::Unended { ending, .. } => Some(ending),
            Phase::Point | Phase::Begin | Phase::End(_) => None,
        }
    }

    /// One object of JSON, for a line.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("time_ns", self.ns.into());
        put("kind", self.kind.name().into());
        if let Some(cpu) = self.cpu {
            put("cpu", cpu.into());
        }
        if let Some(pid) = self.pid {
            put("pid", pid.into());
            put("comm", self.comm.as_str().into());
        }
        match self.phase {
            Phase::Point => {}
            Phase::Begin => {
                put("phase", "begin".into());
            }
            Phase::End(ns) => {
                put("phase", "end".into());
                put("length_ns", ns.into());
            }
            Phase::Unended { ending, .. } => {
                put("phase", "end".into());
                put("length_ns", Value::Null);
                put("ending", ending.name().into());
            }
        }
        put("name", self.name.as_str().into());
        put("args", Value::Object(self.args.iter().cloned().collect()));
        Value::Object(object)
    }
}

/// Selection of a run's moments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Kinds; empty for all but calls.
    pub kinds: Vec<Kind>,
    /// CPUs; empty for all. Moments without a CPU are left out if there are some.
    pub cpus: Vec<u16>,
    /// Threads; empty for all. Moments without a thread are left out if there are some.
    pub pids: Vec<u32>,
    /// Names of threads with `*` and `?`; empty for all.
    pub comms: Vec<String>,
    /// Start time, ns.
    pub from: u64,
    /// End time, exclusive, ns.
    pub to: Option<u64>,
    /// Interval by which TLB misses are counted, ns; 0 for each by itself.
    pub tlb_ns: u64,
}

impl Wanted {
    /// True if moments of this kind are wanted.
    pub fn kind(&self, kind: Kind) -> bool {
        match self.kinds.is_empty() {
            // Losses belong to events, and are never silent.
            true => kind != Kind::Call,
            false => self.kinds.contains(&kind) || kind == Kind::Lost && self.kinds.contains(&Kind::Event),
        }
    }

    /// True if this moment is wanted. An interval is, if a part of it is in the range of time.
    pub fn takes(&self, moment: &Moment) -> bool {
        let begin = moment.ns.saturating_sub(moment.since_begin());
        let who = self.pids.is_empty() || moment.pid.is_some_and(|pid| self.pids.contains(&pid));
        self.kind(moment.kind)
            && moment.ns >= self.from
            && self.to.is_none_or(|to| begin < to)
            && (self.cpus.is_empty() || moment.cpu.is_some_and(|cpu| self.cpus.contains(&cpu)))
            && who
            && (self.comms.is_empty() || self.comms.iter().any(|name| glob(name, &moment.comm)))
    }
}

/// A source of moments, as the summary has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Its name: `flow`, `kernel events`, …
    pub name: &'static str,
    /// By how much its times can be wrong on the clock of the run, ns.
    pub error_ns: u64,
    /// Why it is not in the list, if it could not be placed on the clock.
    pub left_out: Option<String>,
}

/// Counts and sources of a list of moments.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Number of moments by kind.
    pub counts: BTreeMap<Kind, u64>,
    /// The run's sources.
    pub sources: Vec<Source>,
    /// Remarks: what was lost, left out, not understood.
    pub notes: Vec<String>,
    /// Kinds that were asked for by name and that the run did not record: that there are none says nothing.
    pub not_recorded: Vec<Kind>,
    /// Losses of the flow on the way, if it was replayed.
    pub account: Option<Account>,
}

/// The sources that a run has.
#[derive(Debug, Clone, Copy)]
struct Held {
    flow: bool,
    coverage: bool,
    events: bool,
    probes: bool,
    misses: bool,
    console: bool,
}

impl Held {
    /// True if moments of this kind were recorded, be there some or none.
    fn holds(self, kind: Kind) -> bool {
        match kind {
            Kind::Mark
            | Kind::Switch
            | Kind::Window
            | Kind::Irqs
            | Kind::Syscall
            | Kind::Call
            | Kind::Packet => self.flow,
            Kind::Coverage => self.coverage,
            Kind::Event | Kind::Lost => self.events,
            Kind::Probe => self.probes,
            Kind::Tlb => self.misses,
            Kind::Console => self.console,
        }
    }
}

/// Hears each moment; returns false if no more are wanted.
pub type Visit<'v> = &'v mut dyn FnMut(&Moment) -> bool;

/// Gives all wanted moments of a run, in order, to `visit`.
///
/// # Errors
/// A file of the run is not what it should be.
pub fn each(run: &Run, wanted: &Wanted, progress: &Progress, visit: Visit<'_>) -> Result<Summary> {
    let mut summary = Summary::default();
    let has_flow = run.holds(Instrument::Flow);
    let loaded = if has_flow { Some(decoded::load(run, progress)?) } else { None };
    let events = kernel::events(run)?;
    let probes = if run.holds(Instrument::Probe) { Some(probe::Loaded::open(run)?) } else { None };
    let misses = beside::Misses::open(run, loaded.as_ref().map_or(0, |l| l.manifest.vcpus))?;
    let console = crate::files::read_if_there(&run.console_log())?;
    let irqs = match &loaded {
        Some(_) if wanted.kind(Kind::Irqs) => beside::irqs(run, progress, &mut summary)?,
        _ => Vec::new(),
    };
    progress.clear();
    let mut merge = Merge {
        heads: Vec::new(),
        wanted,
        visit,
        counts: BTreeMap::new(),
        over: false,
        comms: BTreeMap::new(),
    };
    if let Some(loaded) = &loaded {
        summary.sources.push(Source { name: "flow", error_ns: 0, left_out: None });
        merge.add(beside::sideband(&loaded.records));
        if run.holds(Instrument::Cover) {
            let windows = Windows::of(run.dir()).and_then(|windows| windows.counted);
            merge.add(beside::coverage(&loaded.records, windows.as_ref()).into_iter());
        }
        merge.add(irqs.into_iter());
    }
    if let Some(events) = &events {
        let placed = events.placed(loaded.as_ref().map(|l| &l.manifest));
        summary.sources.push(Source {
            name: "kernel events",
            error_ns: kernel::ERROR_NS,
            left_out: placed.err(),
        });
        summary.notes.extend(events.notes());
        if summary.sources.last().is_some_and(|source| source.left_out.is_none()) {
            merge.add(events.moments(loaded.as_ref().map(|l| &l.symbols)));
        }
    }
    if let Some(probes) = &probes {
        // Without a flow their own clock is that of the run.
        let placed = match has_flow {
            true => OtherClock::new(&probes.description.clocks, 0)
                .ok_or_else(|| "their clock was not compared with that of the flow".to_owned()),
            false => Ok(OtherClock::default()),
        };
        let error_ns = placed.as_ref().map_or(0, |clock| clock.error_ns);
        if let Ok(clock) = &placed {
            merge.add(beside::hits(probes, clock)?.into_iter());
        }
        summary.sources.push(Source { name: "probes", error_ns, left_out: placed.err() });
    }
    if misses.is_some() {
        summary.sources.push(Source { name: "TLB misses", error_ns: 0, left_out: None });
    }
    for source in misses.iter().flat_map(|misses| misses.moments(wanted.tlb_ns)) {
        merge.add(source);
    }
    if !console.is_empty() {
        let pairs =
            events.as_ref().filter(|_| has_flow).map(|events| events.recorded.clocks.local.as_slice());
        // The log has whole microseconds.
        let placed = OtherClock::new(pairs.unwrap_or_default(), 1_000)
            .ok_or_else(|| "its clock is not known: record with --event, which measures it".to_owned());
        let error_ns = placed.as_ref().map_or(0, |clock| clock.error_ns);
        if let Ok(clock) = &placed {
            merge.add(beside::console(&console, *clock));
        }
        summary.sources.push(Source { name: "console", error_ns, left_out: placed.err() });
    }
    if let Some(loaded) = &loaded {
        if flow::is_needed(wanted) {
            let streams = flow::replay(loaded, &mut merge, progress);
            summary.account = Some(decoded::with_events(streams, run, progress));
        }
    } else if run.holds(Instrument::Durations) {
        summary.sources.push(Source {
            name: "durations",
            error_ns: 0,
            left_out: Some("they have a clock of their own: kprism script calls".to_owned()),
        });
    }
    merge.drain(u64::MAX, true);
    let held = Held {
        flow: has_flow,
        coverage: has_flow && run.holds(Instrument::Cover),
        // Those of durations have a clock of their own, of which there is a note.
        events: events.is_some() || run.holds(Instrument::Durations),
        probes: probes.is_some(),
        misses: misses.is_some(),
        console: !console.is_empty(),
    };
    summary.not_recorded = wanted.kinds.iter().copied().filter(|&kind| !held.holds(kind)).collect();
    let not_recorded = |kind: &Kind| format!("{}: this run did not record it", kind.name());
    summary.notes.extend(summary.not_recorded.iter().map(not_recorded));
    summary.counts = merge.counts;
    let out = |s: &Source| s.left_out.as_ref().map(|why| format!("{} are not in this list: {why}", s.name));
    let notes: Vec<String> = summary.sources.iter().filter_map(out).collect();
    summary.notes.extend(notes);
    Ok(summary)
}

/// The same as an iterator, made by a thread that is at most a few hundred moments ahead.
pub fn iter(run: &Run, wanted: Wanted) -> Iter {
    let (give, take) = sync_channel(256);
    let run = run.clone();
    let thread = std::thread::spawn(move || {
        each(&run, &wanted, &Progress::silent(), &mut |moment| give.send(moment.clone()).is_ok())
    });
    Iter { take, thread: Some(thread) }
}

/// An iterator over moments. An error comes last.
pub struct Iter {
    take: Receiver<Moment>,
    thread: Option<std::thread::JoinHandle<Result<Summary>>>,
}

impl Iterator for Iter {
    type Item = Result<Moment>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(moment) = self.take.recv() {
            return Some(Ok(moment));
        }
        match self.thread.take()?.join() {
            Ok(result) => result.err().map(Err),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A source other than the flow.
type Moments<'a> = std::iter::Peekable<Box<dyn Iterator<Item = Moment> + 'a>>;

/// Merges moments and gives them on.
struct Merge<'a, 'v> {
    heads: Vec<Moments<'a>>,
    wanted: &'a Wanted,
    visit: Visit<'v>,
    counts: BTreeMap<Kind, u64>,
    over: bool,
    /// Names of threads by number, as the flow told them last: other sources have numbers only.
    comms: BTreeMap<u32, String>,
}

impl<'a> Merge<'a, '_> {
    fn add(&mut self, source: impl Iterator<Item = Moment> + 'a) {
        let source: Box<dyn Iterator<Item = Moment> + 'a> = Box::new(source);
        self.heads.push(source.peekable());
    }

    /// Remembers the name of a thread that a switch or a change of names tells.
    fn remember(&mut self, moment: &Moment) {
        let arg = |name: &str| moment.args.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let (pid, comm) = match moment.kind {
            Kind::Switch => (arg("next_pid").and_then(Value::as_u64), arg("next_comm")),
            Kind::Mark if moment.name == "name" => (moment.pid.map(u64::from), arg("comm")),
            _ => return,
        };
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        if let (Some(pid), Some(comm)) = (pid, comm.and_then(Value::as_str)) {
            match self.comms.get_mut(&pid) {
                Some(known) if known == comm => {}
                Some(known) => comm.clone_into(known),
                None => drop(self.comms.insert(pid, comm.to_owned())),
            }
        }
    }

    /// Gives on all that comes before `ns`, and of those at `ns` what comes before moments of the flow, or all of them.
    fn drain(&mut self, ns: u64, all: bool) {
        while !self.over {
            let key = |moment: &Moment| (moment.ns, moment.kind, moment.cpu);
            let heads = self.heads.iter_mut().enumerate();
            let first = heads.filter_map(|(n, head)| Some((key(head.peek()?), n))).min();
            let Some(((at, kind, _), n)) = first else { return };
            if at > ns || at == ns && !all && kind > Kind::Switch {
                return;
            }
            if let Some(moment) = self.heads[n].next() {
                self.give(&moment);
            }
        }
    }

    /// Gives on a moment of the flow, after those of other sources that come before it.
    fn flow(&mut self, moment: &Moment) {
        self.drain(moment.ns, false);
        self.give(moment);
    }

    fn give(&mut self, moment: &Moment) {
        self.remember(moment);
        let known = moment.pid.filter(|_| moment.comm.is_empty()).and_then(|pid| self.comms.get(&pid));
        let named = known.map(|comm| Moment { comm: comm.clone(), ..moment.clone() });
        let moment = named.as_ref().unwrap_or(moment);
        if self.over || !self.wanted.takes(moment) {
            return;
        }
        *self.counts.entry(moment.kind).or_default() += 1;
        self.over = !(self.visit)(moment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_store::{Manifest, RunKind};

    #[test]
    fn a_kind_that_was_not_recorded_is_no_empty_list() {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        run.write_manifest(&Manifest::new(RunKind::Lab, 1)).unwrap();
        std::fs::write(run.console_log(), "[    0.000001] hello\n").unwrap();
        let of = |kinds: &[Kind]| {
            let wanted = Wanted { kinds: kinds.to_vec(), ..Wanted::default() };
            each(&run, &wanted, &Progress::silent(), &mut |_| true).unwrap()
        };
        let some = of(&[Kind::Tlb, Kind::Console]);
        assert_eq!(some.not_recorded, [Kind::Tlb]);
        assert!(some.notes.iter().any(|note| note.starts_with("tlb: ")), "{:?}", some.notes);
        assert!(of(&[]).not_recorded.is_empty());
        let all: Vec<Kind> = Kind::ALL.iter().map(|(kind, ..)| *kind).collect();
        assert_eq!(of(&all).not_recorded.len(), all.len() - 1);
    }
}
