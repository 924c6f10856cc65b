// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records probes in a guest: it gets the program `kprism-recorder` and the compiled probes; the run is copied out.
//! [`record`] is the host's end, [`recorder`] the guest's.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kprism_lab::{Ended, Job, Outcome, Pace, Prepared, Report, Share};
use kprism_probe::plan::file::Compiled;
use kprism_session::Progress;
use kprism_store::{OptionKey, Run};
use serde::{Deserialize, Serialize};

use super::{ForeignKernel, Live, Recorded, Settings, load};
use crate::condition::Module;
use crate::guest::{self, Guest, Observe};

/// The program, the probes and the run in the guest.
const GUEST: [&str; 3] = ["/kprism/recorder", "/kprism/probes", "/kprism/run"];

/// The settings that the recorder in the guest is told, as JSON; see [`Settings`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    everybody: bool,
    stop_after: Option<u32>,
    last: Option<u32>,
    keys: u32,
    interval: Option<Duration>,
    beside_flow: bool,
    buffer_kib: u64,
}

impl Told {
    fn of(settings: &Settings) -> Self {
        let Settings { everybody, stop_after, last, keys, interval, beside_flow, buffer_kib, .. } = *settings;
        Told { everybody, stop_after, last, keys, interval, beside_flow, buffer_kib }
    }

    fn settings(self, run: &Path, command: Vec<String>) -> Settings {
        let Told { everybody, stop_after, last, keys, interval, beside_flow, buffer_kib } = self;
        Settings {
            output: run.to_owned(),
            command,
            everybody,
            stop_after,
            last,
            keys,
            interval,
            beside_flow,
            buffer_kib,
            ..Settings::default()
        }
    }
}

/// Records in this guest the probes of a file that [`record`] made, with the settings that it told, into the folder `run`. The
/// counts so far go to `live`, as often as was asked for.
///
/// # Errors
/// As of [`super::record()`].
pub fn recorder(
    told: &str,
    probes: &Path,
    run: &Path,
    command: Vec<String>,
    progress: &Progress,
    live: Live<'_>,
) -> Result<Recorded> {
    let told: Told = serde_json::from_str(told).context("the settings")?;
    super::record(load(probes, None, progress)?, &told.settings(run, command), progress, live)
}

/// Describes the guest's kernel, as probes are compiled here and not there: its types, and the formats of these
/// events, which a guest is asked for. An event that it has not is left out.
///
/// # Errors
/// The guest cannot be asked.
pub fn describe(prepared: &Prepared, events: &[(String, String)]) -> Result<Described> {
    let place = tempfile::tempdir().context("a folder for the kernel's types")?;
    let folder = place.path();
    let kernel = ForeignKernel {
        btf: folder.join("btf/vmlinux"),
        events: folder.join("events"),
        modules: Module::all(prepared),
        names: prepared.snapshot_folder().join("kallsyms"),
    };
    let types = prepared.snapshot_folder().join("btf");
    // A kernel without has an empty file.
    ensure!(
        fs::metadata(&types).is_ok_and(|file| file.len() > 0),
        "the guest's kernel has no BTF (CONFIG_DEBUG_INFO_BTF), which says its types: give its vmlinux with debug information, -k VMLINUX"
    );
    let copied = fs::create_dir_all(folder.join("btf")).and_then(|()| fs::copy(&types, &kernel.btf));
    copied.with_context(|| types.display().to_string())?;
    if !events.is_empty() {
        let said = formats(prepared, events, &folder.join("asked"))?;
        for (event, format) in split(events, &said) {
            let (system, name) = event;
            let place = kernel.events.join(system).join(name);
            let written = fs::create_dir_all(&place).and_then(|()| fs::write(place.join("format"), format));
            written.with_context(|| place.display().to_string())?;
        }
    }
    Ok(Described { kernel, _folder: place })
}

/// The kernel's folder of event formats.
const EVENTS: &str = "/sys/kernel/tracing/events";

fn format_file((system, name): &(String, String)) -> String {
    format!("{EVENTS}/{system}/{name}/format")
}

/// Has one guest print the formats of these events, each line after its file's name and a colon.
fn formats(prepared: &Prepared, events: &[(String, String)], folder: &Path) -> Result<String> {
    // With a second file, grep names them.
    let words = ["grep", "", "/dev/null"].map(str::to_owned);
    let job = Job::new(words.into_iter().chain(events.iter().map(format_file)));
    let mut said = Vec::new();
    let asked = kprism_lab::run(prepared, &job, folder, None, &mut |progress| {
        if let kprism_lab::Progress::Stdout(bytes) = progress {
            said.extend_from_slice(bytes);
        }
    })?;
    match (&asked.ended, asked.exit_code) {
        // 1: no line at all. 2: a file is not there.
        (Ended::Normal, Some(0..=2)) => Ok(String::from_utf8_lossy(&said).into_owned()),
        (ended, code) => bail!("the guest does not tell the formats of events: {ended:?}, {code:?}"),
    }
}

/// The formats in what [`formats`] gave; events that the kernel has not are left out.
fn split<'a>(
    events: &'a [(String, String)],
    said: &'a str,
) -> impl Iterator<Item = (&'a (String, String), String)> {
    events.iter().filter_map(move |event| {
        let before = format!("{}:", format_file(event));
        let lines = said.lines().filter_map(|line| line.strip_prefix(&before));
        let format: String = lines.flat_map(|line| [line, "\n"]).collect();
        (!format.is_empty()).then_some((event, format))
    })
}

/// A guest's kernel as [`describe`] describes it. The files are removed on drop.
#[derive(Debug)]
pub struct Described {
    /// The files.
    pub kernel: ForeignKernel,
    _folder: tempfile::TempDir,
}

/// Boots the guest, or finds its snapshot. Refuses before that what no probe can be placed in a flow of.
///
/// # Errors
/// Says why, or the guest cannot be booted.
pub fn prepare(guest: &Guest, beside_flow: bool, progress: &Progress) -> Result<Prepared> {
    if beside_flow {
        ensure!(
            guest.options.pace != Pace::Fast,
            "--flow beside --fast: at the host's speed the guest's clock is not that of the flow, and a record could not be placed \
             in it; leave --fast out"
        );
        kprism_lab::find_observer()?;
    }
    guest::prepare(&guest.options, progress)
}

/// Attaches the probes in a guest from [`prepare`], and runs [`Guest::job`] there. Notes of the recorder go to `progress`, output
/// of the command to `report`.
///
/// # Errors
/// The run cannot be written. What the recorder in the guest refused is in the guest's
/// standard error.
pub fn record(
    program: &Compiled,
    settings: &Settings,
    (guest, prepared): (&Guest, &Prepared),
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    let recorder = kprism_lab::find_recorder()?;
    let folder = tempfile::tempdir().context("a folder for the probes")?;
    let file = folder.path().join("probes");
    fs::write(&file, program.bytes()?).with_context(|| file.display().to_string())?;
    let mut job = guest.job.clone();
    let [program, probes, run] = GUEST.map(str::to_owned);
    let told = serde_json::to_string(&Told::of(settings)).context("the settings")?;
    job.shares.push(Share { host: recorder, guest: program.clone() });
    job.shares.push(Share { host: file, guest: probes.clone() });
    job.argv = [program, "probe".to_owned(), run.clone(), told, probes].to_vec();
    job.argv.extend(guest.job.argv.iter().cloned());
    job.collect = Some(run);
    let mut recording = guest.settings(settings.output.clone());
    if settings.beside_flow {
        guest::say_gaps(prepared, progress);
        recording.observe = Observe::Everything;
        job.marked_by_command = true;
    }
    let (run, ran) = guest::record(&recording, &job, prepared, report)?;
    progress.clear();
    guest::complain(&ran, progress);
    let mut manifest = run.own_manifest()?;
    // The guest got them compiled, and does not know how they were written.
    manifest.set_all([
        (OptionKey::Record, "probe".into()),
        (OptionKey::Probes, settings.probes.clone().into()),
        (OptionKey::Collect, settings.collect.clone().into()),
    ]);
    run.write_manifest(&manifest)?;
    for note in &manifest.probe.notes {
        progress.say(&format!("note: {}", note.trim_start_matches("note: ")));
    }
    for why in &manifest.probe.not_attached {
        progress.say(&format!("not attached: {why}"));
    }
    Ok((run, ran))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart() {
        let events =
            [("a", "x"), ("b", "x"), ("a", "none")].map(|(of, name)| (of.to_owned(), name.to_owned()));
        let said = "/sys/kernel/tracing/events/a/x/format:name: x\n/sys/kernel/tracing/events/a/x/format:\n\
                    /sys/kernel/tracing/events/b/x/format:ID: 3: 4\n";
        let found: Vec<_> = split(&events, said).collect();
        assert_eq!(found, [(&events[0], "name: x\n\n".to_owned()), (&events[1], "ID: 3: 4\n".to_owned())]);
    }

    #[test]
    fn what_the_guest_is_told_is_what_it_does() {
        let settings = Settings {
            everybody: true,
            stop_after: Some(3),
            last: Some(2),
            keys: 7,
            interval: Some(Duration::from_millis(20)),
            beside_flow: true,
            buffer_kib: 512,
            output: "/run".into(),
            command: vec!["true".into()],
            ..Settings::default()
        };
        let text = serde_json::to_string(&Told::of(&settings)).unwrap();
        let told: Told = serde_json::from_str(&text).unwrap();
        let there = told.settings(Path::new("/run"), vec!["true".into()]);
        assert_eq!(format!("{there:?}"), format!("{settings:?}"));
    }
}
