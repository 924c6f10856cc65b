// SPDX-License-Identifier: GPL-2.0-or-later
//! The ends of intervals: in, blocks and instructions at which an interval may begin or end; out, the interval that ended.
//! Unlike the decoder, the observer reads the interrupt flag and the preemption count, so it need not infer them.
//!
//! An interval that was open before the recording began is not measured.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kprism_expr::watch::Interval;
use kprism_image::insn::{Amount, Far, GsWord, Kind, Mode, added_to_gs, classify};

use super::At;
use super::calls::Calls;
use crate::guest::{self, Reg};
use crate::sync::lock;

/// RFLAGS.IF (SDM volume 1, 3.4.3).
const IF: u64 = 1 << 9;
/// The lower bits of the preemption count. The highest one says that nothing is to be scheduled
/// (arch/x86/include/asm/preempt.h, `PREEMPT_NEED_RESCHED`).
const COUNT: u32 = !(1 << 31);
/// Maximum of open intervals. Tasks that wait for a CPU are the only ones that are many.
const MAX_OPEN: usize = 1 << 16;
/// Maximum of locks that a CPU holds, as far as they are followed; then the oldest is forgotten.
const MAX_HELD: usize = 64;

/// An instruction that may begin or end an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Cli,
    Sti,
    Popf,
    Iret,
    Sysret,
    Halt,
    /// Adds an amount to this word.
    Add(GsWord, Amount),
}

impl Op {
    /// Classifies an instruction of the kernel at `va`.
    pub fn of(bytes: &[u8], va: u64) -> Option<Op> {
        Some(match classify(bytes, va, Mode::Bits64).ok()?.kind {
            Kind::Cli => Op::Cli,
            Kind::Sti => Op::Sti,
            Kind::Popf => Op::Popf,
            Kind::Far(Far::Iret) => Op::Iret,
            Kind::Far(Far::Sysret) => Op::Sysret,
            Kind::Halt => Op::Halt,
            _ => {
                let (word, amount) = added_to_gs(bytes, va.wrapping_add(bytes.len() as u64))?;
                Op::Add(word, amount)
            }
        })
    }
}

/// An interval that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Guest time at its begin, ns.
    pub since_ns: u64,
    /// Time since then in which its CPU waited for its turn, ns. Of a task that waits for a CPU: 0.
    pub still_ns: u64,
    /// Address of the `task_struct` that it is about, if that is not the running one.
    pub task: Option<u64>,
}

/// The begin of an interval: guest time, and how much of it the CPU had waited for its turn; ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Begin {
    ns: u64,
    still_ns: u64,
}

impl Begin {
    fn of(at: &At<'_>) -> Self {
        Begin { ns: at.ns, still_ns: at.still_ns }
    }

    fn until(self, at: &At<'_>) -> Ended {
        Ended { since_ns: self.ns, still_ns: at.still_ns.saturating_sub(self.still_ns), task: None }
    }
}

/// CPUs that a set can have: as many as QEMU's q35 machine has.
const MAX_CPUS: usize = 4096;

/// A set of CPUs.
#[derive(Debug)]
pub struct Cpus([AtomicU64; MAX_CPUS / 64]);

impl Default for Cpus {
    fn default() -> Self {
        Self::new()
    }
}

impl Cpus {
    pub const fn new() -> Self {
        Cpus([const { AtomicU64::new(0) }; MAX_CPUS / 64])
    }

    /// The word of a CPU, and its bit there.
    #[inline]
    fn place(&self, cpu: u32) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(cpu as usize / 64)?, 1 << (cpu % 64)))
    }

    #[inline]
    pub fn has(&self, cpu: u32) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    pub fn add(&self, cpu: u32) {
        if let Some((word, bit)) = self.place(cpu) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Returns true if the set had it.
    pub fn take(&self, cpu: u32) -> bool {
        self.place(cpu).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }
}

/// The open intervals of one condition.
#[derive(Debug, Default)]
pub struct Intervals {
    /// Begins, by CPU.
    open: Mutex<HashMap<u64, Begin>>,
    /// Begins in ns of waits for a CPU, by address of a `task_struct`.
    waiting: Mutex<HashMap<u64, u64>>,
    /// CPUs that halted in an interval, which ended there. With what such a CPU runs next another one begins: its waiting is in none,
    /// as in the kernel's own tracers (`stop_critical_timings`).
    halted: Cpus,
    /// Begins of holding locks, by CPU, the last one at the end.
    held: Mutex<HashMap<u64, Vec<Begin>>>,
    /// Calls of functions that lock.
    locking: Calls,
    forgotten: AtomicU64,
}

impl Intervals {
    /// Quick test: returns true if a block that begins at `va` may begin or end an interval.
    #[inline]
    pub fn concern(&self, interval: &Interval, cpu: u32, va: u64) -> bool {
        match interval {
            Interval::IrqsOff { entries } => self.halted.has(cpu) || entries.contains(&va),
            Interval::PreemptOff { .. } => self.halted.has(cpu),
            Interval::Locked { locks, unlocks } => {
                self.locking.may_return_to(va)
                    || locks.binary_search(&va).is_ok()
                    || unlocks.binary_search(&va).is_ok()
            }
            Interval::Wakeup { wake, switch, .. } => va == *wake || va == *switch,
        }
    }

    /// Handles a block that begins at `va`; `is_gate` if an interrupt or an exception led there.
    pub fn block(&self, interval: &Interval, at: &At<'_>, va: u64, is_gate: bool) -> Option<Ended> {
        let (cpu, ns, tid) = (u64::from(at.cpu), at.ns, at.task.pid);
        if self.halted.take(at.cpu) {
            lock(&self.open).insert(cpu, Begin::of(at));
        }
        match interval {
            Interval::IrqsOff { entries } => {
                if is_gate || entries.contains(&va) {
                    // An exception may come while interrupts are off.
                    lock(&self.open).entry(cpu).or_insert(Begin::of(at));
                }
                None
            }
            Interval::PreemptOff { .. } => None,
            Interval::Locked { locks, unlocks } => {
                if self.locking.may_return_to(va) && self.locking.back(va, tid).is_some() {
                    self.hold(cpu, Begin::of(at));
                }
                if locks.binary_search(&va).is_ok() {
                    self.locking.enter(ns, tid, 0);
                }
                if unlocks.binary_search(&va).is_err() {
                    return None;
                }
                Some(lock(&self.held).get_mut(&cpu)?.pop()?.until(at))
            }
            Interval::Wakeup { wake, switch, state, on_rq, delayed } => {
                if va == *wake {
                    let task = guest::register(Reg::RDI);
                    let field = |offset: u32| guest::dword(task.wrapping_add(offset.into()));
                    let sleeps = field(*state)? & guest::register(Reg::RSI) as u32 != 0;
                    let is_off = field(*on_rq)? == 0
                        || delayed.is_some_and(|offset| field(offset).is_some_and(|word| word & 0xff != 0));
                    if sleeps && is_off {
                        self.wake(task, ns);
                    }
                    None
                } else if va == *switch {
                    let task = guest::register(Reg::RSI);
                    let since_ns = lock(&self.waiting).remove(&task)?;
                    Some(Ended { since_ns, still_ns: 0, task: Some(task) })
                } else {
                    None
                }
            }
        }
    }

    /// Handles an instruction that is about to run; `at` is the moment after it.
    pub fn instruction(&self, interval: &Interval, at: &At<'_>, op: Op) -> Option<Ended> {
        let (before, after) = match (interval, op) {
            (Interval::IrqsOff { .. } | Interval::PreemptOff { .. }, Op::Halt) => return self.halt(at),
            (Interval::IrqsOff { .. }, op) => {
                let stack = |offset: u64| guest::word(guest::register(Reg::RSP).wrapping_add(offset));
                let after = match op {
                    Op::Cli => 0,
                    Op::Sti => IF,
                    Op::Popf => stack(0)?,
                    // RIP and CS lie before RFLAGS.
                    Op::Iret => stack(16)?,
                    Op::Sysret => guest::register(Reg::R11),
                    Op::Halt | Op::Add(..) => return None,
                };
                (guest::register(Reg::EFLAGS) & IF == 0, after & IF == 0)
            }
            (Interval::PreemptOff { count: address }, Op::Add(word, amount)) => {
                let general = |number: u8| Reg::general(number.into()).map_or(0, guest::register);
                let register = |number: u8| general(number) as u32;
                let added_to = match word {
                    GsWord::At(address) => address,
                    GsWord::Behind { register, displacement } => general(register).wrapping_add(displacement),
                };
                if added_to != *address {
                    return None;
                }
                let amount = match amount {
                    Amount::Const(amount) => amount as u32,
                    Amount::Reg(number) => register(number),
                    Amount::NegatedReg(number) => register(number).wrapping_neg(),
                };
                let count = guest::dword(guest::register(Reg::GS_BASE).wrapping_add(*address))?;
                (count & COUNT != 0, count.wrapping_add(amount) & COUNT != 0)
            }
            _ => return None,
        };
        match (before, after) {
            (false, true) => {
                lock(&self.open).insert(at.cpu.into(), Begin::of(at));
                None
            }
            (true, false) => self.end(at),
            _ => None,
        }
    }

    /// A CPU halts. An open interval ends.
    fn halt(&self, at: &At<'_>) -> Option<Ended> {
        let ended = self.end(at)?;
        self.halted.add(at.cpu);
        Some(ended)
    }

    /// A CPU takes a lock.
    fn hold(&self, cpu: u64, begin: Begin) {
        let mut all = lock(&self.held);
        let held = all.entry(cpu).or_default();
        if held.len() == MAX_HELD {
            held.remove(0);
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        held.push(begin);
    }

    /// A task that slept is woken.
    fn wake(&self, task: u64, ns: u64) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < MAX_OPEN || waiting.contains_key(&task) {
            waiting.insert(task, ns);
        } else {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of intervals that are not measured, because too many were open.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed) + self.locking.forgotten()
    }

    fn end(&self, at: &At<'_>) -> Option<Ended> {
        lock(&self.open).remove(&at.cpu.into()).map(|begin| begin.until(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::Hooks;
    use crate::side::Task;

    #[test]
    fn locks_and_tasks_beyond_the_limits_are_counted() {
        let locked = Intervals::default();
        (0..MAX_HELD as u64 + 3).for_each(|ns| locked.hold(0, Begin { ns, still_ns: 0 }));
        assert_eq!((locked.forgotten(), lock(&locked.held)[&0].len()), (3, MAX_HELD));
        assert_eq!(lock(&locked.held)[&0][0].ns, 3, "the oldest");
        let woken = Intervals::default();
        (0..MAX_OPEN as u64 + 3).for_each(|task| woken.wake(task, 1));
        woken.wake(7, 2);
        assert_eq!((woken.forgotten(), lock(&woken.waiting).len()), (3, MAX_OPEN));
        assert_eq!(lock(&woken.waiting)[&7], 2, "woken again");
    }

    #[test]
    fn waiting_is_in_no_interval() {
        for cpu in [0, 65, 4095] {
            let intervals = Intervals::default();
            let (task, hooks) = (Task::default(), Hooks::default());
            let at = At { cpu, ns: 100, still_ns: 9, task: &task, hooks: &hooks };
            assert_eq!(intervals.halt(&at), None);
            assert!(!intervals.halted.has(cpu));
            lock(&intervals.open).insert(cpu.into(), Begin { ns: 40, still_ns: 4 });
            assert_eq!(intervals.halt(&at), Some(Ended { since_ns: 40, still_ns: 5, task: None }));
            assert!(intervals.halted.has(cpu) && !intervals.halted.has(cpu ^ 1));
            assert!(intervals.halted.take(cpu) && !intervals.halted.take(cpu));
        }
        assert!(!Cpus::default().has(1 << 20));
    }

    #[test]
    fn instructions_are_told_apart() {
        for (bytes, op) in [
            (&[0xfa][..], Some(Op::Cli)),
            (&[0xfb], Some(Op::Sti)),
            (&[0x9d], Some(Op::Popf)),
            (&[0x48, 0xcf], Some(Op::Iret)),
            (&[0x48, 0x0f, 0x07], Some(Op::Sysret)),
            (
                &[0x65, 0xff, 0x04, 0x25, 0x08, 0x2d, 0x03, 0x00],
                Some(Op::Add(GsWord::At(0x3_2d08), Amount::Const(1))),
            ),
            (&[0xf4], Some(Op::Halt)),
            (&[0x90], None),
        ] {
            assert_eq!(Op::of(bytes, 0xffff_ffff_8100_0000), op, "{bytes:x?}");
        }
    }
}
