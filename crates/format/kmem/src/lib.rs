// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a Linux kernel.
//!
//! **Input:** physical or virtual memory ([`Physical`], [`Memory`]): of a stopped guest, `/proc/kcore`, or a crash dump.
//! **Output:** virtual addresses translated ([`paging`]), the headers of core files ([`elf`]), and [`Kernel`]: the
//! kernel's symbols, types and modules, which are found in its memory alone. No file of the kernel is needed, and no
//! code in the guest. So a kernel that was loaded at a random place (KASLR) is described as it is.
//!
//! | step | module |
//! |---|---|
//! | the pages of the kernel's image, through its page tables | [`paging`] |
//! | the tables behind `/proc/kallsyms`, found by their contents | [`kallsyms`] |
//! | types (BTF), release, build ID, page-fault handler | [`kernel`] |
//! | modules and their symbols, in the layout that BTF gives | [`modules`] |
//!
//! No I/O. Any bytes give a value or an error.

#![forbid(unsafe_code)]

pub mod elf;
pub mod kallsyms;
pub mod kernel;
pub mod modules;
pub mod x86;

pub use kernel::{Error, Kernel};
pub use x86::paging;

/// Access to a kernel's memory.
pub trait Memory {
    /// Fills `into` from `address`.
    ///
    /// # Errors
    /// A message: nothing is mapped there, or the file is too short.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String>;
}

/// Access to physical memory.
pub trait Physical {
    /// Fills `into` from `address`.
    ///
    /// # Errors
    /// A message: there is no such memory, or it cannot be read.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String>;
}

/// A symbol of the kernel or of a module, as a line of `/proc/kallsyms` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Virtual address; a small number for a per-CPU symbol of kernels before 6.15.
    pub address: u64,
    /// Type letter of `nm`: `t` and `T` are code.
    pub kind: u8,
    /// Name.
    pub name: String,
}

/// A range of virtual addresses and its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub start: u64,
    /// Contents.
    pub bytes: Vec<u8>,
}

impl Segment {
    /// The bytes at `[address, address + length)`, if all of them are in the segment.
    pub fn get(&self, address: u64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..at.checked_add(length)?)
    }
}
