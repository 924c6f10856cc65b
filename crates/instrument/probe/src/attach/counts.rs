// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters in the memory that programs share with this process → counts, variables, histograms.

use std::collections::BTreeMap;

use kprism_bpf::map::Map;
use kprism_bpf::prog::Program;
use kprism_expr::ir::FAULTS;

use super::Session;
use crate::Error;
use crate::plan::Plan;
use crate::program::{CELL, CONDITION_HITS, Counter, PROBE_STATE, VALUE_FAULTS};
use crate::stream::aggregate::Function;
use crate::stream::tally::{Row, Tally, Totals};
use crate::stream::{Counts, HEADER, Item};

impl Session {
    /// Current values of trace state variables.
    pub fn variables(&self) -> Vec<i64> {
        let at = |number: u32| self.state.read((self.layout.vars_at() + 8 * number) as usize).cast_signed();
        (0..self.layout.vars).map(at).collect()
    }

    /// The counts by keys and in histograms, by probe.
    pub fn totals(&self) -> Result<Vec<Option<Totals>>, Error> {
        let mut all = Vec::new();
        for (number, plan) in self.plans.iter().enumerate() {
            let totals = match (&plan.probe.tally, &self.keyed[number]) {
                (None, _) => None,
                (Some(tally), None) => Some(Totals { rows: vec![self.total(number, tally)] }),
                (Some(tally), Some(map)) => Some(by_keys(plan, tally, map)?),
            };
            all.push(totals);
        }
        Ok(all)
    }

    /// The counts of a probe, summed over all CPUs.
    fn total(&self, number: usize, tally: &Tally) -> Row {
        let from = self.layout.tally_at(number as u32);
        let rings = &self.layout.rings;
        let at = |cpu: usize, word: u32| rings.counter(cpu, from + 8 * word);
        let size = tally.cell_bytes() / 8;
        let mut words = vec![0; size as usize];
        for cpu in 0..rings.cpus as usize {
            let cell: Vec<u64> = (0..size).map(|word| self.rings.read(at(cpu, word))).collect();
            tally.combine(&mut words, &cell);
        }
        for (index, (at, aggregate)) in tally.aggregate_places().enumerate() {
            if aggregate.function == Function::Latest {
                let last = self.layout.last_at(number as u32, index as u32);
                words[at as usize / 8 + 1] = self.state.read(last as usize);
            }
        }
        Row::of(tally, Vec::new(), &words)
    }

    /// The counters so far, by probe.
    pub fn counts(&self) -> Vec<Counts> {
        self.ask_kernel();
        let cell = |number: usize, counter: Counter| -> u64 {
            let rings = &self.layout.rings;
            let at = number as u32 * CELL + counter.at();
            (0..rings.cpus as usize).map(|cpu| self.rings.read(rings.counter(cpu, at))).sum()
        };
        let errors = |from: usize| -> BTreeMap<String, u64> {
            let all =
                FAULTS.iter().enumerate().map(|(n, fault)| (fault.name(), self.state.read(from + 8 * n)));
            all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect()
        };
        let counts = |(number, program): (usize, &Program)| {
            let state = number * PROBE_STATE as usize;
            let actions = &self.plans[number].actions;
            // The addresses of one probe count together, at the first of them.
            let held = match self.plans[number].after_first {
                0 => self.state.read(state + CONDITION_HITS as usize),
                _ => 0,
            };
            let after = actions.pass.map_or(0, |pass| held.saturating_sub(actions.skip.saturating_add(pass)));
            Counts {
                // A false condition behind a jump is counted in the program.
                hits: cell(number, Counter::Hits) + self.jumps.false_hits(number),
                passed: cell(number, Counter::Passed),
                lost: cell(number, Counter::Lost),
                left_out: held.min(actions.skip) + after,
                keys_lost: cell(number, Counter::KeysLost),
                keys_failed: cell(number, Counter::KeysFailed),
                unreturned: cell(number, Counter::Calls).saturating_sub(cell(number, Counter::Hits)),
                condition_errors: errors(state),
                value_errors: errors(state + VALUE_FAULTS as usize),
                missed: program.info().map_or(0, |info| info.missed),
                kernel_missed: self.kernel_missed.borrow()[number],
            }
        };
        self.programs.iter().enumerate().map(counts).collect()
    }
}

impl Session {
    /// Asks the kernel how many hits its kprobes passed over. It tells only while they are attached.
    pub(super) fn ask_kernel(&self) {
        let links = self.links.borrow();
        let mut missed = self.kernel_missed.borrow_mut();
        // Of a probe's links the first is the one at its place.
        for of_one in links.chunk_by(|a, b| a.0 == b.0) {
            if let [(Some(number), link), ..] = of_one
                && let Some(count) = link.kprobe_missed()
            {
                missed[*number] = Some(count);
            }
        }
    }
}

/// The counts by keys, the most frequent first.
fn by_keys(plan: &Plan, tally: &Tally, map: &Map) -> Result<Totals, Error> {
    let mut rows = Vec::new();
    for key in map.keys()? {
        let Some(cells) = map.lookup(&key)? else { continue };
        let cells: Vec<u64> = cells
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
            .collect();
        let size = tally.cell_bytes() as usize / 8;
        let mut words = vec![0_u64; size];
        for cell in cells.chunks_exact(size) {
            tally.combine(&mut words, cell);
        }
        // The key has the layout of a record's values.
        let bytes = [&[0; HEADER][..], &key].concat();
        let value = |item: &Item| {
            let shape = item.shape.as_ref();
            shape.map_or(serde_json::Value::Null, |s| s.value(bytes.get(item.at as usize..).unwrap_or(&[])))
        };
        rows.push(Row::of(tally, tally.keys.iter().map(value).collect(), &words));
    }
    debug_assert_eq!(plan.actions.keys.len(), tally.keys.len());
    rows.sort_by_cached_key(|row| {
        (std::cmp::Reverse(row.count), serde_json::to_string(&row.key).unwrap_or_default())
    });
    Ok(Totals { rows })
}
