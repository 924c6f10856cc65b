// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs long programs of the host, as `make`: their output goes to a file, and Ctrl-C ends them.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use crate::error::{Context as _, Error, Result};
use crate::tail::{Lines, Tail};

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
    watched(command, what, log, &mut |_| {}, None).map(drop)
}

/// As [`run`]; `line` gets each line that the program writes, as it does. At `limit` the program and its children are
/// ended as by a Ctrl-C, and false is returned.
pub(crate) fn watched(
    command: &mut Command,
    what: &str,
    log: &Path,
    line: &mut dyn FnMut(&str),
    limit: Option<Instant>,
) -> Result<bool> {
    let output = File::create(log).at("create", log)?;
    let errors = output.try_clone().at("create", log)?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    // Its own process group, so that all of it can be ended.
    command.process_group(0);
    let mut child = command.spawn().at("run", Path::new(command.get_program()))?;
    let (mut tail, mut lines) = (Tail::new(log), Lines::default());
    let status = loop {
        let ended = child.try_wait().at("run", log)?;
        tail.follow(|bytes| lines.add(bytes, |bytes| line(&String::from_utf8_lossy(bytes))));
        if let Some(status) = ended {
            break status;
        }
        let interrupted = kprism_signals::end_requested();
        if interrupted || limit.is_some_and(|limit| Instant::now() >= limit) {
            // make ends its children, removes what they have half written, and can be continued.
            // SAFETY: a signal to the group of a child that has not been waited for.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGTERM) };
            child.wait().ok();
            return if interrupted { Err(Error::Interrupted) } else { Ok(false) };
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    if status.success() {
        return Ok(true);
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().rev().filter(|line| !is_step(line)).take(15).collect();
    let tail: Vec<&str> = lines.into_iter().rev().collect();
    Err(Error::BadFile { path: log.to_owned(), reason: format!("{what} failed:\n{}", tail.join("\n")) })
}

/// True for the line of a kernel's `make` about each file: `  CC      kernel/fork.o`. With several compilers, an error is far above.
fn is_step(line: &str) -> bool {
    let word = line.strip_prefix("  ").and_then(|line| line.split(' ').next());
    word.is_some_and(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_ends_a_program_and_lines_come_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut lines = Vec::new();
        let mut shell = |script: &str, limit: Option<u64>| {
            let limit = limit.map(|ms| Instant::now() + std::time::Duration::from_millis(ms));
            let mut command = Command::new("sh");
            watched(command.args(["-c", script]), "sh", &log, &mut |line| lines.push(line.to_owned()), limit)
        };
        assert!(shell("echo a; echo b >&2", None).unwrap());
        let start = Instant::now();
        assert!(!shell("echo c; sleep 60", Some(300)).unwrap());
        assert!(start.elapsed().as_secs() < 30);
        assert!(
            shell("echo why; echo '  CC      a.o'; exit 3", None)
                .unwrap_err()
                .to_string()
                .ends_with("sh failed:\nwhy")
        );
        assert_eq!(lines, ["a", "b", "c", "why", "  CC      a.o"]);
    }
}
