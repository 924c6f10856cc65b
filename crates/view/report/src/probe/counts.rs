// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts that probes made in the kernel: by keys, in histograms and aggregates. Output: text, JSON, CSV.

use kprism_probe::stream::Item;
use kprism_probe::stream::aggregate::{Aggregate, Aggregated, Number};
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

/// A key's value as text.
pub fn shown(item: &Item, value: &Value) -> String {
    item.shape.as_ref().map_or_else(|| value.to_string(), |shape| shape.line(value))
}

/// A table of counts and aggregates by keys, with a bar chart for each histogram. `limit` is the most rows; 0 is all.
/// `more` tells how to see the others.
pub fn text(tally: &Tally, totals: &Totals, limit: usize, more: &str, named: Named<'_>) -> String {
    let mut out = String::new();
    let most = if limit == 0 { usize::MAX } else { limit };
    let rows = || totals.rows.iter().take(most);
    let titles: Vec<String> = tally.aggregates.iter().map(Aggregate::title).collect();
    let cells: Vec<Vec<String>> = rows().map(|row| aggregated(tally, row).map(cell).collect()).collect();
    // A column for each aggregate.
    let width = |n: usize| {
        let cells = cells.iter().filter_map(|row| row.get(n)).map(|cell| cell.chars().count());
        cells.chain([titles[n].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let columns = |texts: &[String]| {
        let each = texts.iter().zip(&widths).map(|(text, width)| format!("  {text:>width$}"));
        each.collect::<String>()
    };
    if !tally.keys.is_empty() {
        let head: Vec<&str> = tally.keys.iter().map(|key| key.name.as_str()).collect();
        out += &format!("\n{:>14}{}  {}\n", "count", columns(&titles), head.join(", "));
    } else if !titles.is_empty() {
        out += &format!("\n{:>14}{}\n", "count", columns(&titles));
    }
    let mut failed = vec![0_u64; titles.len()];
    for row in &totals.rows {
        row.aggregates
            .iter()
            .zip(&mut failed)
            .for_each(|(found, sum)| *sum = sum.saturating_add(found.failed));
    }
    for (row, cells) in rows().zip(&cells) {
        let keys = tally.keys.iter().zip(&row.key);
        let keys: Vec<String> = keys.map(|(item, value)| shown(item, &named(item, value.clone()))).collect();
        if !keys.is_empty() {
            out += &format!("{:>14}{}  {}\n", grouped(row.count), columns(cells), keys.join(", "));
        } else if !titles.is_empty() {
            out += &format!("{:>14}{}\n", grouped(row.count), columns(cells));
        }
        for (histogram, filled) in tally.histograms.iter().zip(&row.histograms) {
            bars(histogram, filled, &mut out);
        }
    }
    for (title, failed) in titles.iter().zip(failed).filter(|(_, failed)| *failed > 0) {
        out += &format!("  {title}: {} values could not be computed\n", grouped(failed));
    }
    let others = totals.rows.len().saturating_sub(most);
    if others > 0 {
        out += &format!("… {} more ({more})\n", grouped(others as u64));
    }
    out
}

fn aggregated<'t>(tally: &'t Tally, row: &'t Row) -> impl Iterator<Item = (&'t Aggregate, &'t Aggregated)> {
    tally.aggregates.iter().zip(&row.aggregates)
}

/// The value of an aggregate; a dash if there is none.
fn cell((aggregate, found): (&Aggregate, &Aggregated)) -> String {
    match aggregate.value(found) {
        Some(Number::Whole(n)) => n.to_string(),
        Some(Number::Mean(n)) => format!("{n:.1}"),
        None => "-".to_owned(),
    }
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
        let mut all = json!({"key": key, "count": row.count, "histograms": histograms});
        if !tally.aggregates.is_empty() {
            all["aggregates"] = aggregated(tally, row).map(of_values).collect::<Vec<_>>().into();
        }
        all
    };
    json!({"probe": place, "rows": totals.rows.iter().take(most).map(row).collect::<Vec<_>>()})
}

/// An aggregate as JSON. A sum that no number of 64 bits holds is text.
fn of_values((aggregate, found): (&Aggregate, &Aggregated)) -> Value {
    let value = match aggregate.value(found) {
        None => Value::Null,
        Some(Number::Mean(n)) => json!(n),
        Some(Number::Whole(n)) => number(n).unwrap_or_else(|| n.to_string().into()),
    };
    json!({
        "function": aggregate.function.name(), "of": aggregate.name, "value": value, "count": found.values,
        "failed": found.failed,
    })
}

/// A number of up to 64 bits.
fn number(n: i128) -> Option<Value> {
    i64::try_from(n).map(Value::from).ok().or_else(|| u64::try_from(n).ok().map(Value::from))
}

fn slots(histogram: &Histogram, filled: &Filled) -> Value {
    json!({
        "of": histogram.name, "count": filled.count(), "failed": filled.failed,
        "sum": number(histogram.number(filled.sum)),
        "slots": filled.slots.iter().map(|(at, n)| slot(histogram, *at, *n)).collect::<Vec<_>>(),
    })
}

fn slot(histogram: &Histogram, at: u32, n: u64) -> Value {
    let (from, to) = histogram.scale.range(at);
    json!({"from": from.and_then(number), "to": to.and_then(number), "count": n})
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

/// CSV: a row for each combination of keys, with its `count` and a column for each aggregate, and a row for each slot of its
/// histograms, with the number of `values` in it. A row has one of the two, so that no sum over a column counts a hit twice.
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
    let mut titles: Vec<String> = Vec::new();
    for title in all.clone().flat_map(|(_, tally, _)| &tally.aggregates).map(Aggregate::title) {
        if !titles.contains(&title) {
            titles.push(title);
        }
    }
    let head: Vec<String> = names.iter().map(|name| quoted(name) + ",").collect();
    let more: String = titles.iter().map(|title| format!(",{}", quoted(title))).collect();
    let mut out = format!("probe,{}histogram,from,to,values,count{more}\n", head.concat());
    let empty = ",".repeat(titles.len());
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
            let value = |title: &String| {
                let found = aggregated(tally, row).find(|(aggregate, _)| aggregate.title() == *title);
                let value = found.and_then(|(aggregate, found)| aggregate.value(found));
                match value {
                    Some(Number::Whole(n)) => format!(",{n}"),
                    Some(Number::Mean(n)) => format!(",{n}"),
                    None => ",".to_owned(),
                }
            };
            out += &format!("{start},,,,{}{}\n", row.count, titles.iter().map(value).collect::<String>());
            for (histogram, filled) in tally.histograms.iter().zip(&row.histograms) {
                for (slot, n) in &filled.slots {
                    let (from, to) = histogram.scale.range(*slot);
                    let [from, to] = [from, to].map(|n| n.map_or_else(String::new, |n| n.to_string()));
                    out += &format!("{start}{},{from},{to},{n},{empty}\n", quoted(&histogram.name));
                }
            }
        }
    }
    out
}
