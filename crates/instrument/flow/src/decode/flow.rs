// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one decode, and its loop over packets: reads packets, follows the code between them, and reports events.
//!
//! The decoder is lazy: it walks code only when a packet says where the walk leads. So code is always read as of the
//! packet that decides the walk. A PSB resets the decoder's state, so the stretch from one PSB to the next can be
//! decoded alone. When the decoder loses the flow, it resumes at the next packet with a full address.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use kprism_image::insn::Mode;
use kprism_image::is_kernel;
use kprism_image::resolve::Resolve;
use kprism_image::x86::address::stated_cr3;
use kprism_pt::{IpPayload, LastIp, Packet, PacketReader};

use crate::decode::block::{NONE, PIVOTS, WATCHED};
use crate::decode::build::{Cache, Position};
use crate::decode::clock::{Clock, ClockConfig};
use crate::decode::errata::Errata;
use crate::decode::error::{Fault, FaultKind};
use crate::decode::event::{Event, EventKind, NO_FUNC, Sink};
use crate::decode::packet_event::{PacketEventCounts, PacketEventKind, Waiting};
use crate::decode::retstack::{GoesOn, Parked, RetStack};
use crate::decode::walk::Steps;

/// Counters over a decoded range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions executed.
    pub instructions: u64,
    /// TNT bits and TIP packets consumed.
    pub branches: u64,
    /// Decoding errors, without overflows.
    pub errors: u64,
    /// Overflow packets.
    pub overflows: u64,
    /// Bytes of the stream skipped while the flow was unknown.
    pub lost_bytes: u64,
    /// Packets that state events beside the flow.
    pub packet_events: PacketEventCounts,
    /// First time, ns; 0 without timing packets.
    pub first_ns: u64,
    /// Last time, ns.
    pub last_ns: u64,
    /// The first faults and overflows with their positions.
    pub faults: Vec<Fault>,
    /// Pages of code that is missing, each with the number of times that the flow went there: [`Stats::enter_missing`].
    pub missing: BTreeMap<u64, u64>,
}

impl Stats {
    /// Counts each page of missing code as one error, in the range in which it was entered first. `known` are the pages of
    /// other ranges, to which this one's are added.
    pub fn enter_missing(&mut self, known: &mut BTreeMap<u64, u64>) {
        for (&page, &times) in &self.missing {
            let all = known.entry(page).or_insert(0);
            self.errors -= times - u64::from(*all == 0);
            *all += times;
        }
    }
}

/// Pages of missing code that are told apart. Of the rest, each time counts as an error.
const MAX_MISSING: usize = 1 << 16;

/// Size of a page of code, as a shift.
pub(crate) const PAGE: u32 = 12;

/// Faults stored with their position. Further ones are only counted.
const MAX_FAULTS: usize = 4096;

/// State of the decoder: whether the current address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Tracing is on and the current address is known.
    On,
    /// Tracing is off.
    Off,
    /// The current address is unknown since this stream offset.
    Lost(u64),
}

/// Whether the processor stands still (SDM, "Execution Stopped (EXSTOP) Packet").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Still {
    No,
    /// From the instruction on that the next FUP names.
    AtFup,
    Yes,
}

/// A PSB+ being read: the packets from PSB to PSBEND.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PsbPlus {
    /// Offset of its PSB.
    pub offset: u64,
    /// Current address, if tracing is on.
    pub ip: Option<u64>,
}

/// State of one decode.
pub(crate) struct Flow<'f, 'a, R, S> {
    pub cache: &'f mut Cache<'a, R>,
    pub sink: &'f mut S,
    pub bytes: &'a [u8],
    /// Stream offset at which this decode ends.
    pub end: usize,
    pub reader: PacketReader<'a>,
    /// Block that runs next; [`NONE`] unless [`Phase::On`].
    pub cur: u32,
    pub phase: Phase,
    /// Tracing is on and no packet waits for its partner. This is the usual case, in one flag.
    pub hot: bool,
    /// A block of BIP packets may be open.
    in_block: bool,
    /// The clock advanced. The sink gets the time after the next packet.
    pub due: bool,
    /// Instructions not reported yet.
    pub acc: u64,
    /// Offset of the current packet.
    pub pos: u64,
    /// Stream offset of the next code change or task switch.
    pub code_change_at: u64,
    /// Index of the next task switch given by the image.
    pub next_switch: usize,
    pub symbol_change_at: u64,
    pub ret: RetStack,
    pub clock: Clock,
    /// Time last reported.
    pub ns: u64,
    pub mode: Mode,
    pub cr3: u64,
    pub last_ip: LastIp,
    /// Source of an asynchronous event whose TIP is to come.
    pub pending: Option<u64>,
    /// The event is a transaction's abort.
    pub abort: bool,
    /// The next FUP belongs to the packet before it, not to an event.
    pub bound: bool,
    /// The next FUP or TIP.PGE states where an overflow ended.
    pub overflow: bool,
    pub psb: Option<PsbPlus>,
    /// No packet came since PSB+, or since the FUP of an overflow.
    pub fresh: bool,
    /// Whether the processor stands still, though it has work.
    pub still: Still,
    /// It is in a C-state.
    pub asleep: bool,
    /// The flow is unknown because code is missing, and tracing is on.
    no_code: bool,
    /// Where a program goes on after the kernel that it entered last.
    pub entered: Option<GoesOn>,
    /// The flow is unknown in the kernel because its code is missing.
    pub away: bool,
    /// Return addresses of programs that are in the kernel then.
    pub parked: Parked,
    pub errata: Errata,
    /// Second byte of a CYC of two bytes that may be part of another packet (erratum SKD007). Without the erratum it is a
    /// value that no such byte has, so that the loop over frequent packets compares once.
    cut_cyc: u8,
    /// Packets whose event is not told yet. Empty unless the sink wants [`Sink::packet_event`].
    pub waiting: Waiting,
    pub stats: Stats,
    pub steps: Steps,
}

impl<'f, 'a, R: Resolve, S: Sink> Flow<'f, 'a, R, S> {
    /// The state at the start of `range`, which is known to begin at a PSB if `phase` is [`Phase::Off`].
    pub fn new(
        cache: &'f mut Cache<'a, R>,
        sink: &'f mut S,
        bytes: &'a [u8],
        range: Range<usize>,
        phase: Phase,
        (clock, errata): (ClockConfig, Errata),
    ) -> Self {
        let mut flow = Self {
            cache,
            sink,
            bytes,
            end: range.end,
            reader: PacketReader::at(bytes, range.start).with_errata(errata.bytes),
            cur: NONE,
            phase,
            hot: false,
            due: false,
            in_block: false,
            acc: 0,
            pos: range.start as u64,
            code_change_at: 0,
            next_switch: 0,
            symbol_change_at: 0,
            ret: RetStack::new(),
            clock: Clock::new(clock),
            ns: 0,
            mode: Mode::Bits64,
            cr3: 0,
            last_ip: LastIp(0),
            pending: None,
            abort: false,
            bound: false,
            overflow: false,
            psb: None,
            fresh: false,
            still: Still::No,
            asleep: false,
            no_code: false,
            entered: None,
            away: false,
            parked: Parked::default(),
            errata,
            cut_cyc: if errata.bytes.skd007 { 2 } else { 1 },
            waiting: Waiting::default(),
            stats: Stats::default(),
            steps: Steps::default(),
        };
        flow.enter_first_space();
        flow.code_change_at = flow.stop_at();
        flow.symbol_change_at = flow.cache.symbol_change_at();
        flow
    }

    /// Applies all packets before `to`.
    pub fn run(&mut self, to: usize) {
        while self.reader.offset() < to {
            if !self.in_block {
                self.run_frequent(to);
                if self.reader.offset() >= to {
                    break;
                }
            }
            match self.reader.next() {
                Some(Ok((offset, packet))) => {
                    self.seek(offset);
                    self.packet(packet);
                }
                // The time goes on without this TMA.
                Some(Err(_)) if self.reader.skip_broken_tma().is_some() => {}
                Some(Err(error)) => {
                    self.pos = error.offset as u64;
                    self.fault(FaultKind::Packet(error.kind));
                    self.psb = None;
                    self.in_block = false;
                    if self.reader.resync().is_none_or(|psb| psb >= to) {
                        break;
                    }
                }
                None => break,
            }
        }
    }

    /// Decodes the packets that make up nearly all of a stream (PAD, short TNT, short CYC, MTC, TIP) directly from the
    /// bytes, and stops at any other. Must not run inside BIP blocks, in which opcodes have other meanings.
    #[inline(always)]
    fn run_frequent(&mut self, to: usize) {
        let mut at = self.reader.offset();
        let start = at;
        while at < to {
            let byte = self.bytes[at];
            if byte & 1 == 0 && byte > 2 && self.hot {
                self.seek(at);
                let n = 6 - byte.leading_zeros();
                let bits = u64::from(byte >> 1) & !(1 << n);
                let (bits, len, next) = self.gather(bits, n as u8, at + 1);
                at = next;
                self.reader.seek(at);
                self.tnt(bits, len);
                if self.due {
                    self.tick();
                }
                // Deferred TIPs are read on the way.
                at = self.reader.offset();
            } else if byte & 3 == 3 {
                let more = self.bytes.get(at + 1).copied().unwrap_or(1);
                let (cycles, len) = match byte & 4 {
                    0 => (u64::from(byte >> 3), 1),
                    _ if more & 1 == 0 && more != self.cut_cyc => {
                        (u64::from(byte >> 3) | u64::from(more >> 1) << 5, 2)
                    }
                    _ => break,
                };
                if at + len > to {
                    break;
                }
                self.clock.on_cyc(cycles);
                self.due = true;
                at += len;
            } else if byte & 0x1f == 0x0d && byte >> 5 != 0 && self.hot {
                let Some((payload, len)) = short_ip(self.bytes.get(at..to).unwrap_or_default()) else {
                    break;
                };
                self.seek(at);
                at += len;
                self.reader.seek(at);
                self.tip(payload);
                if self.due {
                    self.tick();
                }
            } else if byte == 0x59 && at + 1 < to {
                self.clock.on_mtc(self.bytes[at + 1]);
                self.due = true;
                at += 2;
            } else if byte == 0 {
                at += 1;
            } else {
                break;
            }
        }
        if at != start {
            self.reader.seek(at);
        }
    }

    /// Makes the packet at `offset` the current one, and applies the changes of code that are due there.
    #[inline(always)]
    pub fn seek(&mut self, offset: usize) {
        self.pos = offset as u64;
        if self.pos >= self.code_change_at {
            self.apply_conflicts();
        }
    }

    #[inline(always)]
    fn packet(&mut self, packet: Packet) {
        match packet {
            Packet::Pad => return,
            Packet::Tnt { bits, len } => {
                if !self.hot {
                    if !matches!(self.phase, Phase::On) || self.psb.is_some() {
                        return self.tnt_while_not_on();
                    }
                    self.settle();
                }
                self.in_block = false;
                self.tnt(bits, len);
            }
            Packet::Cyc { cycles } => {
                self.clock.on_cyc(cycles);
                self.due = true;
                return;
            }
            Packet::Mtc { ctc } => {
                // The crystal triggers this packet, in the middle of the branches that the next TNT reports.
                self.clock.on_mtc(ctc);
                self.due = true;
                return;
            }
            Packet::Tip(payload) => {
                self.in_block = false;
                self.tip(payload);
            }
            Packet::Psb
            | Packet::PsbEnd
            | Packet::TipPge(_)
            | Packet::TipPgd(_)
            | Packet::Fup(_)
            | Packet::ModeExec { .. }
            | Packet::ModeTsx { .. }
            | Packet::Pip { .. }
            | Packet::Vmcs { .. }
            | Packet::Cbr { .. }
            | Packet::Tsc { .. }
            | Packet::Tma { .. }
            | Packet::Ovf
            | Packet::TraceStop
            | Packet::Mnt { .. }
            | Packet::Ptw { .. }
            | Packet::Exstop { .. }
            | Packet::Mwait { .. }
            | Packet::Pwre { .. }
            | Packet::Pwrx { .. }
            | Packet::Bbp { .. }
            | Packet::Bip { .. }
            | Packet::Bep { .. }
            | Packet::Cfe { .. }
            | Packet::Evd { .. }
            | Packet::Trig { .. } => return self.rare(packet),
        }
        if self.due {
            self.tick();
        }
    }

    #[inline(never)]
    fn rare(&mut self, packet: Packet) {
        if let Some(kind) = PacketEventKind::of(&packet) {
            self.note_event(kind, packet);
        }
        match packet {
            Packet::Psb => {
                self.in_block = false;
                return self.psb_begin();
            }
            Packet::PsbEnd => self.psb_end(),
            Packet::Fup(payload) => self.fup(payload),
            Packet::TipPge(payload) => self.pge(payload),
            Packet::TipPgd(payload) => self.pgd(payload),
            Packet::ModeExec { cs_l, cs_d, .. } => {
                self.mode = Mode::from_cs(cs_l, cs_d);
                if self.psb.is_none() {
                    // With event trace, a FUP right behind it names the instruction that changed RFLAGS.IF.
                    self.bound = !self.overflow;
                    self.hot = false;
                }
            }
            Packet::ModeTsx { abort, .. } => {
                if self.psb.is_none() {
                    // Erratum SKD010: its FUP may be the first one after an overflow.
                    (self.abort, self.bound) = (abort, !abort && !self.overflow);
                    self.hot = false;
                }
            }
            Packet::Pip { cr3, non_root } => {
                self.pip(stated_cr3(cr3, non_root));
                // It names no place: some instructions ran since the last branch, which its time is not that of.
                return;
            }
            Packet::Tsc { tsc } => {
                self.clock.on_tsc(tsc);
                self.due = true;
                return;
            }
            Packet::Tma { ctc, fast } => {
                self.clock.on_tma(ctc, fast);
                return;
            }
            Packet::Cbr { ratio } => {
                self.go_on();
                self.clock.on_cbr(ratio);
                return;
            }
            Packet::Ovf => self.overflow(),
            Packet::TraceStop => self.go_off(),
            Packet::Exstop { ip } => {
                self.bound |= ip;
                // Not in a C-state: a processor without work stops, too.
                if ip && !self.asleep {
                    self.still = Still::AtFup;
                    return;
                }
            }
            Packet::Pwre { .. } => self.asleep = true,
            Packet::Pwrx { .. } => self.asleep = false,
            Packet::Ptw { ip, .. } | Packet::Trig { ip, .. } => self.bound |= ip,
            Packet::Bbp { .. } => self.in_block = true,
            Packet::Bep { ip } => {
                self.in_block = false;
                self.bound |= ip;
            }
            // The FUP of these packets names the instruction that caused it (IRET, RSM, SIPI, VM entry, UIRET). It is
            // not the source of an event (SDM, "Control Flow Event (CFE) Packet").
            Packet::Cfe { typ, ip, .. } => self.bound |= ip && matches!(typ, 2 | 4 | 5 | 7 | 0xd),
            // They say nothing about the flow.
            Packet::Mwait { .. }
            | Packet::Vmcs { .. }
            | Packet::Mnt { .. }
            | Packet::Bip { .. }
            | Packet::Evd { .. } => {}
            // `packet` handles these.
            Packet::Pad | Packet::Tnt { .. } | Packet::Tip(_) | Packet::Mtc { .. } | Packet::Cyc { .. } => {}
        }
        // The time of an event is told right before it.
        if self.due && self.psb.is_none() && self.waiting.packets.is_empty() {
            self.tick();
        }
    }

    /// Stream offset of the current packet, and the current time.
    #[inline(always)]
    pub fn at(&self) -> Position {
        Position { offset: self.pos, ns: self.ns }
    }

    /// Applies code changes and task switches up to the current packet.
    ///
    /// Code that changes at a PSB changes after it: the path to the address in the PSB's FUP still runs through the old
    /// code. So [`Flow::psb_end`] calls this after it has followed that path.
    #[cold]
    fn apply_conflicts(&mut self) {
        if self.psb.is_some() || self.bytes[self.pos as usize..].starts_with(&[0x02, 0x82]) {
            return;
        }
        self.cache.apply_conflicts(self.pos);
        while let Some(switch) =
            self.cache.task_switches().get(self.next_switch).filter(|s| s.offset <= self.pos)
        {
            self.next_switch += 1;
            self.enter_space(switch.asid);
            self.switch_here();
        }
        self.code_change_at = self.stop_at();
    }

    /// Reports a task switch that the image places here, with the function in which the flow is, if that is known.
    fn switch_here(&mut self) {
        let insns = self.take_insns();
        let none = Event::new(EventKind::Switch, NO_FUNC, 0);
        let event = match self.phase {
            Phase::On if self.cur != NONE => {
                let at = self.cur as usize;
                let (hot, cold) = (self.cache.blocks.hot[at], &self.cache.blocks.cold[at]);
                let flags = hot.flags & !(WATCHED | PIVOTS);
                Event { flags, func: hot.start_func, ip: cold.key.ip, ..none }
            }
            Phase::On | Phase::Off | Phase::Lost(_) => none,
        };
        self.sink.event(Event { insns, ..event });
    }

    /// The first offset at which [`Flow::apply_conflicts`] has something to do.
    fn stop_at(&self) -> u64 {
        let switch = self.cache.task_switches().get(self.next_switch).map_or(u64::MAX, |s| s.offset);
        self.cache.code_change_at().min(switch)
    }

    /// Enters the address space set by the last task switch before the first packet.
    fn enter_first_space(&mut self) {
        let switches = self.cache.task_switches();
        self.next_switch = switches.partition_point(|s| s.offset < self.pos);
        self.enter_space(switches[..self.next_switch].iter().rev().find_map(|s| s.asid));
    }

    fn enter_space(&mut self, asid: Option<u64>) {
        if let Some(asid) = asid {
            self.pip(asid);
        }
    }

    /// The processor stands still from here on.
    #[cold]
    pub fn stand_still(&mut self) {
        if self.due {
            self.tick();
        }
        let insns = self.take_insns();
        self.sink.stands_still(insns, true);
        self.still = Still::Yes;
    }

    /// The processor runs, whatever it did before.
    #[inline]
    pub fn go_on(&mut self) {
        if self.still != Still::No {
            self.end_standstill();
        }
    }

    #[cold]
    fn end_standstill(&mut self) {
        if std::mem::replace(&mut self.still, Still::No) == Still::Yes {
            if self.due && self.psb.is_none() {
                self.tick();
            }
            let insns = self.take_insns();
            self.sink.stands_still(insns, false);
        }
    }

    /// Reports the current time to the sink.
    #[inline]
    pub fn tick(&mut self) {
        self.due = false;
        let ns = self.clock.ns().max(self.ns);
        if self.stats.first_ns == 0 {
            self.stats.first_ns = ns;
        }
        self.ns = ns;
        self.stats.last_ns = ns;
        if ns >= self.symbol_change_at {
            self.cache.apply_changes(ns);
            self.symbol_change_at = self.cache.symbol_change_at();
        }
        let insns = self.take_insns();
        self.sink.time(insns, ns);
    }

    /// Takes the number of instructions to report with the next event or time.
    #[inline(always)]
    pub fn take_insns(&mut self) -> u32 {
        let insns = std::mem::take(&mut self.acc);
        self.stats.instructions += insns;
        if insns > u64::from(u32::MAX) {
            return self.report_many(insns);
        }
        insns as u32
    }

    /// Reports instructions in several events when one event's counter cannot hold them. Returns the rest.
    #[cold]
    fn report_many(&mut self, mut insns: u64) -> u32 {
        while insns > u64::from(u32::MAX) {
            self.sink.event(Event { insns: u32::MAX, ..Event::new(EventKind::Count, 0, 0) });
            insns -= u64::from(u32::MAX);
        }
        insns as u32
    }

    /// Records a fault at the current packet. The flow is unknown from there on.
    #[cold]
    pub fn fault(&mut self, kind: FaultKind) {
        let ip = if self.cur == NONE { 0 } else { self.cache.blocks.cold[self.cur as usize].key.ip };
        if std::mem::take(&mut self.no_code) && matches!(self.phase, Phase::Lost(_)) {
            self.stop(Event::OFF_UNSEEN);
        }
        let mut repeated = false;
        match kind {
            FaultKind::Overflow => self.stats.overflows += 1,
            FaultKind::NoCode(at) => {
                self.stats.errors += 1;
                repeated = self.knows_missing(at);
            }
            _ => self.stats.errors += 1,
        }
        // Code that is missing leaves room for others.
        let room = if repeated { MAX_FAULTS / 2 } else { MAX_FAULTS };
        if self.stats.faults.len() < room {
            self.stats.faults.push(Fault { offset: self.pos, ns: self.ns, ip, kind });
        }
        self.lose();
    }

    /// Notes that code is missing at an address. Returns true if its page is known to be missing.
    fn knows_missing(&mut self, at: u64) -> bool {
        self.no_code = true;
        let full = self.stats.missing.len() >= MAX_MISSING;
        match self.stats.missing.entry(at >> PAGE << PAGE) {
            Entry::Occupied(mut known) => {
                *known.get_mut() += 1;
                true
            }
            Entry::Vacant(_) if full => false,
            Entry::Vacant(new) => {
                new.insert(1);
                false
            }
        }
    }

    /// Marks the flow as unknown from the current packet on.
    pub fn lose(&mut self) {
        self.go_on();
        self.tell_waiting(None);
        let in_kernel = self.cur != NONE && is_kernel(self.cache.blocks.cold[self.cur as usize].key.ip);
        if !matches!(self.phase, Phase::Lost(_)) {
            self.stop(if self.no_code { Event::NO_CODE } else { Event::LOST });
            self.phase = Phase::Lost(self.pos);
        }
        self.pending = None;
        self.hot = false;
        self.away = self.no_code && in_kernel;
        match self.entered.take() {
            Some(entered) if self.away => self.parked.park(entered, &self.ret),
            None if self.away => {}
            _ => self.parked.clear(),
        }
        self.ret.clear();
    }

    /// A program goes on at `ip`. If the kernel's code was missing meanwhile, its return addresses are there again.
    pub fn return_to_program(&mut self, ip: u64) {
        if std::mem::take(&mut self.away) {
            let asid = self.cache.space(self.cr3, ip);
            self.ret = self.parked.unpark(GoesOn { ip, asid });
        }
    }

    /// Tracing is off from here on.
    pub fn go_off(&mut self) {
        self.go_on();
        self.tell_waiting(None);
        self.found(self.pos);
        if matches!(self.phase, Phase::On) {
            self.stop(Event::OFF);
        } else if std::mem::take(&mut self.no_code) {
            self.stop(Event::OFF_UNSEEN);
        }
        self.phase = Phase::Off;
        self.pending = None;
        self.abort = false;
        self.hot = false;
    }

    fn stop(&mut self, reason: u32) {
        let insns = self.take_insns();
        self.sink.event(Event { insns, ..Event::new(EventKind::Stop, reason, 0) });
        self.cur = NONE;
    }

    /// Ends a loss, if there is one, at stream offset `at`.
    pub fn found(&mut self, at: u64) {
        if let Phase::Lost(from) = self.phase {
            self.stats.lost_bytes += at.saturating_sub(from);
            self.phase = Phase::Off;
        }
    }

    /// Ends the range: follows the code up to the address that the next PSB states.
    pub fn finish(&mut self, to: usize) {
        // Up to there the code is the one before that PSB. The next range counts from the PSB on, so what is due at a time packet
        // before it is applied here.
        self.seek(to.saturating_sub(1));
        let mut end = None;
        if matches!(self.phase, Phase::On) && self.pending.is_none() && self.psb.is_none() {
            let mut last_ip = LastIp(0);
            for packet in PacketReader::at(self.bytes, to).map_while(Result::ok) {
                match packet.1 {
                    Packet::PsbEnd => break,
                    Packet::Fup(payload) => end = last_ip.apply(payload),
                    Packet::Tsc { tsc } => {
                        self.clock.on_tsc(tsc);
                        self.due = true;
                    }
                    Packet::Tma { .. } | Packet::Cbr { .. } | Packet::Psb | Packet::Pad => {}
                    Packet::Cyc { .. } | Packet::Mtc { .. } | Packet::ModeExec { .. } => {}
                    Packet::ModeTsx { .. } | Packet::Pip { .. } | Packet::Vmcs { .. } => {}
                    // A PSB+ holds none of these (SDM, "PSB"): it ended early.
                    Packet::Tnt { .. }
                    | Packet::Tip(_)
                    | Packet::TipPge(_)
                    | Packet::TipPgd(_)
                    | Packet::Ovf
                    | Packet::TraceStop
                    | Packet::Mnt { .. }
                    | Packet::Ptw { .. }
                    | Packet::Exstop { .. }
                    | Packet::Mwait { .. }
                    | Packet::Pwre { .. }
                    | Packet::Pwrx { .. }
                    | Packet::Bbp { .. }
                    | Packet::Bip { .. }
                    | Packet::Bep { .. }
                    | Packet::Cfe { .. }
                    | Packet::Evd { .. }
                    | Packet::Trig { .. } => break,
                }
            }
        }
        if let Some(end) = end {
            self.walk_to_psb(end);
        }
        self.pos = to as u64;
        self.tell_waiting(None);
        if self.due {
            self.tick();
        }
        let insns = self.take_insns();
        if insns > 0 {
            self.sink.event(Event { insns, ..Event::new(EventKind::Count, 0, 0) });
        }
        if let Phase::Lost(from) = self.phase {
            self.stats.lost_bytes += self.pos.saturating_sub(from);
        }
    }
}

/// Decodes the IP payload in its three commonest forms. Returns it with the packet's length.
#[inline(always)]
fn short_ip(bytes: &[u8]) -> Option<(IpPayload, usize)> {
    match (bytes[0] >> 5, bytes) {
        (1, [_, a, b, ..]) => Some((IpPayload::Update16(u16::from_le_bytes([*a, *b])), 3)),
        (2, [_, a, b, c, d, ..]) => Some((IpPayload::Update32(u32::from_le_bytes([*a, *b, *c, *d])), 5)),
        (3, [_, a, b, c, d, e, f, ..]) => {
            Some((IpPayload::Sext48(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0])), 7))
        }
        _ => None,
    }
}
