// SPDX-License-Identifier: MIT OR Apache-2.0
//! Step 2: all that a decode needs, in memory. In: a run folder's packets, code, symbols and sideband. Out: [`Loaded`]. A part
//! that is damaged or missing is named, and the rest is loaded.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use anyhow::{Context, Result, ensure};
use kprism_flow::Stream;
use kprism_flow::clock::{ClockConfig, PerfTime};
use kprism_image::maps::{self, Dict, MapRecord};
use kprism_image::sideband;
use kprism_image::symbols::kallsyms::{self, Preemption};
use kprism_image::symbols::{Checked, Symbols, called};
use kprism_image::{Bytes, Image, is_kernel};
use kprism_profile::units::counted;
use kprism_store::{Clock, Instrument, Manifest, Run, RunKind};

use super::not_understood;
use super::recorded::{Recorded, complete};
use crate::debug_folders::debug_folders;
use crate::files::{read, read_if_there};
use crate::held;
use crate::progress::Progress;

/// A run's inputs in memory: all that decoding needs.
pub struct Loaded {
    /// As the recorder's own account completes it.
    pub manifest: Manifest,
    /// The recorder's own counts, if it left them.
    pub(super) recorded: Option<Recorded>,
    /// Packets and code of each CPU.
    pub(super) cpus: Vec<(Bytes, Image)>,
    /// Functions.
    pub symbols: Symbols,
    /// The kernel's preemption count.
    pub preemption: Preemption,
    /// The sideband.
    pub records: Vec<sideband::Record>,
    /// Remarks on what was damaged or missing.
    pub notes: Vec<String>,
    /// Mappings whose code is not that of the file at their path, or was not compared with it.
    pub(super) checked: Checked,
}

impl Loaded {
    /// The length of each stream, bytes.
    pub(super) fn lengths(&self) -> Vec<u64> {
        self.cpus.iter().map(|(bytes, _)| bytes.len() as u64).collect()
    }

    /// The streams, as the decoder wants them.
    pub fn streams(&self) -> Vec<Stream<'_>> {
        (0u16..).zip(&self.cpus).map(|(cpu, (bytes, image))| Stream { cpu, bytes, image }).collect()
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
    load_as(run, complete, progress)
}

/// The same; `complete` enters what the recorder left into the manifest.
pub(super) fn load_as(
    run: &Run,
    complete: impl Fn(&Run, &mut Manifest) -> Option<Recorded>,
    progress: &Progress,
) -> Result<Loaded> {
    let mut manifest = run.manifest()?;
    if run.holds(Instrument::Durations) || !run.holds(Instrument::Flow) {
        return Err(held::missing(run, Instrument::Flow));
    }
    progress.step("reading the streams");
    let mut notes = Vec::new();
    let recorded = complete(run, &mut manifest);
    let records = sideband_records(run, &mut notes)?;
    let dict = code(run, &mut notes)?;
    let nameless = manifest.kind == RunKind::Machine && manifest.kernel.is_none();
    let (mut pieces, mut targets) = (Pieces::default(), BTreeSet::new());
    let cpus = streams_of(run, manifest.vcpus, &records, &dict, &mut notes, |map| {
        pieces.add(map);
        if nameless {
            targets.extend(called::targets(&dict, map));
        }
    })?;
    progress.step("reading symbols");
    let root = run.root();
    let names = read_if_there(&run.kallsyms())?;
    let preemption = kallsyms::preemption(&names);
    let mut symbols = Symbols::load_with(&names, &records, Some(&root), &debug_folders(run))
        .with_context(|| run.kallsyms().display().to_string())?;
    let ran = pieces.each_once();
    let checked = symbols.check(ran.into_iter().filter_map(|(asid, va, id)| Some((asid, va, dict.get(id)?))));
    let symbols = match (manifest.kind, &manifest.kernel) {
        (RunKind::Machine, None) => symbols.with_called(&targets),
        // Programs may have been there before the recording began.
        (RunKind::Machine, Some(_)) => symbols.only_certain(),
        _ => symbols,
    };
    // Missing files are no note: the recorder could not copy them, and has said so.
    let damaged = symbols.missing().iter().filter(|file| file.damaged);
    notes.extend(damaged.map(|file| format!("{}: its functions have no names", file.reason)));
    notes.extend(symbols.debug_not_used().iter().map(|reason| format!("{reason}: its names are not known")));
    notes.extend(not_understood(&manifest));
    Ok(Loaded { manifest, recorded, cpus, symbols, preemption, records, notes, checked })
}

/// The code of programs that was recorded as it ran, and not taken from their files: address space, address, and number in the
/// dictionary. Several CPUs run the same code, and their maps are not kept.
#[derive(Default)]
struct Pieces {
    all: Vec<(u64, u64, u32)>,
    /// Length of the list when each was in it once.
    once: usize,
}

impl Pieces {
    /// Adds those of a CPU.
    fn add(&mut self, map: &[MapRecord]) {
        // Others have no fragment: their number is one of files' parts, or of bytes.
        let is_recorded = |r: &&MapRecord| {
            !is_kernel(r.va) && r.flags & (maps::FILE | maps::GONE) == 0 && r.is_understood()
        };
        self.all.extend(map.iter().filter(is_recorded).map(|r| (r.asid, r.va, r.id)));
        if self.all.len() > 2 * self.once {
            self.sort();
        }
    }

    fn sort(&mut self) {
        self.all.sort_unstable();
        self.all.dedup();
        self.once = self.all.len();
    }

    /// All pieces, in order.
    fn each_once(mut self) -> Vec<(u64, u64, u32)> {
        self.sort();
        self.all
    }
}

/// The code of a run: its dictionary, and the files that it keeps. What is damaged or missing goes to `notes`.
///
/// # Errors
/// `code.dict` cannot be read.
pub fn code(run: &Run, notes: &mut Vec<String>) -> Result<Dict> {
    let path = run.code_dict();
    let bytes = Bytes::open(&path).with_context(|| path.display().to_string())?;
    let (mut dict, fault) = Dict::parse(bytes);
    notes.extend(fault.map(|f| f.to_string()));
    notes.extend(dict.open_files(&read_if_there(&run.code_files())?, &run.root()));
    Ok(dict)
}

/// Every CPU's packets, with the code they ran over. A file that is missing or damaged is taken as far as it goes, and goes to
/// `notes`.
///
/// # Errors
/// `code.dict`, or the packets of all CPUs, are missing; a file cannot be read; or the manifest has an impossible number of CPUs.
pub fn read_streams(
    run: &Run,
    vcpus: u32,
    records: &[sideband::Record],
    notes: &mut Vec<String>,
) -> Result<Vec<(Bytes, Image)>> {
    let dict = code(run, notes)?;
    streams_of(run, vcpus, records, &dict, notes, |_| ())
}

/// The same with the run's code, which `dict` has; `seen` gets the map of each CPU, for what else is wanted of it.
fn streams_of(
    run: &Run,
    vcpus: u32,
    records: &[sideband::Record],
    dict: &Dict,
    notes: &mut Vec<String>,
    mut seen: impl FnMut(&[MapRecord]),
) -> Result<Vec<(Bytes, Image)>> {
    ensure!(
        vcpus <= u32::from(u16::MAX),
        "{}: {vcpus} CPUs; expected {} at most",
        run.manifest_path().display(),
        u16::MAX
    );
    let any = (0..vcpus).any(|cpu| run.pt(cpu).exists());
    let (mut streams, mut missing) = (Vec::new(), Missing::default());
    for cpu in 0..vcpus {
        let map_path = run.code_map(cpu);
        let (map, fault) = match map_path.exists() {
            true => maps::parse_map(&read(&map_path)?),
            false => {
                missing.add(format!("{}: missing: the code of this CPU is not known", map_path.display()));
                Default::default()
            }
        };
        notes.extend(fault.map(|f| format!("{}: {f}", map_path.display())));
        let (mut image, unknown) = maps::image(dict, &map);
        seen(&map);
        image.set_task_switches(sideband::task_switches(records, cpu));
        if unknown > 0 {
            notes.push(format!(
                "{}: {unknown} records name no code of code.dict or code.files, or have flags that are not known",
                map_path.display()
            ));
        }
        let path = run.pt(cpu);
        let packets = match Bytes::open_stream(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && any => {
                missing.add(format!("{}: missing: nothing of this CPU is decoded", path.display()));
                Bytes::default()
            }
            other => other.with_context(|| path.display().to_string())?,
        };
        streams.push((packets, image));
    }
    notes.extend(missing.notes());
    Ok(streams)
}

/// Missing files, of which the first are named: a manifest from elsewhere may have any number of CPUs.
#[derive(Default)]
struct Missing {
    named: Vec<String>,
    others: u64,
}

impl Missing {
    fn add(&mut self, note: String) {
        match self.named.len() < 16 {
            true => self.named.push(note),
            false => self.others += 1,
        }
    }

    fn notes(self) -> impl Iterator<Item = String> {
        let others = (self.others > 0).then(|| format!("{} more files of CPUs are missing", self.others));
        self.named.into_iter().chain(others)
    }
}

/// The clock as the decoder wants it.
pub fn clock_config(clock: &Clock) -> ClockConfig {
    ClockConfig {
        tsc_hz: clock.tsc_hz,
        perf: clock.perf.and_then(|p| PerfTime::new(p.mult, p.shift.into(), p.zero as u64)),
        art_num: clock.art_num,
        art_den: clock.art_den,
        mtc_freq: clock.mtc_freq,
        nom_ratio: clock.nom_ratio,
        cyc_threshold: clock.cyc_threshold,
    }
}

/// The sideband of a run; empty, with a note, where it is missing. That of a machine of the user's may be empty: its kernel need not
/// be known. Lines that are no record are left out, with a note.
///
/// # Errors
/// It is there and cannot be read.
pub fn sideband_records(run: &Run, notes: &mut Vec<String>) -> Result<Vec<sideband::Record>> {
    let path = run.sideband();
    let bytes = run.sideband_text()?;
    if bytes.is_empty() && run.manifest()?.kind != RunKind::Machine {
        notes.push(format!("{}: empty or missing: tasks and mappings are unknown", path.display()));
    }
    let (records, faults) = sideband::read(&bytes);
    if let Some(first) = faults.first {
        let lines = counted(faults.lines, "lines");
        notes.push(format!("{}: {lines} left out, the first: {first}", path.display()));
    }
    let unknown = records.iter().filter(|record| matches!(record, sideband::Record::Other)).count();
    if unknown > 0 {
        let records = counted(unknown as u64, "records");
        notes.push(format!("{}: {records} of kinds that this version does not know", path.display()));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pieces_of_the_dictionary_are_compared_each_once() {
        let piece = |va, id, flags| MapRecord { offset: 0, asid: 0x1000, va, id, flags };
        let mut pieces = Pieces::default();
        // What is not known has a number of bytes where others have that of a fragment.
        let unit = 12 << 8;
        pieces.add(&[piece(0x5000, 1, 0), piece(0x5000, 0, maps::GONE), piece(0x6000, 0, maps::FILE)]);
        pieces.add(&[piece(0x4000, 0, maps::CONFLICT), piece(0x5000, 1, 0), piece(u64::MAX, 2, 0)]);
        pieces.add(&[piece(0x7000, 0, maps::GONE | maps::CONFLICT | unit)]);
        assert_eq!(pieces.each_once(), [(0x1000, 0x4000, 0), (0x1000, 0x5000, 1)]);
    }
}
