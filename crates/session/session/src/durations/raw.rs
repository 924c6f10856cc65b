// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of the ring buffer: `cpuN.raw`, with the formats beside them.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_durations::Measured;
use kprism_ftrace::dat::Input;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::side;
use kprism_ftrace::stream::Stream;

use super::consumer::Consumer;
use super::facts::Facts;
use super::merged::{Time, collect};
use super::names::{collector, finish, symbols};
use super::wanted::Wanted;
use crate::files::{read, read_if_there};

/// Measures them. They are read as their events are needed.
pub(super) fn measure(
    dir: &Path,
    kallsyms: &[u8],
    facts: &mut Facts,
    consumer: &mut Consumer<'_>,
) -> Result<Measured> {
    facts.source = "pages of the ring buffer";
    let header = read_if_there(&dir.join("header_page"))?;
    let layout = if header.is_empty() { PageLayout::default() } else { PageLayout::parse(&header)? };
    let formats = formats(&dir.join("events"), facts)?;
    let symbols = symbols(kallsyms, facts);
    let mut streams: Vec<(u32, File, u64)> = Vec::new();
    for cpu in numbered(dir) {
        let path = dir.join(format!("cpu{cpu}.raw"));
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, file) = opened.with_context(|| path.display().to_string())?;
        streams.push((cpu, file, size));
        let stats = read_if_there(&dir.join(format!("stats/cpu{cpu}")))?;
        if !stats.is_empty() {
            let stats = side::stats(&stats);
            facts.overwrote(stats.overrun.saturating_add(stats.commit_overrun).saturating_add(stats.dropped));
        }
    }
    if streams.is_empty() {
        bail!("{}: no cpuN.raw: the recording left nothing", dir.display());
    }
    let big = is_big_endian(&streams, layout).with_context(|| dir.display().to_string())?;
    let decoder = Decoder::new(&formats, big);
    let wanted = Wanted::of(dir, &formats, big).unwrap_or_else(|unknown| {
        facts.guess(unknown.into());
        None
    });
    // `/proc/version` and `uname -a` both have the release in the third place.
    let version = read_if_there(&dir.join("version"))?;
    let release = String::from_utf8_lossy(&version).split_whitespace().nth(2).map(str::to_owned);
    facts.kernel = release.unwrap_or_default();
    facts.clock = side::clock(&read_if_there(&dir.join("trace_clock"))?).unwrap_or_default();
    let time = Time::new(&facts.clock.clone(), None, 0, facts);
    let mut collector = collector(&symbols, true);
    collector.name_tasks(side::by_pid(&read_if_there(&dir.join("saved_cmdlines"))?));
    let tgids = side::by_pid(&read_if_there(&dir.join("saved_tgids"))?);
    collector.group_tasks(tgids.iter().filter_map(|(pid, tgid)| Some((*pid, tgid.trim().parse().ok()?))));
    let cpus = streams.iter().map(|(cpu, file, size)| {
        Stream::new(&decoder, layout, *cpu, Input::File(file, *size).reader(0, *size))
    });
    let cpus = cpus.collect();
    let names: Vec<String> = streams.iter().map(|(cpu, ..)| format!("cpu{cpu}.raw")).collect();
    let of = (names.as_slice(), (formats.as_slice(), big), &symbols);
    let ended = collect(cpus, of, &time, wanted, &mut collector, (facts, consumer));
    for (stream, name) in ended.into_iter().zip(&names) {
        stream.error.map_or(Ok(()), Err).with_context(|| dir.join(name).display().to_string())?;
    }
    Ok(finish(collector, &symbols))
}

/// Bytes at the begin of each CPU's pages by which the byte order is told.
const HEAD: u64 = 1 << 20;

/// The byte order of the machine, which the first pages with events tell.
fn is_big_endian(streams: &[(u32, File, u64)], layout: PageLayout) -> Result<bool> {
    for (_, file, size) in streams {
        let mut head = Vec::new();
        Input::File(file, *size).reader(0, HEAD.min(*size)).read_to_end(&mut head)?;
        if let Some(big) = layout.is_big_endian(&head) {
            return Ok(big);
        }
    }
    Ok(false)
}

/// CPUs that have pages.
fn numbered(dir: &Path) -> Vec<u32> {
    let number = |name: String| name.strip_prefix("cpu")?.strip_suffix(".raw")?.parse().ok();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut cpus: Vec<u32> =
        entries.filter_map(|e| number(e.file_name().to_string_lossy().into_owned())).collect();
    cpus.sort_unstable();
    cpus
}

/// All formats below `events`. One that cannot be read costs its events their meaning, and is noted.
fn formats(events: &Path, facts: &mut Facts) -> Result<Vec<Format>> {
    let sorted = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    let mut formats = Vec::new();
    for system in sorted(events) {
        for event in sorted(&events.join(&system)) {
            let path = events.join(&system).join(&event).join("format");
            if !path.is_file() {
                continue;
            }
            match Format::parse(&system.to_string_lossy(), &read(&path)?) {
                Ok(format) => formats.push(format),
                Err(error) => {
                    facts.formats.push(error.to_string());
                    facts.notes.push(error.to_string());
                }
            }
        }
    }
    if formats.is_empty() {
        bail!("{}: no SYSTEM/NAME/format tells what the records mean", events.display());
    }
    Ok(formats)
}
