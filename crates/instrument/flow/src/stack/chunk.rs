// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the call stack over one chunk of one CPU's stream. Input: decoder events. Output: a [`Chunk`].
//!
//! A chunk starts without knowledge of what came before, so its stack has an unknown base. An event that reaches below
//! the base (a return without its call, a task switch, a signal) ends the current [`Span`] and begins a new one. Later
//! [`crate::stack::stitch`] applies the spans in order to the complete stacks of the tasks. Everything inside a span is
//! resolved here, in parallel with other chunks.
//!
//! Times: the decoder reports the time packet by packet, and several branches may lie between two reports. Events
//! between two reports are timed instruction by instruction, at the pace of the interval before. If these
//! times sum to less than the interval, the rest is the first repeated instruction's (`rep stosb`), whose turns are one instruction. If
//! there is none, or the CPU waits after it, the rest goes to the function that runs at the report. If they sum to more, all of the
//! interval's times are shortened in proportion ([`correct`]). So the times of a chunk sum to the time that passed. At one instruction a tick, as in recordings that count instructions, every event gets its exact time.
//!
//! To shorten them, what was added since the last report must be known. That costs a little for each event, so it is noted only
//! where it is needed: a chunk in which an estimate runs ahead ([`Stacks::finish`]) is decoded again, with [`NOTED`].

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::iter::Peekable;

use kprism_image::code::KeyHasher;

use crate::decode::event::{Event, EventKind, NO_FUNC, Sink, flag};
use crate::decode::marks::Op;
use crate::measure::mark::{Mark, What};
use crate::measure::window::Window;
use crate::stack::correct::{Delay, Excess, correct};
use crate::stack::frames::{
    Done, Found, Frame, NO_RETURN, Now, Tree, is_kernel, jumped_into, left_entry, returned_to,
};
use crate::stack::pace::{Pace, TOLERATED};
use kprism_image::x86::address::task_space;
use kprism_profile::FrameKind;

/// Reason for a new span: the change that it makes to the task's stack first.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cause {
    /// The chunk begins.
    Begin,
    /// The flow is known again.
    Resume { ip: u64 },
    /// A return to `ip` that matches no frame of the chunk.
    Ret { ip: u64 },
    /// A jump into the span's function that reaches below the base.
    Jump { ip: u64 },
    /// A return or an indirect jump to `ip`, behind an instruction that loads the stack pointer.
    Pivot { ip: u64, is_return: bool },
    /// `iret` or `sysret` to `ip`. `entry` is the kernel entry it leaves, when that lies in the chunk.
    Exit { ip: u64, entry: Option<Frame> },
    /// The kernel switches tasks, with the flow at `ip`; 0 if that is not known. The times of the stream before and after
    /// that, ns.
    Switch { ip: u64, after: u64, before: u64 },
    /// The span's function is the body of a system call that began below the base.
    Body,
    /// A system call that creates a task runs. Its child will need a copy of the stack.
    Fork,
}

/// State of tracing: whether the flow is known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tracing {
    /// Unchanged since the end of the chunk before.
    #[default]
    AsBefore,
    /// Unchanged, but a PSB states that tracing is on. If it was off, the packet that switched it on is missing.
    AtPsb,
    On,
    Off,
    /// Code runs that is not known. Nothing was lost.
    NoCode,
    /// Data was lost, or nothing was recorded: between two snapshots or windows.
    Lost,
}

impl Tracing {
    /// The state that follows `before`.
    pub fn after(self, before: Self) -> Self {
        match self {
            Tracing::AsBefore => before,
            Tracing::AtPsb if before == Tracing::Off => Tracing::Lost,
            Tracing::AtPsb => before,
            known => known,
        }
    }
}

/// The flow stops.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Off {
    /// Time, ns.
    pub ns: u64,
    /// Last report of the stream before, ns. The flow was followed until then at least.
    pub reported: u64,
}

/// A stretch of one task's execution that needs the stack below its base only at its start.
#[derive(Debug)]
pub(crate) struct Span {
    pub cause: Cause,
    /// Function in which it begins, and the flags of the arrival there.
    pub func: u32,
    pub flags: u8,
    /// Address space in which it begins.
    pub space: u64,
    /// State of tracing just before it begins.
    pub tracing: Tracing,
    /// Time until which the flow was followed before that, if in this chunk.
    pub off: Option<Off>,
    /// Its first node, which stands for the frame at its base. The next node stands for that frame's parent. The span's
    /// nodes end where the next span's begin.
    pub root: u32,
    /// The node and function to which the frame at its base jumped, if any.
    pub base: Option<(u32, u32)>,
    pub start_ns: u64,
    /// The chunk's counters at its start.
    pub insns: u64,
    pub cpu: u64,
    /// Frames still open at its end.
    pub frames: Vec<Frame>,
    /// Lengths of the chunk's lists at its start.
    pub syscalls: usize,
    pub slices: usize,
    pub marks: usize,
}

/// Result of decoding a chunk. Functions are the resolver's ids.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub spans: Vec<Span>,
    pub tree: Tree,
    pub syscalls: Vec<Done>,
    pub slices: Vec<Done>,
    pub marks: Vec<Mark>,
    /// Executions of patterns: (node, pattern, count), sorted by node.
    pub counts: Vec<(u32, u32, u64)>,
    /// The chunk's counters at its end.
    pub insns: u64,
    pub cpu: u64,
    pub end_ns: u64,
    /// Time of the last report, ns; 0 if there is none.
    pub reported: u64,
    /// State at the end.
    pub tracing: Tracing,
    /// The time at which the flow last stopped.
    pub off: Option<Off>,
    /// Intervals whose rest is that of one of several repeated instructions.
    pub shared: u64,
}

impl Chunk {
    /// True if the window begins or ends in the chunk.
    pub fn has_edge(&self, window: &Window) -> bool {
        let start = self.spans.first().map_or(0, |span| span.start_ns);
        [window.from_ns, window.to_ns].iter().any(|edge| (start..=self.end_ns).contains(edge))
    }

    fn cleared(mut self) -> Self {
        self.tree.clear_to_remember();
        self.spans.clear();
        self.syscalls.clear();
        self.slices.clear();
        self.marks.clear();
        self.counts.clear();
        Self {
            insns: 0,
            cpu: 0,
            end_ns: 0,
            reported: 0,
            tracing: Tracing::AsBefore,
            off: None,
            shared: 0,
            ..self
        }
    }
}

/// The sink that builds a [`Chunk`].
#[derive(Debug)]
pub(crate) struct Stacks<const NOTES: bool> {
    out: Chunk,
    stack: Vec<Frame>,
    clock: Pace,
    /// Node of the top frame.
    node: u32,
    /// Time passes only while this is on, or [`Self::unseen`].
    tracing: Tracing,
    /// Code runs that is not known, in the function where the flow stopped.
    unseen: bool,
    /// The CPU stands still, though it has work: time that passes is nobody's.
    is_still: bool,
    space: u64,
    slice_ns: u64,
    /// Only events inside this window are counted.
    window: Option<Window>,
    /// No other task runs on this CPU.
    alone: bool,
    /// Executions of patterns by node and pattern.
    counts: HashMap<(u32, u32), u64, BuildHasherDefault<KeyHasher>>,
    /// With [`NOTED`]: times added to nodes since the last report.
    added: Vec<(u32, u64)>,
    /// [`Pace::now`] and the chunk's time on a CPU at the last report.
    reported: (u64, u64),
    /// An estimate was ahead of a report, by more than is tolerated.
    ahead: bool,
    /// Number of the last reports in a row that are behind the estimate, and the time of the last of them; ns.
    owing: u32,
    owed_ns: u64,
    /// The first span since the last report that begins with a switch of tasks; `usize::MAX` if none does.
    undated: usize,
    /// The first repeated instruction since the last report, if the rest of the interval may be its.
    repeat: Option<Repeat>,
    /// With a window: the rests of intervals that repeated instructions took, in order.
    rests: Vec<Rest>,
    /// The same, if the chunk was decoded before. Then they are added at once.
    known: Peekable<std::vec::IntoIter<Rest>>,
}

/// The rest of an interval, which a repeated instruction took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// The chunk's instructions with it.
    insns: u64,
    ns: u64,
}

/// A repeated instruction that ran.
#[derive(Debug, Clone, Copy)]
struct Repeat {
    node: u32,
    /// The chunk's instructions with it.
    insns: u64,
    /// It ran inside the window.
    counts: bool,
    /// Length of the chunk's list of slices then.
    slices: usize,
    /// Another one ran after it, in another call.
    is_shared: bool,
}

/// Reports in a row that may be behind the estimate.
const MOST_OWING: u32 = 4096;

/// The times between two reports are noted, so that they can be corrected.
pub(crate) const NOTED: bool = true;
/// They are not: enough where no estimate runs ahead.
pub(crate) const PLAIN: bool = false;

impl<const NOTES: bool> Sink for Stacks<NOTES> {
    #[inline]
    fn event(&mut self, event: Event) {
        self.run(event.insns);
        // These two make up nearly all events.
        match event.kind {
            EventKind::Call if event.flags & (flag::SYSCALL_BODY | flag::MARKED) == 0 => {
                self.push(event.func, FrameKind::Call, event.ip, is_kernel(event.ip), self.clock.now);
            }
            EventKind::Ret
                if self.stack.last().is_some_and(|top| top.ret_ip == event.ip && !top.is_entry()) =>
            {
                self.pop(self.clock.now);
            }
            _ => self.apply(&event, self.clock.now),
        }
    }

    #[inline]
    fn time(&mut self, insns: u32, ns: u64) {
        self.run(insns);
        if self.undated != usize::MAX {
            self.date(ns);
        }
        match self.clock.ahead(ns) {
            0 => self.owing = 0,
            ahead => self.owe(ns, ahead),
        }
        // The rest of an interval belongs to its end. It is counted if the interval's start is.
        let counts = self.in_window();
        let repeat = self.repeat.take();
        match self.clock.report(ns, self.out.insns, repeat.is_some()) {
            None => {
                self.begin_time(ns);
                repeat.into_iter().for_each(|repeat| self.drop_short_slices(repeat.slices));
            }
            Some(rest) if let Some(repeat) = repeat => self.end_repeat(repeat, rest),
            Some(rest) if self.is_still => self.mark(What::Still { ns: rest }, 0),
            Some(rest) if self.tracing == Tracing::On || self.unseen => {
                if counts {
                    self.out.tree.nodes[self.node as usize].ns += rest;
                }
                self.out.cpu += rest;
            }
            Some(_) => {}
        }
        if NOTES && self.owing == 0 {
            self.added.clear();
            self.reported = (self.clock.now, self.out.cpu);
        }
    }

    fn stands_still(&mut self, insns: u32, is_still: bool) {
        self.run(insns);
        self.end_without_report();
        self.is_still = is_still;
        // What was estimated beyond the last report would be missing of the standstill.
        if is_still && self.owing > 0 && self.clock.is_at(self.out.insns) {
            self.set_back(self.owed_ns);
        }
    }
}

impl<const NOTES: bool> Stacks<NOTES> {
    /// Starts a new chunk. `room` is an old one whose memory is reused. `alone` is true if the CPU has only one task:
    /// then tracing that resumes in the same function resumes in the same call.
    pub fn new(slice_ns: u64, window: Option<Window>, alone: bool, room: Chunk) -> Self {
        let mut stacks = Self {
            out: room.cleared(),
            stack: Vec::with_capacity(128),
            clock: Pace::default(),
            node: 0,
            tracing: Tracing::AsBefore,
            unseen: false,
            is_still: false,
            space: 0,
            slice_ns,
            window,
            alone,
            counts: HashMap::default(),
            added: Vec::new(),
            reported: (0, 0),
            ahead: false,
            owing: 0,
            owed_ns: 0,
            undated: usize::MAX,
            repeat: None,
            rests: Vec::new(),
            known: Vec::new().into_iter().peekable(),
        };
        stacks.open_span(Cause::Begin, NO_FUNC, 0, 0);
        stacks
    }

    /// Takes over the rests that were found when the chunk was decoded before.
    pub fn with_rests(mut self, rests: Vec<Rest>) -> Self {
        self.known = rests.into_iter().peekable();
        self
    }

    /// The rests that were found; none without a window.
    pub fn take_rests(&mut self) -> Vec<Rest> {
        std::mem::take(&mut self.rests)
    }

    /// The switches of tasks since the last report were before this one.
    #[cold]
    #[inline(never)]
    fn date(&mut self, ns: u64) {
        for span in &mut self.out.spans[std::mem::replace(&mut self.undated, usize::MAX)..] {
            if let Cause::Switch { before, .. } = &mut span.cause {
                *before = ns;
            }
        }
    }

    /// The estimate is ahead of a report. A little is tolerated: the next report may catch up.
    #[cold]
    #[inline(never)]
    fn owe(&mut self, ns: u64, ahead: u64) {
        (self.owing, self.owed_ns) = (self.owing + 1, ns);
        if ahead > TOLERATED || self.owing > MOST_OWING {
            self.set_back(ns);
        }
    }

    /// Shortens the times since the last report that was not behind the estimate, so that they end with this one.
    fn set_back(&mut self, ns: u64) {
        (self.ahead, self.owing) = (true, 0);
        if NOTES {
            let (since, cpu) = self.reported;
            // Time may step back: a TSC packet corrects an estimate made before it. Then no time passed.
            let passed = ns.saturating_sub(since);
            let excess = Excess { ns: since, cpu, estimated: self.clock.now - since, passed };
            excess.shorten(&mut self.out, &self.added);
            correct(&mut self.out, &mut self.stack, &excess);
            self.clock.now = since + passed;
        }
    }

    /// A repeated instruction ran. Of several in one run of code (`rep movsq`, and `rep movsb` for what is left) the first has most turns.
    #[cold]
    #[inline(never)]
    fn repeat(&mut self) {
        let now = Repeat {
            node: self.node,
            insns: self.out.insns,
            counts: self.in_window(),
            slices: self.out.slices.len(),
            is_shared: false,
        };
        let first = self.repeat.get_or_insert(now);
        first.is_shared |= first.node != now.node;
        if let Some(rest) = self.known.next_if(|rest| rest.insns == now.insns) {
            if now.counts {
                self.out.tree.nodes[now.node as usize].ns += rest.ns;
            }
            self.out.cpu += rest.ns;
            self.clock.now += rest.ns;
        }
    }

    /// A repeated instruction took so much longer than one turn.
    #[cold]
    #[inline(never)]
    fn end_repeat(&mut self, repeat: Repeat, rest: u64) {
        if rest > 0 {
            if repeat.counts {
                self.out.tree.nodes[repeat.node as usize].ns += rest;
            }
            self.out.shared += u64::from(repeat.is_shared);
            correct(&mut self.out, &mut self.stack, &Delay { insns: repeat.insns, ns: rest });
            if self.window.is_some() {
                self.rests.push(Rest { insns: repeat.insns, ns: rest });
            }
        }
        self.drop_short_slices(repeat.slices);
    }

    /// The rest of the interval is not that of the repeated instruction before.
    fn end_without_report(&mut self) {
        if let Some(repeat) = self.repeat.take() {
            self.drop_short_slices(repeat.slices);
        }
    }

    /// Drops slices, from this one on, that are shorter than is asked for. See [`Stacks::pop`].
    fn drop_short_slices(&mut self, from: usize) {
        let (mut index, mut short) = (from, Vec::new());
        let new = self.out.slices.split_off(from);
        for done in new {
            if done.end_ns - done.frame.start_ns >= self.slice_ns || done.frame.is_entry() {
                self.out.slices.push(done);
            } else {
                short.push(index);
            }
            index += 1;
        }
        for span in self.out.spans.iter_mut().rev().take_while(|span| span.slices > from) {
            span.slices -= short.partition_point(|&index| index < span.slices);
        }
    }

    /// Ends the chunk. The flag is true if estimates ran ahead of reports. Without [`NOTED`], the chunk's times then exceed the
    /// time that passed.
    pub fn finish(mut self) -> (Chunk, bool) {
        if self.owing > 0 && self.clock.is_at(self.out.insns) {
            self.set_back(self.owed_ns);
        }
        self.end_without_report();
        self.close_span();
        self.out.end_ns = self.clock.now;
        self.out.reported = self.clock.last_report();
        self.out.tracing = self.tracing;
        self.out.counts.extend(self.counts.into_iter().map(|((node, pattern), n)| (node, pattern, n)));
        self.out.counts.sort_unstable();
        (self.out, self.ahead)
    }

    /// Sets the first known time. Everything before it gets this time.
    fn begin_time(&mut self, ns: u64) {
        self.out.spans.iter_mut().for_each(|span| span.start_ns = ns);
        self.stack.iter_mut().for_each(|frame| frame.start_ns = ns);
    }

    /// Returns true if the current time is in the window.
    #[inline]
    fn in_window(&self) -> bool {
        self.window.is_none_or(|window| window.holds(self.clock.now))
    }

    /// The top frame executes instructions.
    #[inline]
    fn run(&mut self, insns: u32) {
        let ns = self.clock.of(insns);
        let counts = self.in_window();
        let node = &mut self.out.tree.nodes[self.node as usize];
        self.out.insns += u64::from(insns);
        if counts {
            node.insns += u64::from(insns);
        }
        if self.tracing == Tracing::On {
            if counts {
                node.ns += ns;
                if NOTES && ns != 0 {
                    self.added.push((self.node, ns));
                }
            }
            self.out.cpu += ns;
            self.clock.now += ns;
        }
    }

    #[inline(never)]
    fn apply(&mut self, event: &Event, now: u64) {
        match event.kind {
            EventKind::Call => {
                self.push(event.func, FrameKind::Call, event.ip, is_kernel(event.ip), now);
                self.begin(event);
                if event.flags & flag::SYSCALL_BODY != 0 {
                    self.body(event, now);
                }
            }
            EventKind::Ret | EventKind::Tail if event.flags & flag::STACK != 0 => {
                let is_return = event.kind == EventKind::Ret;
                self.new_span(Cause::Pivot { ip: event.ip, is_return }, event.func, event.flags, now);
            }
            EventKind::Ret => self.unmatched_ret(event, now),
            EventKind::Tail => self.jump(event, now),
            EventKind::Syscall => self.enter(event, FrameKind::Syscall, now),
            EventKind::Async if event.flags & flag::EXCEPTION != 0 => {
                self.enter(event, FrameKind::Exception, now);
            }
            EventKind::Async => self.enter(event, FrameKind::Interrupt, now),
            EventKind::Exit => self.exit(event, now),
            EventKind::Switch => {
                let (ip, after) = (event.ip, self.clock.last_report());
                let cause = Cause::Switch { ip, after, before: u64::MAX };
                self.new_span(cause, event.func, event.flags, now);
                self.undated = self.undated.min(self.out.spans.len() - 1);
            }
            EventKind::Space => self.space = task_space(event.ip),
            EventKind::Start | EventKind::Resume => {
                if event.kind == EventKind::Resume && self.unseen {
                    self.tracing = Tracing::NoCode;
                } else if event.kind == EventKind::Resume {
                    self.tracing = Tracing::Lost;
                } else if event.link == Event::AT_PSB {
                    self.tracing = match self.tracing {
                        Tracing::AsBefore => Tracing::AtPsb,
                        Tracing::NoCode if !self.unseen => Tracing::Lost,
                        known => Tracing::AtPsb.after(known),
                    };
                }
                let top = self.stack.last().filter(|top| top.func == event.func);
                let same = top.is_some();
                // If the function begins again, it is not the same call.
                let on = event.flags & flag::ENTRY == 0
                    || top.is_some_and(|top| top.start_insns == self.out.insns);
                if same && on && self.alone && self.tracing == Tracing::Off {
                    self.mark(What::Off, event.ip);
                } else if !same || self.tracing != Tracing::On {
                    self.new_span(Cause::Resume { ip: event.ip }, event.func, event.flags, now);
                }
                (self.tracing, self.unseen) = (Tracing::On, false);
            }
            // The flow stopped before.
            EventKind::Stop if event.func == Event::OFF_UNSEEN => self.unseen = false,
            EventKind::Stop => {
                self.tracing = match event.func {
                    Event::OFF => Tracing::Off,
                    Event::NO_CODE => Tracing::NoCode,
                    _ => Tracing::Lost,
                };
                self.unseen = event.func == Event::NO_CODE;
                self.end_without_report();
                self.out.off = Some(Off { ns: now, reported: self.clock.last_report() });
            }
            EventKind::Mark => match Op::unpack(event.func) {
                Op::Counted(pattern) => *self.counts.entry((self.node, pattern)).or_default() += 1,
                Op::Repeat => self.repeat(),
                op => {
                    if op == Op::Halt {
                        self.end_without_report();
                    }
                    self.mark(What::Insn(op), event.ip);
                }
            },
            EventKind::Count | EventKind::Push => {}
        }
    }

    #[inline(always)]
    fn push(&mut self, func: u32, kind: FrameKind, ret_ip: u64, kernel: bool, now: u64) {
        let node = self.out.tree.child(self.node, func, kind);
        self.out.tree.nodes[node as usize].calls += u64::from(self.in_window());
        self.node = node;
        self.stack.push(Frame::begin(node, func, kind, ret_ip, kernel, self.now(now)));
    }

    /// The chunk's counters at time `ns`.
    #[inline(always)]
    fn now(&self, ns: u64) -> Now {
        Now { ns, insns: self.out.insns, cpu: self.out.cpu }
    }

    /// Records a mark at the current node and time.
    fn mark(&mut self, what: What, ip: u64) {
        let (node, ns) = (self.node, self.clock.now);
        self.out.marks.push(Mark { what, node, ns, insns: self.out.insns, ip });
    }

    /// Handles the function just pushed: its beginning and end may be marks.
    fn begin(&mut self, event: &Event) {
        if let Some(body) = flag::begins(event.flags)
            && let Some(top) = self.stack.last_mut()
        {
            if let Some(over) = top.add_end(event.func) {
                self.mark(What::End { func: over }, event.ip);
            }
            self.mark(What::Begin { func: event.func, body }, event.ip);
        }
    }

    #[inline(always)]
    fn pop(&mut self, now: u64) {
        if let Some(frame) = self.stack.pop() {
            for func in frame.ends.into_iter().rev().filter(|&f| f != NO_FUNC) {
                self.mark(What::End { func }, frame.ret_ip);
            }
            self.node = match self.stack.last() {
                Some(below) => below.node,
                None => self.base_node(),
            };
            // How long a repeated instruction took is known at the next report.
            let may_be_longer = self.repeat.is_some_and(|repeat| frame.start_insns < repeat.insns);
            if now - frame.start_ns >= self.slice_ns || frame.is_entry() || may_be_longer {
                self.record(frame, now);
            }
        }
    }

    /// The node of the frame below the chunk.
    fn base_node(&self) -> u32 {
        self.out.spans.last().map_or(0, |span| span.base.map_or(span.root, |base| base.0))
    }

    fn record(&mut self, frame: Frame, now: u64) {
        let done = frame.end(self.stack.len(), self.now(now));
        if frame.kind == FrameKind::Syscall {
            self.out.syscalls.push(done);
            self.mark(What::SyscallDone, frame.ret_ip);
        }
        self.out.slices.push(done);
    }

    fn truncate(&mut self, len: usize, now: u64) {
        while self.stack.len() > len {
            self.pop(now);
        }
    }

    /// The CPU enters the kernel.
    fn enter(&mut self, event: &Event, kind: FrameKind, now: u64) {
        self.push(event.func, kind, event.ip, true, now);
        // After the push: what begins here belongs to the entry, not to the code that it interrupts.
        self.mark(What::Enter { kind, func: event.func }, event.ip);
        if let Some(top) = self.stack.last_mut() {
            top.aux = self.space;
        }
    }

    /// The first call of a system call's body names the system call.
    fn body(&mut self, event: &Event, now: u64) {
        let Some(entry) = self.stack.iter_mut().rev().find(|f| f.is_entry()) else {
            return self.new_span(Cause::Body, event.func, event.flags, now);
        };
        entry.name_body(event.func);
        if event.flags & flag::FORK != 0 {
            self.new_span(Cause::Fork, event.func, event.flags, now);
        }
    }

    /// A return that does not match the top frame: from several frames at once, below the base, or a jump made with a
    /// return instruction.
    fn unmatched_ret(&mut self, event: &Event, now: u64) {
        match returned_to(&self.stack, event.ip) {
            Found::At(index) => self.truncate(index, now),
            // No call returns to a function's first instruction.
            _ if event.flags & flag::ENTRY != 0 => self.jump(event, now),
            Found::BehindEntry => self.jump(event, now),
            Found::Nothing => {
                self.new_span(Cause::Ret { ip: event.ip }, event.func, event.flags, now);
            }
        }
    }

    /// A jump to another function: a tail call, a jump into the middle of a function on the stack (`longjmp`,
    /// unwinding), or a jump back from a part that the compiler placed elsewhere.
    fn jump(&mut self, event: &Event, now: u64) {
        let inner = event.flags & flag::INNER != 0;
        let direct = event.flags & flag::DIRECT != 0;
        if inner && !direct {
            match jumped_into(&self.stack, event.func) {
                Found::At(index) if self.stack[index].func == event.func => {
                    return self.truncate(index + 1, now);
                }
                // It only began in that function: a frame below the chunk may run it.
                Found::At(_) => {
                    return self.new_span(Cause::Jump { ip: event.ip }, event.func, event.flags, now);
                }
                Found::BehindEntry => {}
                Found::Nothing if self.base_func() == event.func => return self.truncate(0, now),
                Found::Nothing => {
                    return self.new_span(Cause::Jump { ip: event.ip }, event.func, event.flags, now);
                }
            }
        }
        match self.stack.last().copied() {
            None => self.jump_at_base(event),
            Some(top) if top.func == event.func => {}
            Some(top) if inner && top.home_func == event.func => {
                if let Some(frame) = self.stack.last_mut() {
                    frame.go_home();
                }
                self.node = top.home;
            }
            Some(top) => self.tail(top, event, now),
        }
        if event.flags & flag::SYSCALL_BODY != 0 && event.flags & flag::ENTRY != 0 {
            self.body(event, now);
        }
    }

    /// Replaces the top frame's function. A kernel entry stays on the stack: only `iret` leaves it, whatever jumps came
    /// before.
    fn tail(&mut self, top: Frame, event: &Event, now: u64) {
        let ret_ip = if top.is_entry() { NO_RETURN } else { top.ret_ip };
        if let Some(frame) = self.stack.last_mut()
            && !top.is_entry()
        {
            frame.take_ends(); // the new frame has them
            self.pop(now);
        }
        self.push(event.func, FrameKind::Tail, ret_ip, top.kernel, now);
        if event.flags & flag::INNER != 0 {
            self.out.tree.nodes[self.node as usize].calls -= u64::from(self.in_window());
        }
        if let Some(new) = self.stack.last_mut()
            && !top.is_entry()
        {
            new.inherit(&top);
        }
        self.begin(event);
    }

    /// Like [`Stacks::tail`], for the frame below the chunk.
    fn jump_at_base(&mut self, event: &Event) {
        if self.base_func() == event.func {
            return;
        }
        let counts = self.in_window();
        let Some(span) = self.out.spans.last_mut() else { return };
        let inner = event.flags & flag::INNER != 0;
        if inner && span.func == event.func {
            span.base = Some((span.root, event.func));
            self.node = span.root;
            return;
        }
        let above = span.root + 1;
        self.node = self.out.tree.child(above, event.func, FrameKind::Tail);
        self.out.tree.nodes[self.node as usize].calls += u64::from(!inner && counts);
        span.base = Some((self.node, event.func));
        if let Some(body) = flag::begins(event.flags) {
            self.mark(What::Tail { func: event.func, body }, event.ip);
        }
    }

    /// The function of the frame below the chunk, as far as known.
    fn base_func(&self) -> u32 {
        self.out.spans.last().map_or(NO_FUNC, |span| span.base.map_or(span.func, |base| base.1))
    }

    /// Leaves the kernel, or an interrupt of kernel code.
    fn exit(&mut self, event: &Event, now: u64) {
        let user = !is_kernel(event.ip);
        self.mark(What::Leave { user }, event.ip);
        let Some(index) = left_entry(&self.stack, user) else {
            return self.new_span(Cause::Exit { ip: event.ip, entry: None }, event.func, event.flags, now);
        };
        let entry = self.stack[index];
        self.truncate(index, now);
        if entry.resumes_at(event.ip) {
            return;
        }
        if user {
            let entry = Some(entry);
            self.new_span(Cause::Exit { ip: event.ip, entry }, event.func, event.flags, now);
        } else {
            // A fault with a fix-up continues elsewhere, mostly in the same function.
            self.jump(event, now);
        }
    }

    fn new_span(&mut self, cause: Cause, func: u32, flags: u8, now: u64) {
        self.close_span();
        self.open_span(cause, func, flags, now);
    }

    fn close_span(&mut self) {
        if let Some(span) = self.out.spans.last_mut() {
            span.frames = std::mem::take(&mut self.stack);
        }
    }

    fn open_span(&mut self, cause: Cause, func: u32, flags: u8, now: u64) {
        // The span's own frame at its base, and that frame's parent: see `Span::root`.
        let root = self.out.tree.add_root();
        self.out.tree.add_root();
        self.node = root;
        self.out.spans.push(Span {
            cause,
            func,
            flags,
            space: self.space,
            tracing: self.tracing,
            off: self.out.off,
            root,
            base: None,
            start_ns: now,
            insns: self.out.insns,
            cpu: self.out.cpu,
            frames: Vec::new(),
            syscalls: self.out.syscalls.len(),
            slices: self.out.slices.len(),
            marks: self.out.marks.len(),
        });
    }
}

#[cfg(test)]
mod owing_tests {
    use super::*;

    /// A chunk in which `reports` in a row are behind the estimate, by less than is tolerated. Returns by how much the
    /// chunk's end exceeds the last of them, and the flag of [`Stacks::finish`].
    fn behind<const NOTES: bool>(reports: u32) -> (u64, bool) {
        let mut stacks = Stacks::<NOTES>::new(u64::MAX, None, true, Chunk::default());
        stacks.event(Event::new(EventKind::Start, 0, 0x40_0000));
        let mut ns = 1_000_000;
        stacks.time(0, ns);
        for _ in 0..reports {
            ns += 50;
            // The first of them come at twice the pace that is expected.
            stacks.time(100, ns);
        }
        // Reports that nothing follows end the chunk's time.
        stacks.event(Event { insns: 1, ..Event::new(EventKind::Count, 0, 0) });
        let (chunk, ahead) = stacks.finish();
        (chunk.end_ns - ns, ahead)
    }

    #[test]
    fn an_estimate_is_not_ahead_for_ever() {
        assert!(!behind::<PLAIN>(MOST_OWING).1);
        assert!(behind::<PLAIN>(MOST_OWING + 1).1, "the chunk is decoded again with notes");
        assert!(behind::<NOTED>(MOST_OWING).0 > 40);
        assert!(behind::<NOTED>(MOST_OWING + 1).0 <= 1, "set back to the report");
    }
}
