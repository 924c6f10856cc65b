// SPDX-License-Identifier: GPL-2.0-or-later
//! Determines branches from block starts. QEMU reports the address at which each block starts. Where the next block
//! starts shows whether the block before ran to its end, and which way it left:
//!
//! - through an IDT gate: the saved instruction pointer is where the old flow stopped. For a fault it is the
//!   instruction that did not run; for an interrupt it is the next one to run.
//! - inside the old block, at an instruction k that its own branch does not target: only k instructions ran (device
//!   access, self-modifying code, one round of a REP string operation at a time);
//! - at a target of the last instruction: all ran.
//!
//! Any other start is counted as unexplained and sent as an overflow, so that no decoder is misled. An interrupted
//! branch is resolved with the saved address before the FUP is sent.

use kprism_expr::access::Condition;
use kprism_image::insn::{Far, Kind, Mode};

use crate::block::{Block, Shape};
use crate::codemap::{CodeMap, News};
use crate::filter::{Filter, LeftOut};
use crate::options::{Keep, Options};
use crate::side::{Side, What};
use crate::tape::{Entry, Passed, earliest};
use crate::writer::Writer;
use kprism_tlb::stream::{self, Event};

/// Result of an encoder.
pub struct Encoded {
    pub cpu: u32,
    pub counts: Counts,
    pub footprint: usize,
    pub pt_bytes: u64,
    /// Number of instructions in the stream. `None` if only snapshots are kept: the recorder does not know their
    /// contents.
    pub instructions: Option<u64>,
    /// Number of snapshots, if only snapshots are kept.
    pub snapshots: Option<u64>,
    /// Number of those that lack the begin of what triggered them on this vCPU. `None` if that is not known.
    pub short_snapshots: Option<u64>,
    /// Number of map records dropped because no kept data needs them.
    pub dropped_records: Option<u64>,
    /// TLB misses that were not kept, if a condition says which are.
    pub left_out: Option<LeftOut>,
}

/// The observer's own count of executed instructions, independent of the packets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Instructions retired. A REP string operation counts once; a faulting instruction does not count.
    pub instructions: u64,
    /// Blocks entered.
    pub blocks: u64,
    /// Blocks that did not run to their end.
    pub partial: u64,
    /// Block starts that none of these cases explains.
    pub unexplained: u64,
    /// Interrupts and exceptions.
    pub interrupts: u64,
    /// Largest difference between counted and read guest time, ns (deterministic mode; idle excluded).
    pub drift_ns: u64,
}

/// The block that ran last and is not resolved yet.
#[derive(Clone, Copy)]
struct Last {
    block: &'static Block,
    va: u64,
    /// Address at which it continues if not by a branch.
    fall: u64,
    done: bool,
}

impl Last {
    /// True if it ran to its end, which is a `pause`, and `ip` comes next.
    fn gives_turn_away(&self, ip: u64) -> bool {
        self.block.pause && ip == self.fall
    }
}

/// One vCPU's encoder.
pub struct Encoder {
    cpu: u32,
    icount: bool,
    linux: bool,
    /// The writer of packets.
    pub writer: Writer,
    /// Code records.
    pub map: CodeMap,
    /// TLB misses, if requested.
    pub misses: Option<stream::Writer>,
    /// The misses that are kept, if not all are. Then hits that a replay needs are left out too.
    pub filter: Option<Filter>,
    /// Sideband lines.
    pub lines: Vec<u8>,
    /// Exact counts of what ran, independent of the packets.
    pub counts: Counts,
    last: Option<Last>,
    /// Only blocks and their addresses came since `last`.
    plain: bool,
    at: Option<u64>,
    gate: Option<Gate>,
    cr3: Option<u64>,
    start: Option<(u64, u64)>,
    time: Option<(u64, Passed)>,
    /// The stream is split before the next block. True if the piece before is kept; the begin of what triggered it, ns.
    split: Option<(bool, Option<u64>)>,
    /// The splits not taken yet.
    pub splits: Vec<Split>,
    /// Instructions counted up to the last split, and the number of those that are kept.
    split_at: u64,
    kept: u64,
    /// Guest time at the start of the last block, ns.
    ns: u64,
    /// Real-time mode: ns per instruction, 16.16 fixed point, from the last three time entries.
    rate: u64,
    /// Like `rate`, from the last two time entries alone.
    measured: u64,
    since: (u64, u64),
}

/// A split: the end of one piece of the stream and the start of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Stream offset.
    pub offset: u64,
    /// True if the piece before it is kept.
    pub keep: bool,
    /// Begin of what triggered a snapshot on this vCPU, ns.
    pub since_ns: Option<u64>,
}

/// An interrupt or exception: its gate, and the interrupted address.
#[derive(Clone, Copy)]
struct Gate {
    vector: u8,
    rip: u64,
    mode: Mode,
}

impl Encoder {
    /// An encoder for vCPU `cpu`.
    pub fn new(cpu: u32, o: &Options) -> Self {
        Encoder {
            cpu,
            icount: o.icount,
            linux: o.linux,
            writer: Writer::new(o),
            map: CodeMap::new(o.keep != Keep::All),
            misses: (!o.tlb.is_empty()).then(|| stream::Writer::new(&o.tlb)),
            // It was checked when the options were read.
            filter: o.misses_if.as_deref().and_then(|json| Condition::from_json(json).ok()).map(Filter::new),
            lines: Vec::new(),
            counts: Counts::default(),
            last: None,
            plain: false,
            at: None,
            gate: None,
            cr3: None,
            start: None,
            time: None,
            split: None,
            splits: Vec::new(),
            split_at: 0,
            kept: 0,
            ns: 0,
            rate: 1 << 16,
            measured: 1 << 16,
            since: (0, 0),
        }
    }

    /// Handles the tape's next entry.
    #[inline]
    pub fn entry(&mut self, entry: Entry) {
        match entry {
            Entry::Block(block) => {
                let va = self.at.take().unwrap_or(block.va);
                if !(self.plain && self.step(block, va)) {
                    self.block(block, va);
                }
            }
            Entry::At(va) => self.at = Some(va),
            Entry::Miss { va, access, missed, .. } if missed.touched => {
                if self.filter.is_none() {
                    self.note(Event::Touch { va, access, size: missed.size });
                }
            }
            Entry::Miss { index, va, access, missed } => {
                if let (Some(last), Some(misses)) = (&self.last, &mut self.misses) {
                    let ns = self.ns + if self.icount { u64::from(index) } else { 0 };
                    let start = last.block.starts.get(index as usize).map_or(0, |&s| u64::from(s));
                    let ip = last.va.wrapping_add(start);
                    let (size, first, last) = (missed.size, missed.first, missed.last);
                    let miss = stream::Miss { ns, va, ip, access, size, first, last };
                    if self.filter.as_mut().is_none_or(|filter| filter.keeps(&miss, self.cpu)) {
                        misses.event(&Event::Miss(miss));
                    }
                }
            }
            Entry::Fault(va) => self.note(Event::Fault(va)),
            Entry::FaultEnd => self.note(Event::FaultEnd),
            Entry::Alloc(a) => self.note(Event::Alloc(stream::Alloc { ns: self.ns, ..a })),
            Entry::Free(va, bytes) => self.note(Event::Free { ns: self.ns, va, bytes }),
            Entry::Invalidated(page) => self.note(page.map_or(Event::Flush, Event::Invalidate)),
            entry => {
                self.plain = false;
                self.rare(entry);
            }
        }
    }

    /// Handles an entry that is not a block.
    fn rare(&mut self, entry: Entry) {
        match entry {
            Entry::Block(_) | Entry::At(_) | Entry::Miss { .. } | Entry::Invalidated(_) => {}
            Entry::Fault(_) | Entry::FaultEnd | Entry::Alloc(_) | Entry::Free(..) => {}
            Entry::BlockEnded => {
                if let Some(last) = &mut self.last {
                    last.done = true;
                }
            }
            Entry::Time { ns, passed } => self.time = Some((ns, passed)),
            Entry::Interrupt { vector, rip, cs } => {
                let mode = match &self.last {
                    Some(last) if !self.linux => last.block.mode,
                    _ => linux_mode(cs),
                };
                self.gate = Some(Gate { vector, rip, mode });
            }
            Entry::Cr3(cr3) => {
                self.note(Event::Space(cr3));
                self.cr3 = Some(cr3);
            }
            Entry::Start { ns, cr3 } => {
                self.note(Event::Space(cr3));
                self.last = None;
                self.start = Some((ns, cr3));
            }
            Entry::Stop { va } => self.stop(va),
            Entry::End => self.finish(),
            Entry::Split { keep, since_ns } => {
                let before = self.split.and_then(|(_, since_ns)| since_ns);
                self.split = Some((keep, earliest(before, since_ns)));
            }
            Entry::Side(side) => self.side(&side),
        }
    }

    fn note(&mut self, event: Event) {
        if let Some(misses) = &mut self.misses {
            misses.event(&event);
        }
    }

    /// Ends the tape. The last block may not have run, so it is not reported.
    pub fn finish(&mut self) {
        if let Some(last) = self.last.take() {
            self.writer.disable(last.va, self.ns);
        }
        self.split_at_end();
    }

    /// Number of instructions in the kept pieces. `open` is true if the last piece is kept too.
    pub fn kept(&self, open: bool) -> u64 {
        self.kept + if open { self.counts.instructions - self.split_at } else { 0 }
    }

    /// Guest time at the start of the last block, ns.
    pub fn ns(&self) -> u64 {
        self.ns
    }

    /// Drops the encoded data, which cannot be written.
    pub fn discard(&mut self) {
        self.writer.take();
        self.map.out.clear();
        self.lines.clear();
        self.splits.clear();
        if let Some(misses) = &mut self.misses {
            misses.bytes.clear();
        }
    }

    /// The fast path from block to block: the last one ran completely, its end led to `va`, and the code there is
    /// known. Otherwise does nothing and returns false.
    #[inline(always)]
    fn step(&mut self, block: &'static Block, va: u64) -> bool {
        let Some(last) = self.last else { return false };
        let id = block.id();
        if !self.map.is_known(id, va) {
            return false;
        }
        let from = last.block;
        let target = from.target.wrapping_add(last.va.wrapping_sub(from.va));
        let straight = va == last.fall;
        let ends = match from.shape {
            Shape::Fall => straight,
            Shape::Cond => straight || va == target,
            Shape::Jump | Shape::Call => va == target,
            // Not into the block itself, unless at its start.
            Shape::Ret => va == last.va || va.wrapping_sub(last.va) >= from.size(),
            Shape::Other => false,
        };
        if !ends {
            return false;
        }
        self.counts.blocks += 1;
        self.ran_all(last);
        match from.shape {
            Shape::Cond => self.writer.branch(!straight, self.ns),
            Shape::Call => self.writer.call(last.fall),
            Shape::Jump => self.writer.jump(),
            Shape::Ret => self.writer.ret(va, block.mode, self.ns),
            _ => {}
        }
        self.last = Some(Last { block, va, fall: va.wrapping_add(block.size()), done: false });
        if block.rep || block.hlt {
            self.writer.before_repeat(va, self.ns);
        }
        self.writer.tick(va, self.ns);
        true
    }

    fn block(&mut self, block: &'static Block, va: u64) {
        let id = block.id();
        self.counts.blocks += 1;
        let gave_away = self.last.is_some_and(|last| last.gives_turn_away(va));
        if let Some((ns, cr3)) = self.start.take() {
            self.start(block, va, id, ns, cr3);
        } else if let Some(last) = self.last {
            let cr3 = self.cr3.take();
            if let Some(cr3) = cr3 {
                self.map.set_cr3(cr3);
            }
            match self.gate.take() {
                Some(gate) => self.through_gate(last, gate, va, block.mode),
                None => self.edge(last, va, block.mode),
            }
            if let Some(cr3) = cr3 {
                self.writer.pip(cr3, self.ns);
            }
            match self.map.check(block, id, va) {
                News::Known => {}
                News::New => self.map.learn(block, id, va, 0),
                News::Conflict => {
                    let psb = self.writer.sync(va, self.ns);
                    self.map.learn(block, id, va, psb);
                }
            }
        } else {
            return;
        }
        self.last = Some(Last { block, va, fall: va.wrapping_add(block.size()), done: false });
        self.plain = true;
        if let Some((ns, passed)) = self.time.take() {
            self.set_time(va, ns, if gave_away { Passed::Idle } else { passed });
        }
        if let Some((keep, since_ns)) = self.split.take() {
            let offset = self.writer.split(va, block.mode, self.ns, keep);
            self.add_split(Split { offset, keep, since_ns });
        }
        if block.rep || block.hlt {
            self.writer.before_repeat(va, self.ns);
        }
        self.writer.tick(va, self.ns);
    }

    /// Handles a split after which no block came.
    fn split_at_end(&mut self) {
        if let Some((keep, since_ns)) = self.split.take() {
            self.add_split(Split { offset: self.writer.offset(), keep, since_ns });
        }
    }

    #[cold]
    fn add_split(&mut self, split: Split) {
        self.kept = self.kept(split.keep);
        self.split_at = self.counts.instructions;
        self.splits.push(split);
    }

    fn start(&mut self, block: &'static Block, va: u64, id: u32, ns: u64, cr3: u64) {
        self.ns = ns;
        self.since = (ns, self.counts.instructions);
        self.cr3 = None;
        // The first block may be an interrupt's, but there is no flow yet that was interrupted.
        self.gate = None;
        self.time = None;
        self.map.set_cr3(cr3);
        if self.map.check(block, id, va) != News::Known {
            // Enabling begins with a PSB.
            self.map.learn(block, id, va, self.writer.offset());
        }
        self.writer.enable(va, block.mode, cr3, ns);
    }

    fn stop(&mut self, va: u64) {
        if let Some(last) = self.last.take() {
            match self.gate.take() {
                Some(gate) => self.through_gate(last, gate, va, Mode::Bits64),
                None => self.edge(last, va, last.block.mode),
            }
            self.writer.disable(va, self.ns);
        }
        self.split_at_end();
        self.at = None;
        self.gate = None;
        self.cr3 = None;
        self.start = None;
    }

    /// Resolves the block before, which led to `va` without an interrupt.
    #[inline]
    fn edge(&mut self, last: Last, va: u64, mode: Mode) {
        let block = last.block;
        let delta = last.va.wrapping_sub(block.va);
        let fall = last.fall;
        // A block cut short may stop at the very address to which its own branch leads. Then only `BlockEnded` tells that all
        // of it ran.
        let whole = !block.ambiguous || last.done;
        let inside = || block.index_at(va.wrapping_sub(last.va));
        match block.kind {
            kind if kind.falls_through() && va == fall => return self.ran_all(last),
            Kind::CondJump { .. } if va == fall => {
                self.ran_all(last);
                return self.writer.branch(false, self.ns);
            }
            Kind::CondJump { target } if whole && va == target.wrapping_add(delta) => {
                self.ran_all(last);
                return self.writer.branch(true, self.ns);
            }
            Kind::Jump { target } if whole && va == target.wrapping_add(delta) => {
                self.ran_all(last);
                return self.writer.jump();
            }
            Kind::Call { target } if whole && va == target.wrapping_add(delta) => {
                self.ran_all(last);
                if va != fall {
                    self.writer.call(fall);
                }
                return;
            }
            Kind::IndirectJump if whole => {
                self.ran_all(last);
                return self.writer.tip(va, mode, self.ns);
            }
            // A return, call or far transfer into the middle of its own block is impossible: the instruction before
            // would have ended the block.
            Kind::IndirectCall | Kind::Ret | Kind::Far(_) | Kind::IndirectJump
                if inside().is_none_or(|k| k == 0) =>
            {
                self.ran_all(last);
                return match block.kind {
                    Kind::Ret => self.writer.ret(va, mode, self.ns),
                    Kind::IndirectCall => {
                        self.writer.tip(va, mode, self.ns);
                        if va != fall {
                            self.writer.call(fall);
                        }
                    }
                    _ => self.writer.tip(va, mode, self.ns),
                };
            }
            _ => {}
        }
        match inside() {
            Some(k) => self.ran_until(last, k, block.rep && k + 1 == block.starts.len()),
            None => {
                self.counts.unexplained += 1;
                self.ran_all(last);
                self.writer.overflow(va, mode, self.ns);
            }
        }
    }

    /// Resolves the block before, which was left through a gate of the IDT.
    #[cold]
    fn through_gate(&mut self, last: Last, gate: Gate, va: u64, mode: Mode) {
        self.counts.interrupts += 1;
        let block = last.block;
        if block.kind == Kind::Far(Far::Int) && gate.rip == last.va.wrapping_add(block.size()) {
            self.ran_all(last);
            return self.writer.tip(va, mode, self.ns);
        }
        let inside = block.index_at(gate.rip.wrapping_sub(last.va));
        let in_rep = block.rep && gate.rip == last.va.wrapping_add(block.last_start());
        match inside {
            Some(k) if is_fault(gate.vector) => self.ran_until(last, k, false),
            Some(k) if in_rep => self.ran_until(last, k, true),
            _ => self.edge(last, gate.rip, gate.mode),
        }
        if let Some((ns, passed)) = self.time.filter(|(_, passed)| *passed != Passed::Running) {
            // Time without instructions passed before the interrupt that ended it.
            self.time = None;
            let gave_away = last.gives_turn_away(gate.rip);
            self.set_time(gate.rip, ns, if gave_away { Passed::Idle } else { passed });
            self.writer.tick(gate.rip, self.ns);
        }
        self.writer.interrupt(gate.rip, va, mode, self.ns);
    }

    #[inline]
    fn ran_all(&mut self, last: Last) {
        let n = last.block.insns();
        self.count(last, n);
        if last.block.rep {
            self.writer.repeated();
        }
        self.pass(n);
    }

    /// Only the first `k` instructions ran. With `round`, also one round of a REP string operation that starts again.
    /// Such a round takes time but does not retire yet.
    #[cold]
    fn ran_until(&mut self, last: Last, k: usize, round: bool) {
        self.counts.partial += 1;
        self.count(last, k as u64);
        self.pass(k as u64 + u64::from(round));
    }

    #[inline]
    fn count(&mut self, last: Last, insns: u64) {
        if self.writer.is_traced(last.va) {
            self.counts.instructions += insns;
        }
    }

    #[inline]
    fn pass(&mut self, insns: u64) {
        self.ns += if self.icount { insns } else { (insns * self.rate) >> 16 };
        self.writer.advance(self.ns);
    }

    /// Corrects the time by a reading of guest time, before the instruction at `ip`. Time never runs backwards.
    #[cold]
    fn set_time(&mut self, ip: u64, ns: u64, passed: Passed) {
        let is_running = passed == Passed::Running;
        if self.icount {
            if passed == Passed::Waiting && ns > self.ns {
                self.writer.wait(ip, self.ns, ns);
            }
            if is_running {
                self.counts.drift_ns = self.counts.drift_ns.max(self.ns.abs_diff(ns));
            }
        } else {
            let insns = self.counts.instructions - self.since.1;
            if is_running && insns > 0 && ns > self.since.0 {
                // The faster of the last two: during one of them the host may have run something else. A time that runs
                // ahead would date events here after their effects on other vCPUs.
                let rate = (((ns - self.since.0) << 16) / insns).clamp(1 << 8, 1 << 24);
                self.rate = rate.min(self.measured);
                self.measured = rate;
            }
            self.since = (ns, self.counts.instructions);
        }
        self.ns = self.ns.max(ns);
    }

    #[cold]
    fn side(&mut self, side: &Side) {
        let ns = match (&self.last, self.start) {
            (Some(_), _) => Some(self.ns + if self.icount { side.insns } else { 0 }),
            // It happened before tracing went on.
            (None, start) => start.map(|(ns, _)| ns.saturating_sub(1)),
        };
        if let Some(ns) = ns {
            let line = side.what.line(ns, self.cpu);
            self.lines.extend(line.as_bytes());
            self.lines.push(b'\n');
            if let Some(filter) = &mut self.filter {
                filter.follow(&side.what);
            }
            match &side.what {
                What::Switch { next, .. } => self.note(Event::Task { pid: next.pid, tgid: next.tgid }),
                What::Mark { begin: true, pid } => self.note(Event::Task { pid: *pid, tgid: *pid }),
                _ => {}
            }
        }
    }
}

/// Returns true for exceptions whose saved address is the instruction that did not complete (SDM vol. 3, table 6-1):
/// all but #DB, NMI, #BP and #OF, which save the next one.
fn is_fault(vector: u8) -> bool {
    vector < 32 && !matches!(vector, 1..=4)
}

/// Mode of a code segment by Linux's selectors: `__USER32_CS` is 0x23, `__KERNEL32_CS` 0x08.
pub fn linux_mode(cs: u16) -> Mode {
    match cs & !3 {
        0x20 | 0x08 => Mode::Bits32,
        _ => Mode::Bits64,
    }
}
