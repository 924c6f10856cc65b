// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table `tlb_misses`, with one row per miss of the last level of any geometry. The input is an iterator of
//! [`MissRow`]s; the output is the table's file. It can have more rows than fit in memory, so it is written in row
//! groups as the rows arrive.

use crate::column::{About, write_groups};
use crate::rows::Column;
use crate::{Result, Run};

/// Number of rows in a row group.
const GROUP: usize = 1 << 20;

/// A TLB miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissRow {
    /// Time of the miss, in ns.
    pub time_ns: u64,
    /// CPU on which it happened.
    pub cpu: u32,
    /// Thread ID.
    pub pid: u32,
    /// Process ID.
    pub tgid: u32,
    /// Address space: CR3 without its low 12 bits.
    pub space: u64,
    /// Virtual address that was accessed.
    pub va: u64,
    /// Size of the address's page, in bytes.
    pub page_bytes: u64,
    /// Physical address of the page table entry, if the recorder reports it.
    pub pte: Option<u64>,
    /// Address of the instruction; 0 if the recorder does not report it.
    pub ip: u64,
    /// Kind of access: 0 load, 1 store, 2 fetch.
    pub access: u32,
    /// Bit n is set if the access missed in geometry n.
    pub geometries: u32,
}

/// Writes the table, completely or not at all.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn save_tlb_misses(run: &Run, rows: impl Iterator<Item = MissRow>) -> Result<()> {
    std::fs::create_dir_all(run.tables()).map_err(crate::io_at(&run.tables()))?;
    let mut rows = rows.peekable();
    let mut begun = false;
    let groups = std::iter::from_fn(|| {
        if begun && rows.peek().is_none() {
            return None;
        }
        begun = true;
        let group: Vec<MissRow> = rows.by_ref().take(GROUP).collect();
        let u64s = |f: fn(&MissRow) -> u64| Column::owned_u64s(group.iter().map(f).collect());
        let u32s = |f: fn(&MissRow) -> u32| Column::owned_u32s(group.iter().map(f).collect());
        Some(vec![
            ("time_ns", u64s(|r| r.time_ns)),
            ("cpu", u32s(|r| r.cpu)),
            ("pid", u32s(|r| r.pid)),
            ("tgid", u32s(|r| r.tgid)),
            ("address_space", u64s(|r| r.space)),
            ("va", u64s(|r| r.va)),
            ("page_bytes", u64s(|r| r.page_bytes)),
            ("pte", Column::owned_opt_u64s(group.iter().map(|r| r.pte).collect())),
            ("ip", u64s(|r| r.ip)),
            ("access_kind", u32s(|r| r.access)),
            ("geometries", u32s(|r| r.geometries)),
        ])
    });
    let clock = run.manifest().map(|manifest| manifest.clock.name).unwrap_or_default();
    let about = About { table: "tlb_misses", clock: &clock };
    write_groups(&run.table("tlb_misses"), about, groups)
}
