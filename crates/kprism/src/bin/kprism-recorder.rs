// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism-recorder`: the recorders that run in guests, as a self-contained program. It has a seventh of the size of `kprism`,
//! which would take seconds to unpack there.
//!
//! The input is one of these commands, with settings as JSON. The output is the run in FOLDER.
//!
//! | command | records |
//! |---|---|
//! | `make-ready FOLDER SETTINGS`, then `record-ready FOLDER COMMAND…` | durations by ftrace; nothing is put back |
//! | `record-here FOLDER SETTINGS COMMAND…` | the same in one step |
//! | `record FOLDER SETTINGS COMMAND…`, `undo` | the same; tracefs is put back |
//! | `probe FOLDER SETTINGS PROBES COMMAND…` | the probes in the file PROBES |
//! | `events-begin FOLDER SETTINGS`, `events-end FOLDER` | tracepoints between the two |
//! | `boot FOLDER` | what the boot left in tracefs |
//!
//! The exit code of durations is the command's own; otherwise it is 127 or 126 if the
//! command cannot be run, 2 for a wrong usage, and 125 for any other error, each with a line on standard error. That of probes is
//! the one of `kprism record probe`.

use std::path::Path;
use std::process::ExitCode;

use kprism_record::probe::guest as probe;
use kprism_report::plain::plain;
use kprism_session::errors::text_of;
use kprism_session::{Progress, Update};
use kprism_signals::Second;
use kprism_tracefs::{Recording, Settings, beside, boot, find_command, guest, record, signals, undo_stale};

/// Exit code for a failure of the recorder itself.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    if kprism_tracefs::guard::was_guard() || kprism_record::probe::was_jump_guard() {
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(code) => ExitCode::from(code),
        Err((code, reason)) => {
            eprintln!("kprism: {reason}");
            ExitCode::from(code)
        }
    }
}

/// Makes Ctrl-Alt-Del send a SIGINT to this process instead of rebooting. The host's Ctrl-C reaches its guest as
/// Ctrl-Alt-Del. If this cannot be set, the host ends the guest instead.
fn take_ctrl_alt_del() {
    let pid = std::process::id().to_string();
    for (name, value) in [("cad_pid", pid.as_str()), ("ctrl-alt-del", "0")] {
        std::fs::write(Path::new("/proc/sys/kernel").join(name), value).ok();
    }
}

fn run(words: &[&str]) -> Result<u8, (u8, String)> {
    let failed = |error: kprism_tracefs::Error| (error.command_code().unwrap_or(FAILED), error.to_string());
    match words {
        ["record", folder, settings, command @ ..] => {
            let (settings, command) = (parsed(settings)?, begin(command)?);
            record(&settings, &command, Path::new(folder), &mut |_| {}).map(code_of).map_err(failed)
        }
        ["make-ready", folder, settings] => {
            guest::make_ready(&parsed(settings)?, Path::new(folder)).map(|()| 0).map_err(failed)
        }
        ["record-ready", folder, command @ ..] => {
            guest::record(&begin(command)?, Path::new(folder)).map(code_of).map_err(failed)
        }
        ["record-here", folder, settings, command @ ..] => {
            let (settings, command, folder) = (parsed(settings)?, begin(command)?, Path::new(folder));
            // Before the tracer is switched on for nothing.
            command.first().map_or(Ok(()), |program| find_command(program)).map_err(failed)?;
            let ready = guest::make_ready(&settings, folder);
            ready.and_then(|()| guest::record(&command, folder)).map(code_of).map_err(failed)
        }
        ["probe", folder, settings, probes, command @ ..] => {
            of_probes(Path::new(folder), settings, Path::new(probes), command)
                .map_err(|error| (2, plain(&text_of(&error))))
        }
        ["events-begin", folder, settings] => {
            let settings: beside::Beside =
                serde_json::from_str(settings).map_err(|error| (FAILED, format!("settings: {error}")))?;
            beside::begin(&settings, Path::new(folder)).map(|()| 0).map_err(failed)
        }
        ["events-end", folder] => beside::end(Path::new(folder)).map(|_| 0).map_err(failed),
        ["boot", folder] => boot::collect(Path::new(folder), false).map(|_| 0).map_err(failed),
        ["undo"] => {
            if let Some(undone) = undo_stale().map_err(failed)? {
                println!("put back: {}", undone.restored.join(" "));
                undone.failed.iter().for_each(|why| eprintln!("kprism: {why}"));
            }
            Ok(0)
        }
        _ => Err((2, "kprism-recorder is what `kprism record … --guest` runs in the guest".into())),
    }
}

/// The settings of durations.
fn parsed(settings: &str) -> Result<Settings, (u8, String)> {
    serde_json::from_str(settings).map_err(|error| (FAILED, format!("settings: {error}")))
}

/// Prepares this process for signals, and returns the command.
fn begin(command: &[&str]) -> Result<Vec<String>, (u8, String)> {
    signals::catch_alone().map_err(|error| (FAILED, format!("signals: {error}")))?;
    take_ctrl_alt_del();
    Ok(owned(command))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The exit code of the command.
fn code_of(recording: Recording) -> u8 {
    recording.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(0)
}

/// Records probes. Says no more than errors, and the counts so far if they are asked for: the host tells the rest.
fn of_probes(folder: &Path, settings: &str, probes: &Path, command: &[&str]) -> anyhow::Result<u8> {
    kprism_signals::catch(Second::Ignored)?;
    let progress = Progress::new(false, |update| {
        if let Update::Error(text) = update {
            eprintln!("{}", plain(text));
        }
    });
    let recorded =
        probe::recorder(settings, probes, folder, owned(command), &progress, &mut |since, so_far| {
            eprint!("{}", kprism_report::probe::so_far(since, so_far));
        })?;
    if let Some(why) = &recorded.full {
        eprintln!("kprism: {why}; recording ended there, and what was recorded until then is kept");
    }
    Ok(match () {
        () if recorded.interrupted => 130,
        () if recorded.full.is_some() || recorded.not_attached > 0 => 2,
        () if recorded.hits() == 0 => 1,
        () => 0,
    })
}
