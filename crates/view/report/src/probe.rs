// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of probes, and what they counted.
//!
//! Input: the [`Description`] of a run's probes, and each record with its values. Output: text, JSON, CSV. Records are
//! formatted one by one, because there may be more of them than memory holds.

use std::time::Duration;

use kprism_probe::stream::{Description, Hit, Probe, RecordingEffect};
use kprism_probe::view::summary;
use kprism_store::{Account, Manifest};
use serde_json::{Map, Value, json};

use crate::shape;

mod counts;
pub mod page;

pub use counts::{Named, shown as key_text, text as counts_text};

/// The values of a record by their names; why it could not be read, where a value is missing.
pub type Values<'v> = [(&'v str, Result<Value, &'static str>)];

/// The text above the records: places, conditions, hits, losses, counts by keys, variables. `limit` is the most keys
/// of a probe; 0 is all. `last` is the number of records that were kept, if the recorder kept the last ones only.
pub fn header(description: &Description, limit: usize, last: Option<u64>, named: Named<'_>) -> String {
    counted(description, limit, "--limit 0 shows all", last, named)
}

/// The same. `more` tells how to see keys beyond the limit.
fn counted(
    description: &Description,
    limit: usize,
    more: &str,
    last: Option<u64>,
    named: Named<'_>,
) -> String {
    let mut out = String::new();
    for (number, probe) in description.probes.iter().enumerate() {
        let whose = probe.file.as_deref().unwrap_or("the kernel");
        let part = match probe.effect {
            RecordingEffect::Record => "",
            RecordingEffect::Start => ", starts the recording",
            RecordingEffect::Pause => ", pauses the recording",
            RecordingEffect::Stop => ", ends the recording",
        };
        out += &format!("{} in {whose}, by {}{part}\n", probe.found, probe.hook);
        if let Some(condition) = &probe.condition {
            out += &format!("  if {condition}\n");
        }
        match description.counts.get(number) {
            Some(counts) => {
                for line in summary::counted(probe, counts) {
                    out += &format!("  {line}\n");
                }
            }
            None => out += "  the recorder did not end properly: nothing is known of what was lost\n",
        }
        if let Some((_, tally, totals)) = description.tallied(number) {
            out += &counts::text(tally, totals, limit, more, named);
        }
    }
    for line in summary::sums(&description.probes, &description.counts) {
        out += &format!("{line}\n");
    }
    if let Some(last) = last {
        out += &format!("of all records the last {last} are kept\n");
    }
    for (name, value) in &description.variables {
        out += &format!("${name} = {value}\n");
    }
    out
}

/// Rows of each probe that are printed while it is recorded.
const LIVE_ROWS: usize = 10;

/// The counts so far of a recording that goes on, and the time since its start. Stacks are addresses.
pub fn so_far(since: Duration, description: &Description) -> String {
    let title = format!("--- {:.1} s: counts so far\n", since.as_secs_f64());
    title + &counted(description, LIVE_ROWS, "all at the end", None, &|_, value| value)
}

/// Everything as JSON, with these records, which [`object`] made, and the number of those that were left out.
pub fn to_json(
    description: &Description,
    (records, hidden): (Vec<Value>, usize),
    (manifest, account): (&Manifest, &Account),
    limit: usize,
    named: Named<'_>,
) -> Value {
    let Description { probes, counts, variables, .. } = description;
    let run = shape::run(Some(manifest), Some(account));
    let mut value = json!({"run": run, "probes": probes, "counts": counts, "rows": records});
    let keys = description.all_tallied().map(|(_, _, all)| all.rows.len());
    let left_out = keys.map(|keys| if limit == 0 { 0 } else { keys.saturating_sub(limit) }).sum::<usize>();
    value["hidden"] = (hidden + left_out).into();
    let totals = description.all_tallied();
    let totals: Vec<Value> =
        totals.map(|(place, tally, all)| counts::object(place, tally, all, limit, named)).collect();
    if !totals.is_empty() {
        value["totals"] = totals.into();
    }
    if !variables.is_empty() {
        let each = |(name, n): &(String, i64)| (name.clone(), Value::from(*n));
        value["variables"] = variables.iter().map(each).collect::<Map<_, _>>().into();
    }
    value
}

/// A record as JSON.
pub fn object(probe: &Probe, hit: &Hit<'_>, values: &Values<'_>) -> Value {
    let (mut known, mut errors) = (Map::new(), Map::new());
    for (name, value) in values {
        match value {
            Ok(value) => known.insert((*name).to_owned(), value.clone()),
            Err(why) => errors.insert((*name).to_owned(), (*why).into()),
        };
    }
    let text = printed(probe, values);
    let mut all = json!({
        "time_ns": hit.time_ns, "cpu": hit.cpu, "pid": hit.pid, "tid": hit.tid, "probe": probe.place, "values": known,
    });
    if !errors.is_empty() {
        all["errors"] = errors.into();
    }
    if let Some(text) = text {
        all["text"] = text.into();
    }
    all
}

/// The line that the probe's `printf` makes of a record, if it has one.
pub fn printed(probe: &Probe, values: &Values<'_>) -> Option<String> {
    let value = |n: usize| values.get(n).and_then(|(_, value)| value.as_ref().ok().cloned());
    Some(probe.printf.as_ref()?.text(&probe.items, &value))
}

/// A record as a line of text: time in seconds, thread, CPU, place, values, or what the probe's `printf` makes of them.
pub fn line(probe: &Probe, hit: &Hit<'_>, values: &Values<'_>) -> String {
    let (seconds, ns) = (hit.time_ns / 1_000_000_000, hit.time_ns % 1_000_000_000);
    let mut out = format!("{seconds:>6}.{ns:09} {:>7} [{:03}] {}", hit.tid, hit.cpu, probe.place);
    if let Some(text) = printed(probe, values) {
        out += &format!(": {}\n", text.trim_end_matches('\n'));
        return out;
    }
    for (n, (name, value)) in values.iter().enumerate() {
        let comma = if n == 0 { ":" } else { "," };
        match value {
            Ok(value) => {
                let shown = probe.items[n].shape.as_ref().map_or_else(String::new, |shape| shape.line(value));
                out += &format!("{comma} {name} = {shown}");
            }
            Err(why) => out += &format!("{comma} {name} <{why}>"),
        }
    }
    out.push('\n');
    out
}

/// CSV of counts by keys: a row for each combination of keys, and for each slot of its histograms.
pub fn counts_csv(description: &Description, named: Named<'_>) -> String {
    counts::csv(description.all_tallied(), named)
}

/// The head of a CSV of records, whose values have these names.
pub fn csv_head(names: &[&str]) -> String {
    let head: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let head = [&["time_ns", "cpu", "pid", "tid", "probe"].map(str::to_owned)[..], &head].concat();
    head.join(",") + "\n"
}

/// A record as a line of CSV, under [`csv_head`].
pub fn csv_line(probe: &Probe, hit: &Hit<'_>, values: &Values<'_>, names: &[&str]) -> String {
    let mut out = format!("{},{},{},{},{}", hit.time_ns, hit.cpu, hit.pid, hit.tid, quoted(&probe.place));
    for name in names {
        let value = values.iter().find(|(own, _)| own == name).and_then(|(_, value)| value.as_ref().ok());
        out.push(',');
        out += &match value {
            None => String::new(),
            Some(Value::String(text)) => quoted(text),
            Some(other) => quoted(&other.to_string()),
        };
    }
    out.push('\n');
    out
}

/// A cell of CSV, in quotes if it needs them.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
