// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of the address space of x86-64 in Linux, without address space randomisation, and canonical addresses.

/// Start of the area in which the kernel places mappings of user programs, from the top down. Below are programs and
/// their heaps.
pub const MMAPS: u64 = 0x7000_0000_0000;
/// Area in which QEMU's user mode places them, from the bottom up (its linux-user/mmap.c, TASK_UNMAPPED_BASE). Programs
/// and their heaps are below or above.
pub const QEMU_MMAPS: std::ops::Range<u64> = 0x40_0000_0000..0x5500_0000_0000;
/// Start of the area of main threads' stacks: 16 GiB of random offsets below the top (arch/x86/mm/mmap.c).
pub const STACKS: u64 = 0x7ffb_ffe0_0000;
/// The kernel's half (Documentation/arch/x86/x86_64/mm.rst), without address space randomisation.
pub const KERNEL: [(u64, u64, &str); 7] = [
    (0xffff_8880_0000_0000, 0xffff_c880_0000_0000, "direct map"),
    (0xffff_c900_0000_0000, 0xffff_e900_0000_0000, "vmalloc"),
    (0xffff_ea00_0000_0000, 0xffff_eb00_0000_0000, "struct pages"),
    (0xffff_fe00_0000_0000, 0xffff_fe80_0000_0000, "CPU entry area"),
    (0xffff_ffff_8000_0000, 0xffff_ffff_a000_0000, "kernel image"),
    (0xffff_ffff_a000_0000, 0xffff_ffff_ff00_0000, "modules"),
    (0, u64::MAX, "other kernel memory"),
];
