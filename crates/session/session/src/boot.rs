// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of a traced boot: from its streams to a [`Boot`]. The trace is there as pages of the ring buffer or as a text, or
//! not at all, and the kernel's log alone tells of the initcalls.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_boot::{Boot, Formats, Read, TextCounts};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::side;
use kprism_ftrace::text::Text;
use kprism_image::symbols::Symbols;
use kprism_image::symbols::kallsyms::upper_half;
use kprism_import::logs;
use kprism_store::{Account, Fate, Instrument, Manifest, Run};
use kprism_tracefs::boot::Collected;
use kprism_tracefs::{CpuStats, STREAMS};

/// Whether the folder is a run with a traced boot.
pub fn is_boot(path: &Path) -> bool {
    Run::open(path).is_ok_and(|run| run.holds(Instrument::Boot))
}

/// Reads it.
pub fn load(path: &Path) -> Result<Boot> {
    let streams = path.join(STREAMS);
    let collected = Collected::load(path)?;
    let read = |name: &str| -> Result<Vec<u8>> {
        let file = streams.join(name);
        fs::read(&file).with_context(|| file.display().to_string())
    };
    // What was recorded elsewhere may lack these; the kernel's log has the names that count.
    let if_there = |name: &str| crate::files::read_if_there(&streams.join(name));
    let text = streams.join(TEXT);
    let mut of_text = None;
    let mut tasks: BTreeMap<u32, String> = side::by_pid(&if_there("saved_cmdlines")?).into_iter().collect();
    let found = if text.is_file() {
        let (found, counts, comms) = of(&read(TEXT)?);
        of_text = Some(counts);
        tasks.extend(comms);
        found
    } else if collected.cpus.is_empty() {
        Read::default()
    } else {
        let formats = formats(&streams.join("events"))?;
        let layout = match if_there("header_page")? {
            page if page.is_empty() => PageLayout::default(),
            page => PageLayout::parse(&page).context("header_page")?,
        };
        let mut pages = Vec::new();
        for (cpu, _) in &collected.cpus {
            pages.push((*cpu, read(&format!("cpu{cpu}.raw"))?));
        }
        let big = pages.iter().find_map(|(_, pages)| layout.is_big_endian(pages)).unwrap_or(false);
        let decoder = Decoder::new(&formats, big);
        let cpus = pages.iter().map(|(cpu, pages)| Cpu::new(&decoder, layout, *cpu, pages)).collect();
        let mut found = kprism_boot::read(Merged::new(cpus), &Formats::new(&formats, big));
        // The kernel's own count is exact where it is there; an import may lack it.
        found.lost = found.lost.max(collected.lost());
        found
    };
    let log = read("dmesg")?;
    let log = kprism_boot::parse_log(&String::from_utf8_lossy(&log));
    let kallsyms = path.join("symbols/kallsyms");
    let symbols = match crate::files::read_if_there(&kallsyms)? {
        text if text.is_empty() => Symbols::default(),
        text => Symbols::load(&text, &[], None).with_context(|| kallsyms.display().to_string())?,
    };
    let name = |address: u64| {
        let address = upper_half(address);
        let function = symbols.function(symbols.locate(0, address, 0).filter(|located| located.known)?.func);
        let module = function.module.trim_matches(['[', ']']);
        Some((function.name.clone(), (module != "kernel").then(|| module.to_owned())))
    };
    let mut boot = kprism_boot::join(&found, &log, tasks.into_iter().collect(), &name);
    boot.text = of_text;
    Ok(boot)
}

/// The name of the trace's text among a run's streams.
const TEXT: &str = "trace.txt";

/// The calls that a text of the trace states, counts of its reader, and names of tasks.
fn of(text: &[u8]) -> (Read, TextCounts, BTreeMap<u32, String>) {
    let mut reader = Text::new(text);
    let mut found = kprism_boot::read(reader.by_ref(), &Formats::default());
    let overwritten = reader.counts.entries.map(|(kept, written)| written.saturating_sub(kept));
    found.lost = found.lost.max(overwritten.unwrap_or(0));
    // Each task has a time of its own there, which does not compare with the log's.
    let untimed = if reader.timed() { 0 } else { std::mem::take(&mut found.calls).len() as u64 };
    let faults = &reader.counts.faults;
    let place =
        |fault: &kprism_ftrace::Fault| format!("{TEXT}: line {}: expected {}", fault.at, fault.expected);
    let counts = TextCounts {
        events: reader.counts.events,
        overwritten,
        faults: faults.count,
        fault_places: faults.first.iter().map(place).collect(),
        untimed,
    };
    (found, counts, std::mem::take(&mut reader.comms))
}

/// The account of the traced boot in this run's folder, with what is known of its recording.
///
/// # Errors
/// What was collected, or the manifest, cannot be read.
pub fn account_of_run(dir: &Path, boot: &Boot) -> Result<Account> {
    let manifest = Run::open(dir)?.manifest()?;
    Ok(manifest.with_recording(account(boot, &Collected::load(dir)?)))
}

/// The part of a boot's trace that became initcalls and calls.
pub fn account(boot: &Boot, collected: &Collected) -> Account {
    let endless = boot.initcalls.iter().filter(|call| call.address != 0 && call.result.is_none()).count();
    // An import may lack the kernel's own counts.
    let counted = collected.cpus.iter().any(|(_, stats)| *stats != CpuStats::default());
    let text = boot.text.clone().unwrap_or_default();
    let seen = boot.text.as_ref().map(|text| text.events).or(counted.then(|| collected.events()));
    let knows = counted || text.overwritten.is_some() || boot.lost > 0;
    Account::new()
        .with(Fate::Seen, "events", seen)
        .with(Fate::Kept, "initcalls", boot.initcalls.len() as u64)
        .with(Fate::Kept, "long calls", boot.calls.len() as u64)
        .with(Fate::Lost, "events", knows.then_some(boot.lost))
        .with(Fate::Lost, "ends without a call", boot.orphans)
        .with(Fate::Lost, "calls without a time (option funcgraph-abstime)", text.untimed)
        .at(Fate::NotUnderstood, "places in the trace", text.faults, text.fault_places)
        .with(Fate::Guessed, "initcalls named by their address", boot.unnamed as u64)
        .with(Fate::Guessed, "initcalls with the log's coarse times", boot.coarse as u64)
        .with(Fate::Guessed, "initcalls whose end was not seen", endless as u64)
}

/// Enters it into the run's manifest.
pub fn enter(boot: &Boot, collected: &Collected, manifest: &mut Manifest) {
    manifest.accounts.insert(Instrument::Boot, account(boot, collected));
}

/// A trace that was imported is a boot's if the kernel's log is beside it and says which initcalls it called.
pub fn adopt(run: &Path) -> Result<Option<Collected>> {
    let streams = run.join(STREAMS);
    let log = crate::files::read_if_there(&streams.join("dmesg"))?;
    if !logs::tells_initcalls(&log) {
        return Ok(None);
    }
    let text = fs::metadata(streams.join(TEXT)).map_or(0, |file| file.len());
    let (mut cpus, mut bytes) = (Vec::new(), text);
    for cpu in 0..1024 {
        let Ok(pages) = fs::metadata(streams.join(format!("cpu{cpu}.raw"))) else { continue };
        let stats = crate::files::read_if_there(&streams.join(format!("stats/cpu{cpu}")))?;
        cpus.push((cpu, CpuStats::parse(&String::from_utf8_lossy(&stats))));
        bytes += pages.len();
    }
    let line = crate::files::read_if_there(&streams.join("cmdline"))?;
    let command_line = String::from_utf8_lossy(&line).trim().to_owned();
    let collected = Collected { command_line, cpus, bytes };
    let file = streams.join("boot.json");
    fs::write(&file, serde_json::to_vec_pretty(&collected)?).with_context(|| file.display().to_string())?;
    Ok(Some(collected))
}

/// Every `SYSTEM/NAME/format` below a folder.
fn formats(folder: &Path) -> Result<Vec<Format>> {
    let list = |folder: &Path| -> Result<Vec<std::path::PathBuf>> {
        let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort_unstable();
        Ok(paths)
    };
    let mut formats = Vec::new();
    for system in list(folder)? {
        let name = system.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for event in list(&system)? {
            let file = event.join("format");
            let text = fs::read(&file).with_context(|| file.display().to_string())?;
            formats.push(Format::parse(&name, &text).with_context(|| file.display().to_string())?);
        }
    }
    Ok(formats)
}
