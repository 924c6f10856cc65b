// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost and the temporal resolution of traces: tables and plots.
//!
//! Input: [`Cost`]s, one per recording, alone or in [`Sweep`]s of one packet setting. Output: tables for terminals and
//! programs, and (in [`page`](mod@page)) one HTML file with the plots of figures 5 to 7 of Sharma and Dagenais,
//! "Hardware-assisted instruction profiling and latency detection".

pub mod page;
mod plot;

use kprism_flow::cost::{Cost, Sweep};
use kprism_flow::resolution::factors;
use kprism_pt::mix::Kind;

use crate::table::{Cell, Table};
use kprism_profile::units::percent;

/// The temporal resolution factor of every recording of all sweeps. P is the set of all recordings.
pub fn resolutions(sweeps: &[Sweep]) -> Vec<Vec<Option<f64>>> {
    let products: Vec<_> = sweeps.iter().flat_map(|s| &s.steps).map(|(_, cost)| cost.product).collect();
    let mut all = factors(&products).into_iter();
    sweeps.iter().map(|s| all.by_ref().take(s.steps.len()).collect()).collect()
}

const FLOW: [Kind; 6] = [Kind::Tnt, Kind::Tip, Kind::OnOff, Kind::Fup, Kind::Mode, Kind::Space];
const TIME: [Kind; 4] = [Kind::Cyc, Kind::Mtc, Kind::Tsc, Kind::Cbr];

/// A table of a sweep: size, bandwidth, resolution, and the bytes by packet.
pub fn sweep_table(sweep: &Sweep, trf: &[Option<f64>]) -> Table {
    let columns = [
        ("setting", sweep.setting.key()),
        ("trace_bytes", "bytes"),
        ("mb_per_s", "MB/s"),
        ("bits_per_insn", "bits/insn"),
        ("flow_bytes", "flow"),
        ("time_bytes", "time"),
        ("psb_bytes", "PSB+"),
        ("points", "points"),
        ("median_ns", "median ΔT"),
        ("p99_ns", "p99 ΔT"),
        ("median_insns", "median ΔIc"),
        ("trf", "TRF"),
    ];
    let rows = sweep.steps.iter().zip(trf).map(|((_, cost), trf)| {
        vec![
            Cell::Text(cost.name.clone()),
            Cell::Int(cost.bytes()),
            or_nothing(cost.megabytes_per_second(), Cell::Real),
            Cell::Real(cost.bytes_per_insn() * 8.0),
            Cell::Int(cost.mix.bytes(&FLOW)),
            Cell::Int(cost.mix.bytes(&TIME)),
            Cell::Int(cost.mix.get(Kind::PsbPlus).bytes),
            Cell::Int(cost.points),
            or_nothing(cost.median_ns, Cell::Ns),
            or_nothing(cost.p99_ns, Cell::Ns),
            or_nothing(cost.median_insns, Cell::Int),
            or_nothing(*trf, Cell::Real),
        ]
    });
    Table::new(&columns, rows.collect())
}

/// A table of recordings of different programs: bytes per instruction, and by packet.
pub fn runs_table(costs: &[Cost]) -> Table {
    let columns = [
        ("name", "run"),
        ("instructions", "instructions"),
        ("trace_bytes", "bytes"),
        ("bytes_per_insn", "bytes/insn"),
        ("mb_per_s_at_1_insn_per_ns", "MB/s at 1 insn/ns"),
        ("mb_per_s", "MB/s"),
        ("tnt_percent", "TNT"),
        ("tip_percent", "TIP"),
        ("other_flow_percent", "other flow"),
        ("time_percent", "time"),
        ("psb_percent", "PSB+"),
        ("median_ns", "median ΔT"),
        ("median_insns", "median ΔIc"),
    ];
    let rows = costs.iter().map(|cost| {
        let share = |bytes| Cell::Percent(percent(bytes, cost.bytes()));
        vec![
            Cell::Text(cost.name.clone()),
            Cell::Int(cost.instructions),
            Cell::Int(cost.bytes()),
            Cell::Real(cost.bytes_per_insn()),
            Cell::Real(cost.bytes_per_insn() * 1e3),
            or_nothing(cost.megabytes_per_second(), Cell::Real),
            share(cost.mix.get(Kind::Tnt).bytes),
            share(cost.mix.get(Kind::Tip).bytes),
            share(cost.mix.bytes(&FLOW[2..])),
            share(cost.mix.bytes(&TIME)),
            share(cost.mix.get(Kind::PsbPlus).bytes),
            or_nothing(cost.median_ns, Cell::Ns),
            or_nothing(cost.median_insns, Cell::Int),
        ]
    });
    Table::new(&columns, rows.collect())
}

/// Packets of one recording, kind by kind, the largest first.
pub fn mix_table(cost: &Cost) -> Table {
    let columns = [
        ("packet", "packet"),
        ("packets", "packets"),
        ("bytes", "bytes"),
        ("percent", "of the trace"),
        ("bytes_each", "bytes each"),
    ];
    let mut kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|&k| cost.mix.get(k).packets > 0).collect();
    kinds.sort_by_key(|&k| std::cmp::Reverse(cost.mix.get(k).bytes));
    let rows = kinds.into_iter().map(|kind| {
        let share = cost.mix.get(kind);
        vec![
            Cell::Text(kind.name().into()),
            Cell::Int(share.packets),
            Cell::Int(share.bytes),
            Cell::Percent(percent(share.bytes, cost.bytes())),
            Cell::Real(share.bytes as f64 / share.packets as f64),
        ]
    });
    Table::new(&columns, rows.collect())
}

/// A table of all measurements of a sweep, one row per recording, for programs.
pub fn sweeps_for_programs(sweeps: &[Sweep]) -> Table {
    let mut rows = Vec::new();
    for (sweep, trf) in sweeps.iter().zip(resolutions(sweeps)) {
        for ((value, cost), trf) in sweep.steps.iter().zip(trf) {
            let mut row = vec![Cell::Text(sweep.setting.key().into()), or_nothing(*value, Cell::Int)];
            row.extend(everything(cost));
            row.push(or_nothing(trf, Cell::Real));
            rows.push(row);
        }
    }
    let columns: Vec<_> =
        ["sweep", "value"].into_iter().chain(EVERYTHING).chain(["trf"]).map(|key| (key, key)).collect();
    Table::new(&columns, rows)
}

/// A table of all measurements, one row per recording, for programs.
pub fn runs_for_programs(costs: &[Cost]) -> Table {
    Table::new(&EVERYTHING.map(|key| (key, key)), costs.iter().map(everything).collect())
}

/// Keys of [`everything`]. After the twelfth: packets and bytes in the order of [`Kind::ALL`].
const EVERYTHING: [&str; 40] = [
    "name",
    "instructions",
    "decode_errors",
    "duration_ns",
    "trace_bytes",
    "mb_per_s",
    "bits_per_insn",
    "points",
    "median_ns",
    "p99_ns",
    "median_insns",
    "tnt_branches",
    "tnt_packets",
    "tnt_bytes",
    "tip_packets",
    "tip_bytes",
    "tip_pge_pgd_packets",
    "tip_pge_pgd_bytes",
    "fup_packets",
    "fup_bytes",
    "mode_packets",
    "mode_bytes",
    "pip_packets",
    "pip_bytes",
    "cyc_packets",
    "cyc_bytes",
    "mtc_packets",
    "mtc_bytes",
    "tsc_packets",
    "tsc_bytes",
    "cbr_packets",
    "cbr_bytes",
    "psb_packets",
    "psb_bytes",
    "pad_packets",
    "pad_bytes",
    "ovf_packets",
    "ovf_bytes",
    "other_packets",
    "other_bytes",
];

fn everything(cost: &Cost) -> Vec<Cell> {
    let mut cells = vec![
        Cell::Text(cost.name.clone()),
        Cell::Int(cost.instructions),
        Cell::Int(cost.decode_errors),
        Cell::Ns(cost.duration_ns),
        Cell::Int(cost.bytes()),
        or_nothing(cost.megabytes_per_second(), Cell::Real),
        Cell::Real(cost.bytes_per_insn() * 8.0),
        Cell::Int(cost.points),
        or_nothing(cost.median_ns, Cell::Ns),
        or_nothing(cost.p99_ns, Cell::Ns),
        or_nothing(cost.median_insns, Cell::Int),
        Cell::Int(cost.mix.tnt_bits),
    ];
    for kind in Kind::ALL {
        let share = cost.mix.get(kind);
        cells.extend([Cell::Int(share.packets), Cell::Int(share.bytes)]);
    }
    cells
}

fn or_nothing<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or(Cell::Nothing, cell)
}
