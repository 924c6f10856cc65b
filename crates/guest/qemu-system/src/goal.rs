// SPDX-License-Identifier: GPL-2.0-or-later
//! Finds the one instruction before which a replay stops.
//!
//! In: a [`Goal`]: the number of an instruction of a recording, or a condition. Each vCPU's encoder then runs on the vCPU's own
//! thread ([`Vcpu::count`](crate::vcpu::Vcpu)), so that at the start of each block the number of instructions before it is known
//! exactly. Nothing is written. Out: the index of the instruction in the block that starts ([`taken`]), at which
//! [`leave`](crate::leave) stops the guest.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde_json::json;

use crate::block::Block;
use crate::stops;
use crate::trigger::Cpus;

/// The instruction to stop at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// An instruction of a vCPU by its number, from 1, and its address.
    Insn { cpu: u32, number: u64, ip: u64 },
    /// The instruction at which the condition `at=` holds for this time, from 1.
    Place { nth: u64 },
}

impl Goal {
    /// Parses `CPU:NUMBER:ADDRESS`, the address in hexadecimal with 0x.
    ///
    /// # Errors
    /// The text states the expected format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("goal={text}: expected CPU:NUMBER:0xADDRESS, the first instruction being 1");
        let parse = || {
            let mut words = text.split(':');
            let (cpu, number, ip) = (words.next()?, words.next()?, words.next()?);
            let ip = u64::from_str_radix(ip.strip_prefix("0x")?, 16).ok()?;
            let number = number.parse().ok().filter(|number| *number > 0)?;
            words.next().is_none().then_some(Goal::Insn { cpu: cpu.parse().ok()?, number, ip })
        };
        parse().ok_or_else(wrong)
    }
}

/// No instruction of the running block is the goal.
const NONE: usize = usize::MAX;

/// Index of the goal in the block that starts or runs. All vCPUs take turns on one thread.
static ARMED: AtomicUsize = AtomicUsize::new(NONE);
/// True once the guest was held, or the goal was missed: nothing is counted any more.
static DONE: AtomicBool = AtomicBool::new(false);
/// CPUs on which the condition holds at the block that starts there next. After `hlt`, others run before it.
static HOLDS: Cpus = Cpus::new();
/// Number of times that the condition held.
static HELD: AtomicU64 = AtomicU64::new(0);
/// Number of the instruction that the block begins with, and guest time in ns there.
static FIRST: AtomicU64 = AtomicU64::new(0);
static NS: AtomicU64 = AtomicU64::new(0);

/// Returns true if the goal was reached or missed.
pub fn is_done() -> bool {
    DONE.load(Ordering::Relaxed)
}

/// The condition holds at the block that starts next on `cpu`.
pub fn condition_holds(cpu: u32) {
    HOLDS.add(cpu);
}

/// A block starts on `cpu` at `va` and `ns`; `before` instructions of the recording ran there before it, and it is `in_part`, the
/// part that is recorded.
pub fn block_starts(goal: Goal, cpu: u32, block: &Block, va: u64, (before, ns): (u64, u64), in_part: bool) {
    let holds = HOLDS.take(cpu);
    ARMED.store(NONE, Ordering::Relaxed);
    let index = match goal {
        Goal::Insn { cpu: of, .. } if of != cpu || !in_part => return,
        Goal::Insn { number, ip, .. } => match number.checked_sub(before + 1) {
            None => return miss(cpu, before, va),
            Some(index) if index < block.insns() => {
                let index = index as usize;
                // An instruction that faults does not count. The handler's first one then has this number.
                if va.wrapping_add(block.starts[index].into()) != ip {
                    return;
                }
                index
            }
            Some(_) => return,
        },
        Goal::Place { nth } => match holds && HELD.fetch_add(1, Ordering::Relaxed) + 1 == nth {
            true => 0,
            false => return,
        },
    };
    // Outside of the recorded part instructions have no numbers.
    FIRST.store(if in_part { before + 1 } else { 0 }, Ordering::Relaxed);
    NS.store(ns, Ordering::Relaxed);
    ARMED.store(index, Ordering::Relaxed);
}

/// Tells the host that the goal's instruction ran at another address: the replay took another way than the recording.
#[cold]
fn miss(cpu: u32, before: u64, va: u64) {
    DONE.store(true, Ordering::Relaxed);
    stops::tell(&json!({ "missed": true, "cpu": cpu, "number": before + 1, "ip": va }));
}

/// The goal is instruction `index` of the running block, and it is taken: its number (0: it has none), and guest time there.
pub fn taken(index: usize) -> Option<(u64, u64)> {
    if ARMED.load(Ordering::Relaxed) != index {
        return None;
    }
    ARMED.store(NONE, Ordering::Relaxed);
    DONE.store(true, Ordering::Relaxed);
    let first = FIRST.load(Ordering::Relaxed);
    let number = if first == 0 { 0 } else { first + index as u64 };
    Some((number, NS.load(Ordering::Relaxed) + index as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_parsed_or_refused() {
        assert_eq!(Goal::parse("1:7:0xff"), Ok(Goal::Insn { cpu: 1, number: 7, ip: 255 }));
        for bad in ["", "1", "1:0:0xff", "1:7:ff", "1:7:0xff:1", "x:7:0xff"] {
            assert!(Goal::parse(bad).is_err(), "{bad}");
        }
    }
}
