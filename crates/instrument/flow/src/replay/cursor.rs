// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiving side of a replay: applies one CPU's records in order, up to a time, and keeps the tasks.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Receiver;

use kprism_image::Image;
use kprism_image::sideband::{Record as Sideband, Switch};

use super::lane::{Batch, Record};
use super::{Listener, Task, TracePosition};
use crate::decode::event::{Event, EventKind};
use crate::decode::marks::Op;
use crate::decode::packet_event::PacketEvent;
use crate::stack::guessed::Guessed;
use crate::stack::pace::Pace;
use crate::stack::switches::{When, first_task, has_no_place, untold_task, used};
use crate::stream::Stream;

/// Batches among which the next report of time, or the end of a gap, is looked for. Without the report, times in the interval may exceed
/// it; without the end, the calls of tasks that ran in the gap end there, and not where the tasks are seen again on other CPUs.
const LOOK_AHEAD: usize = 64;

/// All tasks, and their future renames.
pub(super) struct Tasks<'a> {
    all: Vec<Task>,
    /// By (pid, tgid, CPU for idle tasks).
    by_id: HashMap<(u32, u32, u16), usize>,
    /// (time, pid, tgid, name), by time.
    renames: Vec<(u64, u32, u32, &'a str)>,
    next: usize,
    names: u32,
    /// When tasks ran while nothing was recorded, and are not seen again yet: from and until, ns.
    unrecorded: HashMap<usize, Vec<(u64, u64)>>,
    /// True once a stream was off while tasks ran and nothing was recorded.
    has_gaps: bool,
}

impl<'a> Tasks<'a> {
    pub fn new(sideband: &'a [Sideband]) -> Self {
        let mut renames: Vec<_> = sideband
            .iter()
            .filter_map(|r| match r {
                Sideband::Comm(c) => Some((c.t, c.pid, c.tgid, c.comm.as_str())),
                _ => None,
            })
            .collect();
        renames.sort_by_key(|r| r.0);
        let (by_id, unrecorded) = (HashMap::new(), HashMap::new());
        Self { all: Vec::new(), by_id, renames, next: 0, names: 0, unrecorded, has_gaps: false }
    }

    fn find(&mut self, pid: u32, tgid: u32, comm: &str, cpu: u16) -> usize {
        // Every CPU has its own idle task, and all have pid 0.
        let key = (pid, tgid, if pid == 0 { cpu } else { 0 });
        let next = self.all.len();
        let index = *self.by_id.entry(key).or_insert(next);
        if index == next {
            self.all.push(Task { pid, tgid, comm: String::new() });
        }
        self.name(index, comm);
        index
    }

    fn name(&mut self, task: usize, comm: &str) {
        if !comm.is_empty() && self.all[task].comm != comm {
            self.all[task].comm = comm.to_owned();
            self.names += 1;
        }
    }

    /// A task ran while nothing was recorded.
    fn ran_unrecorded(&mut self, task: usize, from: u64, until: u64) {
        // Each CPU has its own idle task, which is seen nowhere else.
        if self.all[task].pid != 0 {
            self.unrecorded.entry(task).or_default().push((from, until));
        }
    }

    /// Until when this task, which runs at `now`, ran before while nothing was recorded. Tells it once.
    fn take_unrecorded(&mut self, task: usize, now: u64) -> Option<u64> {
        let times = self.unrecorded.get_mut(&task)?;
        let last = times.iter().filter(|&&(from, _)| from <= now).map(|&(_, until)| until).max();
        times.retain(|&(from, _)| from > now);
        last
    }

    /// Time of the next rename, ns.
    fn due(&self) -> u64 {
        self.renames.get(self.next).map_or(u64::MAX, |r| r.0)
    }

    #[cold]
    fn rename(&mut self, ns: u64) {
        while let Some(&(t, pid, tgid, comm)) = self.renames.get(self.next)
            && t <= ns
        {
            self.next += 1;
            if let Some(&task) = self.by_id.get(&(pid, tgid, 0)) {
                self.name(task, comm);
            }
        }
    }
}

/// The end of a search in the records ahead.
enum Ahead<T> {
    /// It found this.
    Found(T),
    /// The end of the stream.
    End,
    /// Nothing within [`LOOK_AHEAD`].
    Far,
}

/// One lane on the receiving side.
pub(super) struct Cursor<'a> {
    lane: usize,
    cpu: u16,
    image: &'a Image,
    take: Receiver<Batch>,
    records: std::vec::IntoIter<Record>,
    codes: std::vec::IntoIter<super::Code>,
    packets: std::vec::IntoIter<PacketEvent>,
    over: bool,
    /// Blocks that ran and are not reported yet: number, next instruction, end.
    blocks: VecDeque<(u32, u32, u32)>,
    /// The current record. The instructions before it are reported first.
    record: Option<Record>,
    insns: u32,
    /// Number of them already reported.
    told: u32,
    clock: Pace,
    /// A repeated instruction ran since the last report, and the CPU did not wait after it.
    has_repeat: bool,
    /// The report behind the last such instruction was too far ahead: what is left goes where the report is.
    is_far: bool,
    /// No estimate of time may exceed the next report.
    limited: bool,
    /// Instructions so far.
    total: u64,
    /// True once a time is known.
    begun: bool,
    /// True while tracing is on.
    on: bool,
    /// Last report of time before tracing was last off, ns.
    off_reported: u64,
    /// True while code runs that is not known.
    no_code: bool,
    /// See [`TracePosition::unrecorded`].
    unrecorded: Vec<(usize, u64)>,
    /// True from a loss until the flow is known again.
    lost: bool,
    /// Task switches that do not meet their records.
    guessed: Guessed,
    task: usize,
    switches: Vec<&'a Switch>,
    next_switch: usize,
    /// The report of time after the next switch, ns, if it was looked for; [`u64::MAX`] if none was found.
    next_report: Option<u64>,
    /// The processor stands still, though it has work: time that passes is no task's.
    is_still: bool,
}

impl<'a> Cursor<'a> {
    pub fn new(
        lane: usize,
        stream: Stream<'a>,
        take: Receiver<Batch>,
        sideband: &'a [Sideband],
        tasks: &mut Tasks<'_>,
        limited: bool,
    ) -> Self {
        let switches: Vec<&Switch> = sideband
            .iter()
            .filter_map(|r| match r {
                Sideband::Switch(s) if s.cpu == u32::from(stream.cpu) => Some(s),
                _ => None,
            })
            .collect();
        let (pid, tgid, comm) = first_task(stream.cpu, &switches, sideband).unwrap_or_default();
        Self {
            lane,
            cpu: stream.cpu,
            image: stream.image,
            take,
            records: Vec::new().into_iter(),
            codes: Vec::new().into_iter(),
            packets: Vec::new().into_iter(),
            over: false,
            blocks: VecDeque::new(),
            record: None,
            insns: 0,
            told: 0,
            clock: Pace::default(),
            has_repeat: false,
            is_far: false,
            limited,
            total: 0,
            begun: false,
            on: false,
            off_reported: 0,
            no_code: false,
            unrecorded: Vec::new(),
            lost: false,
            guessed: Guessed::default(),
            task: tasks.find(pid, tgid, &comm, stream.cpu),
            switches,
            next_switch: 0,
            next_report: None,
            is_still: false,
        }
    }

    /// Makes the next record the current one, if there is none.
    pub fn prepare(&mut self) {
        while self.record.is_none() && !self.over {
            let Some(record) = self.records.next() else {
                match self.take.recv() {
                    Ok(batch) => self.take_up(batch),
                    Err(_) => self.over = true,
                }
                continue;
            };
            match record {
                Record::Block(number, insns) => self.blocks.push_back((number, 0, insns)),
                Record::Time { insns, .. }
                | Record::Event(Event { insns, .. })
                | Record::Packet(insns)
                | Record::Still(insns, _) => {
                    (self.insns, self.told) = (insns, 0);
                    self.record = Some(record);
                }
                Record::Define(_) => self.record = Some(record),
            }
        }
    }

    fn take_up(&mut self, batch: Batch) {
        if !self.begun {
            // Events before the first report get its time.
            let first = batch.records.iter().find_map(|r| match r {
                Record::Time { ns, .. } => Some(*ns),
                _ => None,
            });
            self.clock.now = first.unwrap_or(0);
            self.begun = true;
        }
        (self.records, self.codes) = (batch.records.into_iter(), batch.codes.into_iter());
        self.packets = batch.packets.into_iter();
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The time that this lane has reached, ns.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now + self.clock.of(self.told)
    }

    fn position<'m>(&'m self, tasks: &'m Tasks<'_>) -> TracePosition<'m> {
        TracePosition {
            lane: self.lane,
            cpu: self.cpu,
            task: self.task,
            tasks: &tasks.all,
            names: tasks.names,
            unrecorded: &self.unrecorded,
            base: self.clock.now,
            ran: self.told,
            pace: self.clock,
        }
    }

    /// Reports to the listener, up to the time `until`.
    pub fn advance(&mut self, until: u64, tasks: &mut Tasks<'_>, listener: &mut impl Listener) {
        loop {
            let now = self.now();
            if now > until || listener.is_done() {
                return;
            }
            if now >= tasks.due() {
                tasks.rename(now);
            }
            match self.record {
                Some(Record::Define(number)) => {
                    if let Some(code) = self.codes.next() {
                        listener.define(&self.position(tasks), number, code, self.image);
                    }
                    self.record = None;
                }
                Some(record) => {
                    // The event after the instructions may come after another lane's.
                    if !self.report_until(until, tasks, listener) || self.now() > until {
                        return;
                    }
                    self.apply(record, tasks, listener);
                    self.record = None;
                }
                None => {}
            }
            self.prepare();
            if self.over {
                return;
            }
        }
    }

    /// Reports the instructions before the current record. Returns true if all were reported by `until`.
    #[inline]
    fn report_until(&mut self, until: u64, tasks: &Tasks<'_>, listener: &mut impl Listener) -> bool {
        while self.told < self.insns {
            if until != u64::MAX && self.now() > until {
                return false;
            }
            let Some((number, from, end)) = self.blocks.front_mut() else {
                // The decoder counted more instructions than it listed. There is nothing to report.
                debug_assert!(false, "instructions without a block");
                self.told = self.insns;
                return true;
            };
            let mut n = (*end - *from).min(self.insns - self.told);
            if until != u64::MAX && self.clock.now + self.clock.of(self.told + n - 1) > until {
                // Binary search for the first instruction that is too late.
                let (mut yes, mut no) = (1, n);
                while yes < no {
                    let middle = yes + (no - yes) / 2;
                    if self.clock.now + self.clock.of(self.told + middle) > until {
                        no = middle;
                    } else {
                        yes = middle + 1;
                    }
                }
                n = yes;
            }
            let (number, start) = (*number, *from);
            if start + n == *end {
                self.blocks.pop_front();
            } else {
                *from += n;
            }
            let at = self.position(tasks);
            listener.run(&at, number, start, start + n);
            self.told += n;
        }
        true
    }

    fn apply(&mut self, record: Record, tasks: &mut Tasks<'_>, listener: &mut impl Listener) {
        self.total += u64::from(self.insns);
        self.clock.now += self.clock.of(self.insns);
        (self.insns, self.told) = (0, 0);
        match record {
            Record::Time { ns, .. } => {
                self.next_report = None;
                let has_repeat = std::mem::take(&mut self.has_repeat);
                match self.clock.report(ns, self.total, has_repeat) {
                    Some(rest) if rest > 0 && self.on && !self.is_still => {
                        self.guessed.shared += u64::from(has_repeat && self.is_far);
                        let at = TracePosition { base: self.clock.now - rest, ..self.position(tasks) };
                        listener.rest(&at, rest);
                    }
                    _ => {}
                }
                if self.limited {
                    self.look_ahead();
                }
            }
            Record::Event(event) => {
                if event.kind == EventKind::Mark {
                    self.mark(Op::unpack(event.func), tasks, listener);
                }
                self.event(&event, tasks, listener);
            }
            Record::Packet(_) => {
                if let Some(event) = self.packets.next() {
                    listener.packet_event(&self.position(tasks), &event);
                }
            }
            Record::Still(_, is_still) => self.is_still = is_still,
            Record::Define(_) | Record::Block(..) => {}
        }
    }

    /// A marked instruction ran. If it is the first repeated one since the last report of time, its turns took the rest of the interval.
    fn mark(&mut self, op: Op, tasks: &Tasks<'_>, listener: &mut impl Listener) {
        self.has_repeat &= op != Op::Halt;
        // Of those behind the first one nothing is left, and the report may be far.
        if op != Op::Repeat || !self.on || self.clock.last_report() == 0 || self.has_repeat {
            return;
        }
        self.has_repeat = true;
        let (mut insns, mut has_left, mut is_shared) = (0u64, false, false);
        let found = self.find_ahead(|record| match *record {
            Record::Time { insns: last, ns } => Some(Some((ns, insns + u64::from(last)))),
            Record::Event(event) => {
                insns += u64::from(event.insns);
                match event.kind {
                    EventKind::Mark => match Op::unpack(event.func) {
                        Op::Halt => return Some(None),
                        Op::Repeat => is_shared |= has_left,
                        _ => {}
                    },
                    EventKind::Stop => return Some(None),
                    _ => has_left = true,
                }
                None
            }
            Record::Packet(n) | Record::Still(n, _) => {
                insns += u64::from(n);
                None
            }
            Record::Block(..) | Record::Define(_) => None,
        });
        self.is_far = matches!(found, Ahead::Far);
        let Ahead::Found(Some((ns, insns))) = found else { return };
        let rest = ns.saturating_sub(self.clock.after(insns));
        if rest > 0 {
            self.guessed.shared += u64::from(is_shared);
            listener.rest(&self.position(tasks), rest);
            self.clock.now += rest;
        }
    }

    /// The time now, and the reports before and after it.
    fn when(&mut self) -> When {
        let about = self.clock.now;
        if self.switches.get(self.next_switch).is_none_or(|switch| !switch.near) {
            return When { after: about, about, before: about };
        }
        let before = match self.next_report {
            Some(ns) => ns,
            None => self.following().map_or(u64::MAX, |(ns, _)| ns),
        };
        self.next_report = Some(before);
        When { after: self.clock.last_report(), about, before }
    }

    /// Looks for the next report of time, so that no estimate exceeds it.
    fn look_ahead(&mut self) {
        if let Some((ns, insns)) = self.following() {
            self.clock.limit(ns, insns);
        }
    }

    /// The next report of time, and the instructions up to it; `None` if it is too far away, or there is none.
    fn following(&mut self) -> Option<(u64, u64)> {
        let mut insns = 0u64;
        let report = |record: &Record| {
            match *record {
                Record::Time { insns: last, ns } => return Some((ns, insns + u64::from(last))),
                Record::Event(Event { insns: n, .. }) | Record::Packet(n) | Record::Still(n, _) => {
                    insns += u64::from(n);
                }
                Record::Block(..) | Record::Define(_) => {}
            }
            None
        };
        match self.find_ahead(report) {
            Ahead::Found(report) => Some(report),
            Ahead::End | Ahead::Far => None,
        }
    }

    /// Searches the records behind the current one for the first of which `wanted` makes something, and returns that.
    fn find_ahead<T>(&mut self, mut wanted: impl FnMut(&Record) -> Option<T>) -> Ahead<T> {
        let mut from = 0;
        for batches in 0..=LOOK_AHEAD {
            if let Some(found) = self.records.as_slice()[from..].iter().find_map(&mut wanted) {
                return Ahead::Found(found);
            }
            from = self.records.len();
            if batches < LOOK_AHEAD && !self.take_more() {
                return Ahead::End;
            }
        }
        Ahead::Far
    }

    /// Adds the next batch to the current one. Returns false if there is none.
    fn take_more(&mut self) -> bool {
        let Ok(batch) = self.take.recv() else {
            return false;
        };
        fn join<T>(rest: &mut std::vec::IntoIter<T>, more: Vec<T>) {
            *rest = rest.by_ref().chain(more).collect::<Vec<T>>().into_iter();
        }
        join(&mut self.records, batch.records);
        join(&mut self.codes, batch.codes);
        join(&mut self.packets, batch.packets);
        true
    }

    fn event(&mut self, event: &Event, tasks: &mut Tasks<'_>, listener: &mut impl Listener) {
        match event.kind {
            EventKind::Start | EventKind::Resume => {
                // The stream is decoded in stretches, and the flow starts anew in each.
                if std::mem::replace(&mut self.on, true) && event.kind == EventKind::Start {
                    return;
                }
                let is_lost = self.is_unrecorded_until(event);
                (self.lost, self.no_code) = (false, false);
                let ran = |task, until| is_lost.then_some((task, until));
                // Switches up to now happened while the flow was unknown.
                while self
                    .switches
                    .get(self.next_switch)
                    .is_some_and(|s| s.t < self.clock.now && s.offset.is_none())
                {
                    let passed = has_no_place(self.switches[self.next_switch], self.off_reported);
                    self.guessed.unseen += u64::from(passed);
                    self.unrecorded.extend(ran(self.task, self.switches[self.next_switch].t));
                    self.switch(tasks);
                }
                self.unrecorded.extend(ran(self.task, u64::MAX));
                self.add_unrecorded_elsewhere(tasks);
                // Of each task, the last time.
                self.unrecorded.sort_unstable_by_key(|&(task, until)| (task, Reverse(until)));
                self.unrecorded.dedup_by_key(|&mut (task, _)| task);
            }
            EventKind::Stop => {
                self.no_code = event.func == Event::NO_CODE;
                if event.func != Event::OFF_UNSEEN {
                    self.lost = event.func == Event::LOST;
                }
                (self.on, self.off_reported) = (false, self.clock.last_report());
                self.has_repeat = false;
                tasks.has_gaps |= self.tell_gap(tasks);
            }
            EventKind::Switch => {
                // One record for each entry into `__switch_to`; none or several where their times are approximate.
                let when = self.when();
                let left = self.switches.len().saturating_sub(self.next_switch);
                let used = used(&self.switches, self.next_switch, when).min(left);
                match used.checked_sub(1) {
                    Some(unseen) => self.guessed.unseen += unseen as u64,
                    None => {
                        self.guessed.untold += 1;
                        if let Some((pid, tgid, comm)) = untold_task(&self.switches, self.next_switch) {
                            self.task = tasks.find(pid, tgid, comm, self.cpu);
                        }
                    }
                }
                for _ in 0..used {
                    self.switch(tasks);
                }
                self.add_unrecorded_elsewhere(tasks);
            }
            EventKind::Count | EventKind::Push => return,
            _ => {}
        }
        listener.event(&self.position(tasks), event);
        self.unrecorded.clear();
    }

    /// The running task may have run on another CPU before, while nothing was recorded there.
    fn add_unrecorded_elsewhere(&mut self, tasks: &mut Tasks<'_>) {
        let until = tasks.take_unrecorded(self.task, self.clock.now);
        self.unrecorded.extend(until.map(|until| (self.task, until)));
    }

    /// Tracing is off now. Tells the other CPUs which tasks run until it is on again, if nothing is recorded of them: one of these may
    /// be seen on another CPU before this one goes on. Returns whether nothing is.
    pub fn tell_gap(&mut self, tasks: &mut Tasks<'_>) -> bool {
        let (mut from, mut runs) = (self.clock.now, self.task);
        let (is_lost, until) = match self.next_start() {
            Ahead::Found((event, until)) => (self.is_unrecorded_until(&event), until),
            // Where programs alone are traced, the last one may have ended. Where there are gaps, this is one more.
            Ahead::End => (self.lost || !self.no_code && tasks.has_gaps, u64::MAX),
            Ahead::Far => (self.lost, u64::MAX),
        };
        if !is_lost {
            return false;
        }
        let passed = |switch: &&&Switch| switch.t < until && switch.offset.is_none();
        for switch in self.switches[self.next_switch..].iter().take_while(passed) {
            tasks.ran_unrecorded(runs, from, switch.t);
            (from, runs) = (switch.t, tasks.find(switch.pid, switch.tgid, "", self.cpu));
        }
        tasks.ran_unrecorded(runs, from, until);
        true
    }

    /// The event with which the flow is known again, and its time, ns.
    fn next_start(&mut self) -> Ahead<(Event, u64)> {
        let mut last = self.clock.now;
        let mut start = |record: &Record| {
            match *record {
                Record::Time { ns, .. } => last = ns,
                Record::Event(event) if matches!(event.kind, EventKind::Start | EventKind::Resume) => {
                    return Some((event, last));
                }
                _ => {}
            }
            None
        };
        match self.record.as_ref().and_then(&mut start) {
            Some(found) => Ahead::Found(found),
            None => self.find_ahead(start),
        }
    }

    /// Whether nothing was recorded of the tasks that ran from the last stop until this event, with which the flow is known again. The
    /// calls of unknown code go on, and so do those around code that is not traced.
    fn is_unrecorded_until(&self, event: &Event) -> bool {
        let is_switched_on = event.kind == EventKind::Start && event.link != Event::AT_PSB;
        // After a loss, a PSB+ may say that tracing is off, until a packet switches it on.
        self.lost || !self.no_code && !is_switched_on
    }

    /// The task switches that did not meet their records, so far.
    pub fn guessed(&self) -> Guessed {
        let until = match (self.over, self.on) {
            (true, true) => self.clock.last_report(),
            (true, false) => self.off_reported,
            // The records that are left are of what the listener did not want.
            (false, _) => return self.guessed,
        };
        let rest = self.switches.get(self.next_switch..).unwrap_or_default();
        let unseen = rest.iter().filter(|switch| has_no_place(switch, until)).count() as u64;
        self.guessed.and(Guessed { unseen, ..Guessed::default() })
    }

    /// Switches to the next task of the sideband.
    fn switch(&mut self, tasks: &mut Tasks<'_>) {
        let Some(&next) = self.switches.get(self.next_switch) else { return };
        self.next_switch += 1;
        tasks.name(self.task, &next.prev_comm);
        self.task = tasks.find(next.pid, next.tgid, &next.comm, self.cpu);
    }
}
