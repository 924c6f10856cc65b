// SPDX-License-Identifier: GPL-2.0-or-later
//! A block was translated: finds or creates its [`Block`](crate::block::Block), and registers the [`callbacks`](crate::callbacks)
//! that it needs. Nearly all need one, at their start. A few instructions get their own: `mov cr3`, `lidt`, `cpuid` in user
//! code (the agent's marks), hooked kernel functions.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use kprism_image::insn::Mode;
use kprism_image::is_kernel;

use crate::abi::{self, CbFlags, VcpuUdataCb};
use crate::alloc;
use crate::block::{MEASURED, TIMED};
use crate::callbacks::{
    Measured, Watched, on_allocator, on_block_end, on_comm, on_cpuid, on_cr3, on_cr4, on_invlpg,
    on_kernel_block, on_leaving_block, on_lidt, on_measured, on_mmap, on_module, on_special_block, on_switch,
    on_user_block, on_watched_block,
};
use crate::encoder::linux_mode;
use crate::guest::{self, Reg};
use crate::hooks::Hook;
use crate::leave;
use crate::state::{IS_CONTROLLED, STATE, State};
use crate::tlb;
use crate::trigger::Op;
use crate::vcpu::may_leave_kernel;

pub unsafe extern "C" fn on_translate(_: abi::PluginId, tb: *mut abi::Tb) {
    let Some(state) = STATE.get() else { return };
    let cs = guest::register(Reg::CS) as u16;
    let cpl = (cs & 3) as u8;
    // SAFETY: `tb` and its instructions are valid during this callback; `data` is large enough for the
    // longest instruction; user data given to QEMU lives as long as the process.
    unsafe {
        let n = abi::qemu_plugin_tb_n_insns(tb);
        let mode = mode_of(tb, n, cs, state);
        let va = abi::qemu_plugin_tb_vaddr(tb) + guest::code_base(mode);
        let mut bytes = Vec::with_capacity(n * 5);
        let mut lens = Vec::with_capacity(n);
        let (mut timed, mut measured) = (false, false);
        let (tlb, round_robin) = (!state.options.tlb.is_empty(), state.round_robin.is_some());
        for i in 0..n {
            let insn = abi::qemu_plugin_tb_get_insn(tb, i);
            let mut data = [0u8; 16];
            let len = abi::qemu_plugin_insn_size(insn).min(16);
            abi::qemu_plugin_insn_data(insn, data.as_mut_ptr().cast(), len);
            let at = va + bytes.len() as u64;
            if tlb {
                let cb = if round_robin { tlb::on_memory::<true> } else { tlb::on_memory::<false> };
                abi::qemu_plugin_register_vcpu_mem_cb(insn, cb, CbFlags::NoRegs, abi::MEM_RW, tlb::udata(i));
            }
            if state.options.goal.is_some() {
                let cb = leave::on_insn;
                abi::qemu_plugin_register_vcpu_insn_exec_cb(
                    insn,
                    cb,
                    CbFlags::ReadRegs,
                    std::ptr::without_provenance_mut(i),
                );
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
            if cpl == 0
                && !state.triggers.is_empty()
                && let Some(op) =
                    Op::of(&data[..len], at).filter(|&op| is_kernel(at) && state.triggers.measure(op))
            {
                measured = true;
                let udata = Box::into_raw(Box::new(Measured { op, index: i as u64 })).cast();
                abi::qemu_plugin_register_vcpu_insn_exec_cb(insn, on_measured, CbFlags::ReadRegs, udata);
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
        if measured {
            block.flags.fetch_or(MEASURED, Ordering::Relaxed);
        }
        let udata = std::ptr::from_ref(block).cast_mut().cast::<c_void>();
        if block.ambiguous {
            let last = abi::qemu_plugin_tb_get_insn(tb, n - 1);
            abi::qemu_plugin_register_vcpu_insn_exec_cb(last, on_block_end, CbFlags::NoRegs, udata);
        }
        // A gate's block is translated when the first interrupt enters it. By then the interrupt table names the gate.
        let special = block.is_special();
        let kernel = cpl == 0 && is_kernel(va);
        let cb: VcpuUdataCb = match (kernel, state.round_robin.is_some()) {
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
            let cb: VcpuUdataCb = if round_robin { tlb::on_fetch::<true> } else { tlb::on_fetch::<false> };
            abi::qemu_plugin_register_vcpu_tb_exec_cb(tb, cb, CbFlags::NoRegs, tlb::block_udata(va, &lens));
        }
    }
}

/// EFER.LMA (SDM volume 3, 2.2.1).
const LONG: u64 = 1 << 10;

/// Mode of the block's code. In a guest other than Linux, the flags of its code segment are not known. Then the mode is the first
/// in which the instructions have the lengths that QEMU says.
///
/// # Safety
/// `tb` is a block of `n` instructions that is being translated.
unsafe fn mode_of(tb: *mut abi::Tb, n: usize, cs: u16, state: &State) -> Mode {
    // The lab's guests are observed from their kernel's start on, in long mode.
    if !IS_CONTROLLED.load(Ordering::Relaxed) {
        return linux_mode(cs);
    }
    let modes: &[Mode] =
        match (guest::register(Reg::CR0) & guest::PROTECTED != 0, guest::register(Reg::EFER) & LONG != 0) {
            (false, _) => return Mode::Bits16,
            (true, _) if state.options.linux => return linux_mode(cs),
            (true, false) => &[Mode::Bits32, Mode::Bits16],
            (true, true) => &[Mode::Bits64, Mode::Bits32, Mode::Bits16],
        };
    let has_lengths = |mode: &&Mode| {
        (0..n).all(|i| {
            let mut data = [0u8; 16];
            // SAFETY: the caller's promise; `data` is large enough for the longest instruction.
            let len = unsafe {
                let insn = abi::qemu_plugin_tb_get_insn(tb, i);
                let len = abi::qemu_plugin_insn_size(insn).min(16);
                abi::qemu_plugin_insn_data(insn, data.as_mut_ptr().cast(), len);
                len
            };
            decode(&data[..len], 0, **mode).len() == len
        })
    };
    modes.iter().find(has_lengths).copied().unwrap_or(modes[0])
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
        Some(Hook::ModuleBegins | Hook::InitsFreed | Hook::ModuleFreed | Hook::ModuleCleanup) => on_module,
        // Cheap test first: the second byte of a two-byte opcode, after at most one prefix.
        None if bytes.iter().take(2).any(|&b| b == 0x0f) => match decode(bytes, va, mode) {
            i if i.mnemonic() == Mnemonic::Mov && i.op0_register() == Register::CR3 => on_cr3,
            i if i.mnemonic() == Mnemonic::Lidt => on_lidt,
            i if i.mnemonic() == Mnemonic::Invlpg && !state.options.tlb.is_empty() => on_invlpg,
            i if i.op0_register() == Register::CR4 && !state.options.tlb.is_empty() => on_cr4,
            // Marks of the agent. Elsewhere a program could switch the recording off by them.
            i if i.mnemonic() == Mnemonic::Cpuid && cpl == 3 && !IS_CONTROLLED.load(Ordering::Relaxed) => {
                on_cpuid
            }
            _ => return None,
        },
        None => return None,
    };
    Some((cb, Watched { insn: decode(bytes, va, mode), index: index as u64 }))
}

fn decode(bytes: &[u8], va: u64, mode: Mode) -> Instruction {
    Decoder::with_ip(mode.bits(), bytes, va, DecoderOptions::NONE).decode()
}
