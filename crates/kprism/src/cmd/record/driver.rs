// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf as a child: started, asked to end, waited for, never left behind.
//!
//! perf ends cleanly on SIGINT: it ends the command that it started, writes what it has, and then dies of the
//! signal, which is no failure. It shares the terminal's process group, so that the command may read from the
//! terminal; a Ctrl-C there reaches it twice, which it bears.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often the child and the clock are looked at.
const TICK: Duration = Duration::from_millis(10);

/// What the user wants of a recording under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Its end.
    Stop,
    /// A snapshot, and to go on.
    Snapshot,
}

/// How perf ended.
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

/// Runs perf until it ends by itself, `limit` is over, or `asked` says so.
pub fn run(
    program: &Path,
    args: &[OsString],
    limit: Option<Duration>,
    asked: &dyn Fn() -> Option<Asked>,
) -> Result<Ended> {
    let started = Instant::now();
    let mut child = start(program, args)?;
    let mut stopped = false;
    loop {
        if let Some(status) = child.try_wait().context("waiting for perf")? {
            return Ok(Ended::new(status, stopped));
        }
        let over = limit.is_some_and(|limit| started.elapsed() >= limit);
        match asked() {
            _ if stopped => {}
            Some(Asked::Stop) => stopped = signal(&child, libc::SIGINT),
            _ if over => stopped = signal(&child, libc::SIGINT),
            Some(Asked::Snapshot) => drop(signal(&child, libc::SIGUSR2)),
            None => {}
        }
        std::thread::sleep(TICK);
    }
}

fn start(program: &Path, args: &[OsString]) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(args);
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
    command.spawn().with_context(|| program.display().to_string())
}

/// Sends a signal to a child that has not been waited for, so that its number is still its own.
fn signal(child: &Child, number: i32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else { return false };
    // SAFETY: kill touches no memory of ours.
    unsafe { libc::kill(pid, number) == 0 }
}

static SNAPSHOT: AtomicBool = AtomicBool::new(false);

/// Takes SIGUSR2, which otherwise ends a process.
pub fn catch_snapshot_signal() {
    extern "C" fn on_signal(_: libc::c_int) {
        SNAPSHOT.store(true, Ordering::SeqCst);
    }
    let handler = on_signal as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing but an atomic store.
    unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
}

/// Whether SIGUSR2 came since the last call.
pub fn snapshot_requested() -> bool {
    SNAPSHOT.swap(false, Ordering::SeqCst)
}

/// The real perf, with an event that every kernel has.
#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::line::find_perf;
    use super::*;
    use crate::cmd::import;
    use crate::progress::{Level, Progress};

    /// perf's arguments; `None` where it is not installed or may not record.
    fn recording(dir: &Path, command: &[&str]) -> Option<(std::path::PathBuf, Vec<OsString>)> {
        let perf = find_perf()?;
        let words = |file: &str, command: &[&str]| -> Vec<OsString> {
            let mut line = vec!["record".into(), "-q".into(), "-e".into(), "cpu-clock:u".into(), "-o".into()];
            line.push(dir.join(file).into());
            line.push("--".into());
            line.extend(command.iter().map(OsString::from));
            line
        };
        let tried = Command::new(&perf).args(words("try", &["true"])).output();
        if !tried.is_ok_and(|output| output.status.success()) {
            println!("skipped: perf may not record here");
            return None;
        }
        Some((perf, words("perf.data", command)))
    }

    /// perf wrote a whole file: the import reads it and misses nothing but Intel PT.
    fn is_whole(dir: &Path) {
        let args = import::Args::of_perf_data(&dir.join("perf.data"), &dir.join("run"));
        let error = import::run(&args, &Progress::new(Level::Quiet)).unwrap_err().to_string();
        assert!(error.ends_with("Intel PT: record with `perf record -e intel_pt//`"), "{error}");
    }

    #[test]
    fn the_command_ends_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let Some((perf, line)) = recording(dir.path(), &["sh", "-c", "exit 3"]) else { return };
        let ended = run(&perf, &line, None, &|| None).unwrap();
        assert_eq!(ended, Ended { code: Some(3), signal: None, stopped: false });
        assert_eq!(ended.to_string(), "ended with 3");
        is_whole(dir.path());
    }

    #[test]
    fn stopped_by_the_clock() {
        let dir = tempfile::tempdir().unwrap();
        let Some((perf, line)) = recording(dir.path(), &["sleep", "1000"]) else { return };
        let begun = Instant::now();
        let ended = run(&perf, &line, Some(Duration::from_millis(700)), &|| None).unwrap();
        assert!(ended.stopped && begun.elapsed() > Duration::from_millis(600), "{ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(900), "not the whole sleep");
        is_whole(dir.path());
    }

    /// As Ctrl-C does; a request for a snapshot before it ends nothing.
    #[test]
    fn stopped_by_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let child_says = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 1000", child_says.display());
        let Some((perf, line)) = recording(dir.path(), &["sh", "-c", &script]) else { return };
        let asked = Cell::new(0);
        let ended = run(&perf, &line, Some(Duration::from_secs(600)), &|| {
            if !child_says.exists() {
                return None;
            }
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => Some(Asked::Snapshot),
                ..20 => None,
                _ => Some(Asked::Stop),
            }
        });
        let ended = ended.unwrap();
        assert!(ended.stopped && asked.get() >= 20, "{ended:?} after {}", asked.get());
        is_whole(dir.path());
        let pid = std::fs::read_to_string(&child_says).unwrap();
        let command = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
        assert!(!command.starts_with(b"sleep"), "the command goes with perf");
    }

    /// The kernel ends perf when the thread that started it is gone, as when kprism is killed.
    #[test]
    fn perf_is_not_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let Some((perf, line)) = recording(dir.path(), &["sleep", "1000"]) else { return };
        let mut child = std::thread::spawn(move || start(&perf, &line).unwrap()).join().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(300), "perf still runs");
            std::thread::sleep(TICK);
        }
    }

    #[test]
    fn a_program_that_is_not_there() {
        let error = run(Path::new("/nowhere/perf"), &[], None, &|| None).unwrap_err();
        assert!(error.to_string().contains("/nowhere/perf"), "{error}");
    }
}
