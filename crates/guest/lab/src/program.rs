// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs long programs of the host, as `make`: their output goes to a file, and Ctrl-C ends them.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;

use crate::error::{Context as _, Error, Result};

/// Runs a program to its end, and returns what it wrote. A Ctrl-C ends it.
///
/// # Errors
/// It cannot be started; [`Error::Interrupted`].
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let name = PathBuf::from(command.get_program());
    // In its own process group: a Ctrl-C in a terminal would end it, which looked like its failure.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().at("run", &name)?;
    let id = child.id() as i32;
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || sender.send(child.wait_with_output()));
    let mut interrupted = false;
    let output = loop {
        match receiver.recv_timeout(std::time::Duration::from_millis(20)) {
            Ok(output) => break output,
            Err(RecvTimeoutError::Disconnected) => {
                break Err(std::io::Error::other("the thread that waits for it ended"));
            }
            Err(RecvTimeoutError::Timeout) if kprism_signals::end_requested() && !interrupted => {
                interrupted = true;
                // SAFETY: a signal to the group of a child that has not been waited for.
                unsafe { libc::kill(-id, libc::SIGTERM) };
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    reader.join().ok();
    let output = output.at("run", &name)?;
    // A Ctrl-C may come before the child is in its own group.
    match interrupted || output.status.signal() == Some(libc::SIGINT) {
        true => Err(Error::Interrupted),
        false => Ok(output),
    }
}

/// Runs a program to its end, with its output in `log`. A Ctrl-C ends it and its children.
pub(crate) fn run(command: &mut Command, what: &str, log: &Path) -> Result<()> {
    let output = File::create(log).at("create", log)?;
    let errors = output.try_clone().at("create", log)?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    // Its own process group, so that all of it can be ended.
    command.process_group(0);
    let mut child = command.spawn().at("run", Path::new(command.get_program()))?;
    let status = loop {
        if let Some(status) = child.try_wait().at("run", log)? {
            break status;
        }
        if kprism_signals::end_requested() {
            // make ends its children, and can be continued.
            // SAFETY: a signal to the group of a child that has not been waited for.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGTERM) };
            child.wait().ok();
            return Err(Error::Interrupted);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().rev().take(15).collect();
    let tail: Vec<&str> = lines.into_iter().rev().collect();
    Err(Error::BadFile { path: log.to_owned(), reason: format!("{what} failed:\n{}", tail.join("\n")) })
}
