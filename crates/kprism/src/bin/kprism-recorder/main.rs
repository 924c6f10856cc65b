// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism-recorder`: the recorders that run in guests and on boards, as a self-contained program. On x86-64 it has a fifth of the
//! size of `kprism`, which would take seconds to unpack in a guest. It is also built for 64-bit ARM, where kprism itself does not
//! run: there a run is recorded, and read where kprism is.
//!
//! The input is one of these commands, with settings as JSON. The output is the run in FOLDER.
//!
//! | command | records |
//! |---|---|
//! | `record FOLDER SETTINGS COMMAND…` | durations by ftrace, as a whole run; tracefs is put back |
//! | `boot FOLDER` | what the boot left in tracefs, as a whole run |
//! | `undo` | nothing: puts back in tracefs what a killed recording left |
//! | `make-ready FOLDER SETTINGS`, then `record-ready FOLDER COMMAND…` | in a guest, durations by ftrace; nothing is put back |
//! | `record-here FOLDER SETTINGS COMMAND…` | the same in one step |
//! | `boot-here FOLDER` | in a guest, what the boot left, without symbols, which the lab has |
//! | `probe FOLDER SETTINGS PROBES COMMAND…` | in a guest, the probes in the file PROBES; x86-64 alone |
//! | `events-begin FOLDER SETTINGS`, `events-end FOLDER` | in a guest, tracepoints between the two; x86-64 alone |
//!
//! The exit code of durations is the command's own; otherwise it is 127 or 126 if the command cannot be run, 2 for a wrong usage,
//! and 125 for any other error, a full disk too, each with a line on standard error. That of probes is the one of
//! `kprism record probe`.
//!
//! The kprism at the other end of ssh sends this program to a machine with another processor than its own, and it serves the
//! connection ([`kprism_placed`]).

/// The commands that need an x86-64 processor.
#[cfg(target_arch = "x86_64")]
mod x86;

/// Elsewhere it is refused.
#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    pub fn was_guard() -> bool {
        false
    }

    pub fn run(words: &[&str]) -> Result<u8, (u8, String)> {
        let what = words.first().copied().unwrap_or_default();
        let arch = std::env::consts::ARCH;
        let known = "durations (`record`) and boots (`boot`) are what it records here";
        Err((2, format!("`{what}` needs an x86-64 processor, and this is {arch}: {known}")))
    }
}

use std::path::Path;
use std::process::ExitCode;

use kprism_placed::{Placed, is_target, output, placed};
use kprism_signals::Second;
use kprism_tracefs::{Recording, Settings, boot, find_command, guest, run as whole, signals, undo_stale};

/// Exit code for a failure of the recorder itself.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    if kprism_tracefs::guard::was_guard() || x86::was_guard() {
        return ExitCode::SUCCESS;
    }
    // SAFETY: no other thread runs yet.
    if unsafe { placed() } == Placed::Serves {
        return kprism_placed::serve().into();
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

/// The help text.
fn help() -> String {
    format!(
        "kprism-recorder {} for {}: records where kprism does not run. kprism sends it to guests and, over ssh, to boards.

  kprism-recorder record FOLDER SETTINGS COMMAND...   durations of the kernel's functions while COMMAND runs; as root
  kprism-recorder boot FOLDER                         what a boot left that was traced from its command line; as root
  kprism-recorder undo                                puts back in tracefs what a killed recording left
  kprism-recorder --help | --version

SETTINGS are JSON: {{}} for all calls, or of these (the rest is in docs/board.md):
  {{\"longer_than\":{{\"secs\":0,\"nanos\":100000}},\"functions\":[\"vfs_*\"],\"graph\":[\"ksys_read\"],\"buffer_kib\":4096}}
The words for a traced boot are printed by: kprism record boot --words

FOLDER is a new run. Take it to where kprism is, and there: kprism report durations -i FOLDER, or kprism report boot -i FOLDER

Exit code: the COMMAND's, 127 or 126 if it cannot be run, 2 for a wrong usage, 125 for any other error.
",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
    )
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
    match words {
        ["--help" | "-h" | "help"] => {
            print!("{}", help());
            Ok(0)
        }
        ["--version" | "-V"] => {
            println!("kprism-recorder {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        ["record", folder, settings, command @ ..] => {
            let (settings, command) = (parsed(settings)?, owned(command));
            // Ctrl-C reaches the command too.
            kprism_signals::catch(Second::Ignored).map_err(|error| (FAILED, format!("signals: {error}")))?;
            let folder = output(Path::new(folder));
            let recording = whole::record(&settings, &command, &folder, &mut |undone| {
                eprintln!(
                    "kprism: put back what process {} had left: {}",
                    undone.pid,
                    undone.restored.join(" ")
                );
                undone.failed.iter().for_each(|why| eprintln!("kprism: {why}"));
            });
            let recording = recording.map_err(failed)?;
            recording.not_restored.iter().for_each(|why| eprintln!("kprism: not put back: {why}"));
            if let Some(why) = &recording.stopped {
                eprintln!("kprism: stopped early: {why}");
            }
            say(recording.events(), recording.lost(), &folder, "durations");
            Ok(code_of(recording))
        }
        ["boot", folder] => {
            let folder = output(Path::new(folder));
            let collected = whole::boot(&folder).map_err(failed)?;
            say(collected.events(), collected.lost(), &folder, "boot");
            Ok(0)
        }
        ["undo"] => {
            if let Some(undone) = undo_stale().map_err(failed)? {
                println!("put back: {}", undone.restored.join(" "));
                undone.failed.iter().for_each(|why| eprintln!("kprism: {why}"));
            }
            Ok(0)
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
        ["boot-here", folder] => boot::collect(Path::new(folder), false).map(|_| 0).map_err(failed),
        ["probe" | "events-begin" | "events-end", ..] => x86::run(words),
        _ => Err((2, format!("wrong usage\n{}", help()))),
    }
}

fn failed(error: kprism_tracefs::Error) -> (u8, String) {
    (error.command_code().unwrap_or(FAILED), error.to_string())
}

/// Tells what a run has, where nobody else does.
fn say(events: u64, lost: u64, folder: &Path, report: &str) {
    if !is_target() {
        let folder = folder.display();
        eprintln!(
            "kprism: {events} events, {lost} lost; recorded in {folder}; where kprism is: kprism report {report} -i {folder}"
        );
    }
}

/// The settings of durations.
fn parsed(settings: &str) -> Result<Settings, (u8, String)> {
    serde_json::from_str(settings).map_err(|error| (2, format!("settings: {error}")))
}

/// Prepares this process for a guest's signals, and returns the command.
fn begin(command: &[&str]) -> Result<Vec<String>, (u8, String)> {
    signals::catch_alone().map_err(|error| (FAILED, format!("signals: {error}")))?;
    take_ctrl_alt_del();
    Ok(owned(command))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The exit code of the command, if all was written.
fn code_of(recording: Recording) -> u8 {
    if recording.unwritten {
        return FAILED;
    }
    recording.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(0)
}
