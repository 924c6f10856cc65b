// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual machines of a host's recording as tables. In: each CPU's time by place. Out: a row for each place, or for each
//! change of place, and remarks on what is not known.

use kprism_flow::vms::{Place, Residency};
use kprism_profile::units::{duration, grouped};
use kprism_store::{Account, Fate};
use serde_json::{Value, json};

use crate::table::{Cell, Column, Table};

/// CPUs with their time by place.
#[derive(Debug, Clone, Copy)]
pub struct Cpus<'a> {
    /// CPU, and its time by place.
    pub all: &'a [(usize, Residency)],
    /// True if times are ns, false if they are ticks of a TSC whose frequency is not known.
    pub in_ns: bool,
}

impl Cpus<'_> {
    fn time(self, time: u64) -> Cell {
        if self.in_ns { Cell::Ns(time) } else { Cell::Count(time) }
    }

    fn said(self, time: u64) -> String {
        if self.in_ns { duration(time) } else { format!("{} ticks", grouped(time)) }
    }

    /// A table; keys of its times end in their unit.
    fn table(self, columns: &[(&'static str, &'static str)], rows: Vec<Vec<Cell>>) -> Table {
        let mut table = Table::new(columns, rows);
        if !self.in_ns {
            for Column { key, .. } in &mut table.columns {
                *key = match *key {
                    "least_ns" => "least_ticks",
                    "most_ns" => "most_ticks",
                    "after_ns" => "after_ticks",
                    "before_ns" => "before_ticks",
                    key => key,
                };
            }
        }
        table
    }

    /// A row for each place of each CPU: host, and virtual CPUs.
    pub fn places(self) -> Table {
        let mut rows = Vec::new();
        for (cpu, found) in self.all {
            for (place, stay) in &found.places {
                let share = 100.0 * stay.least as f64 / found.observed.max(1) as f64;
                rows.push(vec![
                    Cell::Int(*cpu as u64),
                    Cell::Text(kind(*place).to_owned()),
                    vmcs(*place),
                    Cell::Count(stay.entries),
                    Cell::Count(stay.exits),
                    Cell::Count(stay.spaces.len() as u64),
                    self.time(stay.least),
                    self.time(stay.most),
                    Cell::Percent(share),
                ]);
            }
        }
        let columns = [
            ("cpu", "CPU"),
            ("place", "place"),
            ("vmcs", "VMCS"),
            ("entries", "entries"),
            ("exits", "exits"),
            ("address_spaces", "address spaces"),
            ("least_ns", "time, at least"),
            ("most_ns", "at most"),
            ("least_percent", "at least %"),
        ];
        self.table(&columns, rows)
    }

    /// A row for each entry and exit.
    pub fn changes(self) -> Table {
        let mut rows = Vec::new();
        for (cpu, found) in self.all {
            for change in &found.changes {
                let what = if change.to == Place::Host { "exit" } else { "entry" };
                let of = if change.to == Place::Host { change.from } else { change.to };
                let time = |time: Option<u64>| time.map_or(Cell::Nothing, |time| self.time(time));
                rows.push(vec![
                    Cell::Int(*cpu as u64),
                    Cell::Hex(change.offset as u64),
                    time(change.after),
                    time(change.before),
                    Cell::Text(what.to_owned()),
                    vmcs(of),
                    Cell::Hex(change.cr3),
                ]);
            }
        }
        let columns = [
            ("cpu", "CPU"),
            ("stream_offset", "stream offset"),
            ("after_ns", "after"),
            ("before_ns", "before"),
            ("what", "what"),
            ("vmcs", "VMCS"),
            ("cr3", "CR3"),
        ];
        self.table(&columns, rows)
    }

    /// Remarks to stand below the tables, a sentence each.
    pub fn remarks(self) -> Vec<String> {
        let mut said = Vec::new();
        for (cpu, found) in self.all {
            said.push(format!(
                "CPU {cpu}: {} observed; {} packets tell the time, {} apart at most; {} in which the place is not known",
                self.said(found.observed),
                grouped(found.times),
                self.said(found.widest),
                self.said(found.unknown),
            ));
            for (count, what) in [
                (found.unseen, "changes of place that no packet told: only a PSB+ shows them"),
                (found.overflows, "overflows of the processor's buffer"),
                (found.skipped, "bytes that are no packets"),
                (found.backwards, "times that go back: the time before each is not counted"),
            ] {
                if count > 0 {
                    said.push(format!("CPU {cpu}: {} {what}", grouped(count)));
                }
            }
        }
        if self.all.iter().all(|(_, found)| found.places.keys().all(|place| *place == Place::Host)) {
            said.push(
                "no packet tells of a virtual machine: none ran, the recording leaves out the kernel, or the hypervisor \
                 hides them from Intel PT (KVM only with kvm_intel.pt_mode=1)"
                    .to_owned(),
            );
        }
        said
    }

    /// The remarks as an account.
    pub fn account(self) -> Account {
        let sum = |of: fn(&Residency) -> u64| {
            self.all.iter().fold(0u64, |sum, (_, found)| sum.saturating_add(of(found)))
        };
        Account::new()
            .with(
                Fate::Seen,
                if self.in_ns { "ns of CPUs" } else { "TSC ticks of CPUs" },
                sum(|found| found.observed),
            )
            .with(Fate::Lost, "changes of place that no packet told", sum(|found| found.unseen))
            .with(Fate::Lost, "overflows of the processor's buffer", sum(|found| found.overflows))
            .with(Fate::NotUnderstood, "bytes that are no packets", sum(|found| found.skipped))
            .with(Fate::Lost, "times before a clock that went back", sum(|found| found.backwards))
    }

    /// The remarks as JSON: an object for each CPU.
    pub fn each_cpu(self) -> Value {
        let of = |(cpu, found): &(usize, Residency)| {
            json!({
                "cpu": cpu, "observed": found.observed, "unknown": found.unknown, "times": found.times,
                "widest": found.widest, "unseen_changes": found.unseen, "overflows": found.overflows,
                "skipped_bytes": found.skipped, "backward_times": found.backwards,
                "unit": if self.in_ns { "ns" } else { "TSC ticks" },
            })
        };
        self.all.iter().map(of).collect()
    }
}

fn kind(place: Place) -> &'static str {
    match place {
        Place::Host => "host",
        Place::Guest(_) => "guest",
    }
}

fn vmcs(place: Place) -> Cell {
    match place {
        Place::Guest(Some(vmcs)) => Cell::Hex(vmcs),
        Place::Guest(None) => Cell::Text("not told".to_owned()),
        Place::Host => Cell::Nothing,
    }
}
