// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process of its own that puts tracefs back when the recorder is killed.
//!
//! A tracer stays switched on when its process goes: every function of the kernel stays hooked. So before the first
//! change the recorder starts its own program once more, under another name. That one waits at a pipe, of which the
//! recorder alone has the other end: a byte says that all was put back, its end without one that the recorder is no
//! more. Where it cannot be started, or is killed too, the journal waits for the next start.

use std::io::{PipeWriter, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::error::Error;
use crate::journal::undo_stale;

/// What the process is called.
pub const NAME: &str = "kprism-guard";

/// The recorder's end.
pub(crate) struct Guard {
    child: Child,
    pipe: PipeWriter,
}

impl Guard {
    /// Starts it; nothing where that cannot be done.
    pub fn start() -> Option<Self> {
        let (from, pipe) = std::io::pipe().ok()?;
        let child = Command::new("/proc/self/exe")
            .arg0(NAME)
            .stdin(from)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is the recorder's, and so is what is sent to its group.
            .process_group(0)
            .spawn()
            .ok()?;
        Some(Guard { child, pipe })
    }

    /// Everything was put back.
    pub fn dismiss(mut self) {
        self.pipe.write_all(b"x").ok();
        drop(self.pipe);
        self.child.wait().ok();
    }
}

/// If this process was started as the guard, is that, and says so when there is nothing more to do. Programs that record
/// ask before anything else.
pub fn was_guard() -> bool {
    if std::env::args_os().next().is_none_or(|name| name != NAME) {
        return false;
    }
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said).ok();
    if said.is_empty() {
        // The recorder's lock may be open a moment longer than its pipe.
        for _ in 0..500 {
            match undo_stale() {
                Err(Error::Recording { .. }) => std::thread::sleep(Duration::from_millis(10)),
                _ => break,
            }
        }
    }
    true
}

/// Whether a process is one.
pub(crate) fn is_guard(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|&byte| byte == 0).next() == Some(NAME.as_bytes())
}
