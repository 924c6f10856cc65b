// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marks: how a program in the guest tells the observer that the command begins or ends. Any program can make one; without an
//! observer it has no effect.

use std::arch::asm;

/// CPUID leaf of the marks ("KPRI"). No CPU defines it.
pub const MARK_LEAF: u32 = 0x4b50_5249;
/// CPUID subleaf: the command begins.
pub const MARK_BEGIN: u32 = 1;
/// CPUID subleaf: the command has ended.
pub const MARK_END: u32 = 2;
/// CPUID subleaf: the guest stops until the host has read its memory.
pub const MARK_STOP: u32 = 3;

/// Executes the CPUID instruction that the observer takes as a mark. `pid` is the command's process.
#[inline(never)]
pub fn mark(what: u32, pid: u32) {
    // SAFETY: CPUID has no effect but on the four registers; RBX, which the compiler reserves, is restored.
    unsafe {
        asm!("xchg {pid}, rbx", "cpuid", "xchg {pid}, rbx", pid = inout(reg) u64::from(pid) => _,
             inout("eax") MARK_LEAF => _, inout("ecx") what => _, out("edx") _,
             options(nostack, nomem, preserves_flags));
    }
}
