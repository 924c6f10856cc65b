// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism-recorder`: this crate as a self-contained program for guests.
//!
//! The input is one of the commands `record FOLDER SETTINGS COMMAND…` (with the settings as JSON), `events-begin FOLDER SETTINGS`,
//! `events-end FOLDER`, `boot FOLDER` and
//! `undo`. The output is the run in that folder. The exit code is the command's own; otherwise it is 127 or 126 if the
//! command cannot be run, 2 for a wrong usage, and 125 for any other error, each with a line on standard error.

use std::path::Path;
use std::process::ExitCode;

use kprism_tracefs::{Settings, beside, boot, record, signals, undo_stale};

/// Exit code for a failure of the recorder itself.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    if kprism_tracefs::guard::was_guard() {
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
            let settings: Settings =
                serde_json::from_str(settings).map_err(|error| (FAILED, format!("settings: {error}")))?;
            signals::catch_alone().map_err(|error| (FAILED, format!("signals: {error}")))?;
            take_ctrl_alt_del();
            let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
            let recording = record(&settings, &command, Path::new(folder), &mut |_| {}).map_err(failed)?;
            Ok(recording.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(0))
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
        _ => Err((2, "kprism-recorder is what `kprism record durations --guest` runs in the guest".into())),
    }
}
