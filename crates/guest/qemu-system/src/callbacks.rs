// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's callbacks while the guest runs: a block starts, or an instruction of interest. In: the vCPU's number, and what
//! was registered when the block was translated. Each finds its [`Vcpu`], which writes the tape.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;

use iced_x86::{Instruction, Register};

use crate::block::{Block, MEASURED};
use crate::guest::{self, Reg};
use crate::modules::GuestMemory;
use crate::side::What;
use crate::state::{STATE, State};
use crate::stops::{self, MARK, MARK_STOP};
use crate::sync::lock;
use crate::tape::Entry;
use crate::trigger::{At, Op};
use crate::vcpu::{Vcpu, may_leave_kernel};
use crate::vcpus::{for_others, vcpu};

const MARK_BEGIN: u64 = 1;
const MARK_END: u64 = 2;

/// An instruction with a callback, and its index in its block.
pub struct Watched {
    pub insn: Instruction,
    pub index: u64,
}

/// An instruction that may begin or end an interval, and its index in its block.
pub struct Measured {
    pub op: Op,
    pub index: u64,
}

/// Like [`vcpu`], where speed does not matter.
///
/// # Safety
/// As for [`vcpu`].
pub unsafe fn me(cpu: c_uint) -> Option<(&'static State, &'static mut Vcpu)> {
    let state = STATE.get()?;
    // SAFETY: the caller's promise.
    let vcpu = unsafe { if state.round_robin.is_some() { vcpu::<true>(cpu) } else { vcpu::<false>(cpu) } };
    Some((state, vcpu?))
}

macro_rules! callback {
    ($name:ident, |$state:ident, $vcpu:ident, $data:ident: $ty:ty| $body:expr) => {
        pub unsafe extern "C" fn $name(cpu: c_uint, udata: *mut c_void) {
            // SAFETY: QEMU calls this on the vCPU's thread with the pointer registered beside it, which is
            // of this type and lives forever.
            let (me, $data) = unsafe { (me(cpu), &*udata.cast_const().cast::<$ty>()) };
            if let Some(($state, $vcpu)) = me {
                $body
            }
        }
    };
}

/// Callback for kernel blocks, through which nearly all execution passes. `ROUND_ROBIN` is true if vCPUs take turns on this
/// thread.
pub unsafe extern "C" fn on_kernel_block<const ROUND_ROBIN: bool>(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: QEMU calls this on the vCPU's thread with the pointer registered beside it, a block's.
    let (v, block) = unsafe { (vcpu::<ROUND_ROBIN>(cpu), &*udata.cast_const().cast::<Block>()) };
    if let Some(v) = v {
        v.kernel_block(block);
    }
}

pub unsafe extern "C" fn on_user_block<const ROUND_ROBIN: bool>(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: as above.
    let (v, block) = unsafe { (vcpu::<ROUND_ROBIN>(cpu), &*udata.cast_const().cast::<Block>()) };
    if let Some(v) = v {
        v.user_block(block);
    }
}

callback!(on_special_block, |_state, v, block: Block| v.special_block(block));
callback!(on_leaving_block, |_state, v, block: Block| {
    v.leave_kernel();
    if block.is_special() { v.special_block(block) } else { v.kernel_block(block) }
});
callback!(on_watched_block, |state, v, block: Block| {
    let is_gate = block.vector().is_some();
    let is_measured = block.flags.load(Ordering::Relaxed) & MEASURED != 0;
    let concerns = v.on && state.triggers.concern(v.cpu, block.va, is_gate);
    if (concerns || v.on && is_measured)
        && let Some(ns) = state.clock_before(block)
    {
        v.block_ns = ns;
        if concerns {
            let at = At { cpu: v.cpu, ns, still_ns: v.still_ns(ns), task: &v.task, hooks: &state.hooks };
            let since_ns = state.block_triggers(&at, block.va, is_gate);
            v.snapshot_since(since_ns);
        }
    }
    if may_leave_kernel(block) {
        v.leave_kernel();
    }
    if block.is_special() { v.special_block(block) } else { v.kernel_block(block) }
});
callback!(on_measured, |state, v, spot: Measured| {
    if v.on {
        // Only in deterministic mode an instruction takes a known time. Inside a block the clock cannot be read.
        let ns = v.block_ns + if state.options.icount { spot.index + 1 } else { 0 };
        let at = At { cpu: v.cpu, ns, still_ns: v.still_ns(ns), task: &v.task, hooks: &state.hooks };
        let since_ns = state.instruction_triggers(&at, spot.op);
        v.snapshot_since(since_ns);
    }
});
callback!(on_block_end, |_state, v, _block: Block| v.push(Entry::BlockEnded));
callback!(on_cr3, |_state, v, spot: Watched| v.new_space(register_value(spot.insn.op1_register())));
callback!(on_lidt, |state, _v, spot: Watched| {
    let mut operand = [0; 10];
    let va = spot.insn.virtual_address(0, 0, |reg, _, _| Some(register_value(reg)));
    if va.is_some_and(|va| guest::memory(va, &mut operand)) {
        state.set_idt(u64::from_le_bytes(operand[2..].try_into().expect("8 bytes")));
    }
});
callback!(on_invlpg, |_state, v, spot: Watched| {
    let va = spot.insn.virtual_address(0, 0, |reg, _, _| Some(register_value(reg)));
    if let (Some(va), Some(tlb)) = (va, &mut v.tlb) {
        tlb.invalidate(va);
        v.push(Entry::Invalidated(Some(va)));
    }
});
callback!(on_cr4, |_state, v, _spot: Watched| {
    if let Some(tlb) = &mut v.tlb {
        tlb.flush_all();
        v.push(Entry::Invalidated(None));
    }
});
callback!(on_switch, |state, v, spot: Watched| {
    if let Some(what) = state.hooks.switch(spot.insn.ip()) {
        if let What::Switch { next, .. } = &what {
            v.task.clone_from(next);
            v.task_at = Some(guest::register(Reg::RSI));
        }
        v.side(spot.index, what);
    }
});
callback!(on_mmap, |state, v, spot: Watched| {
    if v.follows_mappings()
        && let Some(what) = state.hooks.mmap(v.task.clone(), v.task_at, guest::register(Reg::CR3))
    {
        v.side(spot.index, what);
    }
});
callback!(on_comm, |state, v, spot: Watched| {
    if let Some(what) = state.hooks.comm() {
        if let What::Comm(task) = &what
            && task.pid == v.task.pid
        {
            v.task.comm.clone_from(&task.comm);
        }
        v.side(spot.index, what);
    }
});
callback!(on_module, |state, v, spot: Watched| {
    if let (Some(layout), Some(hook)) = (&state.hooks.modules, state.hooks.at(spot.insn.ip())) {
        let argument = guest::register(Reg::RDI);
        let events = lock(&state.modules).entered(&mut GuestMemory, layout, hook, argument, v.on);
        for what in events {
            v.side(spot.index, what);
        }
    }
});
callback!(on_cpuid, |state, v, spot: Watched| {
    if guest::register(Reg::RAX) & 0xffff_ffff == MARK {
        let pid = guest::register(Reg::RBX) as u32;
        match guest::register(Reg::RCX) & 0xffff_ffff {
            MARK_BEGIN => {
                v.mark = Some(pid);
                state.set_tracing(true);
            }
            MARK_END => {
                v.side(spot.index, What::Mark { begin: false, pid });
                state.set_tracing(false);
                // All of them end at the mark: the host determines when each would run next.
                for_others(state, v, |other| other.end(state));
            }
            MARK_STOP => stops::wait(),
            _ => {}
        }
    }
});

/// Callback: a function that allocates or frees begins.
pub unsafe extern "C" fn on_allocator(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: QEMU calls this on the vCPU's thread.
    if let Some((_, v)) = unsafe { me(cpu) } {
        v.allocator_entered(udata.addr() as u8);
    }
}

/// Value of a general-purpose register by iced's name. Segments count as flat.
fn register_value(reg: Register) -> u64 {
    match reg {
        Register::None => 0,
        _ if reg.is_segment_register() => 0,
        _ => Reg::general(reg.full_register().number()).map_or(0, guest::register),
    }
}
