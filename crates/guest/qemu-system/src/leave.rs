// SPDX-License-Identifier: GPL-2.0-or-later
//! Stops a replay before the instruction that [`goal`] found.
//!
//! Out, on the descriptor `stops=N`: one line of JSON when the guest is held. When the host has answered, the block is left before
//! the instruction, as a fault of it would leave it: QEMU, which was told to stop meanwhile, stops there.
//!
//! A block's callback alone cannot do that. QEMU looks for a request to stop at the start of a block, before its callback, so
//! that a guest that is only held would run to the end of the block.

use std::ffi::{c_int, c_uint, c_void};

use serde_json::json;

use crate::callbacks::me;
use crate::goal;
use crate::guest::{self, Reg};
use crate::stops;

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
    let Some(place) = goal::taken(index.addr()) else { return };
    // SAFETY: QEMU calls this on the vCPU's thread.
    let Some(cpu) = (unsafe { hold(cpu, index.addr(), place) }) else { return };
    let Some((leave, get_cpu)) = functions() else { return };
    // SAFETY: `leave` does not return, and jumps over this frame and QEMU's code for the block. Nothing here is to be dropped.
    unsafe { leave(get_cpu(cpu as c_int), back) }
}

/// Holds the guest before instruction `index` of its block, which has this number and time, until the host answers. Returns the vCPU; `None` if the host is gone.
///
/// # Safety
/// Must be called on the vCPU's thread.
#[cold]
unsafe fn hold(cpu: c_uint, index: usize, (number, ns): (u64, u64)) -> Option<u32> {
    // SAFETY: the caller's promise.
    let (_, vcpu) = unsafe { me(cpu) }?;
    let start = vcpu.block.map_or(0, |block| u64::from(block.starts[index]));
    let registers: serde_json::Map<_, _> = (0..16)
        .filter_map(Reg::general)
        .map(|reg| (reg.name().to_owned(), guest::register(reg).into()))
        .collect();
    stops::tell(&json!({
        "cpu": vcpu.cpu, "number": number, "ns": ns, "ip": vcpu.va.wrapping_add(start),
        "pid": vcpu.task.pid, "comm": vcpu.task.comm, "registers": registers,
    }));
    stops::answered().then_some(vcpu.cpu)
}
