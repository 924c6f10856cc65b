// SPDX-License-Identifier: GPL-2.0-or-later
//! Declarations of the part of QEMU's TCG plugin interface that is used here, which is the same in its versions 1 (QEMU
//! 7.2) to 4. All symbols resolve against the QEMU process that loads the plugin.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `qemu_plugin_id_t`.
pub type PluginId = u64;
/// `qemu_plugin_meminfo_t`.
pub type MemInfo = u32;

/// `struct qemu_plugin_tb`, opaque.
#[repr(C)]
pub struct Tb(c_void);
/// `struct qemu_plugin_insn`, opaque.
#[repr(C)]
pub struct TbInsn(c_void);

/// `qemu_info_t`, up to the last field used.
#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
}

/// `QEMU_PLUGIN_CB_NO_REGS`.
pub const NO_REGS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`. QEMU 7.2 reports the wrong accesses if only loads or only stores are requested.
pub const MEM_RW: c_int = 3;

pub type OnVcpu = unsafe extern "C" fn(PluginId, c_uint);
pub type OnTranslate = unsafe extern "C" fn(PluginId, *mut Tb);
pub type OnExit = unsafe extern "C" fn(PluginId, *mut c_void);
pub type OnBlock = unsafe extern "C" fn(c_uint, *mut c_void);
pub type OnMemory = unsafe extern "C" fn(c_uint, MemInfo, u64, *mut c_void);
pub type OnCall = unsafe extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub type OnReturn = unsafe extern "C" fn(PluginId, c_uint, i64, i64);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: PluginId, cb: OnVcpu);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, cb: OnTranslate);
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(tb: *mut Tb, cb: OnBlock, flags: c_int, udata: *mut c_void);
    pub fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut TbInsn,
        cb: OnMemory,
        flags: c_int,
        rw: c_int,
        udata: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_syscall_cb(id: PluginId, cb: OnCall);
    pub fn qemu_plugin_register_vcpu_syscall_ret_cb(id: PluginId, cb: OnReturn);
    pub fn qemu_plugin_register_atexit_cb(id: PluginId, cb: OnExit, udata: *mut c_void);
    pub fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    pub fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    pub fn qemu_plugin_tb_vaddr(tb: *const Tb) -> u64;
    pub fn qemu_plugin_tb_get_insn(tb: *const Tb, index: usize) -> *mut TbInsn;
    pub fn qemu_plugin_insn_size(insn: *const TbInsn) -> usize;
    pub fn qemu_plugin_insn_vaddr(insn: *const TbInsn) -> u64;
    pub fn qemu_plugin_insn_haddr(insn: *const TbInsn) -> *mut c_void;
}

/// Returns true for a store, and log2 of the number of bytes.
pub fn access(info: MemInfo) -> (bool, u32) {
    // SAFETY: functions of their argument's bits alone, in every version.
    unsafe { (qemu_plugin_mem_is_store(info), qemu_plugin_mem_size_shift(info)) }
}

/// The bit that `qemu_plugin_mem_is_store` tests; 0 if it tests none, or several. Calling that function for every
/// access would take a third of the callback's time.
pub fn store_bit() -> MemInfo {
    // SAFETY: a function of its argument's bits alone, in every version.
    let stores: MemInfo = (0..MemInfo::BITS)
        .map(|bit| 1 << bit)
        .filter(|&info| unsafe { qemu_plugin_mem_is_store(info) })
        .sum();
    if stores.is_power_of_two() { stores } else { 0 }
}
