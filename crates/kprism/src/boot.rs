// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of a traced boot: from its streams to a [`Boot`].

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use kprism_boot::{Boot, Formats};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::side;
use kprism_image::symbols::Symbols;
use kprism_store::{Account, Fate, Manifest, instrument};
use kprism_tracefs::boot::Collected;
use kprism_tracefs::{CpuStats, STREAMS};

/// Whether there is a traced boot at `path`.
pub fn is_boot(path: &Path) -> bool {
    path.join(STREAMS).join("boot.json").exists()
}

/// Reads it.
pub fn load(path: &Path) -> Result<Boot> {
    let streams = path.join(STREAMS);
    let collected = Collected::load(path)?;
    let formats = formats(&streams.join("events"))?;
    let decoder = Decoder::new(&formats, false);
    let read = |name: &str| -> Result<Vec<u8>> {
        let file = streams.join(name);
        fs::read(&file).with_context(|| file.display().to_string())
    };
    // What was recorded elsewhere may lack these; the kernel's log has the names that count.
    let if_there = |name: &str| crate::pipeline::read_if_there(&streams.join(name));
    let layout = match if_there("header_page")? {
        page if page.is_empty() => PageLayout::default(),
        page => PageLayout::parse(&page).context("header_page")?,
    };
    let mut pages = Vec::new();
    for (cpu, _) in &collected.cpus {
        pages.push((*cpu, read(&format!("cpu{cpu}.raw"))?));
    }
    let cpus = pages.iter().map(|(cpu, pages)| Cpu::new(&decoder, layout, *cpu, pages)).collect();
    let mut found = kprism_boot::read(Merged::new(cpus), &Formats::new(&formats));
    // The kernel's own count is exact where it is there; an import may lack it.
    found.lost = found.lost.max(collected.lost());
    let log = read("dmesg")?;
    let log = kprism_boot::parse_log(&String::from_utf8_lossy(&log));
    let tasks = side::by_pid(&if_there("saved_cmdlines")?).into_iter().collect();
    let kallsyms = path.join("symbols/kallsyms");
    let symbols = match crate::pipeline::read_if_there(&kallsyms)? {
        text if text.is_empty() => Symbols::default(),
        text => Symbols::load(&text, &[], None).with_context(|| kallsyms.display().to_string())?,
    };
    let name = |address: u64| {
        let function = symbols.function(symbols.locate(0, address, 0).filter(|located| located.known)?.func);
        let module = function.module.trim_matches(['[', ']']);
        Some((function.name.clone(), (module != "kernel").then(|| module.to_owned())))
    };
    Ok(kprism_boot::join(&found, &log, tasks, &name))
}

/// How much of a boot's trace became initcalls and calls.
pub fn account(boot: &Boot, collected: &Collected) -> Account {
    let endless = boot.initcalls.iter().filter(|call| call.address != 0 && call.result.is_none()).count();
    // An import may lack the kernel's own counts.
    let counted = collected.cpus.iter().any(|(_, stats)| *stats != CpuStats::default());
    Account::new()
        .with(Fate::Seen, "events", counted.then(|| collected.events()))
        .with(Fate::Kept, "initcalls", boot.initcalls.len() as u64)
        .with(Fate::Kept, "long calls", boot.calls.len() as u64)
        .with(Fate::Lost, "events", (counted || boot.lost > 0).then_some(boot.lost))
        .with(Fate::Guessed, "initcalls named by their address", boot.unnamed as u64)
        .with(Fate::Guessed, "initcalls with the log's coarse times", boot.coarse as u64)
        .with(Fate::Guessed, "initcalls whose end was not seen", endless as u64)
}

/// Enters it into the run's manifest.
pub fn enter(boot: &Boot, collected: &Collected, manifest: &mut Manifest) {
    manifest.accounts.insert(instrument::BOOT.into(), account(boot, collected));
}

/// Pages that were imported are a boot's if the kernel's log is beside them and says which initcalls it called.
pub fn adopt(run: &Path) -> Result<Option<Collected>> {
    let streams = run.join(STREAMS);
    let log = crate::pipeline::read_if_there(&streams.join("dmesg"))?;
    if !log.windows(9).any(|word| word == b"calling  ") {
        return Ok(None);
    }
    let (mut cpus, mut bytes) = (Vec::new(), 0);
    for cpu in 0..1024 {
        let Ok(pages) = fs::metadata(streams.join(format!("cpu{cpu}.raw"))) else { continue };
        let stats = crate::pipeline::read_if_there(&streams.join(format!("stats/cpu{cpu}")))?;
        cpus.push((cpu, CpuStats::parse(&String::from_utf8_lossy(&stats))));
        bytes += pages.len();
    }
    let line = crate::pipeline::read_if_there(&streams.join("cmdline"))?;
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
