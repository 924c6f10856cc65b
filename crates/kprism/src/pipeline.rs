// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a recorded run to its tables.
//!
//! In: a run folder's streams and symbols. Out: a [`Profile`], kept as the run's tables, and the counts in
//! its manifest. Parts that are damaged or missing cost what they held and are named; the rest is decoded.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use kprism_flow::clock::ClockConfig;
use kprism_flow::delta::Plan;
use kprism_flow::window::Window;
use kprism_flow::{Options, Profile, Stream};
use kprism_image::Image;
use kprism_image::code::Turn;
use kprism_image::maps::{self, Dict};
use kprism_image::sideband;
use kprism_image::symbols::{Symbols, kallsyms};
use kprism_report::units::grouped;
use kprism_store::{Clock, Manifest, Run, load_profile, save_profile};
use serde::Deserialize;

use crate::progress::Progress;

/// The recorder's own account: `streams/counts.json`.
#[derive(Debug)]
struct Account {
    /// CPUs with a stream.
    vcpus: u32,
    instructions: Option<u64>,
    snapshots: Option<u64>,
    windows: Option<u64>,
    condition_faults: Option<u64>,
    clock: Option<Clock>,
    stopped: Option<String>,
}

#[derive(Deserialize)]
struct AccountFile {
    vcpus: Vec<CpuCounts>,
    /// If only windows were kept: how many.
    windows: Option<u64>,
    /// How often the condition could not be told.
    condition_faults: Option<u64>,
    clock: Option<Clock>,
    stopped: Option<String>,
}

#[derive(Deserialize)]
struct CpuCounts {
    instructions: Option<u64>,
    /// If only snapshots were kept: how many.
    snapshots: Option<u64>,
}

impl Account {
    /// Writes what it knows into the manifest. A reason to have stopped that is there already stays.
    fn fill(&self, manifest: &mut Manifest) {
        manifest.vcpus = self.vcpus;
        manifest.instructions_recorded = self.instructions;
        for (name, count) in [
            ("snapshots", self.snapshots),
            ("windows", self.windows),
            ("condition_faults", self.condition_faults),
        ] {
            if let Some(count) = count {
                manifest.options.insert(name.into(), count.into());
            }
        }
        if let Some(clock) = &self.clock {
            manifest.clock = clock.clone();
        }
        if manifest.stopped.is_none() {
            manifest.stopped = self.stopped.clone();
        }
    }
}

/// Takes over what the recorder left, which may have been killed: its account, its sideband.
///
/// # Errors
/// The disk refuses, or the manifest cannot be written.
pub fn complete(run: &Run, manifest: &mut Manifest) -> Result<()> {
    match account(run) {
        Ok(account) => account.fill(manifest),
        Err(error) => {
            manifest.stopped.get_or_insert_with(|| format!("{error:#}"));
        }
    }
    Ok(run.merge_sideband()?)
}

/// Reads the recorder's account.
///
/// # Errors
/// The file is missing or is not what it should be.
fn account(run: &Run) -> Result<Account> {
    let path = run.counts();
    let text = read(&path).context("the recorder left no account of its work")?;
    let file: AccountFile = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    let sum = |sum: Option<u64>, n: Option<u64>| Some(sum?.saturating_add(n?));
    Ok(Account {
        vcpus: u32::try_from(file.vcpus.len())?,
        instructions: file.vcpus.iter().map(|c| c.instructions).fold(Some(0), sum),
        snapshots: file.vcpus.iter().filter_map(|c| c.snapshots).max(),
        windows: file.windows,
        condition_faults: file.condition_faults,
        clock: file.clock,
        stopped: file.stopped,
    })
}

/// Opens a run and its profile, decoding it first if that was not done yet.
///
/// # Errors
/// No run there, or one that cannot be decoded.
pub fn open(path: &Path, progress: &Progress) -> Result<(Run, Profile)> {
    let run = Run::open(path)?;
    if crate::durations::is_recorded(&run) {
        let (profile, _) = crate::durations::open(&run, progress)?;
        return Ok((run, profile));
    }
    if run.has_tables() {
        progress.step("reading the tables");
        let profile = load_profile(&run)?;
        return Ok((run, profile));
    }
    let profile = decode(&run, progress)?;
    Ok((run, profile))
}

/// A run's inputs in memory: all that decoding needs.
pub struct Loaded {
    /// As the recorder's own account completes it.
    pub manifest: Manifest,
    /// Packets and code of each CPU.
    streams: Vec<(Vec<u8>, Image)>,
    /// Functions.
    pub symbols: Symbols,
    /// Where the kernel keeps the preemption count, relative to `gs`.
    pub preempt_count: Option<u64>,
    /// The sideband.
    pub records: Vec<sideband::Record>,
    /// What was damaged or missing.
    pub notes: Vec<String>,
}

impl Loaded {
    /// The streams, as the decoder wants them.
    pub fn streams(&self) -> Vec<Stream<'_>> {
        (0u16..).zip(&self.streams).map(|(cpu, (bytes, image))| Stream { cpu, bytes, image }).collect()
    }

    /// Clock facts of the recording.
    pub fn clock(&self) -> ClockConfig {
        clock_config(&self.manifest.clock)
    }
}

/// Reads what a run's decode needs.
///
/// # Errors
/// The streams are not there, or a file is not what it should be.
pub fn load(run: &Run, progress: &Progress) -> Result<Loaded> {
    let mut manifest = run.manifest()?;
    if crate::durations::is_recorded(run) {
        bail!(
            "{}: holds durations of functions, no flow of instructions; see: kprism report func",
            run.dir().display()
        );
    }
    progress.step("reading the streams");
    let mut notes = Vec::new();
    complete(run, &mut manifest)?;
    let records = sideband_records(run, &mut notes)?;
    let streams = streams(run, manifest.vcpus, &records, &mut notes)?;
    progress.step("reading symbols");
    let root = run.symbols().join("root");
    let names = read_if_there(&run.symbols().join("kallsyms"))?;
    let preempt_count = preempt_count(&names);
    let symbols = Symbols::load(&names, &records, Some(&root))
        .with_context(|| run.symbols().join("kallsyms").display().to_string())?;
    Ok(Loaded { manifest, streams, symbols, preempt_count, records, notes })
}

/// Decodes a run, saves its tables, and enters the counts into its manifest.
///
/// # Errors
/// The streams are not there, or the disk refuses.
pub fn decode(run: &Run, progress: &Progress) -> Result<Profile> {
    let loaded = load(run, progress)?;
    let profile = profile(&loaded, Plan::default(), None, progress);
    progress.step("writing the tables");
    save_profile(run, &profile)?;
    let Loaded { mut manifest, notes, .. } = loaded;
    manifest.instructions = Some(profile.totals.instructions());
    manifest.decode_errors = Some(profile.totals.errors());
    manifest.lost_bytes = profile.totals.lost_bytes();
    if !notes.is_empty() {
        manifest.options.insert("decode_notes".into(), notes.clone().into());
    }
    run.write_manifest(&manifest)?;
    for note in &notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    Ok(profile)
}

/// Decodes with the measurements of `plan`, or what is in the window, and saves nothing.
pub fn profile(loaded: &Loaded, plan: Plan, window: Option<Window>, progress: &Progress) -> Profile {
    let total: u64 = loaded.streams.iter().map(|(pt, _)| pt.len() as u64).sum();
    progress.step("decoding");
    let done = AtomicU64::new(0);
    let tick = |bytes: u64| {
        let so_far = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        progress.amount("decoding", so_far, total);
    };
    let plan = plan.with_preempt_count(loaded.preempt_count);
    let options = Options { clock: loaded.clock(), plan, window, ..Options::default() };
    kprism_flow::profile(&loaded.streams(), &loaded.symbols, &loaded.records, &options, &tick)
}

/// Where the kernel counts how often preemption was disabled, relative to `gs`: a variable of its own, or in
/// 6.2 to 6.13 a member of `pcpu_hot` behind a pointer (arch/x86/include/asm/current.h).
fn preempt_count(kallsyms: &[u8]) -> Option<u64> {
    kallsyms::value_of(kallsyms, "__preempt_count")
        .or_else(|| Some(kallsyms::value_of(kallsyms, "pcpu_hot")? + 8))
        // What cannot be an offset is a kernel whose per-CPU symbols are hidden or placed otherwise.
        .filter(|&offset| offset != 8 && offset < 1 << 32)
}

/// Every CPU's packets, with the code they ran over.
///
/// # Errors
/// A file is missing. What is wrong in one goes to `notes`.
pub fn streams(
    run: &Run,
    vcpus: u32,
    records: &[sideband::Record],
    notes: &mut Vec<String>,
) -> Result<Vec<(Vec<u8>, Image)>> {
    let dict_path = run.code_dict();
    let dict_bytes = read(&dict_path)?;
    let (dict, fault) = Dict::parse(&dict_bytes);
    notes.extend(fault.map(|f| f.to_string()));
    let mut streams = Vec::new();
    for cpu in 0..vcpus {
        let map_path = run.code_map(cpu);
        let (map, fault) = maps::parse_map(&read(&map_path)?);
        notes.extend(fault.map(|f| format!("{}: {f}", map_path.display())));
        let (mut image, unknown) = maps::image(&dict, &map);
        image.set_turns(turns(records, cpu));
        if unknown > 0 {
            notes.push(format!("{}: {unknown} records name no code of code.dict", map_path.display()));
        }
        streams.push((read(&run.pt(cpu))?, image));
    }
    Ok(streams)
}

/// Where the sideband itself says that a CPU's tasks change.
pub fn turns(records: &[sideband::Record], cpu: u32) -> Vec<Turn> {
    let own = records.iter().filter_map(|record| match record {
        sideband::Record::Switch(s) if s.cpu == cpu => Some(Turn { offset: s.offset?, asid: s.asid }),
        _ => None,
    });
    own.collect()
}

/// The clock as the decoder wants it.
pub fn clock_config(clock: &Clock) -> ClockConfig {
    ClockConfig {
        tsc_hz: clock.tsc_hz,
        art_num: clock.art_num,
        art_den: clock.art_den,
        mtc_freq: clock.mtc_freq,
        nom_ratio: clock.nom_ratio,
        cyc_threshold: clock.cyc_threshold,
    }
}

/// The sideband of a run; empty, with a note, where it is missing.
///
/// # Errors
/// A line that is no record.
pub fn sideband_records(run: &Run, notes: &mut Vec<String>) -> Result<Vec<sideband::Record>> {
    let path = run.sideband();
    let bytes = read_if_there(&path)?;
    if bytes.is_empty() {
        notes.push(format!("{}: empty or missing: tasks and mappings are unknown", path.display()));
    }
    sideband::parse(&bytes).with_context(|| path.display().to_string())
}

/// A file, its name in the error.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// A file that a run may lack: empty then.
///
/// # Errors
/// It is there and cannot be read.
pub fn read_if_there(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.with_context(|| path.display().to_string()),
    }
}

/// A few lines on what was decoded.
///
/// # Errors
/// The manifest cannot be read.
pub fn summary(run: &Run) -> Result<String> {
    let m = run.manifest()?;
    let mut text = format!(
        "{} instructions on {} CPU{}, {} decode errors, {} bytes lost",
        grouped(m.instructions.unwrap_or(0)),
        m.vcpus,
        if m.vcpus == 1 { "" } else { "s" },
        grouped(m.decode_errors.unwrap_or(0)),
        grouped(m.lost_bytes),
    );
    if let (Some(recorded), Some(decoded)) = (m.instructions_recorded, m.instructions)
        && recorded != decoded
    {
        text += &format!("\nthe recorder counted {} instructions", grouped(recorded));
    }
    let number = |name| m.options.get(name).and_then(serde_json::Value::as_u64);
    let faults = match number("condition_faults") {
        None | Some(0) => String::new(),
        Some(n) => format!("; {} times it could not be told: a bad read or a division by zero", grouped(n)),
    };
    for (name, what) in [("snapshots", "snapshot"), ("windows", "window")] {
        match number(name) {
            Some(0) => return Ok(format!("the condition was never met, so nothing was kept{faults}")),
            Some(n) => text += &format!("\n{n} {what}{}{faults}", if n == 1 { "" } else { "s" }),
            None => {}
        }
    }
    let place = run.dir().display();
    let input =
        if run.dir() == Path::new(crate::DEFAULT_RUN) { String::new() } else { format!(" -i {place}") };
    text += &format!("\nrecorded in {place}; see: kprism report{input}");
    Ok(text)
}

/// Now, as RFC 3339 in UTC with seconds.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    rfc3339(seconds)
}

/// Civil date from days since 1970-01-01, by the 400-year cycle of the Gregorian calendar.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(rfc3339(4_102_444_800), "2100-01-01T00:00:00Z");
    }
}
