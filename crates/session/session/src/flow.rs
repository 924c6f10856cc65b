// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a recorded run to its tables.
//!
//! In: a run folder's streams and symbols. Out: a [`Profile`], kept as the run's tables, and the counts in
//! its manifest. Parts that are damaged or missing cost what they held and are named; the rest is decoded.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kprism_flow::clock::ClockConfig;
use kprism_flow::delta::Plan;
use kprism_flow::replay::{Inputs, Listener, replay};
use kprism_flow::window::Window;
use kprism_flow::{Options, Stream};
use kprism_image::Image;
use kprism_image::code::TaskSwitch;
use kprism_image::maps::{self, Dict};
use kprism_image::sideband;
use kprism_image::symbols::{Symbols, kallsyms};
use kprism_profile::Profile;
use kprism_profile::units::grouped;
use kprism_store::{Account, Clock, Instrument, Manifest, Mapped, Run, load_profile, save_profile};
use serde::Deserialize;

use crate::flow_account;
use crate::held;
use crate::progress::Progress;

/// The reason to have stopped that the observer writes first of all, for the case that it is killed.
const NOT_ENDED: &str = "the recorder has not ended properly";

/// The recorder's own counts: `streams/counts.json`.
#[derive(Debug, Default)]
pub struct Recorded {
    /// CPUs with a stream.
    vcpus: u32,
    /// Instructions that it put into the streams, if it counts them.
    pub instructions: Option<u64>,
    /// Bytes that it wrote of each stream, where the whole stream was kept.
    pub pt_bytes: Vec<Option<u64>>,
    /// Starts of blocks for which it found no reason.
    pub unexplained: Option<u64>,
    snapshots: Option<u64>,
    windows: Option<u64>,
    condition_faults: Option<u64>,
    clock: Option<Clock>,
    stopped: Option<String>,
}

#[derive(Deserialize)]
struct CountsFile {
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
    /// If only a part of the stream was kept.
    dropped_records: Option<u64>,
    pt_bytes: Option<u64>,
    unexplained: Option<u64>,
}

impl Recorded {
    /// Writes what it knows into the manifest. The recorder's own reason to have stopped goes before what others saw of it.
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
        match &self.stopped {
            Some(why) if manifest.stopped.is_none() || why != NOT_ENDED => {
                manifest.stopped = Some(why.clone())
            }
            _ => {}
        }
    }
}

/// Takes over what the recorder left, which may have been killed: its account, its sideband.
///
/// # Errors
/// None so far: what is missing is said in the manifest.
pub fn complete(run: &Run, manifest: &mut Manifest) -> Result<()> {
    match recorded(run) {
        Ok(recorded) => recorded.fill(manifest),
        Err(error) => {
            manifest.stopped.get_or_insert_with(|| format!("{error:#}"));
        }
    }
    // A full disk: readers merge it in memory.
    if let Err(error) = run.merge_sideband() {
        manifest.stopped.get_or_insert_with(|| error.to_string());
    }
    Ok(())
}

/// Reads the recorder's counts.
///
/// # Errors
/// The file is missing or is not what it should be.
fn recorded(run: &Run) -> Result<Recorded> {
    let path = run.counts();
    let text = read(&path).context("the recorder left no account of its work")?;
    let file: CountsFile = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    let sum = |sum: Option<u64>, n: Option<u64>| Some(sum?.saturating_add(n?));
    // Of a ring of packets, `pt_bytes` counts those too that made room for later ones.
    let whole =
        |c: &CpuCounts| c.snapshots.is_none() && c.dropped_records.is_none() && file.windows.is_none();
    Ok(Recorded {
        vcpus: u32::try_from(file.vcpus.len())?,
        instructions: file.vcpus.iter().map(|c| c.instructions).fold(Some(0), sum),
        pt_bytes: file.vcpus.iter().map(|c| c.pt_bytes.filter(|_| whole(c))).collect(),
        unexplained: file.vcpus.iter().map(|c| c.unexplained).fold(Some(0), sum),
        snapshots: file.vcpus.iter().filter_map(|c| c.snapshots).max(),
        windows: file.windows,
        condition_faults: file.condition_faults,
        clock: file.clock,
        stopped: file.stopped,
    })
}

/// Opens a run, its profile and its manifest, decoding it first if that was not done yet.
///
/// # Errors
/// No run there, or one that cannot be decoded.
pub fn open(path: &Path, progress: &Progress) -> Result<(Run, Profile, Manifest)> {
    let run = Run::open(path)?;
    if run.holds(Instrument::Durations) {
        let (profile, _) = crate::durations::open(&run, progress)?;
        let manifest = run.manifest()?;
        return Ok((run, profile, manifest));
    }
    if run.has_tables() {
        progress.step("reading the tables");
        match load_profile(&run) {
            Ok(profile) => {
                let manifest = run.manifest()?;
                return Ok((run, profile, manifest));
            }
            // Tables are made from the streams: damaged ones, or those of an older kprism, are made again.
            Err(error) if run.code_dict().exists() => {
                progress.say(&format!("kprism: note: {error}; decoding the streams again"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (profile, manifest) = decode(&run, progress)?;
    Ok((run, profile, manifest))
}

/// Option of the manifest that holds what the importer could not use, for the account.
pub const IMPORT_NOTES: &str = "import_notes";

/// A run's inputs in memory: all that decoding needs.
pub struct Loaded {
    /// As the recorder's own account completes it.
    pub manifest: Manifest,
    /// Packets and code of each CPU.
    streams: Vec<(Mapped, Image)>,
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
    /// How much of the recording is in `profile`.
    fn account(&self, run: &Run, profile: &Profile) -> Account {
        let imported = self.manifest.options.get(IMPORT_NOTES).and_then(serde_json::Value::as_array);
        let imported = imported.into_iter().flatten().filter_map(|note| note.as_str().map(str::to_owned));
        let notes: Vec<String> = imported.chain(self.notes.iter().cloned()).collect();
        let lengths: Vec<u64> = self.streams.iter().map(|(bytes, _)| bytes.len() as u64).collect();
        flow_account::account(recorded(run).ok().as_ref(), &lengths, profile, &notes)
    }

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
    if run.holds(Instrument::Durations) || !run.holds(Instrument::Flow) {
        return Err(held::missing(run, Instrument::Flow));
    }
    progress.step("reading the streams");
    let mut notes = Vec::new();
    complete(run, &mut manifest)?;
    let records = sideband_records(run, &mut notes)?;
    let streams = streams(run, manifest.vcpus, &records, &mut notes)?;
    progress.step("reading symbols");
    let root = run.root();
    let names = read_if_there(&run.kallsyms())?;
    let preempt_count = preempt_count(&names);
    let symbols =
        Symbols::load(&names, &records, Some(&root)).with_context(|| run.kallsyms().display().to_string())?;
    // Files that are not there are those that no one could keep: their functions have no names.
    let damaged = symbols.missing().iter().filter(|file| file.damaged);
    notes.extend(damaged.map(|file| format!("{}: its functions have no names", file.reason)));
    Ok(Loaded { manifest, streams, symbols, preempt_count, records, notes })
}

/// Decodes a run, saves its tables, and enters the counts into its manifest, which it returns too.
///
/// # Errors
/// The streams are not there, or the disk refuses.
pub fn decode(run: &Run, progress: &Progress) -> Result<(Profile, Manifest)> {
    let loaded = load(run, progress)?;
    let profile = profile(&loaded, Plan::default(), None, progress);
    let account = loaded.account(run, &profile);
    let Loaded { mut manifest, notes, .. } = loaded;
    manifest.instructions = Some(profile.totals.instructions());
    manifest.decode_errors = Some(profile.totals.errors());
    manifest.lost_bytes = profile.totals.lost_bytes();
    manifest.accounts.insert(Instrument::Flow, account);
    if !notes.is_empty() {
        manifest.options.insert("decode_notes".into(), notes.clone().into());
    }
    progress.step("writing the tables");
    // The profile is in hand: a disk that takes no more costs the next report another decode, not this one its result.
    let saved = save_profile(run, &profile).and_then(|()| run.write_manifest(&manifest));
    for note in &notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    if let Err(error) = saved {
        progress
            .say(&format!("kprism: note: {error}: the tables are not kept, the next report decodes again"));
        run.remove_tables();
    }
    Ok((profile, manifest))
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

/// Replays the whole run for a listener.
pub fn follow(loaded: &Loaded, listener: &mut impl Listener) {
    let streams = loaded.streams();
    let inputs = Inputs {
        streams: &streams,
        resolver: &loaded.symbols,
        sideband: &loaded.records,
        clock: loaded.clock(),
        stretch: 0,
    };
    replay(&inputs, listener);
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
) -> Result<Vec<(Mapped, Image)>> {
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
        let path = run.pt(cpu);
        let packets = Mapped::open(&path).with_context(|| path.display().to_string())?;
        streams.push((packets, image));
    }
    Ok(streams)
}

/// Where the sideband itself says that a CPU's tasks change.
pub fn turns(records: &[sideband::Record], cpu: u32) -> Vec<TaskSwitch> {
    let own = records.iter().filter_map(|record| match record {
        sideband::Record::Switch(s) if s.cpu == cpu => Some(TaskSwitch { offset: s.offset?, asid: s.asid }),
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

/// The sideband of a run; empty, with a note, where it is missing. Lines that are no record are left out, with a note.
///
/// # Errors
/// It is there and cannot be read.
pub fn sideband_records(run: &Run, notes: &mut Vec<String>) -> Result<Vec<sideband::Record>> {
    let path = run.sideband();
    let bytes = run.sideband_text()?;
    if bytes.is_empty() {
        notes.push(format!("{}: empty or missing: tasks and mappings are unknown", path.display()));
    }
    let (records, faults) = sideband::read(&bytes);
    if let Some(first) = faults.first {
        notes.push(format!("{}: {} lines left out, the first: {first}", path.display(), faults.lines));
    }
    Ok(records)
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
pub fn summary(run: &Run, m: &Manifest) -> String {
    let count = |n: u64, one: &str| format!("{} {one}{}", grouped(n), if n == 1 { "" } else { "s" });
    let mut text = format!(
        "{} on {}, {}, {} lost",
        count(m.instructions.unwrap_or(0), "instruction"),
        count(m.vcpus.into(), "CPU"),
        count(m.decode_errors.unwrap_or(0), "decode error"),
        count(m.lost_bytes, "byte"),
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
            Some(0) => return format!("the condition was never met, so nothing was kept{faults}"),
            Some(n) => text += &format!("\n{n} {what}{}{faults}", if n == 1 { "" } else { "s" }),
            None => {}
        }
    }
    let place = run.dir().display();
    let input = crate::input_option(run);
    text += &format!("\nrecorded in {place}; see: kprism report{input}");
    text
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
