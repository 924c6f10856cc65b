// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts that probes made in the kernel: by keys, in histograms. Output: text, JSON, CSV.

use kprism_probe::stream::Item;
use kprism_probe::stream::shape::Shape;
use kprism_probe::stream::tally::{Filled, Histogram, Row, Tally, Totals};
use kprism_profile::units::grouped;
use serde_json::{Map, Value, json};

use super::quoted;

/// Slots between which empty ones are filled in; no histogram has more.
const MOST_SLOTS: u32 = 2000;
/// Width of the longest bar.
const BAR: u64 = 40;

/// Turns a value into the one that is shown: a stack's addresses into functions.
pub type Named<'n> = &'n dyn Fn(&Item, Value) -> Value;

fn shown(item: &Item, value: &Value) -> String {
    item.shape.as_ref().map_or_else(|| value.to_string(), |shape| shape.line(value))
}

/// A table of counts by keys, with a bar chart for each histogram. `limit` is the most rows; 0 is all.
pub fn text(tally: &Tally, totals: &Totals, limit: usize, named: Named<'_>) -> String {
    let mut out = String::new();
    let most = if limit == 0 { usize::MAX } else { limit };
    if !tally.keys.is_empty() {
        let head: Vec<&str> = tally.keys.iter().map(|key| key.name.as_str()).collect();
        out += &format!("\n{:>14}  {}\n", "count", head.join(", "));
    }
    for row in totals.rows.iter().take(most) {
        let keys = tally.keys.iter().zip(&row.key);
        let keys: Vec<String> = keys.map(|(item, value)| shown(item, &named(item, value.clone()))).collect();
        if !keys.is_empty() {
            out += &format!("{:>14}  {}\n", grouped(row.count), keys.join(", "));
        }
        for (histogram, filled) in tally.histograms.iter().zip(&row.histograms) {
            bars(histogram, filled, &mut out);
        }
    }
    let more = totals.rows.len().saturating_sub(most);
    if more > 0 {
        out += &format!("… {} more (--limit 0 shows all)\n", grouped(more as u64));
    }
    out
}

fn bars(histogram: &Histogram, filled: &Filled, out: &mut String) {
    let (count, sum) = (filled.count(), histogram.number(filled.sum));
    *out += &format!("\n  {}: {} values", histogram.name, grouped(count));
    if count > 0 {
        *out += &format!(", sum {sum}, mean {:.1}", sum as f64 / count as f64);
    }
    if filled.failed > 0 {
        *out += &format!(", {} could not be computed", grouped(filled.failed));
    }
    out.push('\n');
    let most = filled.slots.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1);
    let of = |slot: u32| filled.slots.iter().find(|(s, _)| *s == slot).map_or(0, |(_, n)| *n);
    let (Some(first), Some(last)) = (filled.slots.first(), filled.slots.last()) else { return };
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
        *out += format!("{range:>28}  {:>12}  {bar}", grouped(n)).trim_end();
        out.push('\n');
    }
}

/// The same as JSON.
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
    json!({
        "of": histogram.name, "count": filled.count(), "failed": filled.failed,
        "sum": number(Some(histogram.number(filled.sum))),
        "slots": filled.slots.iter().map(|(at, n)| slot(histogram, *at, *n)).collect::<Vec<_>>(),
    })
}

fn slot(histogram: &Histogram, at: u32, n: u64) -> Value {
    let (from, to) = histogram.scale.range(at);
    json!({"from": number(from), "to": number(to), "count": n})
}

fn number(n: Option<i128>) -> Option<Value> {
    let n = n?;
    i64::try_from(n).map(Value::from).ok().or_else(|| u64::try_from(n).ok().map(Value::from))
}

/// Number of slots from the first with a value to the last.
pub fn width(filled: &Filled) -> usize {
    match (filled.slots.first(), filled.slots.last()) {
        (Some(first), Some(last)) => last.0.saturating_sub(first.0) as usize + 1,
        _ => 0,
    }
}

/// The same as [`object`], for plots: empty slots between others are there, and keys that are no numbers are texts.
pub fn for_page(place: &str, tally: &Tally, totals: &Totals, limit: usize, named: Named<'_>) -> Value {
    let mut all = object(place, tally, totals, limit, named);
    let rows = all["rows"].as_array_mut().into_iter().flatten().zip(&totals.rows);
    for (shown, row) in rows {
        for (item, value) in tally.keys.iter().zip(&row.key) {
            let value = named(item, value.clone());
            let is_stack = matches!(item.shape, Some(Shape::Stack { .. }));
            if !value.is_number() && !value.is_string() && !is_stack {
                shown["key"][&item.name] = self::shown(item, &value).into();
            }
        }
        for ((histogram, filled), of) in tally
            .histograms
            .iter()
            .zip(&row.histograms)
            .zip(shown["histograms"].as_array_mut().into_iter().flatten())
        {
            let (Some(first), Some(last)) = (filled.slots.first(), filled.slots.last()) else { continue };
            let count = |at: u32| filled.slots.iter().find(|(s, _)| *s == at).map_or(0, |(_, n)| *n);
            let last = last.0.min(histogram.scale.slots());
            // More than a histogram can have: a file that nobody recorded.
            if last.saturating_sub(first.0) > MOST_SLOTS {
                continue;
            }
            of["slots"] = (first.0..=last).map(|at| slot(histogram, at, count(at))).collect();
        }
    }
    all
}

/// CSV: a row for each combination of keys, and for each slot of its histograms.
pub fn csv<'t>(
    all: impl Iterator<Item = (&'t str, &'t Tally, &'t Totals)> + Clone,
    named: Named<'_>,
) -> String {
    let mut names: Vec<&str> = Vec::new();
    for item in all.clone().flat_map(|(_, tally, _)| &tally.keys) {
        if !names.contains(&item.name.as_str()) {
            names.push(&item.name);
        }
    }
    let head: Vec<String> = names.iter().map(|name| quoted(name) + ",").collect();
    let mut out = format!("probe,{}histogram,from,to,count\n", head.concat());
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
            out += &format!("{start},,,{}\n", row.count);
            for (histogram, filled) in tally.histograms.iter().zip(&row.histograms) {
                for (slot, n) in &filled.slots {
                    let (from, to) = histogram.scale.range(*slot);
                    let [from, to] = [from, to].map(|n| n.map_or_else(String::new, |n| n.to_string()));
                    out += &format!("{start}{},{from},{to},{n}\n", quoted(&histogram.name));
                }
            }
        }
    }
    out
}
