// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command of this machine, in the surroundings that a [`Job`] gives it: environment, folder, standard input.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kprism_lab::Job;
use kprism_tracefs::path::{self, NotFound};

const TICK: Duration = Duration::from_millis(5);
/// Time from Ctrl-C to SIGTERM, and from SIGTERM to SIGKILL. A terminal sends Ctrl-C to the command too.
const PATIENCE: Duration = Duration::from_secs(2);

/// A job's standard input that is this process's own.
pub const OWN_STDIN: &str = "/dev/stdin";

/// Gives `command` the environment, folder and standard input of the job.
///
/// # Errors
/// The folder or the file is not there.
pub fn place(command: &mut Command, job: &Job) -> Result<()> {
    command.envs(job.env.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = &job.cwd {
        anyhow::ensure!(Path::new(folder).is_dir(), "--cwd {folder}: there is no such folder");
        command.current_dir(folder);
    }
    if let Some(path) = job.stdin.as_ref().filter(|path| path.as_os_str() != OWN_STDIN) {
        let file = File::open(path).with_context(|| format!("--stdin {}", path.display()))?;
        command.stdin(Stdio::from(file));
    }
    Ok(())
}

/// Finds a command's program as the command does: below the job's folder, or in the `PATH` that its environment may set.
///
/// # Errors
/// There is none, or it is not executable.
pub fn find(name: &str, job: &Job) -> Result<PathBuf> {
    let from = job.cwd.as_ref().map(PathBuf::from).unwrap_or_default();
    let path = job.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, path)| path.into());
    let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    match (path::find(name, &from, &path), &job.cwd) {
        (Ok(program), _) => Ok(program),
        (Err(NotFound::NotExecutable(file)), _) => bail!("{}: is not executable", file.display()),
        (Err(NotFound::Missing), Some(folder)) if name.contains('/') => {
            bail!("{name}: no such program in {folder}")
        }
        (Err(NotFound::Missing), _) if name.contains('/') => bail!("{name}: no such program"),
        (Err(NotFound::Missing), _) => bail!("{name}: no such program in PATH"),
    }
}

/// Starts it so that it does not outlive us, however we end.
pub fn start(command: &mut Command) -> Result<Child> {
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch only the new process.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // We may have ended before that call.
            match libc::getppid() as u32 == parent {
                true => Ok(()),
                false => Err(std::io::Error::other("kprism has ended")),
            }
        });
    }
    command.spawn().with_context(|| command.get_program().to_string_lossy().into_owned())
}

/// Why a command was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It ran for as long as it may.
    Timeout,
    /// We were asked to end.
    Interrupted,
}

/// Waits for its end, or brings it about.
pub fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(ExitStatus, Option<Stopped>)> {
    let started = Instant::now();
    let mut stopped: Option<(Stopped, Instant)> = None;
    let mut sent = 0;
    loop {
        if let Some(status) = child.try_wait().context("waiting for the command")? {
            return Ok((status, stopped.map(|(why, _)| why)));
        }
        if let Some((why, since)) = stopped {
            // At a time-out nobody has told it yet.
            let steps = match why {
                Stopped::Timeout => [(Duration::ZERO, libc::SIGTERM), (PATIENCE, libc::SIGKILL)],
                Stopped::Interrupted => [(PATIENCE, libc::SIGTERM), (2 * PATIENCE, libc::SIGKILL)],
            };
            if let Some(&(after, number)) = steps.get(sent)
                && since.elapsed() >= after
            {
                signal(child, number);
                sent += 1;
            }
        } else if interrupted() {
            stopped = Some((Stopped::Interrupted, Instant::now()));
        } else if limit.is_some_and(|limit| started.elapsed() >= limit) {
            stopped = Some((Stopped::Timeout, Instant::now()));
        }
        std::thread::sleep(TICK);
    }
}

/// To a child that has not been waited for, so that its number is still its own.
fn signal(child: &Child, number: i32) {
    if let Ok(pid) = libc::pid_t::try_from(child.id()) {
        // SAFETY: kill touches no memory of ours.
        unsafe { libc::kill(pid, number) };
    }
}
