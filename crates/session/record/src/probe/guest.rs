// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records probes in a guest: it gets the program `kprism` and the compiled probes; the run is copied out.

use std::fs;

use anyhow::{Context, Result, ensure};
use kprism_lab::{Outcome, Pace, Report, Share};
use kprism_probe::plan::file::Compiled;
use kprism_session::Progress;
use kprism_store::Run;

use super::{KEYS, Settings};
use crate::guest::{self, Guest, Observe};

/// The program, the probes and the run in the guest.
const GUEST: [&str; 3] = ["/kprism/kprism", "/kprism/probes", "/kprism/run"];

/// Refuses what no probe can be placed in a flow of.
///
/// # Errors
/// Says why.
fn possible(guest: &Guest) -> Result<()> {
    ensure!(
        guest.options.pace != Pace::Fast,
        "--flow beside --fast: at the host's speed the guest's clock is not that of the flow, and a record could not be placed \
         in it; leave --fast out"
    );
    kprism_lab::find_observer()?;
    Ok(())
}

/// Attaches the probes in a guest, and runs [`Guest::job`] there. Notes of the recorder go to `progress`, output of the
/// command to `report`.
///
/// # Errors
/// The guest cannot be booted, or the run cannot be written. What the recorder in the guest refused is in the guest's
/// standard error.
pub fn record(
    program: &Compiled,
    settings: &Settings,
    guest: &Guest,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Outcome)> {
    if settings.beside_flow {
        possible(guest)?;
    }
    let folder = tempfile::tempdir().context("a folder for the probes")?;
    let file = folder.path().join("probes");
    fs::write(&file, program.bytes()?).with_context(|| file.display().to_string())?;
    let prepared = guest::prepare(&guest.options, progress)?;
    let mut job = guest.job.clone();
    job.shares.push(Share { host: guest.program.clone(), guest: GUEST[0].into() });
    job.shares.push(Share { host: file, guest: GUEST[1].into() });
    job.argv = argv(settings, &guest.job.argv);
    job.collect = Some(GUEST[2].into());
    let mut recording = guest.settings(settings.output.clone());
    if settings.beside_flow {
        guest::say_gaps(&prepared, progress);
        recording.observe = Observe::Everything;
        job.marked_by_command = true;
    }
    let (run, ran) = guest::record(&recording, &job, &prepared, report)?;
    progress.clear();
    guest::complain(&ran, progress);
    let mut manifest = run.manifest()?;
    // The guest got them compiled, and does not know how they were written.
    manifest.options.extend([
        ("record".into(), "probe".into()),
        ("probes".into(), settings.probes.clone().into()),
        ("collect".into(), settings.collect.clone().into()),
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

/// The command line of kprism in the guest. It says nothing of the result: this process does.
fn argv(settings: &Settings, command: &[String]) -> Vec<String> {
    let [kprism, probes, run] = GUEST.map(str::to_owned);
    let words = ["-q", "record", "probe", "--program", &probes, "-o", &run];
    let mut argv: Vec<String> = std::iter::once(kprism).chain(words.map(str::to_owned)).collect();
    let flags = [(settings.everybody, "--all"), (settings.beside_flow, "--beside-flow")];
    argv.extend(flags.iter().filter(|(on, _)| *on).map(|(_, flag)| (*flag).to_owned()));
    let numbers = [
        ("--stop-after", settings.stop_after),
        ("--last", settings.last),
        // Without keys the option is refused.
        ("--keys", Some(settings.keys).filter(|keys| *keys != KEYS)),
    ];
    for (option, number) in numbers {
        if let Some(number) = number {
            argv.extend([option.to_owned(), number.to_string()]);
        }
    }
    if let Some(interval) = settings.interval {
        argv.extend(["--interval".to_owned(), format!("{}ns", interval.as_nanos())]);
    }
    argv.extend(["--buffer-size".to_owned(), format!("{}K", settings.buffer_kib), "--".to_owned()]);
    argv.extend(command.iter().cloned());
    argv
}
