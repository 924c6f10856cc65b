// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of functions, system calls, tasks and decode errors. Each is sorted by its first measure.

use crate::header::Header;
use crate::table::{Cell, Style, Table};
use crate::{rows, shape};
use kprism_profile::Filter;
use kprism_profile::Profile;
use kprism_profile::units;
use serde_json::Value;

/// Functions by self instructions. Percentages refer to all instructions of the selected tasks.
pub fn functions(profile: &Profile, filter: &Filter) -> Table {
    let rows = rows::functions(profile, filter);
    let whole = rows.iter().fold(0u64, |sum, r| sum.saturating_add(r.self_insns));
    let cells = rows
        .iter()
        .map(|r| {
            let func = &profile.funcs[r.func as usize];
            vec![
                Cell::Percent(units::percent(r.self_insns, whole)),
                Cell::Count(r.self_insns),
                Cell::Count(r.total_insns),
                Cell::Ns(r.self_ns),
                Cell::Ns(r.total_ns),
                Cell::Int(r.calls),
                Cell::Text(func.name.clone()),
                Cell::Text(func.module.clone()),
            ]
        })
        .collect();
    sorted(
        Table::new(
            &[
                ("self_percent", "self"),
                ("self_instructions", "self insns"),
                ("total_instructions", "total insns"),
                ("self_ns", "self time"),
                ("total_ns", "total time"),
                ("calls", "calls"),
                ("function", "function"),
                ("module", "module"),
            ],
            cells,
        ),
        "self_instructions",
    )
}

/// System calls by total wall time.
pub fn syscalls(profile: &Profile, filter: &Filter) -> Table {
    let cells = rows::syscalls(profile, filter)
        .iter()
        .map(|r| {
            vec![
                Cell::Int(r.count()),
                Cell::Ns(r.wall_total_ns()),
                Cell::Ns(r.average_ns()),
                Cell::Ns(r.percentile_ns(50)),
                Cell::Ns(r.percentile_ns(90)),
                Cell::Ns(r.percentile_ns(99)),
                Cell::Ns(r.percentile_ns(100)),
                Cell::Ns(r.on_cpu_ns),
                Cell::Count(r.insns),
                Cell::Text(r.name.clone()),
            ]
        })
        .collect();
    sorted(
        Table::new(
            &[
                ("count", "count"),
                ("wall_ns", "wall"),
                ("average_ns", "average"),
                ("p50_ns", "p50"),
                ("p90_ns", "p90"),
                ("p99_ns", "p99"),
                ("max_ns", "max"),
                ("on_cpu_ns", "on CPU"),
                ("kernel_instructions", "kernel insns"),
                ("syscall", "syscall"),
            ],
            cells,
        ),
        "wall_ns",
    )
}

/// The time of system calls by part: shares of the wall time, and means per call.
pub fn syscall_parts(profile: &Profile, filter: &Filter) -> Table {
    let rows = rows::syscalls(profile, filter);
    let cells = rows
        .iter()
        .map(|r| {
            let wall = r.wall_total_ns();
            let split = r.split();
            let parts = [split.entry, split.body, split.interrupts, split.off_cpu, split.exit];
            let mut cells = vec![Cell::Int(r.count()), Cell::Ns(wall), Cell::Ns(r.average_ns())];
            for part in parts {
                cells.push(Cell::Ns(part / r.count().max(1)));
                cells.push(Cell::Percent(units::percent(part, wall)));
            }
            cells.push(Cell::Text(r.name.clone()));
            cells
        })
        .collect();
    sorted(
        Table::new(
            &[
                ("count", "count"),
                ("wall_ns", "wall"),
                ("average_ns", "average"),
                ("entry_ns", "entry"),
                ("entry_percent", ""),
                ("body_ns", "body"),
                ("body_percent", ""),
                ("interrupts_ns", "interrupts"),
                ("interrupts_percent", ""),
                ("off_cpu_ns", "off CPU"),
                ("off_cpu_percent", ""),
                ("exit_ns", "exit"),
                ("exit_percent", ""),
                ("syscall", "syscall"),
            ],
            cells,
        ),
        "wall_ns",
    )
}

/// Tasks by instructions.
pub fn tasks(profile: &Profile, filter: &Filter) -> Table {
    let rows = rows::tasks(profile, filter);
    let both = |r: &rows::TaskRow| r.user_insns.saturating_add(r.kernel_insns);
    let whole = rows.iter().fold(0u64, |sum, r| sum.saturating_add(both(r)));
    let cells = rows
        .iter()
        .map(|r| {
            let task = &profile.tasks[r.task as usize];
            vec![
                Cell::Percent(units::percent(both(r), whole)),
                Cell::Count(both(r)),
                Cell::Count(r.user_insns),
                Cell::Count(r.kernel_insns),
                Cell::Ns(r.ns),
                Cell::Int(r.syscalls),
                Cell::Int(task.pid.into()),
                Cell::Int(task.tgid.into()),
                Cell::Text(task.comm.clone()),
            ]
        })
        .collect();
    sorted(
        Table::new(
            &[
                ("percent", "share"),
                ("instructions", "insns"),
                ("user_instructions", "user insns"),
                ("kernel_instructions", "kernel insns"),
                ("on_cpu_ns", "on CPU"),
                ("syscalls", "syscalls"),
                ("pid", "pid"),
                ("tgid", "tgid"),
                ("comm", "comm"),
            ],
            cells,
        ),
        "instructions",
    )
}

/// Places that could not be decoded, in the order of the streams.
pub fn errors(profile: &Profile) -> Table {
    let cells = profile
        .errors
        .iter()
        .map(|e| {
            vec![
                Cell::Int(e.cpu.into()),
                Cell::Hex(e.offset),
                Cell::Ns(e.ns),
                Cell::Hex(e.ip),
                Cell::Text(e.kind.clone()),
            ]
        })
        .collect();
    Table::new(
        &[
            ("cpu", "CPU"),
            ("stream_offset", "stream offset"),
            ("time_ns", "time"),
            ("ip", "last ip"),
            ("kind", "what"),
        ],
        cells,
    )
}

fn sorted(mut table: Table, key: &'static str) -> Table {
    let known = table.sort_by(key);
    debug_assert!(known.is_ok(), "a table sorts by a column of its own");
    table
}

/// Number of decode errors and overflows that are counted, but not in the table of [`errors`].
pub fn unlisted(header: &Header, profile: &Profile) -> u64 {
    (header.errors + header.overflows).saturating_sub(profile.errors.len() as u64)
}

/// A table with what is said of the run, as JSON. `unlisted`: see [`unlisted`]; of other tables `None`.
pub fn to_json(header: &Header, table: &Table, unlisted: Option<u64>) -> Value {
    let mut value = shape::report(header.to_json(), table);
    if let Some(unlisted) = unlisted {
        value["unlisted"] = unlisted.into();
    }
    value
}

/// The same as text.
pub fn to_text(
    header: &Header,
    profile: &Profile,
    table: &Table,
    unlisted: Option<u64>,
    style: Style,
) -> String {
    let mut out = format!("{}\n{}", header.to_text(profile, style), table.to_text(style));
    if let Some(unlisted) = unlisted.filter(|&n| n > 0) {
        let text = format!(
            "… {} more were counted only: of each part of a stream, the first ones are kept with their place",
            units::grouped(unlisted)
        );
        out += &format!("{}\n", style.alert(&text));
    }
    out + &header.account_text(style)
}

/// The main tables, by name. `limit` is the most rows of each, 0 is all; `None` takes as many as fit on a screen.
pub fn overview(profile: &Profile, filter: &Filter, limit: Option<usize>) -> Vec<(&'static str, Table)> {
    let of = |mut table: Table, rows: usize| {
        match limit.unwrap_or(rows) {
            0 => {}
            rows => table.limit(rows),
        }
        table
    };
    vec![
        ("functions", of(functions(profile, filter), 20)),
        ("syscalls", of(syscalls(profile, filter), 10)),
        ("tasks", of(tasks(profile, filter), 10)),
    ]
}

/// The overview with what is said of the run, as JSON.
pub fn overview_json(header: &Header, tables: &[(&str, Table)]) -> Value {
    shape::overview(header.to_json(), tables.iter().map(|(name, table)| (*name, table)))
}

/// The same as text.
pub fn overview_text(header: &Header, profile: &Profile, tables: &[(&str, Table)], style: Style) -> String {
    let mut out = header.to_text(profile, style);
    for (name, table) in tables {
        out += &format!("\n{}\n{}", style.bold(name), table.to_text(style));
    }
    out + &header.account_text(style)
}
