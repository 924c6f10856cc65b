// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes as screens: hits of each, counts by keys, and behind a combination of keys its histograms and stacks.
//!
//! In: the probes of a run ([`Loaded`]). Out: screens.

use kprism_probe::stream::aggregate::{Aggregate, Number};
use kprism_probe::stream::tally::{Row as TallyRow, Tally, Totals};
use kprism_probe::stream::{Counts, Item as Value};
use kprism_profile::units::grouped;
use kprism_report::probe;
use kprism_session::probe::Loaded;

use crate::screen::{Body, Item, Row, Screen, Target};

fn count(n: u64) -> Item {
    Item::number(n.into(), grouped(n))
}

/// Hits of all probes, then the counts of each that counts.
pub fn screens(loaded: &Loaded) -> Vec<Screen> {
    let description = &loaded.description;
    let mut screens = Vec::new();
    for (number, probe) in description.probes.iter().enumerate() {
        if let Some((place, tally, totals)) = description.tallied(number) {
            let name = if description.probes.len() == 1 {
                "counts".to_owned()
            } else {
                format!("{number}: {place}")
            };
            screens.push(counts(loaded, &name, number, (tally, totals)));
        } else if let Some(tally) = &probe.tally {
            screens.push(counts(loaded, &probe.place, number, (tally, &Totals::default())));
        }
    }
    let nothing = Counts::default();
    let rows = description.probes.iter().enumerate().map(|(number, probe)| {
        let own = description.counts.get(number).unwrap_or(&nothing);
        let errors = own.condition_errors.values().chain(own.value_errors.values());
        let errors = errors.fold(0_u64, |sum, n| sum.saturating_add(*n));
        let whose = probe.file.as_deref().unwrap_or("the kernel");
        let mut items = vec![Item::text(&probe.place)];
        items.extend(
            [own.hits, own.passed, own.lost, own.keys_lost, own.left_out, errors, own.missed].map(count),
        );
        items.push(Item::text(&format!("{} in {whose}, by {}", probe.found, probe.hook)));
        Row { items, target: None }
    });
    let heads = ["probe", "hits", "passed", "lost", "no room", "left out", "errors", "missed", "place"];
    let body = Body::Grid { heads: heads.map(str::to_owned).to_vec(), sorted: None, rows: rows.collect() };
    screens.push(Screen { name: "probes".into(), body });
    screens
}

/// A row's keys in one text; it stands for the row.
fn keys_text(loaded: &Loaded, tally: &Tally, row: &TallyRow) -> Vec<String> {
    let named = |item: &Value, value| probe::key_text(item, &loaded.named(item, value));
    tally.keys.iter().zip(&row.key).map(|(item, value)| named(item, value.clone())).collect()
}

fn counts(loaded: &Loaded, name: &str, number: usize, (tally, totals): (&Tally, &Totals)) -> Screen {
    let keys = tally.keys.iter().map(|key| crate::screen::safe(&key.name));
    let mut heads: Vec<String> = if tally.keys.is_empty() { vec!["all".to_owned()] } else { keys.collect() };
    let first = heads.len().min(1);
    let mut measures = vec!["count".to_owned()];
    measures.extend(tally.aggregates.iter().map(|aggregate| crate::screen::safe(&aggregate.title())));
    let at = heads.len();
    heads.splice(first..first, measures);
    let rows = totals.rows.iter().map(|row| {
        let keys = keys_text(loaded, tally, row);
        let mut items: Vec<Item> = match keys.is_empty() {
            true => vec![Item::text("all hits")],
            false => keys.iter().map(|key| Item::text(key)).collect(),
        };
        let numbers =
            [count(row.count)].into_iter().chain(tally.aggregates.iter().zip(&row.aggregates).map(value));
        items.splice(1..1, numbers.collect::<Vec<_>>());
        // Histograms, or a stack that is too long for a line.
        Row { items, target: Some(Target::Keys { probe: number, keys: keys.join(", ") }) }
    });
    debug_assert!(at >= 1, "there is a first column");
    let body = Body::Grid { heads, sorted: Some(1), rows: rows.collect() };
    Screen { name: crate::screen::safe(name), body }
}

fn value((aggregate, found): (&Aggregate, &kprism_probe::stream::aggregate::Aggregated)) -> Item {
    match aggregate.value(found) {
        Some(Number::Whole(n)) => Item::number(n, n.to_string()),
        Some(Number::Mean(n)) => Item::number(n as i128, format!("{n:.1}")),
        None => Item::number(i128::MIN, "-"),
    }
}

/// The screens behind a combination of keys; `None` if it is not there.
pub fn histograms(loaded: &Loaded, number: usize, keys: &str) -> Option<Vec<Screen>> {
    let (_, tally, totals) = loaded.description.tallied(number)?;
    let row = totals.rows.iter().find(|row| keys_text(loaded, tally, row).join(", ") == keys)?;
    let of_row = Totals { rows: vec![row.clone()] };
    let text = probe::counts_text(tally, &of_row, 0, "", &|item, value| loaded.named(item, value));
    let mut lines: Vec<String> = text.trim_start_matches('\n').lines().map(str::to_owned).collect();
    // A stack, one function a line: the line above may be too long.
    for (item, value) in tally.keys.iter().zip(&row.key) {
        if let serde_json::Value::Array(frames) = loaded.named(item, value.clone()) {
            lines.push(String::new());
            lines.push(format!("{}:", item.name));
            lines.extend(frames.iter().map(|frame| {
                format!("  {}", frame.as_str().map_or_else(|| frame.to_string(), str::to_owned))
            }));
        }
    }
    Some(vec![Screen::text("counts", lines.iter().map(String::as_str))])
}
