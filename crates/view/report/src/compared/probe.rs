// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the probes of two runs: hits by place, counts by keys with their histograms, numbers in records.
//!
//! Probes are the same if their places are, as they were written. Values that are no numbers are counted, not compared.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use kprism_probe::stream::tally::{Filled, Histogram, Row, Tally};
use kprism_probe::stream::{Counts, Description, Probe};
use serde_json::Value;

use super::{Fact, Section, Shape, counts, only, paired};
use crate::probe::Named;
use crate::table::{Cell, Table};

/// Numbers of one value of a probe, summed as they come.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    count: u64,
    sum: f64,
    /// By the slot of powers of two: negative numbers have negative slots.
    slots: BTreeMap<i32, u64>,
}

impl Numbers {
    fn add(&mut self, number: f64) {
        self.count += 1;
        self.sum += number;
        // Slot n holds 2^(n-1) up to 2^n; 0 holds what is nearer to zero than 1.
        let slot = if number.abs() < 1.0 { 0 } else { number.abs().log2().floor().min(62.0) as i32 + 1 };
        *self.slots.entry(if number < 0.0 { -slot } else { slot }).or_default() += 1;
    }

    fn bins(&self) -> Vec<(i64, i64, u64)> {
        let power = |n: i32| if n > 62 { i64::MAX } else { 1_i64 << n.max(0) };
        let bin = |(&slot, &n): (&i32, &u64)| match slot {
            0 => (0, 1, n),
            slot if slot > 0 => (power(slot - 1), power(slot), n),
            slot => (1 - power(-slot), 1 - power(-slot - 1), n),
        };
        self.slots.iter().map(bin).collect()
    }
}

/// Numbers in a run's records, by the place of the probe and the name of the value.
#[derive(Debug, Clone, Default)]
pub struct Records {
    by_value: BTreeMap<(String, String), Numbers>,
}

impl Records {
    /// Adds a value of a record; what is no number is left out.
    pub fn add(&mut self, place: &str, name: &str, value: &Value) {
        let Some(number) = value.as_f64().filter(|number| number.is_finite()) else { return };
        // A clone for each record would cost more than the rest.
        let key = (place.to_owned(), name.to_owned());
        self.by_value.entry(key).or_default().add(number);
    }
}

/// A run's probes.
pub struct Input<'a> {
    /// The probes and their counts.
    pub description: &'a Description,
    /// Numbers in the records.
    pub records: &'a Records,
    /// Turns a value into the one that is shown.
    pub named: Named<'a>,
}

/// Places that both runs have.
pub fn in_common(runs: [&Description; 2]) -> usize {
    let places = |of: &Description| {
        of.probes.iter().map(|p| p.place.clone()).collect::<std::collections::BTreeSet<_>>()
    };
    let [old, new] = runs.map(places);
    old.intersection(&new).count()
}

/// Compares them.
pub fn compare(runs: [&Input<'_>; 2]) -> (Vec<Fact>, Vec<Section>) {
    let sum = |run: &Input<'_>, of: fn(&Counts) -> u64| match run.description.counts.as_slice() {
        [] => Cell::Nothing,
        all => Cell::Count(all.iter().map(of).fold(0, u64::saturating_add)),
    };
    let facts = vec![
        Fact { key: "hits", name: "hits", values: runs.map(|run| sum(run, |c| c.hits)) },
        Fact { key: "passed", name: "kept or counted", values: runs.map(|run| sum(run, |c| c.passed)) },
        Fact { key: "lost", name: "lost", values: runs.map(|run| sum(run, |c| c.lost)) },
    ];
    let mut sections = vec![probes(runs)];
    let keys = keys(runs);
    if !keys.table.rows.is_empty() {
        sections.push(keys);
    }
    let values = values(runs);
    if !values.table.rows.is_empty() {
        sections.push(values);
    }
    (facts, sections)
}

fn probes(runs: [&Input<'_>; 2]) -> Section {
    let of = |run: &Input<'_>| -> Vec<(String, Option<Counts>)> {
        let counts = &run.description.counts;
        run.description
            .probes
            .iter()
            .enumerate()
            .map(|(n, p)| (p.place.clone(), counts.get(n).cloned()))
            .collect()
    };
    let [old, new] = runs.map(of);
    let mut lines = Vec::new();
    for (place, pair) in paired(old, new) {
        let known = pair.each_ref().map(|side| side.as_ref().and_then(Option::as_ref));
        let mut line = Vec::new();
        // A place without a probe, or without counts, was hit nobody knows how often.
        line.extend(counts(&known, [true; 2], |c| c.hits));
        line.extend(counts(&known, [true; 2], |c| c.passed));
        line.extend(known.map(|c| c.map_or(Cell::Nothing, |c| Cell::Count(c.lost))));
        line.extend([only(&pair, [false; 2]), Cell::Text(place)]);
        lines.push(line);
    }
    let columns = [
        ("hits_diff", "hits diff"),
        ("hits_old", "hits OLD"),
        ("hits_new", "hits NEW"),
        ("passed_diff", "kept diff"),
        ("passed_old", "kept OLD"),
        ("passed_new", "kept NEW"),
        ("lost_old", "lost OLD"),
        ("lost_new", "lost NEW"),
        ("only_in", ""),
        ("place", "probe"),
    ];
    let about = "Hits of each place, and those whose condition held: records and lost ones, or counted hits.";
    Section::new("probes", "Probes", about, Table::new(&columns, lines))
}

/// Whether what the run does not have at this place is not known there: it had no probe that tells it, another condition, or not all
/// of its hits. `tells` is of a probe, `misses` of one that did not tell all that it should have.
fn lacks(
    runs: [&Input<'_>; 2],
    place: &str,
    tells: impl Fn(&Probe) -> bool,
    misses: impl Fn(&Counts) -> bool,
) -> [bool; 2] {
    let probes = |run: &Input<'_>| {
        let all = run.description.probes.iter().enumerate();
        all.filter(|(_, probe)| probe.place == place).map(|(number, _)| number).collect::<Vec<_>>()
    };
    let at = runs.map(probes);
    let conditions = |side: usize| {
        let of = |number: &usize| runs[side].description.probes[*number].condition.as_deref();
        at[side].iter().map(of).collect::<Vec<_>>()
    };
    let differ = conditions(0) != conditions(1);
    [0, 1].map(|side: usize| {
        let Description { probes, counts, .. } = runs[side].description;
        let is_told =
            |number: &usize, counts: &Counts| !probes[*number].is_kprobe() || counts.kernel_missed.is_some();
        let is_whole = |number: &usize| {
            let counts = counts.get(*number).filter(|counts| is_told(number, counts));
            counts.is_some_and(|counts| !loses_hits(counts) && !misses(counts))
        };
        differ || !at[side].iter().any(|number| tells(&probes[*number])) || !at[side].iter().all(is_whole)
    })
}

/// True if a probe was hit without a record or a count: what was there is not known.
fn loses_hits(counts: &Counts) -> bool {
    let Counts { left_out, unreturned, missed, kernel_missed, condition_errors, .. } = counts;
    [*left_out, *unreturned, *missed, kernel_missed.unwrap_or(0)]
        .iter()
        .chain(condition_errors.values())
        .any(|n| *n > 0)
}

/// The same of keys.
fn lacks_key(runs: [&Input<'_>; 2], place: &str, tally: &Tally) -> [bool; 2] {
    let names = |tally: &Tally| tally.keys.iter().map(|key| key.name.clone()).collect::<Vec<_>>();
    let wanted = names(tally);
    let tells = |probe: &Probe| probe.tally.as_ref().is_some_and(|own| names(own) == wanted);
    lacks(runs, place, tells, |counts| counts.keys_lost > 0 || counts.keys_failed > 0)
}

/// The same of a value in records.
fn lacks_value(runs: [&Input<'_>; 2], place: &str, name: &str) -> [bool; 2] {
    let tells = |probe: &Probe| probe.items.iter().any(|item| item.name == name && item.shape.is_some());
    lacks(runs, place, tells, |counts| counts.lost > 0 || counts.value_errors.values().any(|n| *n > 0))
}

type Keyed<'a> = ((String, String), (&'a Row, &'a Tally));

/// Counts by keys, and their histograms.
fn keys(runs: [&Input<'_>; 2]) -> Section {
    fn of<'a>(run: &'a Input<'_>) -> Vec<Keyed<'a>> {
        let mut all = Vec::new();
        for (place, tally, totals) in run.description.all_tallied() {
            for row in &totals.rows {
                let key = tally.keys.iter().zip(&row.key).map(|(item, value)| {
                    let value = (run.named)(item, value.clone());
                    let text = match (&item.shape, value) {
                        (_, Value::String(text)) => text,
                        (Some(shape), value) => shape.line(&value),
                        (None, value) => value.to_string(),
                    };
                    format!("{} = {text}", item.name)
                });
                all.push(((place.to_owned(), key.collect::<Vec<_>>().join(", ")), (row, tally)));
            }
        }
        all
    }
    let [old, new] = runs.map(of);
    let mut pairs = paired(old, new);
    let count = |side: &Option<(&Row, &Tally)>| side.map_or(0, |(row, _)| row.count);
    pairs.sort_by_key(|(_, [a, b])| Reverse(count(a).abs_diff(count(b))));
    let (mut lines, mut shapes) = (Vec::new(), Vec::new());
    for ((place, key), pair) in &pairs {
        // The first histogram that both runs define in the same way.
        let defined =
            |side: &Option<(&Row, &Tally)>| side.map_or(Vec::new(), |(_, tally)| tally.histograms.clone());
        let (before, after) = (defined(&pair[0]), defined(&pair[1]));
        let common = match (before.is_empty(), after.is_empty()) {
            (false, false) => before.iter().find(|histogram| after.contains(histogram)),
            (false, true) => before.first(),
            _ => after.first(),
        };
        let shape = common.map(|histogram| Shape {
            title: format!("{} at {place} {key}", histogram.name),
            is_time: false,
            bins: pair
                .each_ref()
                .map(|side| side.map_or(Vec::new(), |(row, tally)| bins(histogram, row, tally))),
        });
        let tally = pair.iter().flatten().next().map(|(_, tally)| *tally);
        let unknown = tally.map_or([true; 2], |tally| lacks_key(runs, place, tally));
        let mut line: Vec<Cell> = counts(pair, unknown, |(row, _)| row.count).into();
        line.push(shape.as_ref().map_or(Cell::Nothing, Shape::shift_cell));
        line.extend([only(pair, unknown), Cell::Text(key.clone()), Cell::Text(place.clone())]);
        lines.push(line);
        shapes.push(shape);
    }
    let columns = [
        ("count_diff", "count diff"),
        ("count_old", "count OLD"),
        ("count_new", "count NEW"),
        ("shift_percent", "shift"),
        ("only_in", ""),
        ("key", "key"),
        ("place", "probe"),
    ];
    let about = "Hits counted by keys. Shift: the greatest distance between both histograms' sums, from 0 (the same) to \
                 100 %. Choose a row for both histograms.";
    Section { shapes, ..Section::new("keys", "Counts by keys", about, Table::new(&columns, lines)) }
}

fn bins(wanted: &Histogram, row: &Row, tally: &Tally) -> Vec<(i64, i64, u64)> {
    let at = tally.histograms.iter().position(|histogram| histogram == wanted);
    let filled: Option<&Filled> = at.and_then(|at| row.histograms.get(at));
    let whole = |n: i128| n.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    let slot = |&(slot, n): &(u32, u64)| {
        let (from, to) = wanted.scale.range(slot);
        // Open ends are drawn as wide as nothing.
        let from = from.or(to).map_or(0, whole);
        (from, to.map_or(from, whole).saturating_add(1), n)
    };
    let mut bins: Vec<_> = filled.map_or(&[][..], |filled| &filled.slots).iter().map(slot).collect();
    bins.sort_unstable();
    bins
}

/// Numbers in records.
fn values(runs: [&Input<'_>; 2]) -> Section {
    let of = |run: &Input<'_>| run.records.by_value.clone().into_iter().collect::<Vec<_>>();
    let [old, new] = runs.map(of);
    let (mut lines, mut shapes) = (Vec::new(), Vec::new());
    for ((place, name), pair) in paired(old, new) {
        let mean = |side: &Option<Numbers>| match side {
            Some(numbers) => Cell::Real(numbers.sum / numbers.count.max(1) as f64),
            None => Cell::Nothing,
        };
        let shape = Shape {
            title: format!("{name} at {place}"),
            is_time: false,
            bins: pair.each_ref().map(|side| side.as_ref().map_or(Vec::new(), Numbers::bins)),
        };
        let unknown = lacks_value(runs, &place, &name);
        let mut line: Vec<Cell> = counts(&pair, unknown, |numbers| numbers.count).into();
        line.extend(pair.each_ref().map(mean));
        line.extend([shape.shift_cell(), only(&pair, unknown), Cell::Text(name), Cell::Text(place)]);
        lines.push(line);
        shapes.push(Some(shape));
    }
    let columns = [
        ("count_diff", "values diff"),
        ("count_old", "values OLD"),
        ("count_new", "values NEW"),
        ("mean_old", "mean OLD"),
        ("mean_new", "mean NEW"),
        ("shift_percent", "shift"),
        ("only_in", ""),
        ("value", "value"),
        ("place", "probe"),
    ];
    let about = "Numbers in the records, by powers of two. Choose a value for both distributions.";
    Section { shapes, ..Section::new("values", "Values in records", about, Table::new(&columns, lines)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_probe::stream::Item;
    use kprism_probe::stream::shape::Shape as Bytes;

    /// A probe that collects these values, and what its recorder counted.
    fn description(values: &[&str], counts: Counts) -> Description {
        let item = |name: &&str| Item {
            name: (*name).into(),
            ty: "u64".into(),
            at: 32,
            shape: Some(Bytes::Int { size: 8, signed: false }),
            missing: None,
        };
        let items: Vec<Item> = values.iter().map(item).collect();
        let probe = Probe {
            place: "f".into(),
            found: "f".into(),
            condition: None,
            file: None,
            address: None,
            hook: "uprobe".into(),
            record_bytes: 40,
            tally: Some(Tally { keys: items.clone(), histograms: Vec::new(), aggregates: Vec::new() }),
            items,
            gdb: None,
            printf: None,
            effect: Default::default(),
        };
        Description { probes: vec![probe], counts: vec![counts], ..Description::default() }
    }

    fn plain(_: &Item, value: Value) -> Value {
        value
    }

    #[test]
    fn what_a_run_lacks_is_zero_only_if_its_probe_tells_it_and_missed_nothing() {
        let records = Records::default();
        let whole = description(&["a"], Counts::default());
        let lacks = |new: &Description| {
            let input = |description| Input { description, records: &records, named: &plain };
            let (old, new) = (input(&whole), input(new));
            let tally = whole.probes[0].tally.as_ref().unwrap();
            [lacks_value([&old, &new], "f", "a")[1], lacks_key([&old, &new], "f", tally)[1]]
        };
        assert_eq!(lacks(&whole), [false, false]);
        assert_eq!(lacks(&description(&["b"], Counts::default())), [true, true], "another value");
        assert_eq!(lacks(&Description { counts: Vec::new(), ..whole.clone() }), [true, true], "no end");
        let counted = |counts: Counts| lacks(&description(&["a"], counts));
        assert_eq!(counted(Counts { lost: 1, ..Counts::default() }), [true, false]);
        assert_eq!(counted(Counts { keys_lost: 1, ..Counts::default() }), [false, true]);
        assert_eq!(counted(Counts { keys_failed: 1, ..Counts::default() }), [false, true]);
        assert_eq!(counted(Counts { missed: 1, ..Counts::default() }), [true, true]);
        let mut kprobe = whole.clone();
        kprobe.probes[0].hook = "kretprobe".into();
        assert_eq!(lacks(&kprobe), [true, true], "the kernel does not tell what it missed");
        kprobe.counts[0].kernel_missed = Some(0);
        assert_eq!(lacks(&kprobe), [false, false]);
        kprobe.counts[0].kernel_missed = Some(1);
        assert_eq!(lacks(&kprobe), [true, true]);
        let mut condition = whole.clone();
        condition.probes[0].condition = Some("a > 1".into());
        assert_eq!(lacks(&condition), [true, true], "another condition");
    }

    #[test]
    fn numbers_fall_into_powers_of_two() {
        let mut numbers = Numbers::default();
        for n in [0.0, 0.5, 1.0, 2.0, 3.0, -1.0, -2.0, -3.0, 1e300, f64::from(u32::MAX)] {
            numbers.add(n);
        }
        let bins = numbers.bins();
        assert_eq!(&bins[..4], [(-3, -1, 2), (-1, 0, 1), (0, 1, 2), (1, 2, 1)]);
        assert_eq!(bins[4], (2, 4, 2));
        assert_eq!(bins.iter().map(|bin| bin.2).sum::<u64>(), 10);
        assert!(bins.iter().all(|(low, high, _)| low < high), "{bins:?}");
    }
}
