// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording as a process of its own: the same command line as without `top`.
//!
//! In: the program and its arguments. Out: what it prints, a bounded part of it, and how it ended. It cannot disturb the
//! terminal, and ends when this process does.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::screen::Screen;

/// Lines that are kept.
const LINES: usize = 2000;
/// Bytes of a line that are kept.
const LONGEST: usize = 4096;

/// The last lines of an output.
#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    dropped: u64,
    begun: Vec<u8>,
    cut: u64,
}

impl Tail {
    /// Adds bytes as they come.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                _ if self.begun.len() < LONGEST => self.begun.push(byte),
                _ => self.cut += 1,
            }
        }
    }

    fn end_line(&mut self) {
        let mut line = String::from_utf8_lossy(&self.begun).trim_end_matches('\r').to_owned();
        if self.cut > 0 {
            line += &format!("… {} bytes more", self.cut);
        }
        (self.begun, self.cut) = (Vec::new(), 0);
        if self.lines.len() == LINES {
            self.lines.pop_front();
            self.dropped += 1;
        }
        self.lines.push_back(line);
    }

    /// The lines, with the number of those before them.
    pub fn lines(&self) -> Vec<String> {
        let before = (self.dropped > 0).then(|| format!("… {} lines before these", self.dropped));
        let begun = (!self.begun.is_empty()).then(|| String::from_utf8_lossy(&self.begun).into_owned());
        before.into_iter().chain(self.lines.iter().cloned()).chain(begun).collect()
    }
}

/// A process that records.
pub struct Recording {
    child: Child,
    said: Arc<Mutex<Tail>>,
    readers: Vec<JoinHandle<()>>,
    asked_to_end: bool,
}

/// Destination of the recorder's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Its last lines are kept.
    Kept,
    /// To this process's standard error.
    StandardError,
}

impl Recording {
    /// Starts it, without an input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &Path, arguments: &[OsString], output: Output) -> Result<Self> {
        let parent = std::process::id();
        let mut command = Command::new(program);
        // A group of its own: a Ctrl-C of the terminal reaches this process, which passes on one signal.
        command.args(arguments).stdin(Stdio::null()).process_group(0);
        match output {
            Output::Kept => command.stdout(Stdio::piped()).stderr(Stdio::piped()),
            Output::StandardError => {
                let to = io::stderr().as_fd().try_clone_to_owned().context("standard error")?;
                command.stdout(to)
            }
        };
        // SAFETY: prctl and getppid are async-signal-safe and touch no memory of the process.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have ended before that took effect.
                match libc::getppid().cast_unsigned() == parent {
                    true => Ok(()),
                    false => Err(io::ErrorKind::BrokenPipe.into()),
                }
            })
        };
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let said = Arc::new(Mutex::new(Tail::default()));
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(keep(out, Arc::clone(&said)));
        }
        if let Some(err) = child.stderr.take() {
            readers.push(keep(err, Arc::clone(&said)));
        }
        Ok(Recording { child, said, readers, asked_to_end: false })
    }

    /// Asks it to end, once. It keeps what it has recorded.
    pub fn end(&mut self) {
        let Ok(pid) = libc::pid_t::try_from(self.child.id()) else { return };
        if !self.asked_to_end {
            self.asked_to_end = true;
            // SAFETY: kill touches no memory; the child was not waited for, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGINT) };
        }
    }

    /// Whether it was asked to end.
    pub fn is_ending(&self) -> bool {
        self.asked_to_end
    }

    /// Its exit code, if it has ended; of one that a signal ended, 128 and its number.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn ended(&mut self) -> Result<Option<u8>> {
        let Some(status) = self.child.try_wait().context("waiting for the recorder")? else {
            return Ok(None);
        };
        // A process that the command left behind may hold the pipe for ever.
        let begun = Instant::now();
        while self.readers.iter().any(|reader| !reader.is_finished())
            && begun.elapsed() < Duration::from_millis(300)
        {
            thread::sleep(Duration::from_millis(5));
        }
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ok(Some(u8::try_from(code).unwrap_or(u8::MAX)))
    }

    /// The last lines that it and its command printed.
    pub fn lines(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).lines()
    }

    /// The same as a screen.
    pub fn screen(&self) -> Screen {
        let lines = self.lines();
        Screen::text("recorder", lines.iter().map(String::as_str))
    }
}

fn keep(mut from: impl Read + Send + 'static, said: Arc<Mutex<Tail>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        loop {
            match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => said.lock().unwrap_or_else(PoisonError::into_inner).push(&bytes[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_of_any_length_keeps_its_end_and_counts_the_rest() {
        let mut tail = Tail::default();
        for n in 0..LINES + 5 {
            tail.push(format!("line {n}\r\n").as_bytes());
        }
        tail.push(&vec![b'x'; LONGEST + 7]);
        tail.push(b"\n\xff\x1b[2J");
        let lines = tail.lines();
        assert_eq!(lines[0], "… 6 lines before these");
        assert_eq!(lines[1], "line 6");
        assert!(lines[LINES].ends_with("… 7 bytes more"));
        assert_eq!(lines[LINES + 1], "\u{fffd}\x1b[2J");
    }
}
