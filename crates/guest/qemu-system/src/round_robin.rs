// SPDX-License-Identifier: GPL-2.0-or-later
//! The running vCPU, where all vCPUs take turns on one thread (deterministic mode with several vCPUs; "round-robin" in
//! QEMU). QEMU 10's callbacks do not identify it: the index that they pass is a constant of the translation. QEMU's own
//! thread-local `current_cpu` does; it is exported, though not part of the plugin interface.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::abi::{MAX_VCPUS, symbol};

/// Result of a check.
pub enum VcpuCheck {
    /// The same vCPU as at the last check.
    Same(usize),
    /// Another vCPU, and the one at the last check.
    New { slot: usize, before: Option<usize> },
}

/// Tracks the running vCPU of the one thread.
pub struct RunningVcpu {
    get_cpu: unsafe extern "C" fn(c_int) -> *mut c_void,
    /// Address of `current_cpu` of the vCPUs' thread.
    current: AtomicPtr<*mut c_void>,
    last: AtomicPtr<c_void>,
    last_slot: AtomicUsize,
}

impl RunningVcpu {
    /// Looks up the two symbols.
    ///
    /// # Errors
    /// This QEMU does not export them.
    pub fn new() -> Result<Self, String> {
        let get_cpu = symbol(c"qemu_get_cpu");
        if get_cpu.is_null() || symbol(c"current_cpu").is_null() {
            return Err(
                "this QEMU does not tell which vCPU runs (no symbol current_cpu): use one vCPU, or no icount"
                    .into(),
            );
        }
        Ok(RunningVcpu {
            // SAFETY: the type is QEMU's.
            get_cpu: unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *mut c_void>(get_cpu)
            },
            current: AtomicPtr::default(),
            last: AtomicPtr::default(),
            last_slot: AtomicUsize::new(0),
        })
    }

    /// The vCPU that runs, on the vCPUs' thread.
    #[inline]
    pub fn now(&self) -> VcpuCheck {
        let mut at = self.current.load(Ordering::Relaxed);
        if at.is_null() {
            at = symbol(c"current_cpu").cast();
            self.current.store(at, Ordering::Relaxed);
        }
        // SAFETY: the address of this thread's own thread-local variable.
        let cpu = unsafe { *at };
        if cpu == self.last.load(Ordering::Relaxed) {
            return VcpuCheck::Same(self.last_slot.load(Ordering::Relaxed));
        }
        self.switched(cpu)
    }

    #[cold]
    fn switched(&self, cpu: *mut c_void) -> VcpuCheck {
        // SAFETY: looks an index up in QEMU's list of vCPUs; null past its end.
        let is = |slot: &usize| unsafe { (self.get_cpu)(*slot as c_int) } == cpu;
        let slot = (0..MAX_VCPUS).find(is).unwrap_or(0);
        let is_first = self.last.swap(cpu, Ordering::Relaxed).is_null();
        let before = self.last_slot.swap(slot, Ordering::Relaxed);
        VcpuCheck::New { slot, before: (!is_first).then_some(before) }
    }
}
