// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static tracepoints of the running kernel, of another kernel, of a program.
//!
//! In: tracefs, debug information, or a program's notes. Out: a list of [`Event`].

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kprism_expr::dwarf::{Debug, Image};
use kprism_expr::usdt;
use kprism_image::glob::glob;
use kprism_probe::place::flow::Ways;
use kprism_probe::place::listed::{Event, Field};
use kprism_probe::place::tracepoint::{Way, described};

/// Returns true if `pattern`, in which `*` is any text, matches an event's name; every name without one.
fn is_wanted(pattern: Option<&str>, name: &str) -> bool {
    pattern.is_none_or(|pattern| glob(pattern, name))
}

/// Static tracepoints of a kernel, by its debug information. With a pattern, the code around each of them is looked
/// for, too.
///
/// # Errors
/// The file cannot be read, or holds no debug information.
pub fn of_kernel(file: &Path, pattern: Option<&str>) -> Result<Vec<Event>> {
    let image = Image::open(file)?;
    let debug = Debug::new(&image)?;
    let ways = Ways::new(&image);
    let mut rows = Vec::new();
    for event in debug.events()? {
        let name = format!("{}:{}", event.system, event.name);
        if !is_wanted(pattern, &name) {
            continue;
        }
        let sites =
            if pattern.is_some() && event.tracepoint { debug.sites(&event.name)? } else { Vec::new() };
        let place = |site: &kprism_expr::dwarf::Site| {
            let how = match Way::of(&debug, &ways, site) {
                Way::Beside => "kprobe".to_owned(),
                Way::OutOfLine => "kprobe, out of line".to_owned(),
                Way::Saved(why) => format!("saved registers: {why}"),
            };
            format!("{} ({how})", debug.function_at(site.nop).unwrap_or_else(|| format!("{:#x}", site.nop)))
        };
        rows.push(Event {
            name,
            fields: event
                .fields
                .into_iter()
                .map(|f| Field { name: f.name, kind: f.kind, place: Some((f.offset, f.size)) })
                .collect(),
            print: event.print,
            places: sites.iter().map(place).collect(),
        });
    }
    Ok(rows)
}

/// Static tracepoints (USDT) of a program or a library, by name.
///
/// # Errors
/// The file cannot be read.
pub fn of_program(file: &Path, pattern: Option<&str>) -> Result<Vec<Event>> {
    let image = Image::map(file)?;
    let mut rows: Vec<Event> = Vec::new();
    for probe in usdt::probes(&image) {
        let name = format!("{}:{}", probe.provider, probe.name);
        if !is_wanted(pattern, &name) {
            continue;
        }
        let place = format!("{:#x}", probe.pc);
        if let Some(row) = rows.iter_mut().find(|row| row.name == name) {
            row.places.push(place);
            continue;
        }
        let argument = |(n, text): (usize, &String)| Field {
            name: format!("arg{}", n + 1),
            kind: text.clone(),
            place: None,
        };
        let fields = probe.arguments.iter().enumerate().map(argument).collect();
        rows.push(Event { name, fields, print: None, places: vec![place] });
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

/// Static tracepoints of the running kernel, by its tracefs.
///
/// # Errors
/// tracefs is not mounted, or cannot be read.
pub fn running(pattern: Option<&str>) -> Result<Vec<Event>> {
    let Some(tracefs) = kprism_bpf::host::tracefs() else {
        bail!("{}; or name a vmlinux with -k", kprism_bpf::host::no_tracefs());
    };
    let events = tracefs.join("events");
    let folders = |folder: &Path| -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut all: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
        all.sort();
        Ok(all)
    };
    let last = |path: &Path| path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let mut rows = Vec::new();
    for folder in folders(&events)? {
        let system = last(&folder);
        for event in folders(&folder)? {
            let name = format!("{system}:{}", last(&event));
            let path = event.join("format");
            if !is_wanted(pattern, &name) || !path.is_file() {
                continue;
            }
            let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let found = described(&system, &text)?;
            let print = String::from_utf8_lossy(&text);
            let print = print.lines().find_map(|l| l.strip_prefix("print fmt: ").map(str::to_owned));
            rows.push(Event {
                name,
                fields: found
                    .fields
                    .into_iter()
                    .map(|f| Field { name: f.name, kind: f.kind, place: Some((f.offset, f.size)) })
                    .collect(),
                print,
                places: Vec::new(),
            });
        }
    }
    Ok(rows)
}
