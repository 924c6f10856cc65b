// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same command recorded over and over, each time with other packets. The lab's default pace makes every run the same
//! instructions, which is checked; so only the cost of the packets differs.
//!
//! Input: [`Settings`]. Output: [`Sweep`]s of one packet setting each.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kprism_flow::cost::{Cost, Setting, Sweep};
use kprism_lab::{Ended, Job, Options, Pace, Prepared};
use kprism_profile::units::{duration, grouped};
use kprism_session::Progress;
use kprism_session::cost::measure;
use kprism_store::Account;

use crate::{guest, notes};

/// Settings of the recordings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The user's command, and what it finds around it.
    pub job: Job,
    /// The guest.
    pub guest: Options,
    /// The flow of user code only is recorded.
    pub user_only: bool,
    /// The folder in which the recordings stay, as runs. None: they are removed.
    pub keep: Option<PathBuf>,
    /// The settings to vary, and their values; `None` for off.
    pub plan: Vec<(Setting, Vec<Option<u64>>)>,
}

/// All values of a setting that a processor could have: CYC thresholds in cycles, MTC periods as powers of two, PSB periods
/// in bytes; with `None` for off, but for PSB.
pub fn all_values(setting: Setting) -> Vec<Option<u64>> {
    match setting {
        Setting::Cyc => [Some(0)].into_iter().chain((0..=14).map(|n| Some(1 << n))).chain([None]).collect(),
        Setting::Mtc => (0..=15).map(Some).chain([None]).collect(),
        Setting::Psb => (0..=15).map(|n| Some(2048 << n)).collect(),
    }
}

/// PSB period where it is not varied, bytes: what perf asks for.
const PSB: u64 = 16 << 10;

/// One recording's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Packets {
    cyc: Option<u64>,
    mtc: Option<u64>,
    psb: u64,
}

impl Packets {
    /// The packets with which one setting has this value. CYC and MTC are off where they are not varied.
    fn new(setting: Setting, value: Option<u64>) -> Self {
        let none = Packets { cyc: None, mtc: None, psb: PSB };
        match setting {
            Setting::Cyc => Packets { cyc: value, ..none },
            Setting::Mtc => Packets { mtc: value, ..none },
            Setting::Psb => Packets { psb: value.unwrap_or(PSB), ..none },
        }
    }

    fn options(self, user_only: bool) -> guest::Packets {
        let word = |n: Option<u64>| Some(value_text(n));
        guest::Packets {
            psb: Some(self.psb),
            mtc: word(self.mtc),
            cyc: word(self.cyc),
            user_only,
            retc: None,
        }
    }

    /// The name of the recording, and of its folder if it is kept.
    fn name(self) -> String {
        format!("cyc-{}-mtc-{}-psb-{}", value_text(self.cyc), value_text(self.mtc), self.psb)
    }
}

/// A value of a setting, as text.
fn value_text(value: Option<u64>) -> String {
    value.map_or_else(|| "off".to_owned(), |n| n.to_string())
}

/// Every recording once: sweeps have some in common.
fn distinct(settings: &Settings) -> Vec<Packets> {
    let mut all = Vec::new();
    for (setting, values) in &settings.plan {
        for &value in values {
            let packets = Packets::new(*setting, value);
            if !all.contains(&packets) {
                all.push(packets);
            }
        }
    }
    all
}

/// The recordings of a plan.
#[derive(Debug)]
pub struct Recorded {
    /// The measurements.
    pub sweeps: Vec<Sweep>,
    /// Release of the guest's kernel.
    pub kernel: String,
    /// Number of recordings.
    pub recordings: usize,
    /// The account of each recording, by its name.
    pub accounts: Vec<(String, Account)>,
    /// Notes on the recordings: warm-up turns that failed, faults that the guest's kernel reported.
    pub notes: Vec<String>,
}

/// Records the command with each setting, and measures each recording. `None` if an interrupt ended it
/// ([`kprism_signals`]).
///
/// # Errors
/// The guest cannot be booted, the command failed, or two recordings are not of the same instructions.
pub fn record(settings: &Settings, progress: &Progress) -> Result<Option<Recorded>> {
    ensure!(
        settings.guest.pace == Pace::Exact,
        "--fast: no run is like another, so packets cannot be compared"
    );
    ensure!(
        settings.keep.is_some() || !settings.job.keeps_disks,
        "--keep-disks: the disks are kept in the recordings, which are removed: add --keep DIR"
    );
    kprism_lab::find_observer()?;
    let prepared = guest::prepare(&settings.guest, progress)?;
    let all = distinct(settings);
    let folder = Folder::new(settings.keep.as_deref())?;
    let (mut costs, mut accounts): (HashMap<Packets, Cost>, _) = (HashMap::new(), Vec::new());
    let mut notes: Vec<(String, Vec<String>)> = Vec::new();
    for (i, &packets) in all.iter().enumerate() {
        progress.step(&format!("recording {} of {}: {}", i + 1, all.len(), packets.name()));
        let place = folder.path.join(packets.name());
        let recorded = record_one(settings, &prepared, packets, place, progress)?;
        let Some((cost, account, notes_on_it)) = recorded else { return Ok(None) };
        notes.push((packets.name(), notes_on_it));
        accounts.push((packets.name(), account));
        if let Some(first) = costs.get(&all[0])
            && (first.instructions, first.duration_ns) != (cost.instructions, cost.duration_ns)
        {
            bail!(
                "{} recorded {} instructions in {}, {} recorded {} in {}: they cannot be compared",
                all[0].name(),
                grouped(first.instructions),
                duration(first.duration_ns),
                packets.name(),
                grouped(cost.instructions),
                duration(cost.duration_ns)
            );
        }
        costs.insert(packets, cost);
    }
    progress.clear();
    let step = |setting: Setting, value: Option<u64>| {
        let cost = costs[&Packets::new(setting, value)].clone();
        (value, Cost { name: value_text(value), ..cost })
    };
    let sweep = |(setting, values): &(Setting, Vec<Option<u64>>)| Sweep {
        setting: *setting,
        steps: values.iter().map(|value| step(*setting, *value)).collect(),
    };
    Ok(Some(Recorded {
        sweeps: settings.plan.iter().map(sweep).collect(),
        kernel: prepared.kernel().release.clone(),
        recordings: all.len(),
        accounts,
        notes: notes::of_many(notes.iter().map(|(name, notes)| (name.as_str(), notes.as_slice()))),
    }))
}

fn record_one(
    settings: &Settings,
    prepared: &Prepared,
    packets: Packets,
    place: PathBuf,
    progress: &Progress,
) -> Result<Option<(Cost, Account, Vec<String>)>> {
    let one = guest::Settings {
        packets: packets.options(settings.user_only),
        ..guest::Settings::new(place, settings.guest.clone(), settings.job.clone())
    };
    let (run, ran) = guest::record(&one, &one.job, prepared, &mut |_| {})?;
    match &ran.ended {
        Ended::Interrupted => return Ok(None),
        Ended::Normal if ran.exit_code == Some(0) => {}
        Ended::Normal => {
            guest::complain(&ran, progress);
            let said = fs::read_to_string(run.stderr()).unwrap_or_default();
            bail!("the command failed with exit code {}\n{said}", ran.exit_code.unwrap_or_default());
        }
        _ => {
            guest::complain(&ran, progress);
            bail!("{}: the command did not come to its end", packets.name());
        }
    }
    let (cost, account) = measure(&run, packets.name())?;
    if settings.keep.is_none() {
        fs::remove_dir_all(&one.output).with_context(|| one.output.display().to_string())?;
    }
    Ok(Some((cost, account, notes::of(&ran))))
}

/// The folder of the recordings; removed on drop unless they are to be kept.
struct Folder {
    path: PathBuf,
    temporary: bool,
}

impl Folder {
    fn new(keep: Option<&Path>) -> Result<Self> {
        let path = match keep {
            Some(folder) => folder.to_owned(),
            // A name that nobody can have taken before.
            None => tempfile::Builder::new().prefix("kprism-flow-cost.").tempdir()?.keep(),
        };
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, temporary: keep.is_none() })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            // What is left of it is in the way of nobody.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
