// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for the end of a recording by BPF: its command or processes exit, its time is over, or Ctrl-C.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kprism_agent::mark::{MARK_BEGIN, MARK_END, mark};
use kprism_session::Progress;

/// A recording's end: of a command, of processes, of a time.
pub struct Wait {
    command: Option<Child>,
    /// Becomes readable when the command has ended; none before Linux 5.3.
    end: Option<OwnedFd>,
    /// The observer is told where the command begins and ends.
    marks: bool,
    /// Processes or threads, if no command is.
    numbers: Vec<u32>,
    limit: Option<Duration>,
    started: Instant,
    asked_to_end: bool,
    /// The command's, once it has ended; of one that a signal ended 128 and its number.
    pub exit_code: Option<i32>,
    /// The signal that ended the command, if one did.
    pub signal: Option<i32>,
}

impl Wait {
    /// Starts the command, if there is one. `marks`: the observer of this guest is told where it begins and ends.
    pub fn begin(
        command: &[String],
        numbers: Vec<u32>,
        limit: Option<Duration>,
        marks: bool,
        progress: &Progress,
    ) -> Result<Self> {
        Self::begin_held(command, numbers, limit, marks, false, progress)
    }

    /// The same; with `held` the command asks this thread to trace it, and stops when it has executed its program.
    pub fn begin_held(
        command: &[String],
        numbers: Vec<u32>,
        limit: Option<Duration>,
        marks: bool,
        held: bool,
        progress: &Progress,
    ) -> Result<Self> {
        if let Some(gone) = numbers.iter().find(|pid| !alive(**pid)) {
            bail!("process {gone}: there is none, or no more");
        }
        let command = match command.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments);
                if marks {
                    // SAFETY: the closure asks for a number and executes CPUID, both fine between fork and exec.
                    unsafe {
                        command.pre_exec(|| {
                            mark(MARK_BEGIN, std::process::id());
                            Ok(())
                        });
                    }
                }
                if held {
                    // SAFETY: ptrace touches no memory here, and is fine between fork and exec.
                    unsafe {
                        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                            -1 => Err(std::io::Error::last_os_error()),
                            _ => Ok(()),
                        });
                    }
                }
                let what = |error: &std::io::Error| match held && error.kind() == ErrorKind::PermissionDenied
                {
                    true => {
                        format!("{program}, which --jump traces at first: a tracer of kprism forbids that")
                    }
                    false => program.clone(),
                };
                Some(command.spawn().map_err(|error| {
                    let what = what(&error);
                    anyhow::Error::new(error).context(what)
                })?)
            }
            None => None,
        };
        if command.is_none() && limit.is_none() {
            progress.say("recording; Ctrl-C ends it");
        }
        Ok(Wait {
            end: command.as_ref().and_then(|child| pidfd(child.id())),
            marks,
            command,
            numbers,
            limit,
            started: Instant::now(),
            asked_to_end: false,
            exit_code: None,
            signal: None,
        })
    }

    /// The command's process.
    pub fn command(&self) -> Option<u32> {
        self.command.as_ref().map(Child::id)
    }

    /// Ends the command at once: it was to be recorded in another way than is possible.
    pub fn give_up(&mut self) {
        if let Some(running) = &mut self.command {
            running.kill().ok();
            running.wait().ok();
        }
    }

    /// Whether a command is waited for.
    pub fn has_command(&self) -> bool {
        self.command.is_some()
    }

    /// Whether the command has ended.
    pub fn ended(&mut self) -> Result<bool> {
        let Some(running) = &mut self.command else { return Ok(false) };
        let status = running.try_wait().context("waiting for the command")?;
        if self.marks && status.is_some() {
            mark(MARK_END, running.id());
        }
        self.signal = status.and_then(|status| status.signal());
        self.exit_code =
            status.and_then(|status| status.code().or_else(|| Some(128 + status.signal().unwrap_or(0))));
        Ok(status.is_some())
    }

    /// Sleeps, at most until the command ends.
    pub fn pause(&self, most: Duration) {
        let Some(end) = &self.end else { return std::thread::sleep(most) };
        let mut of = libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one structure, which lives through the call.
        unsafe { libc::poll(&raw mut of, 1, ms) };
    }

    /// The end of the command, if that was not with 0.
    pub fn end_text(&self) -> Option<String> {
        match (self.signal, self.exit_code) {
            (Some(signal), _) if self.asked_to_end && signal == libc::SIGTERM => None,
            (Some(signal), _) => {
                Some(format!("note: the command was ended by signal {signal} ({})", signal_name(signal)))
            }
            (None, Some(code)) if code != 0 => Some(format!("note: the command ended with {code}")),
            _ => None,
        }
    }

    /// Whether there is nothing more to wait for. A command is asked to end when its time is over, and waited for.
    pub fn is_over(&mut self) -> bool {
        let gone =
            self.command.is_none() && !self.numbers.is_empty() && !self.numbers.iter().copied().any(alive);
        let over = self.limit.is_some_and(|limit| self.started.elapsed() >= limit);
        if !(gone || over || kprism_signals::end_requested()) {
            return false;
        }
        // The terminal's Ctrl-C reached the command too.
        if let Some(running) = self.command.as_ref().filter(|_| !self.asked_to_end) {
            end(running);
            self.asked_to_end = true;
        }
        self.command.is_none()
    }

    /// Nanoseconds since the beginning.
    pub fn ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A descriptor of a process that has not been waited for.
fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: the call touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor is new, and nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        _ => "see `kill -l`",
    }
}

/// Asks a process that has not been waited for to end.
fn end(child: &Child) {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else { return };
    // SAFETY: kill touches no memory; the number is still the child's own.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}
