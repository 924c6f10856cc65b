// SPDX-License-Identifier: GPL-2.0-or-later
//! Declarations of the part of QEMU's TCG plugin interface (API version 4, since QEMU 9.2) that the observer uses. All symbols
//! resolve against the QEMU process that loads the plugin; nothing is linked.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// QEMU's limit for this machine type is 255.
pub const MAX_VCPUS: usize = 256;

/// `qemu_plugin_id_t`.
pub type PluginId = u64;

/// `enum qemu_plugin_cb_flags`: a callback's use of registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum CbFlags {
    /// Uses no register, so QEMU need not write its cached values back.
    NoRegs = 0,
    /// May read registers.
    ReadRegs = 1,
}

/// `struct qemu_plugin_tb`, opaque.
#[repr(C)]
pub struct Tb(c_void);
/// `struct qemu_plugin_insn`, opaque.
#[repr(C)]
pub struct TbInsn(c_void);
/// `struct qemu_plugin_register`, opaque.
#[repr(C)]
pub struct Register(c_void);

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
    pub smp_vcpus: c_int,
    pub max_vcpus: c_int,
}

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
pub struct RegDescriptor {
    pub handle: *mut Register,
    pub name: *const c_char,
    pub feature: *const c_char,
}

/// The common start of glib's `GArray` and `GByteArray`.
#[repr(C)]
pub struct GArray {
    pub data: *mut u8,
    pub len: c_uint,
}

/// `struct qemu_plugin_scoreboard`, opaque.
#[repr(C)]
pub struct Scoreboard(c_void);

/// `qemu_plugin_u64`: a number for each vCPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VcpuNumber {
    pub score: *mut Scoreboard,
    pub offset: usize,
}

/// `QEMU_PLUGIN_COND_NE`.
pub const COND_NE: c_int = 3;

/// `qemu_plugin_vcpu_udata_cb_t`.
pub type VcpuUdataCb = unsafe extern "C" fn(c_uint, *mut c_void);

/// `qemu_plugin_meminfo_t`.
pub type MemInfo = u32;

/// `qemu_plugin_vcpu_mem_cb_t`.
pub type VcpuMemCb = unsafe extern "C" fn(c_uint, MemInfo, u64, *mut c_void);

/// `QEMU_PLUGIN_MEM_RW`.
pub const MEM_RW: c_int = 3;

/// QEMU's clock ids (`QEMUClockType`): the guest's virtual time.
pub const CLOCK_VIRTUAL: c_int = 1;

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: PluginId, cb: unsafe extern "C" fn(PluginId, c_uint));
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, cb: unsafe extern "C" fn(PluginId, *mut Tb));
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut Tb,
        cb: VcpuUdataCb,
        flags: CbFlags,
        udata: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        tb: *mut Tb,
        cb: VcpuUdataCb,
        flags: CbFlags,
        cond: c_int,
        entry: VcpuNumber,
        imm: u64,
        udata: *mut c_void,
    );
    pub fn qemu_plugin_scoreboard_new(element_size: usize) -> *mut Scoreboard;
    pub fn qemu_plugin_u64_set(entry: VcpuNumber, vcpu: c_uint, value: u64);
    pub fn qemu_plugin_reset(id: PluginId, cb: unsafe extern "C" fn(PluginId));
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut TbInsn,
        cb: VcpuUdataCb,
        flags: CbFlags,
        udata: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut TbInsn,
        cb: VcpuMemCb,
        flags: CbFlags,
        rw: c_int,
        udata: *mut c_void,
    );
    pub fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    pub fn qemu_plugin_register_atexit_cb(
        id: PluginId,
        cb: unsafe extern "C" fn(PluginId, *mut c_void),
        udata: *mut c_void,
    );
    pub fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    pub fn qemu_plugin_tb_vaddr(tb: *const Tb) -> u64;
    pub fn qemu_plugin_tb_get_insn(tb: *const Tb, idx: usize) -> *mut TbInsn;
    pub fn qemu_plugin_insn_data(insn: *const TbInsn, dest: *mut c_void, len: usize) -> usize;
    pub fn qemu_plugin_insn_size(insn: *const TbInsn) -> usize;
    pub fn qemu_plugin_get_registers() -> *mut GArray;
    pub fn qemu_plugin_read_register(handle: *mut Register, buf: *mut GArray) -> c_int;
    pub fn qemu_plugin_read_memory_vaddr(addr: u64, data: *mut GArray, len: usize) -> bool;
    pub fn g_byte_array_new() -> *mut GArray;
    pub fn g_byte_array_set_size(array: *mut GArray, len: c_uint) -> *mut GArray;
}

/// `qemu_clock_get_ns`: QEMU's executable exports it, but it is not part of the plugin interface. So it is looked up at
/// run time and is optional.
pub type ClockGetNs = unsafe extern "C" fn(c_int) -> i64;

/// A function or variable that QEMU's executable exports, and that is not part of the plugin interface. Null if it does not.
pub fn symbol(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: a symbol lookup in the running process; of a thread-local, the calling thread's own copy.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}
