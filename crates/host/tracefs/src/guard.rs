// SPDX-License-Identifier: MIT OR Apache-2.0
//! A helper process that restores tracefs when the recorder is killed.
//!
//! A tracer stays switched on after its process ends, and every function of the kernel stays hooked. For this reason
//! the recorder starts its own program again under another name before it makes its first change. The helper waits on a
//! pipe whose write end only the recorder has. A byte means that everything was restored; an end of file without a byte
//! means that the recorder died. If the guard cannot be started, or is killed too, the journal is left for the next
//! start.

use std::io::{PipeWriter, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::journal::undo_stale;

/// Name of the guard's process.
pub const NAME: &str = "kprism-guard";

/// How long a change that the kernel refuses to undo is tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The recorder's side of the guard.
pub(crate) struct Guard {
    child: Child,
    pipe: PipeWriter,
}

impl Guard {
    /// Starts the guard. Returns `None` if that is not possible.
    pub fn start() -> Option<Self> {
        let (from, pipe) = std::io::pipe().ok()?;
        let child = Command::new("/proc/self/exe")
            .arg0(NAME)
            .arg(std::process::id().to_string())
            .stdin(from)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C and other signals to the process group are for the recorder only.
            .process_group(0)
            .spawn()
            .ok()?;
        Some(Guard { child, pipe })
    }

    /// Ends the guard after everything was restored.
    pub fn dismiss(mut self) {
        self.pipe.write_all(b"x").ok();
        drop(self.pipe);
        self.child.wait().ok();
    }
}

/// If this process was started as the guard, does the guard's work and returns true when it is done. Programs that
/// record must call this before anything else.
pub fn was_guard() -> bool {
    if std::env::args_os().next().is_none_or(|name| name != NAME) {
        return false;
    }
    let recorder = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let mut said = Vec::new();
    std::io::stdin().read_to_end(&mut said).ok();
    if said.is_empty() {
        put_back(recorder);
    }
    true
}

/// Restores what the recorder, which is dead or about to be, has changed.
fn put_back(recorder: Option<u32>) {
    let mut refused: Option<Instant> = None;
    loop {
        match undo_stale() {
            // It dies slowly: its pipe is closed before its lock is free.
            Err(Error::Recording { pid }) if Some(pid) == recorder => {}
            // The kernel refuses a change while files of the dead recorder are open, and they are the last to be closed.
            Ok(Some(undone)) if !undone.failed.is_empty() => {
                if refused.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    break;
                }
            }
            // Done. Or another recording has begun, which has done it; or it cannot be done, and is left for the next one.
            _ => break,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// True if the process is a guard.
pub fn is_guard(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|&byte| byte == 0).next() == Some(NAME.as_bytes())
}
