// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flow by this processor's Intel PT: perf records, [`crate::import`] reads what it wrote.
//!
//! Everything that would make perf fail, or give a recording that cannot be decoded, is looked for first, so that the answer
//! names the remedy. An interrupt ends the recording ([`kprism_signals`]), SIGUSR2 takes a snapshot
//! ([`kprism_signals::catch_snapshot`]).
//!
//! | file | |
//! |---|---|
//! | [`mod@line`] | perf's command line, made of the settings; touches nothing |
//! | [`settings`] | what is asked for |
//! | [`pmu`] | what the processor's Intel PT can do, from sysfs |
//! | [`rights`] | what this user may trace |
//! | [`perf`] | perf as a child: its end, by itself or asked for |
//! | [`when`] | a condition in the kernel at which perf saves its ring |

pub mod line;
pub mod perf;
pub mod pmu;
pub mod rights;
pub mod settings;
pub mod when;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_profile::units;
use kprism_session::Progress;
use kprism_store::OptionKey;

use self::perf::Request;
use self::pmu::Pmu;
use self::rights::Rights;
pub use self::settings::{Filter, Rings, Settings};
use self::when::{Attached, Counted, Watch};
use crate::import::{self, Imported};

/// Checks, records, imports.
///
/// # Errors
/// This machine has no Intel PT or no perf, the user has no right to it, perf fails, or what it wrote cannot be read; then
/// its file is kept.
pub fn record(settings: &Settings, progress: &Progress) -> Result<Imported> {
    let program = ready(settings)?;
    let mut path = settings.output.clone().into_os_string();
    path.push(".perf.data");
    let data = PathBuf::from(path);
    if data.symlink_metadata().is_ok() {
        bail!("{}: is there already; remove it, or choose another RUN with -o", data.display());
    }
    let attached = settings.snapshot_when.as_ref().map(|spec| Attached::begin(spec, settings, progress));
    let attached = attached.transpose()?;
    let watch = attached.as_ref().map(Attached::watch);
    let kcore = kcore(settings, progress);
    let line = line::perf(settings, kcore, &data);
    let words: Vec<_> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    progress.step(&format!("perf {}", words.join(" ")));
    // perf and the command use the terminal from here on.
    progress.clear();
    if settings.command.is_empty() && settings.duration.is_none() {
        progress.say("recording; Ctrl-C ends it");
    }
    let asked = |perf: u32| match (kprism_signals::end_requested(), &watch) {
        (true, _) => Ok(Some(Request::Stop)),
        // Both are asked each time: neither forgets a request that the other had too.
        (_, Some(watch)) => {
            Ok((watch.held(perf)? | kprism_signals::snapshot_requested()).then_some(Request::Snapshot))
        }
        _ => Ok(kprism_signals::snapshot_requested().then_some(Request::Snapshot)),
    };
    let tick = if watch.is_some() { perf::SHORT_TICK } else { perf::TICK };
    let say_where = || {
        if data.exists() {
            progress.say(&format!("what perf wrote is in {}", data.display()));
        }
    };
    let ended = perf::run(&program, &line, settings.duration, tick, &asked).inspect_err(|_| say_where())?;
    let counted = watch.map(Watch::end);
    if let Some(counted) = &counted {
        progress.say(&when_line(counted));
    }
    let imported = import_and_note(settings, &data, &words, &ended, counted.as_ref(), progress);
    match &imported {
        Ok(imported) if !settings.keep_perf_data && !imported.empty => remove(&data, progress),
        _ => say_where(),
    }
    imported.with_context(|| format!("perf record {ended}; what it said is above"))
}

/// Finds perf, or says why nothing can be recorded.
fn ready(settings: &Settings) -> Result<PathBuf> {
    let Some(pmu) = Pmu::of_this_machine() else {
        bail!(
            "no Intel PT here: {} is missing (another processor, a virtual machine, or a kernel without it)\n\
             kprism lab run -- CMD makes the same packets in a guest, on any x86-64 machine;\n\
             kprism import reads what perf recorded on another one",
            pmu::PLACE
        );
    };
    let Some(perf) = line::find_perf() else {
        bail!("perf is not installed: install linux-perf (Debian), linux-tools (Ubuntu) or perf (Fedora)");
    };
    if let Some(why) = pmu.refusal(settings) {
        bail!("{why}");
    }
    if let Some(why) = Rights::here(&perf).refusal(settings.all_cpus, settings.in_kernel()) {
        bail!("{why}");
    }
    for file in settings.filter.iter().filter_map(|filter| filter.file.as_ref()) {
        File::open(file).with_context(|| format!("--filter: {}", file.display()))?;
    }
    if let Some(pid) = settings.pid.filter(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
        bail!("no process {pid}");
    }
    Ok(perf)
}

/// Whether perf is to copy the kernel's code; without it, what ran in the kernel cannot be decoded.
fn kcore(settings: &Settings, progress: &Progress) -> bool {
    if !settings.in_kernel() {
        return false;
    }
    match File::open("/proc/kcore") {
        Ok(_) => true,
        Err(error) => {
            progress.say(&format!(
                "note: /proc/kcore: {error}: the kernel's code cannot be copied, and not be decoded; run as root, \
                 or use --keep-perf-data and kprism import --vmlinux"
            ));
            false
        }
    }
}

/// The sum of a condition's hits, for the user.
fn when_line(counted: &Counted) -> String {
    let Counted { held, hits, failed, requests, longest_delay_ns } = counted;
    let failed = match failed {
        0 => String::new(),
        n => format!("; {n} times it could not be computed"),
    };
    let delay = match requests {
        0 => String::new(),
        _ => format!(", at most {} after a hit", units::duration(*longest_delay_ns)),
    };
    format!(
        "the condition held {held} times in {hits} hits{failed}; perf was asked for {requests} snapshots{delay}"
    )
}

/// Imports perf's file, and notes in the run who recorded it.
fn import_and_note(
    settings: &Settings,
    data: &Path,
    words: &[String],
    ended: &perf::Ended,
    counted: Option<&Counted>,
    progress: &Progress,
) -> Result<Imported> {
    let from = import::Settings { output: settings.output.clone(), ..import::Settings::new(data.to_owned()) };
    let imported = import::import(&from, import::look(data)?, progress)?;
    let run = &imported.run;
    let mut manifest = run.own_manifest()?;
    manifest.command.clone_from(&settings.command);
    manifest.exit_code = ended.code.filter(|_| !settings.command.is_empty());
    manifest.set(OptionKey::Perf, words);
    if let (Some(when), Some(counted)) = (&settings.snapshot_when, counted) {
        manifest.set(OptionKey::SnapshotWhen, when.as_str());
        manifest.set(OptionKey::SnapshotHits, serde_json::to_value(counted)?);
    }
    run.write_manifest(&manifest)?;
    if let Some(code) = manifest.exit_code.filter(|&code| code != 0) {
        progress.say(&format!("note: the command ended with {code}"));
    }
    Ok(imported)
}

fn remove(data: &Path, progress: &Progress) {
    let removed = if data.is_dir() { std::fs::remove_dir_all(data) } else { std::fs::remove_file(data) };
    if let Err(error) = removed {
        progress.error(&format!("kprism: {}: {error}", data.display()));
    }
}
