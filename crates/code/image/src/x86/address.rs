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

/// Set in the CR3 of a virtual machine (VMX non-root operation), which no CR3 has: the machine's page tables are of its own memory,
/// and the same number there names another address space than on the host.
pub const NON_ROOT: u64 = 1 << 63;

/// The CR3 that a PIP packet states, told apart from the host's if its NR bit is set (SDM volume 3, "Paging Information (PIP)
/// Packet").
#[inline]
pub const fn stated_cr3(cr3: u64, non_root: bool) -> u64 {
    if non_root { cr3 | NON_ROOT } else { cr3 }
}

/// Returns true if the address space is a virtual machine's.
#[inline]
pub const fn is_non_root(asid: u64) -> bool {
    asid & NON_ROOT != 0
}

/// Address space that contains `va` while CR3 is `cr3`. All kernel addresses share space 0, but those of a virtual machine.
#[inline]
pub const fn space(cr3: u64, va: u64) -> u64 {
    if is_kernel(va & !cr3) { 0 } else { page_table(cr3) | cr3 & NON_ROOT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_machine_shares_no_space_with_the_host() {
        let (user, kernel) = (0x40_1000, 0xffff_ffff_8100_0000);
        let (host, guest) = (stated_cr3(0x5000, false), stated_cr3(0x5000, true));
        assert_eq!((space(host, user), space(host, kernel)), (0x5000, 0));
        assert_eq!(space(guest, user), NON_ROOT | 0x5000);
        assert_eq!(space(guest, kernel), NON_ROOT | 0x5000);
        assert!(is_non_root(space(guest, kernel)) && !is_non_root(space(host, kernel)));
        assert_eq!(task_space(space(guest, 0)), NON_ROOT | 0x4000);
    }
}
