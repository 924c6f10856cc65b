// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism list events`: static tracepoints, of the running kernel by its tracefs, of any kernel by its debug
//! information, of a program by its notes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use kprism_expr::dwarf::{Debug, Image};
use kprism_expr::usdt;
use kprism_probe::events::described;
use serde_json::{Value, json};

use crate::exit::Outcome;

pub const HELP: &str = "\
Examples:
  kprism list events 'sched:*'                fields of the running kernel's scheduler events
  kprism list events sched:sched_switch -k vmlinux    and where they are in the code
  kprism list events --exec /usr/bin/python3  static tracepoints (USDT) of a program";

/// Options of `kprism list events`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these, `*` for anything; their fields are shown
    #[arg(value_name = "SYSTEM:NAME")]
    pattern: Option<String>,
    /// A kernel's debug information, instead of the running kernel
    #[arg(short = 'k', long, value_name = "VMLINUX", conflicts_with = "exec")]
    vmlinux: Option<PathBuf>,
    /// A program or library
    #[arg(long, value_name = "FILE")]
    exec: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Name and type of a field, and its offset and size where they are known.
type Field = (String, String, Option<(u32, u32)>);

/// What is known of one.
struct Row {
    name: String,
    fields: Vec<Field>,
    print: Option<String>,
    places: Vec<String>,
}

/// Prints them.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Outcome> {
    let wanted = |name: &str| args.pattern.as_ref().is_none_or(|p| matches(p, name));
    let rows = match (&args.exec, &args.vmlinux) {
        (Some(file), _) => of_program(file, &wanted)?,
        (_, Some(file)) => of_file(file, &wanted, args.pattern.is_some())?,
        _ => running(&wanted)?,
    };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &rows.iter().map(object).collect::<Vec<_>>())?;
        writeln!(out)?;
    } else {
        for row in &rows {
            writeln!(out, "{}", row.name)?;
            if args.pattern.is_some() {
                row.places.iter().try_for_each(|place| writeln!(out, "  in {place}"))?;
                for (name, kind, place) in &row.fields {
                    match place {
                        Some((offset, size)) => writeln!(out, "  {kind} {name}  ({size} bytes at {offset})")?,
                        None => writeln!(out, "  {name} {kind}")?,
                    }
                }
                row.print.iter().try_for_each(|print| writeln!(out, "  print {print}"))?;
            }
        }
    }
    Ok(if rows.is_empty() { Outcome::NothingMatched } else { Outcome::Done })
}

fn object(row: &Row) -> Value {
    let field = |(name, kind, place): &Field| {
        let (offset, size) = place.unzip();
        json!({"name": name, "type": kind, "offset": offset, "size": size})
    };
    json!({
        "name": row.name,
        "fields": row.fields.iter().map(field).collect::<Vec<_>>(),
        "print": row.print,
        "places": row.places,
    })
}

/// `*` is any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, rest)) => name.strip_prefix(before).is_some_and(|name| {
            rest.is_empty() || name.char_indices().map(|(at, _)| at).any(|at| matches(rest, &name[at..]))
        }),
    }
}

fn of_file(file: &std::path::Path, wanted: &dyn Fn(&str) -> bool, places: bool) -> Result<Vec<Row>> {
    let image = Image::open(file)?;
    let debug = Debug::new(&image)?;
    let mut rows = Vec::new();
    for event in debug.events()? {
        let name = format!("{}:{}", event.system, event.name);
        if !wanted(&name) {
            continue;
        }
        let sites = if places && event.tracepoint { debug.sites(&event.name)? } else { Vec::new() };
        let place = |site: &kprism_expr::dwarf::Site| {
            let how = match debug.kprobe_refusal(site.next) {
                None => "kprobe".to_owned(),
                Some(why) => format!("saved registers: {why}"),
            };
            format!("{} ({how})", debug.function_at(site.nop).unwrap_or_else(|| format!("{:#x}", site.nop)))
        };
        rows.push(Row {
            name,
            fields: event.fields.into_iter().map(|f| (f.name, f.kind, Some((f.offset, f.size)))).collect(),
            print: event.print,
            places: sites.iter().map(place).collect(),
        });
    }
    Ok(rows)
}

fn of_program(file: &std::path::Path, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
    let image = Image::map(file)?;
    let mut rows: Vec<Row> = Vec::new();
    for probe in usdt::probes(&image) {
        let name = format!("{}:{}", probe.provider, probe.name);
        if !wanted(&name) {
            continue;
        }
        let place = format!("{:#x}", probe.pc);
        if let Some(row) = rows.iter_mut().find(|row| row.name == name) {
            row.places.push(place);
            continue;
        }
        let argument = |(n, text): (usize, &String)| (format!("arg{}", n + 1), text.clone(), None);
        let fields = probe.arguments.iter().enumerate().map(argument).collect();
        rows.push(Row { name, fields, print: None, places: vec![place] });
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

fn running(wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
    let Some(tracefs) = kprism_bpf::host::tracefs() else {
        bail!(
            "tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing (as root); or name a vmlinux with -k"
        );
    };
    let events = tracefs.join("events");
    let folders = |folder: &std::path::Path| -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut all: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
        all.sort();
        Ok(all)
    };
    let last = |path: &std::path::Path| {
        path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    };
    let mut rows = Vec::new();
    for folder in folders(&events)? {
        let system = last(&folder);
        for event in folders(&folder)? {
            let name = format!("{system}:{}", last(&event));
            let path = event.join("format");
            if !wanted(&name) || !path.is_file() {
                continue;
            }
            let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let found = described(&system, &text)?;
            let print = String::from_utf8_lossy(&text);
            let print = print.lines().find_map(|l| l.strip_prefix("print fmt: ").map(str::to_owned));
            rows.push(Row {
                name,
                fields: found
                    .fields
                    .into_iter()
                    .map(|f| (f.name, f.kind, Some((f.offset, f.size))))
                    .collect(),
                print,
                places: Vec::new(),
            });
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #[test]
    fn stars_are_any_text() {
        use super::matches;
        assert!(matches("sched:*", "sched:sched_switch"));
        assert!(matches("*switch", "sched:sched_switch"));
        assert!(matches("s*:*_s*h", "sched:sched_switch"));
        assert!(!matches("sched", "sched:sched_switch"));
        assert!(!matches("*x", "sched:sched_switch"));
    }
}
