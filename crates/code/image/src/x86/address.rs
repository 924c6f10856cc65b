// SPDX-License-Identifier: MIT OR Apache-2.0
//! Halves of the address space, and the number by which an address space is known.

/// Returns true if the address is in the upper half of the canonical addresses, which is the kernel's
/// (Documentation/arch/x86/x86_64/mm.rst). Programs have the lower half.
#[inline]
pub const fn is_kernel(va: u64) -> bool {
    va >> 63 == 1
}

/// Physical address of the page table that CR3 names: its value without flags and PCID (SDM volume 3, 4.5, "CR3").
#[inline]
pub const fn page_table(cr3: u64) -> u64 {
    cr3 & 0x000f_ffff_ffff_f000
}

/// The number by which a task's address space is known: CR3 without flags and PCID, and without bit 12, by which page-table
/// isolation tells the program's tables from the kernel's (Linux, arch/x86/entry/calling.h).
#[inline]
pub const fn task_space(cr3: u64) -> u64 {
    cr3 & !0x1fff
}

/// The bit by which page-table isolation tells a program's tables from the kernel's.
pub const USER_TABLE: u64 = 1 << 12;

/// Address space that contains `va` while CR3 is `cr3`. All kernel addresses share space 0.
#[inline]
pub const fn space(cr3: u64, va: u64) -> u64 {
    if is_kernel(va) { 0 } else { page_table(cr3) }
}
