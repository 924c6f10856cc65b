// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf as a child: started, asked to end, waited for, never left behind.
//!
//! perf ends cleanly on SIGINT: it ends the command that it started, writes what it has, and then dies of the
//! signal, which is no failure. It shares the terminal's process group, so that the command may read from the
//! terminal; a Ctrl-C there reaches it twice, which it bears. Tested in `tests/perf_child.rs`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Interval at which the child and the clock are looked at.
pub const TICK: Duration = Duration::from_millis(10);
/// The same where a request must reach perf soon.
pub const SHORT_TICK: Duration = Duration::from_millis(1);

/// A request of the user during a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// End it.
    Stop,
    /// Take a snapshot and go on.
    Snapshot,
}

/// The end of perf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, which is the command's own if all went well; none when a signal ended it.
    pub code: Option<i32>,
    /// The signal.
    pub signal: Option<i32>,
    /// It was asked to end.
    pub stopped: bool,
}

impl Ended {
    fn new(status: ExitStatus, stopped: bool) -> Self {
        Self { code: status.code(), signal: status.signal(), stopped }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.stopped, self.code, self.signal) {
            (true, ..) => write!(f, "was stopped"),
            (_, Some(code), _) => write!(f, "ended with {code}"),
            (_, _, signal) => write!(f, "was ended by signal {}", signal.unwrap_or(0)),
        }
    }
}

/// Asked each tick, with the number of perf's process.
pub type Asked<'a> = &'a dyn Fn(u32) -> Result<Option<Request>>;

/// Runs perf until it ends by itself, `limit` is over, or `asked`, which is called each `tick`, says so.
///
/// # Errors
/// perf cannot be started or waited for, or `asked` fails: perf is then ended first.
pub fn run(
    program: &Path,
    args: &[OsString],
    limit: Option<Duration>,
    tick: Duration,
    asked: Asked<'_>,
) -> Result<Ended> {
    let mut command = Command::new(program);
    run_command(command.args(args), limit, tick, asked)
}

/// The same of a command line that has its surroundings.
///
/// # Errors
/// As of [`run`].
pub fn run_command(
    command: &mut Command,
    limit: Option<Duration>,
    tick: Duration,
    asked: Asked<'_>,
) -> Result<Ended> {
    let started = Instant::now();
    let mut child = start(command)?;
    let mut stopped = false;
    let mut failed = None;
    loop {
        if let Some(status) = child.try_wait().context("waiting for perf")? {
            return match failed {
                None => Ok(Ended::new(status, stopped)),
                Some(why) => Err(why),
            };
        }
        let over = limit.is_some_and(|limit| started.elapsed() >= limit);
        match asked(child.id()) {
            _ if stopped => {}
            Ok(Some(Request::Stop)) => stopped = signal(&child, libc::SIGINT),
            _ if over => stopped = signal(&child, libc::SIGINT),
            Ok(Some(Request::Snapshot)) => drop(signal(&child, libc::SIGUSR2)),
            Ok(None) => {}
            Err(why) => {
                stopped = signal(&child, libc::SIGINT);
                failed = Some(why);
            }
        }
        std::thread::sleep(tick);
    }
}

/// Starts perf, so that it ends with the thread that called.
///
/// # Errors
/// The program cannot be started.
pub fn start(command: &mut Command) -> Result<Child> {
    // SAFETY: prctl is async-signal-safe and touches only the new process.
    unsafe {
        command.pre_exec(|| {
            // However kprism ends, perf ends too, cleanly.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    command.spawn().with_context(|| command.get_program().to_string_lossy().into_owned())
}

/// Sends a signal to a child that has not been waited for, so that its number is still its own.
fn signal(child: &Child, number: i32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else { return false };
    // SAFETY: kill touches no memory of ours.
    unsafe { libc::kill(pid, number) == 0 }
}
