// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sequence of a recording from its beginning to its end.
//!
//! The input is the settings, a command and a run's folder. The output is the files below `streams/ftrace/` of the run
//! and a [`Recording`]. [`ready`] checks the settings first, so that a recording that is impossible changes nothing.

use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use kprism_manifest::{Instrument, Manifest, OptionKey};
use kprism_profile::TracingCost;
use serde::{Deserialize, Serialize};

use crate::calibrate::Cost;
use crate::describe::Symbols;
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

/// Time that an interrupted command may take to end before it is sent SIGTERM.
const PATIENCE: Duration = Duration::from_secs(2);

/// The reason for an early end by a signal ([`Recording::stopped`]).
pub const INTERRUPTED: &str = "interrupted";

/// Description of a recording. It is also stored in the run as `streams/ftrace/recording.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Settings of the recording.
    pub settings: Settings,
    /// Process ID of the command.
    pub pid: Option<u32>,
    /// Threads that were traced at the start; the trace's fork events give the threads they started. Empty if all
    /// threads were traced.
    #[serde(default)]
    pub traced: Vec<u32>,
    /// Exit code of the command as a shell gives it. `None` if it did not end.
    pub exit_code: Option<i32>,
    /// Duration of the recording, in ns.
    pub ns: u64,
    /// Number of functions traced. `None` if all were.
    pub functions: Option<usize>,
    /// Overhead of tracing, measured before the recording.
    #[serde(default)]
    pub cost: Option<Cost>,
    /// True if the recording had an instance of its own.
    pub own_instance: bool,
    /// The kernel's event counts, by CPU number.
    pub cpus: Vec<(u32, CpuStats)>,
    /// Total size of all streams, in bytes.
    pub bytes: u64,
    /// Reason for an early end, if there was one.
    pub stopped: Option<String>,
    /// True if that reason is that a file of the recording could not be written, as on a full disk.
    #[serde(default)]
    pub unwritten: bool,
    /// Errors of the changes in tracefs that could not be undone.
    pub not_restored: Vec<String>,
}

impl Recording {
    /// Number of events recorded, on all CPUs.
    pub fn events(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.read).sum()
    }

    /// Number of events lost, on all CPUs.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.lost()).sum()
    }

    /// Enters into the run's manifest what was recorded. An early end that is noted there stays.
    ///
    /// # Errors
    /// A path in the settings is not UTF-8.
    pub fn enter(&self, manifest: &mut Manifest) -> serde_json::Result<()> {
        let settings = &self.settings;
        manifest.vcpus = u32::try_from(self.cpus.len()).unwrap_or(u32::MAX);
        manifest.clock.name = format!("ftrace {}", settings.clock);
        manifest.clock.tsc_hz = 1_000_000_000;
        manifest.exit_code = self.exit_code;
        if manifest.stopped.is_none() {
            manifest.stopped.clone_from(&self.stopped);
        }
        manifest.instruments = vec![Instrument::Durations];
        manifest.set(OptionKey::Record, "func");
        manifest.set(OptionKey::Backend, "ftrace");
        manifest.set(OptionKey::Settings, serde_json::to_value(settings)?);
        manifest.durations.events = Some(self.events());
        manifest.durations.lost_events = Some(self.lost());
        if let Some(Cost { call_ns, inside_ns, slowdown }) = self.cost {
            let dropped = settings.longer_than.is_some();
            manifest.durations.tracing_cost = Some(TracingCost { call_ns, inside_ns, slowdown, dropped });
        }
        Ok(())
    }

    /// Reads the description back from the run at `folder`. Fails if `recording.json` is missing or malformed.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(STREAMS).join("recording.json");
        let text = fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text).map_err(std::io::Error::other).at("read", &path)
    }
}

/// Checks that a recording is possible, without changing anything.
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

/// True in the first PID namespace, where process numbers are those that the kernel's tracer compares.
fn numbers_are_the_kernels() -> bool {
    // The number of that namespace is fixed (include/linux/proc_ns.h, PROC_PID_INIT_INO).
    fs::read_link("/proc/self/ns/pid").map_or(true, |name| name == Path::new("pid:[4026531836]"))
}

/// Records into the run at `folder` while `command` runs. Without a command, records until a signal arrives, the
/// duration has passed or the only recorded process ends. `undone` is called if changes of a killed recording were
/// undone first.
///
/// # Errors
/// Fails if nothing could be recorded or the command could not be run. tracefs is restored in every case, as far as
/// possible.
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
    let result = setup::prepare(settings, &tracefs, &mut journal, true).and_then(|mut place| {
        let described = describe_before(settings, &tracefs, &mut place, folder);
        let result = described
            .and_then(|()| stream_all(settings, command, folder, &tracefs, &mut journal, &place, &bell));
        place.release();
        result
    });
    let not_restored = journal.undo();
    if let Some(guard) = guard {
        guard.dismiss();
    }
    let (mut recording, running) = result?;
    recording.not_restored = not_restored;
    finish(recording, running, &output)
}

/// Waits for the command, and writes the description of the recording into its folder.
fn finish(mut recording: Recording, running: Option<command::Running>, output: &Path) -> Result<Recording> {
    // The command is waited for only after all tracing is off.
    if let Some(running) = running {
        let patience = if signals::alone() { Duration::ZERO } else { PATIENCE };
        let ended = if kprism_signals::end_requested() { running.finish(patience) } else { running.wait() };
        recording.exit_code = ended.transpose()?.map(code);
    }
    let path = output.join("recording.json");
    let text = serde_json::to_vec_pretty(&recording).map_err(std::io::Error::other).at("write", &path)?;
    fs::write(&path, text).at("write", &path)?;
    Ok(recording)
}

/// Copies what describes the trace, before it begins. The place's symbols, which are large, are not kept beyond that.
pub(crate) fn describe_before(
    settings: &Settings,
    tracefs: &Tracefs,
    place: &mut Place,
    folder: &Path,
) -> Result<()> {
    describe::formats(tracefs, &place.events, &folder.join(STREAMS))?;
    let known = place.symbols.take();
    if settings.symbols {
        known.map_or_else(Symbols::read, Ok)?.save(&folder.join("symbols"))?;
    }
    Ok(())
}

/// Records `command` into the run at `folder` with tracefs as [`crate::guest::make_ready`] left it. Nothing is undone.
pub(crate) fn record_ready(
    settings: &Settings,
    tracefs: &Tracefs,
    place: &Place,
    command: &[String],
    folder: &Path,
) -> Result<Recording> {
    let output = folder.join(STREAMS);
    let bell = Bell::new().at("wait for", &output)?;
    bell.take_signals().at("wait for", &output)?;
    let mut journal = Journal::none(tracefs);
    let (recording, running) = stream_all(settings, command, folder, tracefs, &mut journal, place, &bell)?;
    finish(recording, running, &output)
}

/// The part between set-up and clean-up. Returns the command too if it still runs.
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
        if kprism_signals::end_requested() || streams.in_trouble() || left == Some(Duration::ZERO) || gone {
            break;
        }
        wait(&[bell.fd(), watched.as_ref().map_or(-1, |fd| fd.as_raw_fd())], left);
        bell.reset();
    }
    tracefs::write(&switch, &["0"])?;
    let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (bytes, trouble) = streams.finish();
    let cpus = describe::facts(tracefs, &place.folder, &place.cpus, &output)?;
    if settings.symbols {
        describe::symbols_again(&folder.join("symbols"))?;
    }
    let over = exit.is_none() && running.is_some() && settings.duration.is_some();
    let unwritten = trouble.is_some();
    let stopped = match trouble {
        Some(error) => Some(format!("{error}; what came until then is kept")),
        None if kprism_signals::end_requested() && running.is_some() => Some(INTERRUPTED.to_owned()),
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
        unwritten,
        not_restored: Vec::new(),
    };
    Ok((recording, running.filter(|_| !ended)))
}

/// Exit code as a shell reports it: 128 plus the signal's number for a command that a signal ended.
fn code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A descriptor that becomes readable when the recorded process ends. `None` unless exactly one process is recorded.
fn watch(scope: &Scope) -> Result<Option<OwnedFd>> {
    let (Scope::Processes(pids) | Scope::Threads(pids)) = scope else { return Ok(None) };
    let [pid] = pids[..] else { return Ok(None) };
    // SAFETY: pidfd_open takes two numbers; the descriptor is fresh and owned from here on.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match i32::try_from(fd) {
            Ok(fd) if fd >= 0 => Ok(Some(OwnedFd::from_raw_fd(fd))),
            // The ID is a thread other than its process's first, or the kernel is older than 5.3. The recording then
            // runs until it is stopped.
            _ => Ok(None),
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives through the call.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}
