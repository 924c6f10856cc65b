// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the process to which each stretch of a stream's user code belongs.
//!
//! There are three kinds of recordings, distinguished by the packets and the switch records:
//!
//! - **Kernel and all of a CPU.** PIP packets state the address space (CR3). Addresses of user code in packets are
//!   [`super::evidence`] of the process to which the space belongs. Tasks change where the flow enters `__switch_to`; each switch
//!   record belongs to the entry between the same two times of the stream, in order.
//! - **User code only.** There are no PIPs, but tracing goes off and on again (TIP.PGE) around each stay in the kernel.
//!   If a different process runs at a TIP.PGE, a *turn* is recorded: from that stream offset on the code is that of an
//!   artificial address space, one for each program of each process.
//! - **Single tasks with the kernel.** PIPs state the space, but the kernel switches the trace off before it enters
//!   `__switch_to`: tasks change at TIP.PGE.

use std::collections::{BTreeMap, HashSet};

use kprism_flow::clock::ClockConfig;
use kprism_image::is_kernel;
use kprism_image::x86::address::page_table;
use kprism_pt::{LastIp, Packet};

use super::comms::Thread;
use super::evidence::{Evidence, Ran, Told, Use};
use super::streams::Trace;
use super::tasks::{History, UNKNOWN};
use super::timeline::walk;

/// A place in a stream where another task continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnAt {
    pub offset: u64,
    pub ns: u64,
    /// Address space from there on; `None` if PIPs state it.
    pub asid: Option<u64>,
    pub thread: Thread,
}

/// The result of searching a stream's packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spaces {
    pub uses: Vec<Use>,
    pub turns: Vec<TurnAt>,
    /// Offsets of the requested times.
    pub offsets: Vec<u64>,
    /// For each of them, the time from the last one that the stream states before it to the first one from it on, ns; 0 if no program
    /// ran between them, or if MTC or CYC packets tell times within them.
    pub apart: Vec<u64>,
    /// True if kernel code was traced.
    pub kernel: bool,
    pub first_ns: u64,
    /// Number of TSC packets that state an earlier time than one before.
    pub back: u64,
    /// Number of switches of which several lie between the same two times of the stream, where their order does not tell which is
    /// which.
    pub doubtful: u64,
    /// Number of places at which the program was guessed, of several that ran between two times.
    pub guessed: u64,
    /// Number of address spaces whose program is not known, because there is no time.
    pub unknown: u64,
    /// Number of turns of a task that no record tells.
    pub nobody: u64,
}

/// Address of the page of the old system calls (arch/x86/include/uapi/asm/vsyscall.h): it is in the kernel's half, and programs' code.
pub(super) const VSYSCALL_PAGE: u64 = 0xffff_ffff_ff60_0000;

/// The artificial address space of a program.
fn made_up(life: usize) -> u64 {
    (life as u64 + 1) << 13
}

/// Searches a stream. `ns` converts perf's time to the run's. `wanted` are sorted times of the run; the offset of the
/// first packet at or after each is returned. If `entries` is true, tasks change at the flow's entries of
/// `__switch_to`. If `branches` is false, packets state no addresses of the flow, and tasks change at any packet.
pub(crate) fn find(
    trace: &Trace,
    history: &History<'_>,
    clock: ClockConfig,
    ns: impl Fn(u64) -> u64,
    wanted: &[u64],
    (entries, branches): (bool, bool),
) -> Spaces {
    let who = RunningTask::new(trace, history, &ns);
    let mut spaces = Spaces::default();
    let mut evidence = Evidence::default();
    let mut turns: Vec<TurnAt> = Vec::new();
    let (mut cr3, mut last_ip, mut in_psb) = (None, LastIp(0), false);
    // The address of a PSB+, which may come before its time: offset, address.
    let mut held: Option<(usize, u64)> = None;
    let mut last_tsc = 0;
    // Whether a program ran since the last time, and whether there are finer times than TSC's.
    let (mut ran, mut fine) = (false, false);
    // True in a virtual machine: its addresses and address spaces are no programs of this machine.
    let mut guest = false;
    // Number of records before the place where one is missing.
    let mut missing = None;
    let (mut passed, mut last_ns, mut gap) = (0, 0, false);
    let mut begun = false;
    walk(&trace.pt, clock, |mut offset, packet, now| {
        fine |= matches!(packet, Packet::Mtc { .. } | Packet::Cyc { .. });
        if now > last_ns || !begun {
            begun = true;
            if spaces.first_ns == 0 {
                spaces.first_ns = now;
            }
            while spaces.offsets.len() < wanted.len() && wanted[spaces.offsets.len()] <= now {
                spaces.offsets.push(offset as u64);
                spaces.apart.push(if last_ns > 0 && ran && !fine { now - last_ns } else { 0 });
            }
            let up_to = passed + who.turns[passed..].partition_point(|turn| turn.0 <= now);
            // Of the switches before the first time, nothing is in the stream. Where the flow tells each, their order does, unless
            // some of it is missing.
            if last_ns > 0 && up_to - passed > 1 && (gap || !entries) {
                spaces.doubtful += (up_to - passed) as u64;
            }
            evidence.settle(|| who.between(passed, last_ns, now));
            (passed, last_ns, gap, ran) = (up_to, now, false, false);
        }
        let (ip, begins) = match packet {
            Packet::Psb => {
                last_ip.reset();
                (in_psb, held) = (true, None);
                return;
            }
            Packet::PsbEnd => {
                in_psb = false;
                let Some((place, ip)) = held.take() else { return };
                offset = place;
                (Some(ip), true)
            }
            Packet::Tsc { tsc } => {
                // A carry into the bits that the packet does not have is no step back.
                spaces.back += u64::from(tsc < last_tsc && last_tsc - tsc < 1 << 55);
                last_tsc = tsc;
                return;
            }
            Packet::Ovf => {
                gap = true;
                return;
            }
            Packet::Pip { cr3: new, non_root } => {
                cr3 = Some(page_table(new));
                guest = non_root;
                return;
            }
            Packet::Fup(payload) if in_psb => {
                held = last_ip.apply(payload).map(|ip| (offset, ip));
                return;
            }
            Packet::TipPge(payload) => (last_ip.apply(payload), true),
            Packet::Tip(payload) | Packet::TipPgd(payload) | Packet::Fup(payload) => {
                (last_ip.apply(payload), false)
            }
            _ if branches || now == 0 || in_psb => return,
            _ => (None, true),
        };
        let mut turn = |thread: Thread, life: Option<usize>| {
            let asid = life.map(made_up);
            if turns.last().is_none_or(|t| (t.thread, t.asid) != (thread, asid)) {
                turns.push(TurnAt { offset: offset as u64, ns: now, asid, thread });
            }
        };
        if !branches && let Some((thread, life)) = who.at(now) {
            turn(thread, life);
        }
        let Some(ip) = ip.filter(|_| !guest) else { return };
        ran |= !is_kernel(ip);
        spaces.kernel |= is_kernel(ip) && ip & !0xfff != VSYSCALL_PAGE;
        if let Some(cr3) = cr3.filter(|_| !is_kernel(ip)) {
            evidence.add(cr3, ip, now, offset as u64);
        }
        // Without such entries, a kernel's tasks change at the first address after the record.
        let begins = begins || cr3.is_some() && !entries && history.cpu_wide;
        if begins && let Some((thread, life)) = who.at(now) {
            // The idle task has no user code: the record of the task that runs is missing, and so may others be up to the next one.
            let record = who.passed(now);
            if thread.0 == 0 && !is_kernel(ip) {
                missing = Some(record);
            }
            turn(if missing == Some(record) { UNKNOWN } else { thread }, life);
        }
    });
    spaces.offsets.resize(wanted.len(), trace.pt.len() as u64);
    spaces.apart.resize(wanted.len(), 0);
    evidence.settle(|| who.between(passed, last_ns, u64::MAX));
    Told { uses: spaces.uses, guessed: spaces.guessed, unknown: spaces.unknown } =
        evidence.resolve(&history.lives);
    if cr3.is_none() {
        // No PIP: the address space is that of the task that perf's records name.
        for turn in &turns {
            let life = turn.asid.and_then(|asid| usize::try_from((asid >> 13).checked_sub(1)?).ok());
            if let (Some(asid), Some(life)) = (turn.asid, life)
                && !spaces.uses.iter().any(|u| u.asid == asid)
            {
                spaces.uses.push(Use { asid, life, ns: turn.ns, offset: turn.offset });
            }
        }
        spaces.turns = turns;
    } else if trace.tid.is_some() || !entries {
        // PIPs name the address space. The records only tell the thread.
        turns.iter_mut().for_each(|turn| turn.asid = None);
        turns.dedup_by_key(|turn| turn.thread);
        spaces.turns = turns;
    }
    spaces.nobody = spaces.turns.iter().filter(|turn| turn.thread == UNKNOWN).count() as u64;
    spaces.uses.sort_by_key(|u| (u.asid, u.ns));
    spaces
}

/// The task that runs on a stream at each time of the run.
struct RunningTask<'h> {
    /// (time, thread) in order of time.
    turns: Vec<(u64, Thread)>,
    /// The task that runs before.
    first: Option<Thread>,
    /// Programs of each process in order of time: (time, life).
    lives: BTreeMap<u32, Vec<(u64, usize)>>,
    history: &'h History<'h>,
}

impl<'h> RunningTask<'h> {
    fn new(trace: &Trace, history: &'h History<'h>, ns: &impl Fn(u64) -> u64) -> Self {
        let mut lives: BTreeMap<u32, Vec<(u64, usize)>> = BTreeMap::new();
        for (index, life) in history.lives.iter().enumerate() {
            lives.entry(life.pid).or_default().push((ns(life.from), index));
        }
        let (mut turns, mut first) = (Vec::new(), None);
        match (trace.tid, trace.cpu) {
            (Some(tid), _) => first = Some((tid, history.process_of.get(&tid).copied().unwrap_or(tid))),
            (None, Some(cpu)) => {
                let own = history.turns.get(&cpu).map_or(&[][..], |turns| turns);
                first = own.first().and_then(|t| t.prev);
                turns.extend(own.iter().map(|t| (ns(t.ns), t.next)));
            }
            (None, None) => {}
        }
        if turns.is_empty() && first.is_none() && lives.len() == 1 {
            // No other task is known.
            first = lives.keys().next().map(|&pid| (pid, pid));
        }
        Self { turns, first, lives, history }
    }

    /// Number of records up to a time.
    fn passed(&self, ns: u64) -> usize {
        self.turns.partition_point(|turn| turn.0 <= ns)
    }

    fn at(&self, ns: u64) -> Option<(Thread, Option<usize>)> {
        self.after(self.passed(ns), ns)
    }

    /// The task and its program at a time up to which `passed` records lie.
    fn after(&self, passed: usize, ns: u64) -> Option<(Thread, Option<usize>)> {
        let thread = match passed.checked_sub(1) {
            Some(last) => self.turns[last].1,
            // The trace may begin before the first record.
            None => self.first.or_else(|| Some(self.turns.first()?.1))?,
        };
        let lives = self.lives.get(&thread.1);
        let life = lives.and_then(|lives| {
            let begun = lives.partition_point(|l| l.0 <= ns);
            lives.get(begun.saturating_sub(1)).map(|l| l.1)
        });
        debug_assert!(life.is_none_or(|l| l < self.history.lives.len()));
        Some((thread, life))
    }

    /// The programs that ran after one time, up to which `begun` records lie, and up to another.
    fn between(&self, begun: usize, from: u64, to: u64) -> Ran {
        let turns = self.turns[begun..].iter().map(|turn| turn.0).take_while(|&ns| ns <= to);
        let (mut found, mut known) = (Ran::Nobody, HashSet::new());
        let (mut since, mut passed) = (from, begun);
        for until in turns.chain([to]) {
            if let Some((thread, first)) = self.after(passed, since) {
                let lives = self.lives.get(&thread.1).map_or(&[][..], Vec::as_slice);
                let begun = lives.partition_point(|life| life.0 <= since);
                let later = lives[begun..].iter().take_while(|life| life.0 <= until).map(|life| life.1);
                for life in first.into_iter().chain(later) {
                    match &mut found {
                        Ran::Nobody => found = Ran::One(life),
                        Ran::One(one) if *one == life => {}
                        Ran::One(one) => {
                            known.extend([*one, life]);
                            found = Ran::Several(vec![*one, life]);
                        }
                        Ran::Several(all) => {
                            if known.insert(life) {
                                all.push(life);
                            }
                        }
                    }
                }
            }
            since = until;
            passed += self.turns[passed..].iter().take_while(|turn| turn.0 <= since).count();
        }
        found
    }
}
