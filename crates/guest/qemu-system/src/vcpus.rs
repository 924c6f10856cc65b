// SPDX-License-Identifier: GPL-2.0-or-later
//! The vCPUs by number, and the one whose callback runs.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::MAX_VCPUS;
use crate::round_robin::VcpuCheck;
use crate::state::{STATE, State};
use crate::vcpu::Vcpu;

/// The vCPUs by number; null before their start and after the end. Separate from [`STATE`], because every block that
/// runs reads this.
pub static VCPUS: [AtomicPtr<Vcpu>; MAX_VCPUS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_VCPUS];

/// The calling vCPU. If vCPUs take turns on one thread, QEMU 10 passes the index of the vCPU that translated the block.
/// So there the thread's own record is used.
///
/// # Safety
/// Must be called from a callback on a vCPU's thread, and not twice at a time.
#[inline(always)]
pub unsafe fn vcpu<const ROUND_ROBIN: bool>(cpu: c_uint) -> Option<&'static mut Vcpu> {
    let slot = match ROUND_ROBIN {
        false => cpu as usize,
        true => match STATE.get()?.round_robin.as_ref()?.now() {
            VcpuCheck::Same(slot) => slot,
            VcpuCheck::New { slot, before } => {
                // SAFETY: as below.
                unsafe { VCPUS.get(slot)?.load(Ordering::Relaxed).as_mut()? }.scheduled(before);
                slot
            }
        },
    };
    // SAFETY: leaked at init, so it lives; only this vCPU's thread takes it mutably, and the shutdown only
    // after `closed` has turned every callback away.
    unsafe { VCPUS.get(slot)?.load(Ordering::Relaxed).as_mut() }
}

/// Calls `f` for each of the other vCPUs, if vCPUs take turns on one thread.
pub fn for_others(state: &State, me: &Vcpu, mut f: impl FnMut(&mut Vcpu)) {
    if state.round_robin.is_none() {
        return;
    }
    for slot in &VCPUS {
        let vcpu = slot.load(Ordering::Acquire);
        if !vcpu.is_null() && !std::ptr::eq(vcpu, me) {
            // SAFETY: leaked at init; all vCPUs share this thread, so none of the others is in a callback.
            f(unsafe { &mut *vcpu });
        }
    }
}
