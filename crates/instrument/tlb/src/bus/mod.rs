// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLB misses from a memory bus. The page tables lie in an uncached region, so every walk reads that region, and a
//! monitor on the bus sees the read (PTAT: Zhang et al., ACM TECS 17(3), 2018). Input: two kinds of files. Output:
//! misses.
//!
//! | file | contents |
//! |---|---|
//! | [`trace`] | accesses to the region, as each board's monitor writes them; several boards merged by time |
//! | [`layout`] | the same in a capture device's own records |
//! | [`mappings`] | the entry, page and process of each mapping, as the kernel module writes them |
//! | [`tags`] | the same as HMTT's kernel writes them, in step with accesses on the bus |
//! | [`words`] | the same as the module `kmod/ptat` writes them on the bus itself |
//! | [`qemu`] | QEMU as the monitor: makes accesses of lines of its trace |
//! | [`rpt`] | the reverse page table: kept current from both, it gives the meaning of each access |
//!
//! The byte formats are in `docs/tlb-format.md`.

pub mod layout;
pub mod mappings;
pub mod qemu;
pub mod rpt;
pub mod tags;
pub mod trace;
pub mod words;

/// Error in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct BusError {
    /// Byte offset.
    pub offset: usize,
    /// The expected and the actual contents.
    pub what: String,
}

impl BusError {
    fn new(offset: usize, what: impl Into<String>) -> Self {
        BusError { offset, what: what.into() }
    }
}
