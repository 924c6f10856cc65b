// SPDX-License-Identifier: GPL-2.0-or-later
//! Stops a replay before one chosen instruction.
//!
//! In: a [`Goal`]: the number of an instruction of a recording, or a condition. Each vCPU's encoder then runs on the vCPU's own
//! thread ([`Vcpu::count`](crate::vcpu::Vcpu)), so that at the start of each block the number of instructions before it is known
//! exactly. Nothing is written. Out, on the descriptor `stops=N`: one line of JSON when the guest is held. When the host has
//! answered, the block is left before the instruction, as a fault of it would leave it: QEMU, which was told to stop meanwhile,
//! stops there.
//!
//! A block's callback alone cannot do that. QEMU looks for a request to stop at the start of a block, before its callback, so
//! that a guest that is only held would run to the end of the block.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde_json::json;

use crate::block::Block;
use crate::callbacks::me;
use crate::guest::{self, Reg};
use crate::stops;

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
/// True if the condition holds at the block that starts.
static HOLDS: AtomicBool = AtomicBool::new(false);
/// Number of times that the condition held.
static HELD: AtomicU64 = AtomicU64::new(0);
/// Number of the instruction that the block begins with, and guest time in ns there.
static FIRST: AtomicU64 = AtomicU64::new(0);
static NS: AtomicU64 = AtomicU64::new(0);

/// Returns true if the goal was reached or missed.
pub fn is_done() -> bool {
    DONE.load(Ordering::Relaxed)
}

/// The condition holds at the block that starts.
pub fn condition_holds() {
    HOLDS.store(true, Ordering::Relaxed);
}

/// A block starts on `cpu` at `va` and `ns`; `before` instructions of the recording ran there before it, and it is `in_part`, the
/// part that is recorded.
pub fn block_starts(goal: Goal, cpu: u32, block: &Block, va: u64, (before, ns): (u64, u64), in_part: bool) {
    let holds = HOLDS.swap(false, Ordering::Relaxed);
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
    FIRST.store(before + 1, Ordering::Relaxed);
    NS.store(ns, Ordering::Relaxed);
    ARMED.store(index, Ordering::Relaxed);
}

/// Tells the host that the goal's instruction ran at another address: the replay took another way than the recording.
#[cold]
fn miss(cpu: u32, before: u64, va: u64) {
    DONE.store(true, Ordering::Relaxed);
    stops::tell(&json!({ "missed": true, "cpu": cpu, "number": before + 1, "ip": va }));
}

/// Callback of each instruction, with its index in the block. It passes on its return address, which lies in the code that QEMU
/// made of the block: QEMU knows the instruction by it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn on_insn(_: c_uint, _: *mut c_void) {
    std::arch::naked_asm!("mov rdx, [rsp]", "jmp {run}", run = sym run)
}

/// `cpu_loop_exit_restore`: leaves the block at the instruction to which the return address belongs, which has not run. QEMU's
/// executable exports it, but it is not part of the plugin interface.
type Leave = unsafe extern "C" fn(*mut c_void, usize) -> !;
type GetCpu = unsafe extern "C" fn(c_int) -> *mut c_void;

/// Checks that the guest can be stopped at an instruction.
///
/// # Errors
/// This QEMU does not export what is needed.
pub fn check() -> Result<(), String> {
    match functions() {
        Some(_) => Ok(()),
        None => Err("this QEMU cannot be stopped at an instruction (no symbol cpu_loop_exit_restore)".into()),
    }
}

fn functions() -> Option<(Leave, GetCpu)> {
    // SAFETY: symbol lookups in the running process; the types are QEMU's.
    unsafe {
        let leave = libc::dlsym(libc::RTLD_DEFAULT, c"cpu_loop_exit_restore".as_ptr());
        let get_cpu = libc::dlsym(libc::RTLD_DEFAULT, c"qemu_get_cpu".as_ptr());
        (!leave.is_null() && !get_cpu.is_null()).then(|| {
            (
                std::mem::transmute::<*mut c_void, Leave>(leave),
                std::mem::transmute::<*mut c_void, GetCpu>(get_cpu),
            )
        })
    }
}

unsafe extern "C" fn run(cpu: c_uint, index: *mut c_void, back: usize) {
    if ARMED.load(Ordering::Relaxed) != index.addr() {
        return;
    }
    // SAFETY: QEMU calls this on the vCPU's thread.
    let Some(cpu) = (unsafe { hold(cpu, index.addr()) }) else { return };
    let Some((leave, get_cpu)) = functions() else { return };
    // SAFETY: `leave` does not return, and jumps over this frame and QEMU's code for the block. Nothing here is to be dropped.
    unsafe { leave(get_cpu(cpu as c_int), back) }
}

/// Holds the guest before instruction `index` of its block until the host answers. Returns the vCPU; `None` if the host is gone.
///
/// # Safety
/// Must be called on the vCPU's thread.
#[cold]
unsafe fn hold(cpu: c_uint, index: usize) -> Option<u32> {
    ARMED.store(NONE, Ordering::Relaxed);
    DONE.store(true, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let (_, vcpu) = unsafe { me(cpu) }?;
    let start = vcpu.block.map_or(0, |block| u64::from(block.starts[index]));
    let registers: serde_json::Map<_, _> = (0..16)
        .filter_map(Reg::general)
        .map(|reg| (reg.name().to_owned(), guest::register(reg).into()))
        .collect();
    stops::tell(&json!({
        "cpu": vcpu.cpu, "number": FIRST.load(Ordering::Relaxed) + index as u64,
        "ns": NS.load(Ordering::Relaxed) + index as u64, "ip": vcpu.va.wrapping_add(start),
        "pid": vcpu.task.pid, "comm": vcpu.task.comm, "registers": registers,
    }));
    stops::answered().then_some(vcpu.cpu)
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
