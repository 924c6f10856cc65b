// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording from its beginning to its end.

use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::calibrate::Cost;
use crate::error::{Context as _, Error, Result};
use crate::guard::Guard;
use crate::journal::{Journal, Undone};
use crate::settings::{Scope, Settings};
use crate::setup::{self, Place};
use crate::signals::{self, Bell, wait};
use crate::stats::CpuStats;
use crate::stream::Streams;
use crate::tracefs::{self, Tracefs, join};
use crate::{STREAMS, command, describe};

/// How long a command that was interrupted with us may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was recorded; also in the run, as `streams/ftrace/recording.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// What was asked for.
    pub settings: Settings,
    /// The command's process ID.
    pub pid: Option<u32>,
    /// The threads that were traced when it began; of what they started the trace's forks tell. None: everybody.
    #[serde(default)]
    pub traced: Vec<u32>,
    /// Its exit code as a shell gives it, if it ended.
    pub exit_code: Option<i32>,
    /// How long recording was on.
    pub ns: u64,
    /// How many functions were traced, if not all.
    pub functions: Option<usize>,
    /// What tracing cost, measured before.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// Whether it had a buffer of its own.
    pub own_instance: bool,
    /// The kernel's counts of each CPU.
    pub cpus: Vec<(u32, CpuStats)>,
    /// Bytes of all streams.
    pub bytes: u64,
    /// Why it ended early, if it did.
    pub stopped: Option<String>,
    /// What could not be put back in tracefs, and why.
    pub not_restored: Vec<String>,
}

impl Recording {
    /// Events recorded.
    pub fn events(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.read).sum()
    }

    /// Events lost.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.lost()).sum()
    }

    /// What the run at `folder` says of itself.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(STREAMS).join("recording.json");
        let text = fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text).map_err(std::io::Error::other).at("read", &path)
    }
}

/// Sees whether it can be recorded, and changes nothing.
pub fn ready(settings: &Settings, command: &[String]) -> Result<Tracefs> {
    if let [program, ..] = command {
        command::find(program)?;
    } else if settings.scope == Scope::Command {
        return Err(Error::Setting(
            "no command is given: name one, or record all (-a) or a process (-p)".into(),
        ));
    }
    let tracefs = Tracefs::find()?;
    setup::check(settings, &tracefs)?;
    if !numbers_are_the_kernels() {
        return Err(Error::Setting(
            "this is a PID namespace, as of a container, and the kernel's tracer knows tasks by its own numbers: it would \
             trace others. Record outside of it, or by BPF: --backend bpf-kprobe -T FUNC"
                .into(),
        ));
    }
    Ok(tracefs)
}

/// Whether processes have the numbers here that the kernel's tracer compares: in the first PID namespace.
fn numbers_are_the_kernels() -> bool {
    // Its number is fixed (include/linux/proc_ns.h, PROC_PID_INIT_INO).
    fs::read_link("/proc/self/ns/pid").map_or(true, |name| name == Path::new("pid:[4026531836]"))
}

/// Records into the run at `folder` while `command` runs, or, without one, until a signal comes, the time is over or
/// the process watched ends. `undone` is told what a killed recording had left.
///
/// # Errors
/// When nothing could be recorded. Whatever happens, tracefs is as it was.
pub fn record(
    settings: &Settings,
    command: &[String],
    folder: &Path,
    undone: &mut dyn FnMut(&Undone),
) -> Result<Recording> {
    let tracefs = ready(settings, command)?;
    let output = folder.join(STREAMS);
    fs::create_dir_all(&output).at("create", &output)?;
    let bell = Bell::new().at("wait for", &output)?;
    bell.take_signals().at("wait for", &output)?;
    let (mut journal, left) = Journal::begin(&tracefs)?;
    if let Some(left) = left {
        undone(&left);
    }
    let guard = Guard::start();
    let result = setup::prepare(settings, &tracefs, &mut journal).and_then(|mut place| {
        let result = stream_all(settings, command, folder, &tracefs, &mut journal, &place, &bell);
        place.release();
        result
    });
    let not_restored = journal.undo();
    if let Some(guard) = guard {
        guard.dismiss();
    }
    let (mut recording, running) = result?;
    recording.not_restored = not_restored;
    // Whoever waits for the command does so with nothing switched on any more.
    if let Some(running) = running {
        let patience = if signals::alone() { Duration::ZERO } else { PATIENCE };
        let ended = if signals::requested() { running.finish(patience) } else { running.wait() };
        recording.exit_code = ended.transpose()?.map(code);
    }
    let path = output.join("recording.json");
    let text = serde_json::to_vec_pretty(&recording).map_err(std::io::Error::other).at("write", &path)?;
    fs::write(&path, text).at("write", &path)?;
    Ok(recording)
}

/// Between set-up and the end: the recording itself. The command is given back if it still runs.
fn stream_all(
    settings: &Settings,
    argv: &[String],
    folder: &Path,
    tracefs: &Tracefs,
    journal: &mut Journal,
    place: &Place,
    bell: &Bell,
) -> Result<(Recording, Option<command::Running>)> {
    let output = folder.join(STREAMS);
    describe::formats(tracefs, &place.events, &output)?;
    if settings.symbols {
        describe::symbols(&folder.join("symbols"))?;
    }
    let (held, running) = match argv {
        [] => (None, None),
        argv => command::hold(argv, bell).map(|(held, running)| (Some(held), Some(running)))?,
    };
    let page = tracefs.page_bytes(&place.folder);
    let streams = Streams::start(&tracefs.path(&place.folder), &place.cpus, page, &output, bell)?;
    let pid = held.as_ref().map(|held| held.pid);
    let own = setup::threads_of(std::process::id())?;
    let traced = setup::aim(settings, tracefs, journal, place, pid, &own)?;
    let watched = watch(&settings.scope)?;
    let switch = tracefs.path(&join(&place.folder, "tracing_on"));
    tracefs::write(&switch, &["1"])?;
    let begun = Instant::now();
    if let Some(held) = held {
        held.release().at("start the command with", &switch)?;
    }
    let mut exit = None;
    loop {
        if let Some(ended) = running.as_ref().and_then(command::Running::ended) {
            exit = Some(ended);
            break;
        }
        let left = settings.duration.map(|limit| limit.saturating_sub(begun.elapsed()));
        let gone = watched.as_ref().is_some_and(has_ended);
        if signals::requested() || streams.in_trouble() || left == Some(Duration::ZERO) || gone {
            break;
        }
        wait(&[bell.fd(), watched.as_ref().map_or(-1, |fd| fd.as_raw_fd())], left);
        bell.hush();
    }
    tracefs::write(&switch, &["0"])?;
    let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (bytes, trouble) = streams.finish();
    let cpus = describe::facts(tracefs, &place.folder, &place.cpus, &output)?;
    if settings.symbols {
        describe::symbols(&folder.join("symbols"))?;
    }
    let over = exit.is_none() && running.is_some() && settings.duration.is_some();
    let stopped = match trouble {
        Some(error) => Some(format!("{error}; what came until then is kept")),
        None if signals::requested() && running.is_some() => Some("interrupted".to_owned()),
        None if over => Some("time-out".to_owned()),
        None => None,
    };
    let ended = exit.is_some();
    let recording = Recording {
        settings: settings.clone(),
        pid,
        traced,
        exit_code: exit.transpose()?.map(code),
        ns,
        functions: place.functions,
        cost: place.cost,
        own_instance: !place.folder.is_empty(),
        cpus,
        bytes: bytes.iter().map(|(_, count)| count).sum(),
        stopped,
        not_restored: Vec::new(),
    };
    Ok((recording, running.filter(|_| !ended)))
}

/// As a shell says it.
fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A descriptor that can be read once the process to be recorded has ended.
fn watch(scope: &Scope) -> Result<Option<OwnedFd>> {
    let (Scope::Processes(pids) | Scope::Threads(pids)) = scope else { return Ok(None) };
    let [pid] = pids[..] else { return Ok(None) };
    // SAFETY: pidfd_open takes two numbers; the descriptor is fresh and owned from here on.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match i32::try_from(fd) {
            Ok(fd) if fd >= 0 => Ok(Some(OwnedFd::from_raw_fd(fd))),
            // A thread that is not its process's first, or a kernel before 5.3: until it is stopped.
            _ => Ok(None),
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives through the call.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}
