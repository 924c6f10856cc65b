// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a memory bus shows of TLB misses: page tables lie in a region that is not cached, so every walk is a read of
//! it, which a monitor sees (PTAT: Zhang et al., ACM TECS 17(3), 2018). Bytes of two kinds of files in, misses out:
//!
//! | file | what |
//! |---|---|
//! | [`trace`] | accesses to the region, as each board's monitor writes them; several boards merged by time |
//! | [`mappings`] | which entry maps which page of which process, as the kernel module writes it |
//! | [`qemu`] | QEMU as the monitor: lines of its trace become both of these |
//! | [`rpt`] | the reverse page table: kept current from both, it tells what an access meant |
//!
//! The byte formats are in `docs/tlb-format.md`.

pub mod mappings;
pub mod qemu;
pub mod rpt;
pub mod trace;

/// Why a file cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct BusError {
    /// Where.
    pub offset: usize,
    /// What was expected, and what is there.
    pub what: String,
}

impl BusError {
    fn new(offset: usize, what: impl Into<String>) -> Self {
        BusError { offset, what: what.into() }
    }
}
