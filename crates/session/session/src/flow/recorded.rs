// SPDX-License-Identifier: MIT OR Apache-2.0
//! Step 1: what the recorder left beside the streams. In: `streams/counts.json`, the sideband of each CPU. Out: the
//! recorder's own counts, entered into the manifest; one sideband.

use anyhow::{Context, Result};
use kprism_store::{Clock, Manifest, OptionKey, Run};
use serde::Deserialize;

use super::processor::{Cpu, processor};
use crate::files::read;

/// The first value of `stopped` that the observer writes. It stays if the observer is killed.
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
    /// The kernel's modules that came while it recorded, if it saw them.
    pub modules: Option<ModuleCounts>,
    snapshots: Option<u64>,
    /// Those that lack the begin of what triggered them, if that is known.
    short_snapshots: Option<u64>,
    windows: Option<u64>,
    condition_faults: Option<u64>,
    condition_forgotten: Option<u64>,
    clock: Option<Clock>,
    cpu: Option<Cpu>,
    filter: Vec<(u64, u64)>,
    stopped: Option<String>,
}

/// Counts of modules whose functions the recorder was to name.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ModuleCounts {
    /// Modules whose table of symbols could not be read.
    pub unnamed: u64,
    /// Functions beyond the limit of a module.
    pub cut_functions: u64,
}

#[derive(Deserialize)]
struct CountsFile {
    vcpus: Vec<CpuCounts>,
    modules: Option<ModuleCounts>,
    /// If only windows were kept: how many.
    windows: Option<u64>,
    /// Number of times that the condition could not be evaluated.
    condition_faults: Option<u64>,
    /// Number of calls and intervals that it did not follow to their end, because too many were open.
    condition_forgotten: Option<u64>,
    clock: Option<Clock>,
    /// The processor, of a recording of hardware.
    cpu: Option<Cpu>,
    /// First and last address of the ranges of its filter.
    #[serde(default)]
    filter: Vec<(u64, u64)>,
    stopped: Option<String>,
}

#[derive(Deserialize)]
struct CpuCounts {
    instructions: Option<u64>,
    /// If only snapshots were kept: how many.
    snapshots: Option<u64>,
    /// Those that lack the begin of what triggered them on this CPU.
    short_snapshots: Option<u64>,
    /// If only a part of the stream was kept.
    dropped_records: Option<u64>,
    pt_bytes: Option<u64>,
    unexplained: Option<u64>,
}

impl Recorded {
    /// True if it says how long the streams were.
    pub(super) fn knows_lengths(&self) -> bool {
        self.pt_bytes.iter().any(Option::is_some)
    }

    /// Writes what it knows into the manifest. The recorder's own reason to have stopped goes before what others saw of it.
    fn fill(&self, manifest: &mut Manifest) {
        manifest.vcpus = self.vcpus;
        manifest.instructions_recorded = self.instructions;
        for (option, count) in [
            (OptionKey::Snapshots, self.snapshots),
            (OptionKey::ShortSnapshots, self.short_snapshots),
            (OptionKey::Windows, self.windows),
            (OptionKey::ConditionFaults, self.condition_faults),
            (OptionKey::ConditionForgotten, self.condition_forgotten),
        ] {
            if let Some(count) = count {
                manifest.set(option, count);
            }
        }
        if let Some(clock) = &self.clock {
            manifest.clock = clock.clone();
        }
        if let Some(cpu) = &self.cpu {
            manifest.processor = Some(processor(cpu, &self.filter));
        }
        match &self.stopped {
            Some(why) if manifest.stopped.is_none() || why != NOT_ENDED => {
                manifest.stopped = Some(why.clone())
            }
            _ => {}
        }
    }
}

/// Enters into the manifest what the recorder left: its account and its sideband, or that they are missing. Returns the recorder's counts if they are there. It is done
/// when a recording ends, and again, to the same effect, when a run is loaded: a recorder that was killed did not do it.
pub fn complete(run: &Run, manifest: &mut Manifest) -> Option<Recorded> {
    let recorded = recorded(run).inspect(|recorded| recorded.fill(manifest));
    if let Err(error) = &recorded {
        manifest.stopped.get_or_insert_with(|| format!("{error:#}"));
    }
    // A full disk: readers merge it in memory.
    if let Err(error) = run.merge_sideband() {
        manifest.stopped.get_or_insert_with(|| error.to_string());
    }
    recorded.ok()
}

/// The same of a recording that goes on, in whose folder nothing may be changed.
pub(super) fn peek(run: &Run, manifest: &mut Manifest) -> Option<Recorded> {
    recorded(run).inspect(|recorded| recorded.fill(manifest)).ok()
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
    // With a ring of packets, `pt_bytes` also counts packets that later ones have overwritten.
    let whole =
        |c: &CpuCounts| c.snapshots.is_none() && c.dropped_records.is_none() && file.windows.is_none();
    Ok(Recorded {
        vcpus: u32::try_from(file.vcpus.len())?,
        instructions: file.vcpus.iter().map(|c| c.instructions).fold(Some(0), sum),
        pt_bytes: file.vcpus.iter().map(|c| c.pt_bytes.filter(|_| whole(c))).collect(),
        unexplained: file.vcpus.iter().map(|c| c.unexplained).fold(Some(0), sum),
        modules: file.modules,
        snapshots: file.vcpus.iter().filter_map(|c| c.snapshots).max(),
        // Each snapshot was triggered on one CPU.
        short_snapshots: file.vcpus.iter().map(|c| c.short_snapshots).reduce(sum).flatten(),
        windows: file.windows,
        condition_faults: file.condition_faults,
        condition_forgotten: file.condition_forgotten,
        clock: file.clock,
        cpu: file.cpu,
        filter: file.filter,
        stopped: file.stopped,
    })
}
