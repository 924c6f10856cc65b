// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record func`: calls of kernel functions, by the kernel's own tracer, on this machine or in a guest.
//!
//! In a guest the same recorder runs as a program of its own, `kprism-recorder`, which is given to the guest, and whose
//! files are brought back; the run looks the same.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_durations::{Measured, rows};
use kprism_lab::{Ended, Share};
use kprism_store::{Instrument, Manifest, Run, RunKind};
use kprism_tracefs::calibrate::Cost;
use kprism_tracefs::{Recording, Settings, Undone, signals};

use super::func_args::Args;
use super::func_bpf;
use crate::cmd::lab::{self, PacketArgs, RunArgs};
use crate::exit::{self, Outcome};
use crate::text;
use kprism_profile::units::grouped;
use kprism_session::Progress;
use kprism_session::durations;
use kprism_session::flow;
use kprism_session::record::this_kernel;

pub const HELP: &str = "\
Examples (as root, or with --guest on any machine):
  kprism record func -- ls                          all functions of a command
  kprism record func --longer-than 1ms -a           long calls of everybody, for hours
  kprism record func -T 'vfs_*' -N '*iter*' -p 1234 some functions of a process
  kprism record func -G vfs_read -- cat FILE        one function and all below it
  kprism record func --aggregate -T 'vfs_*' -a      numbers only, counted in the kernel
  kprism record func --guest --longer-than 1ms -- find /sys
  kprism record func --remeasure --longer-than 1ms -- CMD
                                                    and again, with what was found

The trace is recorded in an instance of its own. What is changed in tracefs
beside it is put back at the end, on Ctrl-C and on errors; after a kill -9, at
the next recording or by `kprism check`.

Exit codes: 0 done, 2 error, 130 CMD was interrupted. CMD's own code is in the
run: kprism info.";

/// Where the recorder is in a guest, and where it writes.
pub(super) const GUEST_RECORDER: &str = "/.kprism/recorder";
pub(super) const GUEST_RUN: &str = "/tmp/.kprism.run";

/// Records.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    record(args, progress, out).or_else(lab::interrupted)
}

fn record(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    if !args.guest
        && let Some(option) = args.place.given().or(args.guest_args.given())
    {
        bail!("{option} is about a guest: add --guest, or leave it out");
    }
    // Whatever records: a mistyped command is the likeliest mistake.
    if let (false, Some(program)) = (args.guest, args.command.first()) {
        kprism_tracefs::find_command(program)?;
    }
    if let Some(why) = func_bpf::chosen(args) {
        return func_bpf::run(args, why, progress, out);
    }
    if args.aggregate {
        bail!("--aggregate is done by BPF: leave --backend ftrace out");
    }
    let settings = args.settings();
    let (run, recorded) = pass(args, &settings, &args.output, progress, out)?;
    let Some((recording, measured)) = recorded else { return Ok(Outcome::Code(exit::INTERRUPTED)) };
    let interrupted = recording.stopped.as_deref() == Some("interrupted");
    for line in summary(&recording, &measured) {
        progress.say(&line);
    }
    if args.remeasure && !interrupted {
        let functions = candidates(&measured);
        if functions.is_empty() {
            bail!("no call was kept, so there is nothing to measure again: try a lower --longer-than");
        }
        progress.say(&format!("measuring {} functions again, every call", functions.len()));
        let again = Settings { functions, lenient: true, longer_than: None, ..settings };
        let (_, second) = pass(args, &again, &durations::remeasured(&run), progress, out)?;
        let Some((recording, measured)) = second else { return Ok(Outcome::Code(exit::INTERRUPTED)) };
        summary(&recording, &measured).iter().for_each(|line| progress.say(line));
        progress.say(&format!("recorded in {} --remeasured", durations::see(&run)));
    } else {
        progress.say(&format!("recorded in {}", durations::see(&run)));
    }
    Ok(if interrupted { Outcome::Code(exit::INTERRUPTED) } else { Outcome::Done })
}

/// The functions that a second pass is for: of those with calls, the longest in total.
fn candidates(measured: &Measured) -> Vec<String> {
    const MOST: usize = 100;
    let (profile, times) = (&measured.profile, &measured.times);
    let mut rows = rows::functions(profile, times, &vec![true; profile.tasks.len()]);
    rows.retain(|row| row.calls > 0);
    rows.sort_by_key(|row| (std::cmp::Reverse(row.total_ns), row.func));
    rows.iter().take(MOST).map(|row| profile.funcs[row.func as usize].name.clone()).collect()
}

/// What a pass gave; nothing if it was interrupted in the guest.
type Recorded = Option<(Recording, Measured)>;

fn pass(
    args: &Args,
    settings: &Settings,
    output: &Path,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(Run, Recorded)> {
    match args.guest {
        true => {
            kprism_lab::interrupt::catch_signals();
            in_guest(args, settings, output, progress, out)
        }
        false => here(args, settings, output, progress),
    }
}

fn here(args: &Args, settings: &Settings, output: &Path, progress: &Progress) -> Result<(Run, Recorded)> {
    // Before a run of earlier is moved away for nothing.
    kprism_tracefs::ready(settings, &args.command)?;
    signals::catch();
    let run = Run::create(output)?;
    let mut manifest = Manifest::new(RunKind::Host, 0);
    manifest.created = flow::now();
    manifest.command.clone_from(&args.command);
    manifest.kernel = Some(this_kernel());
    manifest.stopped = Some("the recorder has not ended properly".into());
    run.write_manifest(&manifest)?;
    if args.command.is_empty() && args.duration.is_none() {
        progress.say("recording; Ctrl-C ends it");
    }
    let mut undone = |undone: &Undone| {
        progress.say(&told(undone));
        undone.failed.iter().for_each(|why| progress.say(&format!("not put back: {why}")));
    };
    let recording = kprism_tracefs::record(settings, &args.command, run.dir(), &mut undone)?;
    manifest.exit_code = recording.exit_code;
    manifest.stopped.clone_from(&recording.stopped);
    let measured = finish(&run, manifest, &recording, progress)?;
    Ok((run, Some((recording, measured))))
}

/// What was put back, in a line.
pub fn told(undone: &Undone) -> String {
    let mut text = format!("put back what a killed recording (process {}) had left in tracefs: ", undone.pid);
    match undone.restored.is_empty() {
        true => text.push_str("nothing was changed yet"),
        false => {
            let is_event = |name: &&String| name.contains("events/");
            let events = undone.restored.iter().filter(is_event).count();
            let names = undone.restored.iter().filter(|name| !is_event(name)).cloned();
            let events = (events > 0).then(|| format!("{events} events"));
            text.push_str(&names.chain(events).collect::<Vec<_>>().join(", "));
        }
    }
    text
}

fn in_guest(
    args: &Args,
    settings: &Settings,
    output_folder: &Path,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(Run, Recorded)> {
    let recorder = kprism_lab::find_recorder()?;
    let prepared = lab::prepared(&args.guest_args, progress)?;
    let run_args = RunArgs::recording(
        &args.command,
        output_folder.to_owned(),
        (&args.place, &args.guest_args),
        PacketArgs::default(),
    );
    let mut job = run_args.job();
    job.shares.push(Share { host: recorder, guest: GUEST_RECORDER.into() });
    let settings = serde_json::to_string(settings).context("settings")?;
    job.argv = [GUEST_RECORDER, "record", GUEST_RUN, &settings].map(str::to_owned).to_vec();
    job.argv.extend(args.command.iter().cloned());
    job.collect = Some(GUEST_RUN.into());
    job.asks_first = true;
    let mut output = lab::Output::new(out, progress);
    let (run, ran) = lab::record(&run_args, &job, None, &prepared, &mut |p| output.pass(p))?;
    progress.clear();
    lab::complain(&ran, progress);
    if ran.ended == Ended::Interrupted {
        return Ok((run, None));
    }
    let manifest = run.manifest()?;
    match Recording::load(run.dir()) {
        Ok(recording) => {
            let measured = finish(&run, manifest, &recording, progress)?;
            Ok((run, Some((recording, measured))))
        }
        // What the recorder said went to standard error already.
        Err(_) => bail!("nothing was recorded in the guest; see above, and {}", run.stderr().display()),
    }
}

/// Notes what was recorded in the manifest, and measures it.
fn finish(run: &Run, mut manifest: Manifest, recording: &Recording, progress: &Progress) -> Result<Measured> {
    let settings = &recording.settings;
    manifest.vcpus = u32::try_from(recording.cpus.len()).unwrap_or(u32::MAX);
    manifest.clock.name = format!("ftrace {}", settings.clock);
    manifest.clock.tsc_hz = 1_000_000_000;
    manifest.exit_code = recording.exit_code;
    if manifest.stopped.is_none() {
        manifest.stopped.clone_from(&recording.stopped);
    }
    manifest.instruments = vec![Instrument::Durations];
    manifest.options.insert("record".into(), "func".into());
    manifest.options.insert("backend".into(), "ftrace".into());
    manifest.options.insert("settings".into(), serde_json::to_value(settings).context("settings")?);
    manifest.other.insert("events".into(), recording.events().into());
    manifest.other.insert("lost_events".into(), recording.lost().into());
    if let Some(cost) = &recording.cost {
        let dropped = settings.longer_than.is_some();
        let Cost { call_ns, inside_ns, slowdown } = *cost;
        let cost = kprism_durations::cost::Cost { call_ns, inside_ns, slowdown, dropped };
        manifest.other.insert("tracing_cost".into(), serde_json::to_value(cost).context("cost")?);
    }
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
        text::bytes(recording.bytes),
    )];
    lines.push(what(&recording.settings, recording));
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

/// What was recorded, in words.
fn what(settings: &Settings, recording: &Recording) -> String {
    let mut words = "function_graph, ".to_owned();
    match recording.functions {
        Some(count) => words.push_str(&format!("{} functions", grouped(count as u64))),
        None => words.push_str("all functions"),
    }
    match settings.longer_than {
        Some(time) => words.push_str(&format!(", calls of {time:?} and more")),
        None => words.push_str(", every call"),
    }
    words.push_str(if recording.own_instance { ", own instance" } else { ", the machine's buffer" });
    words
}
