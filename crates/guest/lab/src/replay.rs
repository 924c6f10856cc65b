// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the job of a recording once more, up to one instruction, and stops the guest before it, for GDB.
//!
//! In: a prepared guest, the job, the observer with its goal. Out: [`Stopped`], with QEMU's GDB server on a Unix socket in a folder
//! of this user alone. The observer counts and holds the guest (its `goal.rs`); QEMU is told to stop meanwhile, so no guest time
//! passes. The guest ends when [`Stopped`] is dropped, or this process ends, in whatever way.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache::Scratch;
use crate::error::{Context, Error, Result};
use crate::hold::Holder;
use crate::lab::Prepared;
use crate::options::{Job, ObserverOptions, Progress, Report};
use crate::qemu::{PortFiles, Running, option};
use crate::run::{self, accepts};
use crate::tail::{find_panic, last_lines};

/// Interval at which QEMU and the user's wish to end are polled.
const POLL: Duration = Duration::from_millis(20);

/// Beginning of the name of a replay's folder.
const SCRATCH: &str = "kprism-goto.";

/// State of the guest where it was stopped, as the observer read it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Halt {
    /// The vCPU that runs.
    pub cpu: u32,
    /// Number of its next instruction in the recorded part, from 1.
    pub number: u64,
    /// Guest time before that instruction, ns.
    pub ns: u64,
    /// Address of that instruction.
    pub ip: u64,
    /// Thread id of the task that runs.
    pub pid: u32,
    /// The task's name.
    pub comm: String,
    /// General-purpose registers by GDB's names.
    pub registers: BTreeMap<String, u64>,
}

/// The observer's line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Halted(Halt),
    Missed { cpu: u32, number: u64, ip: u64 },
}

/// A guest that is stopped, or that GDB lets run. It ends on drop.
#[derive(Debug)]
pub struct Stopped {
    qemu: Running,
    scratch: Scratch,
    /// State of the guest.
    pub halt: Halt,
}

/// End of a replay.
#[derive(Debug)]
pub enum Replayed {
    /// The guest is stopped at the goal.
    Stopped(Box<Stopped>),
    /// The guest ended before; the reason, if it was not the command's end.
    Ended(Option<String>),
    /// Another instruction was the one of this number: vCPU, number of the next one, its address.
    Missed(u32, u64, u64),
}

/// Runs `job` up to the goal that `observer` has.
///
/// # Errors
/// The guest does not start, QEMU does not answer, or the user interrupted it.
pub fn replay(
    prepared: &Prepared,
    job: &Job,
    observer: &ObserverOptions,
    report: Report<'_>,
) -> Result<Replayed> {
    accepts(prepared, job)?;
    let temporary = std::env::temp_dir();
    let scratch = Scratch::new(&temporary, SCRATCH)?;
    let folder = scratch.path();
    let name = |name: &str| folder.join(name);
    let files = PortFiles {
        console: name("console.log"),
        control: name("control"),
        stdout: name("stdout"),
        stderr: name("stderr"),
    };
    let streams = name("streams");
    fs::create_dir(&streams).at("create", &streams)?;
    for file in [&files.console, &files.control, &files.stdout, &files.stderr] {
        File::create(file).at("create", file)?;
    }
    let (mut holder, guest) = Holder::new(folder)?;
    let mut plugin = run::plugin_arguments(prepared, job, observer, &streams)?;
    plugin.push(Holder::argument(&guest));
    let disks = run::disks(prepared, job, folder)?;
    report(Progress::Step("replaying the run"));
    let mut qemu = run::launch(prepared, job, folder, (plugin, Some(guest)), &disks, &files)?;
    let mut line = Vec::new();
    loop {
        if kprism_signals::end_requested() {
            return Err(Error::Interrupted);
        }
        match holder.read_line(&mut line, POLL) {
            Ok(true) => break,
            Ok(false) => {}
            // The observer is gone with QEMU.
            Err(_) => return Ok(Replayed::Ended(reason(&mut qemu, &files.console))),
        }
    }
    let halt = match serde_json::from_slice(&line) {
        Ok(Line::Halted(halt)) => halt,
        Ok(Line::Missed { cpu, number, ip }) => return Ok(Replayed::Missed(cpu, number, ip)),
        Err(error) => return Err(Error::Qemu { reason: format!("the observer says nonsense: {error}") }),
    };
    holder.stop_held(&mut qemu)?;
    verify(&mut qemu, &halt)?;
    serve_gdb(&mut qemu, &folder.join(SOCKET))?;
    Ok(Replayed::Stopped(Box::new(Stopped { qemu, scratch, halt })))
}

/// Checks that QEMU stopped with the registers that the observer read.
fn verify(qemu: &mut Running, halt: &Halt) -> Result<()> {
    let question = json!({ "command-line": "info registers", "cpu-index": halt.cpu });
    let said = qemu.qmp.call("human-monitor-command", question)?;
    let said = said.as_str().unwrap_or_default();
    for (name, observed) in
        halt.registers.iter().map(|(name, value)| (name.as_str(), *value)).chain([("rip", halt.ip)])
    {
        // 32-bit code has the short names, and the low halves.
        let found = match (dumped(said, &name.to_uppercase()), name.strip_prefix('r')) {
            (None, Some(short)) => {
                dumped(said, &format!("E{}", short.to_uppercase())).map(|value| (value, u64::from(u32::MAX)))
            }
            (value, _) => value.map(|value| (value, u64::MAX)),
        };
        match found {
            Some((value, mask)) if value != observed & mask => {
                return Err(Error::Qemu {
                    reason: format!(
                        "it stopped elsewhere: {name} is {value:#x}, and was {observed:#x} at the instruction"
                    ),
                });
            }
            // R8 to R15 do not exist in 32-bit code.
            _ => {}
        }
    }
    match dumped(said, "RIP").or_else(|| dumped(said, "EIP")) {
        Some(_) => Ok(()),
        None => Err(Error::Qemu { reason: format!("info registers: no RIP in: {said}") }),
    }
}

/// The value of a register in what QEMU's `info registers` prints: `RAX=0123…`, `R8 =0123…`.
fn dumped(text: &str, name: &str) -> Option<u64> {
    text.split_whitespace().zip(text.split_whitespace().skip(1)).find_map(|(word, next)| {
        let digits = match word.strip_prefix(name)? {
            "" => next.strip_prefix('=')?,
            rest => rest.strip_prefix('=')?,
        };
        u64::from_str_radix(digits, 16).ok()
    })
}

/// Name of the socket for GDB.
const SOCKET: &str = "gdb";

/// Has QEMU listen for GDB. Only now: a GDB that connects stops the guest.
fn serve_gdb(qemu: &mut Running, socket: &Path) -> Result<()> {
    let mut command = std::ffi::OsString::from("gdbserver ");
    command.push(option("unix:", socket));
    command.push(",server=on,wait=off");
    let command = command.to_string_lossy();
    let said = qemu.qmp.call("human-monitor-command", json!({ "command-line": command }))?;
    let said = said.as_str().unwrap_or_default();
    match socket.exists() {
        true => Ok(()),
        false => Err(Error::Qemu { reason: format!("{command}: {}", said.trim()) }),
    }
}

/// Why QEMU ended; `None` if the command did, as recorded or in another way.
fn reason(qemu: &mut Running, console: &Path) -> Option<String> {
    let said = qemu.stderr_text();
    if let Some(words) = find_panic(console) {
        return Some(format!("the guest's kernel panicked: {words}"));
    }
    (!said.is_empty()).then(|| format!("QEMU ended: {said}\n{}", last_lines(console, 15)).trim().to_owned())
}

impl Stopped {
    /// The Unix socket at which QEMU listens for GDB.
    pub fn socket(&self) -> PathBuf {
        self.scratch.path().join(SOCKET)
    }

    /// Returns true while the guest exists, stopped or running.
    pub fn is_there(&mut self) -> bool {
        self.qemu.ended().is_none()
    }

    /// Returns true if the guest is stopped.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn is_stopped(&mut self) -> Result<bool> {
        let state = self.qemu.qmp.call("query-status", json!({}))?;
        Ok(state.get("running").and_then(Value::as_bool) == Some(false))
    }

    /// Waits until the guest ends, or the user asks for its end ([`kprism_signals::end_requested`]).
    pub fn wait(&mut self) {
        while self.is_there() && !kprism_signals::end_requested() {
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_read_from_qemus_text() {
        let text = "CPU#0\nRAX=0000000000000001 RBX=ff\nR8 =0000000000000010 R10=2\nRIP=ffffffff8138a052 RFL=00000246";
        let value = |name| dumped(text, name);
        assert_eq!((value("RAX"), value("R8"), value("R10")), (Some(1), Some(16), Some(2)));
        assert_eq!((value("RIP"), value("R9"), value("R1")), (Some(0xffff_ffff_8138_a052), None, None));
    }
}
