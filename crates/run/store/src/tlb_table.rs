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

/// The columns of a group of rows.
#[derive(Default)]
struct Group {
    time_ns: Vec<u64>,
    cpu: Vec<u32>,
    pid: Vec<u32>,
    tgid: Vec<u32>,
    space: Vec<u64>,
    va: Vec<u64>,
    page_bytes: Vec<u64>,
    pte: Vec<Option<u64>>,
    ip: Vec<u64>,
    access: Vec<u32>,
    geometries: Vec<u32>,
}

impl Group {
    fn push(&mut self, row: &MissRow) {
        self.time_ns.push(row.time_ns);
        self.cpu.push(row.cpu);
        self.pid.push(row.pid);
        self.tgid.push(row.tgid);
        self.space.push(row.space);
        self.va.push(row.va);
        self.page_bytes.push(row.page_bytes);
        self.pte.push(row.pte);
        self.ip.push(row.ip);
        self.access.push(row.access);
        self.geometries.push(row.geometries);
    }
}

/// Writes the table, completely or not at all, and returns its mark for the manifest ([`kprism_manifest::Manifest::tables`]).
///
/// # Errors
/// Fails if the file cannot be written.
pub fn save_tlb_misses(run: &Run, rows: impl Iterator<Item = MissRow>) -> Result<String> {
    std::fs::create_dir_all(run.tables()).map_err(crate::io_at(&run.tables()))?;
    let mut rows = rows.peekable();
    let mut begun = false;
    let groups = std::iter::from_fn(|| {
        if begun && rows.peek().is_none() {
            return None;
        }
        begun = true;
        // Column by column from the start: rows side by side would be read once for each column.
        let mut group = Group::default();
        rows.by_ref().take(GROUP).for_each(|row| group.push(&row));
        Some(vec![
            ("time_ns", Column::owned_u64s(group.time_ns)),
            ("cpu", Column::owned_u32s(group.cpu)),
            ("pid", Column::owned_u32s(group.pid)),
            ("tgid", Column::owned_u32s(group.tgid)),
            ("address_space", Column::owned_u64s(group.space)),
            ("va", Column::owned_u64s(group.va)),
            ("page_bytes", Column::owned_u64s(group.page_bytes)),
            ("pte", Column::owned_opt_u64s(group.pte)),
            ("ip", Column::owned_u64s(group.ip)),
            ("access_kind", Column::owned_u32s(group.access)),
            ("geometries", Column::owned_u32s(group.geometries)),
        ])
    });
    let clock = run.manifest().map(|manifest| manifest.clock.name).unwrap_or_default();
    let about = About { table: "tlb_misses", clock: &clock };
    write_groups(&run.table("tlb_misses"), about, groups)
}
