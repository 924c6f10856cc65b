// SPDX-License-Identifier: GPL-2.0-or-later
//! Stops the guest at the agent's stop mark, or where a window opens or closes, until the host has read its memory.
//!
//! At the mark one byte is written to the descriptor `stops=N`: 1. At a window's edge (`hold=windows`) nine are: 2 where it
//! opens, 3 where it closes, and the guest's time in ns (little-endian). The host answers with one byte when it is done: 1, or 2 if
//! it has ordered QEMU to stop, which then stops the guest at this place. In between the vCPU's thread waits, and after a 2 until QEMU's
//! main thread has taken the order: on a busy machine the guest would run on meanwhile.
//!
//! QEMU's own stop is not exact enough: a vCPU that stopped itself counts as idle before the machine counts as stopped. With
//! `-icount sleep=off` QEMU then advances the clock of an idle machine to its next timer. Whether that happens depends on the host, and
//! the timer's interrupt would be part of the measurement.

use std::ffi::{c_int, c_uint, c_void};
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::abi::{self, CbFlags};
use crate::guest::{self, Reg};

/// EAX of the agent's marks: "KPRI".
pub const MARK: u64 = 0x4b50_5249;
/// ECX of the mark at which the guest is stopped.
pub const MARK_STOP: u64 = 3;

/// The host's byte if it has ordered QEMU to stop.
const ORDERED: u8 = 2;
/// Longest time for QEMU's main thread to take the order. The host notices a guest that was let go without it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for that where this QEMU does not tell.
const USUAL: Duration = Duration::from_millis(100);

static HOST: OnceLock<UnixStream> = OnceLock::new();

/// Sets the host's connection.
///
/// # Errors
/// It was set before.
pub fn connect(descriptor: RawFd) -> Result<(), String> {
    // SAFETY: whoever started QEMU passes a socket for this plugin alone under this number.
    let socket = unsafe { UnixStream::from_raw_fd(descriptor) };
    HOST.set(socket).map_err(|_| "stops= was given before".to_owned())
}

/// Waits until the host has finished reading. Returns at once if the host is gone.
pub fn wait() {
    let Some(mut host) = HOST.get() else { return };
    if host.write_all(&[1]).is_ok() {
        answered();
    }
}

/// Waits until the host has finished reading at the edge of a window, before the instruction that runs next, at this guest time.
pub fn wait_at_window(opens: bool, ns: u64) {
    let Some(mut host) = HOST.get() else { return };
    let mut message = [if opens { 2 } else { 3 }; 9];
    message[1..].copy_from_slice(&ns.to_le_bytes());
    if host.write_all(&message).is_ok() {
        answered();
    }
}

/// Sends the host a line.
pub fn tell(line: &serde_json::Value) {
    if let Some(mut host) = HOST.get() {
        // A host that is gone ends QEMU.
        let _ = host.write_all(format!("{line}\n").as_bytes());
    }
}

/// Waits for the host's byte, and until QEMU has taken an order of which it tells. Returns false if the host is gone.
pub fn answered() -> bool {
    let mut byte = [0];
    let read = HOST.get().map(|mut host| host.read_exact(&mut byte));
    if !matches!(read, Some(Ok(()))) {
        return false;
    }
    if byte == [ORDERED] {
        until_taken();
    }
    true
}

/// Waits until QEMU's main thread has told each vCPU to stop.
fn until_taken() {
    let Some(qemu) = Qemu::functions() else { return std::thread::sleep(USUAL) };
    let begun = Instant::now();
    // SAFETY: QEMU calls this plugin on a vCPU's thread, so that the vCPUs exist, and they stay while the machine runs.
    while !unsafe { qemu.has_taken_order() } && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}

type OfCpu = unsafe extern "C" fn(*mut c_void) -> bool;

/// Functions of QEMU that are not part of the plugin interface (system/cpus.c, cpu-common.h).
struct Qemu {
    get_cpu: unsafe extern "C" fn(c_int) -> *mut c_void,
    /// `cpu_is_stopped`: the machine is stopped, or about to be.
    is_stopped: OfCpu,
    /// `cpu_thread_is_idle`: of a machine that is stopped, false for a vCPU that was told to stop and has not yet.
    is_idle: OfCpu,
}

impl Qemu {
    fn functions() -> Option<Self> {
        let [get_cpu, is_stopped, is_idle] =
            [c"qemu_get_cpu", c"cpu_is_stopped", c"cpu_thread_is_idle"].map(abi::symbol);
        if get_cpu.is_null() || is_stopped.is_null() || is_idle.is_null() {
            return None;
        }
        // SAFETY: the types are those of QEMU's functions, which have been the same since 2.x.
        unsafe {
            Some(Self {
                get_cpu: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *mut c_void>(
                    get_cpu,
                ),
                is_stopped: std::mem::transmute::<*mut c_void, OfCpu>(is_stopped),
                is_idle: std::mem::transmute::<*mut c_void, OfCpu>(is_idle),
            })
        }
    }

    /// Returns true if every vCPU was told to stop.
    ///
    /// # Safety
    /// The machine exists.
    unsafe fn has_taken_order(&self) -> bool {
        // SAFETY: the caller's promise. A number without a vCPU gives null.
        let mut each = (0..).map(|number| unsafe { (self.get_cpu)(number) }).take_while(|cpu| !cpu.is_null());
        // SAFETY: both only read the vCPU.
        each.all(|cpu| unsafe { (self.is_stopped)(cpu) && !(self.is_idle)(cpu) })
    }
}

/// Handles a translated block if only stops are requested.
pub unsafe extern "C" fn on_translate(_: abi::PluginId, tb: *mut abi::Tb) {
    const CPUID: [u8; 2] = [0x0f, 0xa2];
    // SAFETY: `tb` and its instructions are valid during this callback; `data` is as long as what is asked for.
    unsafe {
        for index in 0..abi::qemu_plugin_tb_n_insns(tb) {
            let insn = abi::qemu_plugin_tb_get_insn(tb, index);
            let mut data = CPUID.map(|_| 0);
            if abi::qemu_plugin_insn_size(insn) == data.len() {
                abi::qemu_plugin_insn_data(insn, data.as_mut_ptr().cast(), data.len());
                if data == CPUID {
                    let flags = CbFlags::ReadRegs;
                    abi::qemu_plugin_register_vcpu_insn_exec_cb(insn, on_cpuid, flags, std::ptr::null_mut());
                }
            }
        }
    }
}

unsafe extern "C" fn on_cpuid(_: c_uint, _: *mut c_void) {
    let of_user = guest::register(Reg::CS) & 3 == 3;
    let low = |reg| guest::register(reg) & 0xffff_ffff;
    if of_user && low(Reg::RAX) == MARK && low(Reg::RCX) == MARK_STOP {
        wait();
    }
}
