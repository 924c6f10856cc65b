// SPDX-License-Identifier: GPL-2.0-or-later
//! Handles a translated block: finds or creates its [`Block`], and registers the callbacks that it needs. Nearly all
//! need one, at their start. A few instructions get their own: `mov cr3`, `lidt`, `cpuid` in user code (the agent's
//! marks), hooked kernel functions.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use kprism_image::insn::Mode;
use kprism_image::is_kernel;

use crate::abi::{self, CbFlags, VcpuUdataCb};
use crate::alloc;
use crate::block::{Block, TIMED};
use crate::guest::{self, Reg};
use crate::hooks::Hook;
use crate::side::What;
use crate::state::{STATE, State};
use crate::stops::{self, MARK, MARK_STOP};
use crate::tape::Entry;
use crate::tlb;
use crate::vcpu::{Vcpu, may_leave_kernel};
use crate::vcpus::{for_others, vcpu};

const MARK_BEGIN: u64 = 1;
const MARK_END: u64 = 2;

/// An instruction with a callback, and its index in its block.
struct Watched {
    insn: Instruction,
    index: u64,
}

pub unsafe extern "C" fn on_translate(_: abi::PluginId, tb: *mut abi::Tb) {
    let Some(state) = STATE.get() else { return };
    let cs = guest::register(Reg::CS) as u16;
    let cpl = (cs & 3) as u8;
    let mode = match cs & !3 {
        0x20 | 0x08 => Mode::Bits32,
        _ => Mode::Bits64,
    };
    // SAFETY: `tb` and its instructions are valid during this callback; `data` is large enough for the
    // longest instruction; user data given to QEMU lives as long as the process.
    unsafe {
        let n = abi::qemu_plugin_tb_n_insns(tb);
        let va = abi::qemu_plugin_tb_vaddr(tb);
        let mut bytes = Vec::with_capacity(n * 5);
        let mut lens = Vec::with_capacity(n);
        let mut timed = false;
        let (tlb, turns) = (!state.options.tlb.is_empty(), state.turns.is_some());
        for i in 0..n {
            let insn = abi::qemu_plugin_tb_get_insn(tb, i);
            let mut data = [0u8; 16];
            let len = abi::qemu_plugin_insn_size(insn).min(16);
            abi::qemu_plugin_insn_data(insn, data.as_mut_ptr().cast(), len);
            let at = va + bytes.len() as u64;
            if tlb {
                let cb = if turns { tlb::on_memory::<true> } else { tlb::on_memory::<false> };
                abi::qemu_plugin_register_vcpu_mem_cb(insn, cb, CbFlags::NoRegs, abi::MEM_RW, tlb::udata(i));
            }
            bytes.extend(&data[..len]);
            lens.push(len as u8);
            timed |= !state.options.icount && matches!(state.hooks.at(at), Some(Hook::SwitchTo));
            if i == 0 && cpl == 3 && tlb {
                let function = alloc::function_at(&state.options.allocs, va);
                if let Some(function) = function {
                    let cb = on_allocator;
                    abi::qemu_plugin_register_vcpu_insn_exec_cb(
                        insn,
                        cb,
                        CbFlags::ReadRegs,
                        alloc::udata(function),
                    );
                }
            }
            if let Some((cb, spot)) = special(state, at, &data[..len], mode, cpl, i) {
                let udata = Box::into_raw(Box::new(spot)).cast();
                abi::qemu_plugin_register_vcpu_insn_exec_cb(insn, cb, CbFlags::ReadRegs, udata);
            }
        }
        let block = state.intern(va, &bytes, &lens, mode, cpl);
        if timed {
            block.flags.fetch_or(TIMED, Ordering::Relaxed);
        }
        let udata = std::ptr::from_ref(block).cast_mut().cast::<c_void>();
        if block.ambiguous {
            let last = abi::qemu_plugin_tb_get_insn(tb, n - 1);
            abi::qemu_plugin_register_vcpu_insn_exec_cb(last, on_done, CbFlags::NoRegs, udata);
        }
        // A block is known as a gate when it is translated for the first time: when it first runs, through the gate.
        let special = block.is_special();
        let kernel = cpl == 0 && is_kernel(va);
        let cb: VcpuUdataCb = match (kernel, state.turns.is_some()) {
            (true, _) if !state.triggers.is_empty() => on_watched_block,
            (true, _) if may_leave_kernel(block) => on_leaving_block,
            (true, _) if special => on_special_block,
            (true, false) => on_kernel_block::<false>,
            (true, true) => on_kernel_block::<true>,
            (false, false) => on_user_block::<false>,
            (false, true) => on_user_block::<true>,
        };
        abi::qemu_plugin_register_vcpu_tb_exec_cb(tb, cb, CbFlags::ReadRegs, udata);
        if tlb {
            let cb: VcpuUdataCb = if turns { tlb::on_fetch::<true> } else { tlb::on_fetch::<false> };
            abi::qemu_plugin_register_vcpu_tb_exec_cb(tb, cb, CbFlags::NoRegs, tlb::block_udata(va, &lens));
        }
    }
}

/// The callback that an instruction needs, if any.
fn special(
    state: &State,
    va: u64,
    bytes: &[u8],
    mode: Mode,
    cpl: u8,
    index: usize,
) -> Option<(VcpuUdataCb, Watched)> {
    let cb: VcpuUdataCb = match state.hooks.at(va) {
        Some(Hook::SwitchTo) => on_switch,
        Some(Hook::Mmap) => on_mmap,
        Some(Hook::SetComm) => on_comm,
        // Cheap test first: the second byte of a two-byte opcode, after at most one prefix.
        None if bytes.iter().take(2).any(|&b| b == 0x0f) => match decode(bytes, va, mode) {
            i if i.mnemonic() == Mnemonic::Mov && i.op0_register() == Register::CR3 => on_cr3,
            i if i.mnemonic() == Mnemonic::Lidt => on_lidt,
            i if i.mnemonic() == Mnemonic::Invlpg && !state.options.tlb.is_empty() => on_invlpg,
            i if i.op0_register() == Register::CR4 && !state.options.tlb.is_empty() => on_cr4,
            i if i.mnemonic() == Mnemonic::Cpuid && cpl == 3 => on_cpuid,
            _ => return None,
        },
        None => return None,
    };
    Some((cb, Watched { insn: decode(bytes, va, mode), index: index as u64 }))
}

fn decode(bytes: &[u8], va: u64, mode: Mode) -> Instruction {
    Decoder::with_ip(mode.bits(), bytes, va, DecoderOptions::NONE).decode()
}

/// Like [`vcpu`], where speed does not matter.
///
/// # Safety
/// As for [`vcpu`].
unsafe fn me(cpu: c_uint) -> Option<(&'static State, &'static mut Vcpu)> {
    let state = STATE.get()?;
    // SAFETY: the caller's promise.
    let vcpu = unsafe { if state.turns.is_some() { vcpu::<true>(cpu) } else { vcpu::<false>(cpu) } };
    Some((state, vcpu?))
}

macro_rules! callback {
    ($name:ident, |$state:ident, $vcpu:ident, $data:ident: $ty:ty| $body:expr) => {
        unsafe extern "C" fn $name(cpu: c_uint, udata: *mut c_void) {
            // SAFETY: QEMU calls this on the vCPU's thread with the pointer registered beside it, which is
            // of this type and lives forever.
            let (me, $data) = unsafe { (me(cpu), &*udata.cast_const().cast::<$ty>()) };
            if let Some(($state, $vcpu)) = me {
                $body
            }
        }
    };
}

/// Callback for kernel blocks, through which nearly all execution passes. `TURNS` is true if vCPUs take turns on this
/// thread.
unsafe extern "C" fn on_kernel_block<const TURNS: bool>(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: QEMU calls this on the vCPU's thread with the pointer registered beside it, a block's.
    let (v, block) = unsafe { (vcpu::<TURNS>(cpu), &*udata.cast_const().cast::<Block>()) };
    if let Some(v) = v {
        v.kernel_block(block);
    }
}

unsafe extern "C" fn on_user_block<const TURNS: bool>(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: as above.
    let (v, block) = unsafe { (vcpu::<TURNS>(cpu), &*udata.cast_const().cast::<Block>()) };
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
    if v.on
        && state.triggers.concern(block.va)
        && let Some(ns) = state.clock_before(block)
    {
        state.triggered(v.cpu, block.va, ns, &v.task);
    }
    if may_leave_kernel(block) {
        v.leave_kernel();
    }
    if block.is_special() { v.special_block(block) } else { v.kernel_block(block) }
});
callback!(on_done, |_state, v, _block: Block| v.push(Entry::Done));
callback!(on_cr3, |_state, v, spot: Watched| v.new_space(register_value(spot.insn.op1_register())));
/// Callback: a function that allocates or frees begins.
unsafe extern "C" fn on_allocator(cpu: c_uint, udata: *mut c_void) {
    // SAFETY: QEMU calls this on the vCPU's thread.
    if let Some((_, v)) = unsafe { me(cpu) } {
        v.called(udata.addr() as u8);
    }
}

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
        v.push(Entry::Dropped(Some(va)));
    }
});
callback!(on_cr4, |_state, v, _spot: Watched| {
    if let Some(tlb) = &mut v.tlb {
        tlb.flush_all();
        v.push(Entry::Dropped(None));
    }
});
callback!(on_switch, |state, v, spot: Watched| {
    if let Some(what) = state.hooks.switch(spot.insn.ip()) {
        if let What::Switch { next, .. } = &what {
            v.task.clone_from(next);
        }
        v.side(spot.index, what);
    }
});
callback!(on_mmap, |state, v, spot: Watched| {
    if v.on
        && let Some(what) = state.hooks.mmap(v.task.clone(), guest::register(Reg::CR3))
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

/// Value of a general-purpose register by iced's name. Segments count as flat.
fn register_value(reg: Register) -> u64 {
    match reg {
        Register::None => 0,
        _ if reg.is_segment_register() => 0,
        _ => Reg::general(reg.full_register().number()).map_or(0, guest::register),
    }
}
