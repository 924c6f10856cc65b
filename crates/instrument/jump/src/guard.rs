// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that takes the jumps out of programs if the recorder is killed.
//!
//! The recorder starts its own program again under another name before it writes the first jump, and tells it each jump before it
//! writes it. The end of the pipe without a word of farewell means that the recorder is gone.

use std::io::{BufRead as _, PipeWriter, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use crate::patch::{Patch, To, undo};

/// Name of the guard's process.
pub const NAME: &str = "kprism-jump-guard";
/// The word of farewell.
const DONE: &str = "done";

/// The recorder's side of the guard.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: PipeWriter,
}

impl Guard {
    /// Starts the guard.
    pub fn start() -> std::io::Result<Self> {
        let (from, pipe) = std::io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).stdin(from).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: setsid touches no memory. In a session of its own no terminal ends it.
        unsafe {
            command.pre_exec(|| match libc::setsid() {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        Ok(Self { child: command.spawn()?, pipe })
    }

    /// Tells the guard a jump.
    pub fn tell(&mut self, patch: &Patch) -> std::io::Result<()> {
        let line = serde_json::to_string(patch)?;
        writeln!(self.pipe, "{line}")
    }

    /// Ends the guard: all jumps are out.
    pub fn dismiss(mut self) {
        writeln!(self.pipe, "{DONE}").ok();
        drop(self.pipe);
        self.child.wait().ok();
    }
}

/// If this process was started as the guard, does its work and returns true. Programs that record call this first.
pub fn was_guard() -> bool {
    if std::env::args_os().next().is_none_or(|name| name != NAME) {
        return false;
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no handler is set; the signals that end the recorder do not end its guard.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut patches = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if line == DONE {
            return true;
        }
        patches.extend(serde_json::from_str::<Patch>(&line));
    }
    undo(&patches, To::File);
    true
}
