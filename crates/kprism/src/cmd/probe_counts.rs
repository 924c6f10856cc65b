// SPDX-License-Identifier: MIT OR Apache-2.0
//! What probes counted in the kernel: by keys, in histograms; as text, JSON, CSV.

use std::io::Write;

use anyhow::Result;
use kprism_probe::stream::{Counts, Item, Probe};
use kprism_probe::tally::{Filled, Histogram, Row, Tally, Totals};
use kprism_profile::units::grouped;
use serde_json::{Map, Value, json};

/// Width of the longest bar.
const BAR: u64 = 40;

/// Gives a key's value as it is shown: a stack's addresses as functions.
pub type Named<'n> = &'n dyn Fn(&Item, Value) -> Value;

/// How often a probe was hit, and what came of it; a line for each thing.
pub fn counted(probe: &Probe, counts: &Counts) -> Vec<String> {
    let hits = grouped(counts.hits);
    let first = match probe.record_bytes {
        0 => format!("{hits} hits, {} counted", grouped(counts.passed)),
        _ => {
            let kept = counts.passed.saturating_sub(counts.lost);
            format!("{hits} hits, {} records, {} lost", grouped(kept), grouped(counts.lost))
        }
    };
    let mut lines = vec![first];
    let mut also = |n: u64, what: &str| {
        if n > 0 {
            lines.push(format!("  {} × {what}", grouped(n)));
        }
    };
    also(counts.left_out, "left out: skipped, or enough");
    also(counts.keys_lost, "not counted by keys: no room for more of them (--keys)");
    also(counts.keys_failed, "not counted by keys: they could not be read");
    for (what, errors) in [("condition", &counts.condition_errors), ("value", &counts.value_errors)] {
        for (why, n) in errors {
            also(*n, &format!("{what}: {why}"));
        }
    }
    also(
        counts.unreturned,
        "called, but not seen to return: more than 64 deep in recursion, where the kernel gives up; not over yet; or left \
         by longjmp or exit",
    );
    also(counts.missed, "not seen: in the program already");
    lines
}

/// The hits of places that are several in the code, all together.
pub fn sums(probes: &[Probe], counts: &[Counts]) -> Vec<String> {
    let mut all: Vec<(&Probe, u64, u64)> = Vec::new();
    for (probe, counts) in probes.iter().zip(counts) {
        let same = |other: &Probe| {
            other.place == probe.place && other.condition == probe.condition && other.file == probe.file
        };
        match all.last_mut() {
            Some((first, hits, places)) if same(first) && first.found_apart(probe) => {
                *hits += counts.hits;
                *places += 1;
            }
            _ => all.push((probe, counts.hits, 1)),
        }
    }
    let several = all.iter().filter(|(_, _, places)| *places > 1);
    several
        .map(|(probe, hits, places)| {
            format!("{}: {} hits at {places} places in all", probe.place, grouped(*hits))
        })
        .collect()
}

fn shown(item: &Item, value: &Value) -> String {
    item.shape.as_ref().map_or_else(|| value.to_string(), |shape| shape.line(value))
}

/// Tables and bars; of keys so many, 0 is all.
pub fn text(
    tally: &Tally,
    totals: &Totals,
    limit: usize,
    named: Named<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    let most = if limit == 0 { usize::MAX } else { limit };
    if !tally.keys.is_empty() {
        let head: Vec<&str> = tally.keys.iter().map(|key| key.name.as_str()).collect();
        writeln!(out, "\n{:>14}  {}", "count", head.join(", "))?;
    }
    for row in totals.rows.iter().take(most) {
        let keys = tally.keys.iter().zip(&row.key);
        let keys: Vec<String> = keys.map(|(item, value)| shown(item, &named(item, value.clone()))).collect();
        if !keys.is_empty() {
            writeln!(out, "{:>14}  {}", grouped(row.count), keys.join(", "))?;
        }
        for (histogram, filled) in tally.histograms.iter().zip(&row.histograms) {
            bars(histogram, filled, out)?;
        }
    }
    let more = totals.rows.len().saturating_sub(most);
    if more > 0 {
        writeln!(out, "… {} more (--limit 0 shows all)", grouped(more as u64))?;
    }
    Ok(())
}

fn bars(histogram: &Histogram, filled: &Filled, out: &mut dyn Write) -> Result<()> {
    let (count, sum) = (filled.count(), histogram.number(filled.sum));
    write!(out, "\n  {}: {} values", histogram.name, grouped(count))?;
    if count > 0 {
        write!(out, ", sum {sum}, mean {:.1}", sum as f64 / count as f64)?;
    }
    if filled.failed > 0 {
        write!(out, ", {} could not be computed", grouped(filled.failed))?;
    }
    writeln!(out)?;
    let most = filled.slots.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1);
    let of = |slot: u32| filled.slots.iter().find(|(s, _)| *s == slot).map_or(0, |(_, n)| *n);
    let (Some(first), Some(last)) = (filled.slots.first(), filled.slots.last()) else { return Ok(()) };
    for slot in first.0..=last.0.min(histogram.scale.slots()) {
        let n = of(slot);
        let bar = "█".repeat((u128::from(n) * u128::from(BAR)).div_ceil(u128::from(most)) as usize);
        let range = match histogram.scale.range(slot) {
            (Some(from), Some(to)) if from == to => format!("{from}"),
            (from, to) => {
                let end = |end: Option<i128>| end.map_or_else(String::new, |end| end.to_string());
                format!("{} … {}", end(from), end(to)).trim().to_owned()
            }
        };
        writeln!(out, "{}", format!("{range:>28}  {:>12}  {bar}", grouped(n)).trim_end())?;
    }
    Ok(())
}

/// For programs.
pub fn object(place: &str, tally: &Tally, totals: &Totals, limit: usize, named: Named<'_>) -> Value {
    let most = if limit == 0 { usize::MAX } else { limit };
    let row = |row: &Row| {
        let keys = tally.keys.iter().zip(&row.key);
        let key: Map<String, Value> =
            keys.map(|(item, value)| (item.name.clone(), named(item, value.clone()))).collect();
        let filled = tally.histograms.iter().zip(&row.histograms);
        let histograms: Vec<Value> = filled.map(|(histogram, filled)| slots(histogram, filled)).collect();
        json!({"key": key, "count": row.count, "histograms": histograms})
    };
    json!({"probe": place, "rows": totals.rows.iter().take(most).map(row).collect::<Vec<_>>()})
}

fn slots(histogram: &Histogram, filled: &Filled) -> Value {
    let number = |n: Option<i128>| {
        n.and_then(|n| {
            i64::try_from(n).map(Value::from).ok().or_else(|| u64::try_from(n).ok().map(Value::from))
        })
    };
    let slot = |(slot, n): &(u32, u64)| {
        let (from, to) = histogram.scale.range(*slot);
        json!({"from": number(from), "to": number(to), "count": n})
    };
    json!({
        "of": histogram.name, "count": filled.count(), "failed": filled.failed,
        "sum": number(Some(histogram.number(filled.sum))),
        "slots": filled.slots.iter().map(slot).collect::<Vec<_>>(),
    })
}

/// A row for each combination of keys, and for each slot of its histograms.
pub fn csv<'t>(
    all: impl Iterator<Item = (&'t str, &'t Tally, &'t Totals)> + Clone,
    named: Named<'_>,
    quoted: &dyn Fn(&str) -> String,
    out: &mut dyn Write,
) -> Result<()> {
    let mut names: Vec<&str> = Vec::new();
    for item in all.clone().flat_map(|(_, tally, _)| &tally.keys) {
        if !names.contains(&item.name.as_str()) {
            names.push(&item.name);
        }
    }
    let head: Vec<String> = names.iter().map(|name| quoted(name) + ",").collect();
    writeln!(out, "probe,{}histogram,from,to,count", head.concat())?;
    for (place, tally, totals) in all {
        for row in &totals.rows {
            let cell = |name: &&str| {
                let at = tally.keys.iter().position(|item| item.name == **name);
                let value = at.and_then(|at| Some(named(&tally.keys[at], row.key.get(at)?.clone())));
                match value {
                    None => ",".to_owned(),
                    Some(Value::String(text)) => quoted(&text) + ",",
                    Some(other) => quoted(&other.to_string()) + ",",
                }
            };
            let start = format!("{},{}", quoted(place), names.iter().map(cell).collect::<String>());
            writeln!(out, "{start},,,{}", row.count)?;
            for (histogram, filled) in tally.histograms.iter().zip(&row.histograms) {
                for (slot, n) in &filled.slots {
                    let (from, to) = histogram.scale.range(*slot);
                    let [from, to] = [from, to].map(|n| n.map_or_else(String::new, |n| n.to_string()));
                    writeln!(out, "{start}{},{from},{to},{n}", quoted(&histogram.name))?;
                }
            }
        }
    }
    Ok(())
}
