// SPDX-License-Identifier: MIT OR Apache-2.0
//! By function_graph. In a guest the same recorder runs as a program of its own, `kprism-recorder`, which is given to the
//! guest, and whose files are brought back; the run looks the same.
//!
//! To switch the tracer on for all functions takes QEMU seconds. So a guest is kept in which it is on ([`kprism_lab::made_ready`]),
//! for the settings that many recordings share. It is never switched off: the guest ends.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_durations::{Measured, rows};
use kprism_lab::{Ended, Job, Prepared, Report, Share};
use kprism_profile::units::{bytes, grouped};
use kprism_session::{Progress, durations};
use kprism_store::{Manifest, Run};
use kprism_tracefs::{Recording, Undone};

use super::{GUEST_RECORDER, GUEST_RUN, Recorded, RecordingEnd, Settings, undone_text};
use crate::guest::{self, Guest};

/// Functions that a second pass measures, at most.
const MOST: usize = 100;

pub(super) fn record(settings: &Settings, progress: &Progress, report: Report<'_>) -> Result<Recorded> {
    let trace = &settings.trace;
    let (run, first) = pass(settings, trace, &settings.output, progress, report)?;
    let Some((recording, measured)) = first else {
        return Ok(Recorded { run, measured: None, end: RecordingEnd::Interrupted });
    };
    let end = end(&recording);
    summary(&recording, &measured).iter().for_each(|line| progress.say(line));
    if !settings.remeasure || end != RecordingEnd::Done {
        progress.say(&format!("recorded in {}", durations::see(&run)));
        return Ok(Recorded { run, measured: Some(measured), end });
    }
    let functions = candidates(&measured);
    if functions.is_empty() {
        bail!("no call was kept, so there is nothing to measure again: try a lower --longer-than");
    }
    progress.say(&format!("measuring {} functions again, every call", functions.len()));
    let again = kprism_tracefs::Settings { functions, lenient: true, longer_than: None, ..trace.clone() };
    let (_, second) = pass(settings, &again, &run.remeasured(), progress, report)?;
    let Some((recording, measured)) = second else {
        return Ok(Recorded { run, measured: None, end: RecordingEnd::Interrupted });
    };
    summary(&recording, &measured).iter().for_each(|line| progress.say(line));
    progress.say(&format!("recorded in {} --remeasured", durations::see(&run)));
    Ok(Recorded { run, measured: Some(measured), end: self::end(&recording) })
}

/// A recording by `kprism-recorder` tells its end in a file.
fn end(recording: &Recording) -> RecordingEnd {
    match recording.stopped.as_deref() {
        _ if recording.unwritten => RecordingEnd::Unwritten,
        Some(kprism_tracefs::INTERRUPTED) => RecordingEnd::Interrupted,
        _ => RecordingEnd::Done,
    }
}

/// The functions that a second pass is for: of those with calls, the longest in total.
fn candidates(measured: &Measured) -> Vec<String> {
    let (profile, times) = (&measured.profile, &measured.times);
    let mut rows = rows::functions(profile, times, &vec![true; profile.tasks.len()]);
    rows.retain(|row| row.calls > 0);
    rows.sort_by_key(|row| (std::cmp::Reverse(row.total_ns), row.func));
    rows.iter().take(MOST).map(|row| profile.funcs[row.func as usize].name.clone()).collect()
}

/// The result of a pass; none if it was interrupted in the guest.
type Pass = Option<(Recording, Measured)>;

fn pass(
    settings: &Settings,
    trace: &kprism_tracefs::Settings,
    output: &Path,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Pass)> {
    match &settings.guest {
        Some(guest) => in_guest(guest, trace, output, progress, report),
        None => here(settings, trace, output, progress),
    }
}

fn here(
    settings: &Settings,
    trace: &kprism_tracefs::Settings,
    output: &Path,
    progress: &Progress,
) -> Result<(Run, Pass)> {
    // Before an earlier run is moved away for nothing.
    kprism_tracefs::ready(trace, &settings.command)?;
    let run = Run::create(output)?;
    let mut manifest = kprism_store::begun(&settings.command);
    run.write_manifest(&manifest)?;
    if settings.command.is_empty() && trace.duration.is_none() {
        progress.say("recording; Ctrl-C ends it");
    }
    let mut undone = |undone: &Undone| {
        progress.say(&undone_text(undone));
        undone.failed.iter().for_each(|why| progress.say(&format!("not put back: {why}")));
    };
    let recording = kprism_tracefs::record(trace, &settings.command, run.dir(), &mut undone)?;
    manifest.exit_code = recording.exit_code;
    manifest.stopped.clone_from(&recording.stopped);
    let measured = finish(&run, manifest, &recording, progress)?;
    Ok((run, Some((recording, measured))))
}

fn in_guest(
    guest: &Guest,
    trace: &kprism_tracefs::Settings,
    output: &Path,
    progress: &Progress,
    report: Report<'_>,
) -> Result<(Run, Pass)> {
    let recorder = Share { host: kprism_lab::find_recorder()?, guest: GUEST_RECORDER.into() };
    let prepared = guest::prepare(&guest.options, progress)?;
    let settings = guest.settings(output.to_owned());
    let told = serde_json::to_string(trace).context("settings")?;
    let ready = match is_for_many(trace, guest) && kprism_lab::can_be_ready(&prepared) {
        true => made_ready(&prepared, &recorder, &told, progress)?,
        false => None,
    };
    let mut job = guest.job.clone();
    job.argv = match ready {
        Some(_) => [GUEST_RECORDER, "record-ready", GUEST_RUN].map(str::to_owned).to_vec(),
        None => [GUEST_RECORDER, "record-here", GUEST_RUN, &told].map(str::to_owned).to_vec(),
    };
    if ready.is_none() {
        job.shares.push(recorder);
    }
    let prepared = ready.unwrap_or(prepared);
    job.argv.extend(guest.job.argv.iter().cloned());
    job.collect = Some(GUEST_RUN.into());
    job.asks_first = true;
    job.leaves_tracer = true;
    let (run, ran) = guest::record(&settings, &job, &prepared, report)?;
    progress.clear();
    guest::complain(&ran, progress);
    if ran.ended == Ended::Interrupted {
        return Ok((run, None));
    }
    let manifest = run.own_manifest()?;
    match Recording::load(run.dir()) {
        Ok(recording) => {
            let measured = finish(&run, manifest, &recording, progress)?;
            Ok((run, Some((recording, measured))))
        }
        // The recorder's own errors went to standard error already.
        Err(_) => bail!("nothing was recorded in the guest; see above, and {}", run.stderr().display()),
    }
}

/// True if it is worth to keep a guest with the tracer switched on for these settings: without a choice of functions, which differs
/// from recording to recording, and is quickly switched on. Commands before the user's find the guest as it always was.
fn is_for_many(trace: &kprism_tracefs::Settings, guest: &Guest) -> bool {
    let choices =
        [&trace.functions, &trace.not_functions, &trace.graph, &trace.not_graph, &trace.more_events];
    choices.iter().all(|globs| globs.is_empty())
        && guest.job.before.is_empty()
        && guest.job.like_host.is_none()
}

/// The guest with the tracer switched on.
fn made_ready(
    prepared: &Prepared,
    recorder: &Share,
    told: &str,
    progress: &Progress,
) -> Result<Option<Prepared>> {
    let mut job = Job::new([GUEST_RECORDER, "make-ready", GUEST_RUN, told]);
    job.shares.push(recorder.clone());
    let ready = kprism_lab::made_ready(prepared, &job, &mut |p| guest::show(progress, p))?;
    progress.clear();
    Ok(ready)
}

/// A recording that `kprism-recorder` made on another machine, and whose run was brought here. Its manifest has an early end that
/// the connection caused.
pub(super) fn brought(run: Run, progress: &Progress) -> Result<Recorded> {
    let recording = Recording::load(run.dir())?;
    let manifest = run.own_manifest()?;
    let measured = finish(&run, manifest, &recording, progress)?;
    summary(&recording, &measured).iter().for_each(|line| progress.say(line));
    progress.say(&format!("recorded in {}", durations::see(&run)));
    Ok(Recorded { run, measured: Some(measured), end: end(&recording) })
}

/// Notes in the manifest what was recorded, and measures it.
fn finish(run: &Run, mut manifest: Manifest, recording: &Recording, progress: &Progress) -> Result<Measured> {
    recording.enter(&mut manifest).context("settings")?;
    run.write_manifest(&manifest)?;
    let measured = durations::measure(run, progress)?;
    progress.clear();
    Ok(measured)
}

fn summary(recording: &Recording, measured: &Measured) -> Vec<String> {
    let cpus = match recording.cpus.len() {
        1 => "1 CPU".to_owned(),
        n => format!("{n} CPUs"),
    };
    let mut lines = vec![format!(
        "{} events on {cpus} in {:.3} s, {} lost, {}",
        grouped(recording.events()),
        recording.ns as f64 / 1e9,
        grouped(recording.lost()),
        bytes(recording.bytes),
    )];
    lines.push(traced(recording));
    lines.push(durations::calls(measured));
    if recording.lost() > 0 {
        lines.push("for fewer losses: --longer-than, fewer functions (-T), or a larger --buffer-size".into());
    }
    if let Some(why) = &recording.stopped {
        lines.push(format!("stopped early: {why}"));
    }
    if let Some(code) = recording.exit_code.filter(|&code| code != 0) {
        lines.push(format!("the command's exit code is {code}"));
    }
    lines.extend(recording.not_restored.iter().map(|why| format!("not put back in tracefs: {why}")));
    lines
}

/// The tracer, the functions and calls it recorded, and its buffer, in a line.
fn traced(recording: &Recording) -> String {
    let mut words = "function_graph, ".to_owned();
    match recording.functions {
        Some(count) => words.push_str(&format!("{} functions", grouped(count as u64))),
        None => words.push_str("all functions"),
    }
    match recording.settings.longer_than {
        Some(time) => words.push_str(&format!(", calls of {time:?} and more")),
        None => words.push_str(", every call"),
    }
    words.push_str(if recording.own_instance { ", own instance" } else { ", the machine's buffer" });
    words
}
