// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report probe` and `kprism script probe`: what probes collected.
//!
//! In: a run's `streams/probe/`. Out: counts, a table, or a line for each record: text, JSON, CSV.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_probe::shape::Shape;
use kprism_probe::stream::{Description, Hit, Item, Part};
use kprism_profile::units::grouped;
use kprism_report::Style;
use kprism_report::header::account_text;
use kprism_store::{Run, Values};
use serde_json::{Map, Value, json};

use super::{probe_counts, probe_trace, script};
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::probe::Loaded;

/// How records are shown.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// At most; 0 is all.
    pub rows: usize,
    /// Only these processes and threads.
    pub tasks: &'a [u32],
    /// As JSON.
    pub json: bool,
    /// As CSV.
    pub csv: bool,
    /// Colours.
    pub style: Style,
}

impl View<'_> {
    fn wants(&self, hit: &Hit<'_>) -> bool {
        self.tasks.is_empty() || self.tasks.contains(&hit.pid) || self.tasks.contains(&hit.tid)
    }
}

/// Counts, and the first records.
pub fn report(run: &Run, view: &View<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let loaded = Loaded::open(run)?;
    if view.csv {
        return csv(run, &loaded, view, out);
    }
    let account = loaded.account(&run.manifest()?);
    if view.json {
        let mut rows = Vec::new();
        loaded.each(run.dir(), |hit, values| {
            if view.wants(hit) {
                rows.push(object(&loaded, hit, values));
            }
            Ok(view.rows == 0 || rows.len() < view.rows)
        })?;
        let shown = rows.len();
        let Description { probes, counts, variables, .. } = &loaded.description;
        let mut value = json!({"probes": probes, "counts": counts, "records": rows, "account": account});
        let named = |item: &Item, value| loaded.named(item, value);
        let totals = loaded.all_tallied();
        let totals: Vec<Value> = totals
            .map(|(place, tally, all)| probe_counts::object(place, tally, all, view.rows, &named))
            .collect();
        if !totals.is_empty() {
            value["totals"] = totals.into();
        }
        if !variables.is_empty() {
            let each = |(name, n): &(String, i64)| (name.clone(), Value::from(*n));
            value["variables"] = variables.iter().map(each).collect::<Map<_, _>>().into();
        }
        serde_json::to_writer_pretty(&mut *out, &value)?;
        writeln!(out)?;
        let nothing = shown == 0 && !loaded.has_counted();
        return Ok(if nothing { Outcome::NothingMatched } else { Outcome::Done });
    }
    for (number, probe) in loaded.description.probes.iter().enumerate() {
        let whose = probe.file.as_deref().unwrap_or("the kernel");
        let part = match probe.part {
            Part::Record => "",
            Part::Start => ", starts the recording",
            Part::Pause => ", pauses the recording",
            Part::Stop => ", ends the recording",
        };
        writeln!(out, "{} in {whose}, by {}{part}", probe.found, probe.hook)?;
        if let Some(condition) = &probe.condition {
            writeln!(out, "  if {condition}")?;
        }
        match loaded.description.counts.get(number) {
            Some(counts) => {
                for line in probe_counts::counted(probe, counts) {
                    writeln!(out, "  {line}")?;
                }
            }
            None => writeln!(out, "  the recorder did not end properly: nothing is known of what was lost")?,
        }
        if let Some((_, tally, totals)) = loaded.tallied(number) {
            probe_counts::text(tally, totals, view.rows, &|item, value| loaded.named(item, value), out)?;
        }
    }
    for line in probe_counts::sums(&loaded.description.probes, &loaded.description.counts) {
        writeln!(out, "{line}")?;
    }
    if let Some(last) = run.manifest()?.options.get("last").and_then(Value::as_u64) {
        writeln!(out, "of all records the last {last} are kept")?;
    }
    for (name, value) in &loaded.description.variables {
        writeln!(out, "${name} = {value}")?;
    }
    writeln!(out)?;
    let (mut shown, mut more) = (0, 0_u64);
    loaded.each(run.dir(), |hit, values| {
        if !view.wants(hit) {
            return Ok(true);
        }
        if view.rows > 0 && shown >= view.rows {
            more += 1;
            return Ok(true);
        }
        shown += 1;
        line(&loaded, hit, &values, out)?;
        Ok(true)
    })?;
    if more > 0 {
        writeln!(out, "… {} more records (--limit 0 shows all)", grouped(more))?;
    }
    write!(out, "\n{}", account_text(Some(&account), view.style))?;
    Ok(if shown == 0 && !loaded.has_counted() { Outcome::NothingMatched } else { Outcome::Done })
}

/// A line for each record.
pub fn script(run: &Run, args: &script::Args, out: &mut dyn Write) -> Result<Outcome> {
    let loaded = Loaded::open(run)?;
    if args.limit == Some(0) {
        return Ok(Outcome::Done);
    }
    let view =
        View { rows: 0, tasks: &args.tasks.pids, json: args.json, csv: false, style: Style::default() };
    let mut shown = 0;
    loaded.each(run.dir(), |hit, values| {
        let at = hit.time_ns;
        let cpu = args.cpus.is_empty() || args.cpus.contains(&hit.cpu);
        let within = at >= args.from.unwrap_or(0) && args.to.is_none_or(|to| at < to);
        if !(view.wants(hit) && cpu && within) {
            return Ok(true);
        }
        shown += 1;
        if args.json {
            serde_json::to_writer(&mut *out, &object(&loaded, hit, values))?;
            writeln!(out)?;
        } else {
            line(&loaded, hit, &values, out)?;
        }
        Ok(args.limit.is_none_or(|most| shown < most))
    })?;
    if args.limit.is_none_or(|most| shown < most) {
        out.flush()?;
        loaded.whole(run)?;
    }
    Ok(if shown == 0 { Outcome::NothingMatched } else { Outcome::Done })
}

fn object(loaded: &Loaded, hit: &Hit<'_>, values: Vec<(&str, Result<Value, &'static str>)>) -> Value {
    let (mut known, mut errors) = (Map::new(), Map::new());
    for (name, value) in values {
        match value {
            Ok(value) => known.insert(name.to_owned(), value),
            Err(why) => errors.insert(name.to_owned(), why.into()),
        };
    }
    let place = &loaded.description.probes[usize::from(hit.probe)].place;
    let mut all = json!({
        "time_ns": hit.time_ns, "cpu": hit.cpu, "pid": hit.pid, "tid": hit.tid, "probe": place, "values": known,
    });
    if !errors.is_empty() {
        all["errors"] = errors.into();
    }
    all
}

fn line(
    loaded: &Loaded,
    hit: &Hit<'_>,
    values: &[(&str, Result<Value, &'static str>)],
    out: &mut dyn Write,
) -> Result<()> {
    let probe = &loaded.description.probes[usize::from(hit.probe)];
    let place = &probe.place;
    let (seconds, ns) = (hit.time_ns / 1_000_000_000, hit.time_ns % 1_000_000_000);
    write!(out, "{seconds:>6}.{ns:09} {:>7} [{:03}] {place}", hit.tid, hit.cpu)?;
    for (n, (name, value)) in values.iter().enumerate() {
        let comma = if n == 0 { ":" } else { "," };
        match value {
            Ok(value) => {
                let shown = probe.items[n].shape.as_ref().map_or_else(String::new, |shape| shape.line(value));
                write!(out, "{comma} {name} = {shown}")?;
            }
            Err(why) => write!(out, "{comma} {name} <{why}>")?,
        }
    }
    writeln!(out)?;
    Ok(())
}

/// Names of values of any probe, each once.
fn names(loaded: &Loaded) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for item in loaded.description.probes.iter().flat_map(|probe| &probe.items) {
        if !names.contains(&item.name.as_str()) {
            names.push(&item.name);
        }
    }
    names
}

/// Writes the records for other tools; the suffix picks the format.
pub fn export(
    run: &Run,
    path: &Path,
    tasks: &[u32],
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let mut loaded = Loaded::open(run)?;
    loaded.tasks = tasks.to_vec();
    let suffix = path.extension().map(|s| s.to_string_lossy().to_ascii_lowercase());
    let json = suffix.as_deref() == Some("json");
    let view = View { rows: 0, tasks, json, csv: !json, style: Style::default() };
    let outcome = match suffix.as_deref() {
        Some("parquet") => return parquet(run, &loaded, path, progress),
        Some("ctf") => return probe_trace::ctf(run, &loaded, path, progress),
        Some("tf" | "tfile") => return probe_trace::gdb(run, &loaded, path, progress),
        Some("csv" | "json") if path.to_string_lossy().starts_with("-.") => {
            return report(run, &view, out);
        }
        Some("csv" | "json") => {
            let name = || path.display().to_string();
            let mut file = std::io::BufWriter::new(std::fs::File::create(path).with_context(name)?);
            let outcome = report(run, &view, &mut file)?;
            file.flush().with_context(name)?;
            outcome
        }
        _ => bail!(
            "{}: what probes collected is written as .parquet, .csv, .json, .ctf or .tf",
            path.display()
        ),
    };
    progress.say(&format!("wrote {}", path.display()));
    loaded.whole(run)?;
    Ok(outcome)
}

/// One row a record; a column for each value of any probe: numbers as numbers, structures and arrays as JSON.
fn parquet(run: &Run, loaded: &Loaded, path: &Path, progress: &Progress) -> Result<Outcome> {
    let names = names(loaded);
    let (mut rows, mut all) = (Vec::new(), vec![Vec::new(); names.len()]);
    loaded.each(run.dir(), |hit, mut values| {
        for (name, column) in names.iter().zip(&mut all) {
            let at = values.iter().position(|(own, _)| own == name);
            column.push(at.and_then(|at| values.swap_remove(at).1.ok()));
        }
        rows.push((hit.time_ns, hit.cpu, hit.pid, hit.tid, usize::from(hit.probe)));
        Ok(true)
    })?;
    let unsigned = |get: fn(&(u64, u16, u32, u32, usize)) -> u64| {
        Values::Unsigned(rows.iter().map(|row| Some(get(row))).collect())
    };
    let place = |row: &(u64, u16, u32, u32, usize)| Some(loaded.description.probes[row.4].place.clone());
    let mut columns = vec![
        ("time_ns".to_owned(), unsigned(|row| row.0)),
        ("cpu".to_owned(), unsigned(|row| row.1.into())),
        ("pid".to_owned(), unsigned(|row| row.2.into())),
        ("tid".to_owned(), unsigned(|row| row.3.into())),
        ("probe".to_owned(), Values::Text(rows.iter().map(place).collect())),
    ];
    for (name, values) in names.iter().zip(all) {
        let items = loaded.description.probes.iter().flat_map(|probe| &probe.items);
        let shapes: Vec<&Shape> =
            items.filter(|i| i.name == *name).filter_map(|i| i.shape.as_ref()).collect();
        columns.push(((*name).to_owned(), typed(&shapes, values)));
    }
    kprism_store::save_records(path, &columns)?;
    progress.say(&format!("wrote {}", path.display()));
    loaded.whole(run)?;
    Ok(if rows.is_empty() { Outcome::NothingMatched } else { Outcome::Done })
}

/// A column's values, as what all of its shapes are.
fn typed(shapes: &[&Shape], values: Vec<Option<Value>>) -> Values {
    let all = |is: fn(&Shape) -> bool| !shapes.is_empty() && shapes.iter().all(|shape| is(shape));
    let address = |value: Value| u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok();
    let mapped = values.into_iter();
    if all(|s| matches!(s, Shape::Int { signed: true, .. })) {
        return Values::Signed(mapped.map(|v| v?.as_i64()).collect());
    }
    if all(|s| matches!(s, Shape::Int { signed: false, .. })) {
        return Values::Unsigned(mapped.map(|v| v?.as_u64()).collect());
    }
    if all(|s| matches!(s, Shape::Pointer)) {
        return Values::Unsigned(mapped.map(|v| address(v?)).collect());
    }
    if all(|s| matches!(s, Shape::Float { .. })) {
        return Values::Float(mapped.map(|v| v?.as_f64()).collect());
    }
    if all(|s| matches!(s, Shape::Bool)) {
        return Values::Bool(mapped.map(|v| v?.as_bool()).collect());
    }
    let shown = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Values::Text(mapped.map(|v| v.map(shown)).collect())
}

/// One row a record; a column for each value of any probe.
fn csv(run: &Run, loaded: &Loaded, view: &View<'_>, out: &mut dyn Write) -> Result<Outcome> {
    let quoted = |text: &str| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    if loaded.description.probes.iter().all(|probe| probe.record_bytes == 0) {
        let named = |item: &Item, value| loaded.named(item, value);
        probe_counts::csv(loaded.all_tallied(), &named, &quoted, out)?;
        return Ok(if loaded.has_counted() { Outcome::Done } else { Outcome::NothingMatched });
    }
    let names = names(loaded);
    let head: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    let head = [&["time_ns", "cpu", "pid", "tid", "probe"].map(str::to_owned)[..], &head].concat();
    writeln!(out, "{}", head.join(","))?;
    let mut rows = 0;
    loaded.each(run.dir(), |hit, values| {
        if !view.wants(hit) {
            return Ok(true);
        }
        rows += 1;
        let place = &loaded.description.probes[usize::from(hit.probe)].place;
        write!(out, "{},{},{},{},{}", hit.time_ns, hit.cpu, hit.pid, hit.tid, quoted(place))?;
        for name in &names {
            let value = values.iter().find(|(own, _)| own == name).and_then(|(_, value)| value.as_ref().ok());
            let text = match value {
                None => String::new(),
                Some(Value::String(text)) => quoted(text),
                Some(other) => quoted(&other.to_string()),
            };
            write!(out, ",{text}")?;
        }
        writeln!(out)?;
        Ok(view.rows == 0 || rows < view.rows)
    })?;
    if view.rows == 0 || rows < view.rows {
        out.flush()?;
        loaded.whole(run)?;
    }
    Ok(if rows == 0 { Outcome::NothingMatched } else { Outcome::Done })
}
