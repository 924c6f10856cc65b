// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations of kernel functions: by the kernel's function tracer or by BPF, on this machine or in the guest.
//!
//! Output: a run with ftrace's pages (`streams/`) or BPF's records (`streams/bpf/`), measured. A signal ends it
//! ([`kprism_signals`]).

mod bpf;
mod bpf_guest;
mod condition;
mod ftrace;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_durations::Measured;
use kprism_lab::Report;
use kprism_session::Progress;
use kprism_store::Run;
use kprism_tracefs::Undone;

pub use kprism_tracefs::Scope;

use crate::guest::Guest;

/// Path of ftrace's recorder in a guest.
pub(crate) const GUEST_RECORDER: &str = "/.kprism/recorder";
/// Run folder of a recorder in the guest.
pub(crate) const GUEST_RUN: &str = "/tmp/.kprism.run";

/// Settings of a recording.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write.
    pub output: PathBuf,
    /// The command to run; empty for none.
    pub command: Vec<String>,
    /// The tracer.
    pub backend: Backend,
    /// No calls are kept, only each function's counts and times. By BPF.
    pub aggregate: bool,
    /// Only calls for which this holds are kept or counted. By BPF.
    pub condition: Option<String>,
    /// The command is run once more, with only the functions traced that were found.
    pub remeasure: bool,
    /// Settings of ftrace; the BPF backend honours a part of it and refuses the rest.
    pub trace: kprism_tracefs::Settings,
    /// The guest to record in. None: this machine.
    pub guest: Option<Guest>,
    /// Write the numbers so far of [`Settings::aggregate`] into the run folder each time that this time is over.
    pub keep_current: Option<Duration>,
}

/// The part of the kernel that measures durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// ftrace; BPF for [`Settings::aggregate`], or where the kernel has no function_graph.
    Auto,
    /// function_graph.
    Ftrace,
    /// BPF trampolines: the cheapest for each call.
    BpfFentry,
    /// BPF at kprobe.session or kprobe.multi: thousands of functions at once.
    BpfKprobe,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            output: kprism_session::DEFAULT_RUN.into(),
            command: Vec::new(),
            backend: Backend::Auto,
            aggregate: false,
            condition: None,
            remeasure: false,
            trace: kprism_tracefs::Settings::default(),
            guest: None,
            keep_current: None,
        }
    }
}

/// A recording that has ended.
#[derive(Debug)]
pub struct Recorded {
    /// The run; of two passes ([`Settings::remeasure`]) the first.
    pub run: Run,
    /// The measurement; of two passes the second.
    pub measured: Option<Measured>,
    /// The way it ended.
    pub end: RecordingEnd,
}

/// The end of a recording. Everything that was recorded until then is in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingEnd {
    /// As it was asked to.
    Done,
    /// By Ctrl-C.
    Interrupted,
    /// Its files could not be written any more, as on a full disk. The manifest's `stopped` has the reason.
    Unwritten,
}

/// Records. Steps and remarks on the result go to `progress`, output of a command in the guest to `report`.
///
/// # Errors
/// The command is not there, the backend cannot do what is asked for or the kernel does not have it, or the run cannot be
/// written.
pub fn record(settings: &Settings, progress: &Progress, report: Report<'_>) -> Result<Recorded> {
    // Whatever records: a mistyped command is the likeliest mistake.
    if let (None, Some(program)) = (&settings.guest, settings.command.first()) {
        kprism_tracefs::find_command(program)?;
    }
    if let Some(why) = bpf::chosen(settings) {
        return bpf::record(settings, why, progress, report);
    }
    if settings.aggregate {
        bail!("--aggregate is done by BPF: leave --backend ftrace out");
    }
    if settings.condition.is_some() {
        bail!("--if is done by BPF, function_graph has no conditions: leave --backend ftrace out");
    }
    ftrace::record(settings, progress, report)
}

/// The settings in JSON for `kprism-recorder`, which records by ftrace and no more.
///
/// # Errors
/// The request is served by something else; the text says what.
pub fn for_recorder(settings: &Settings) -> Result<String, String> {
    let by = match () {
        () if settings.aggregate => "--aggregate is done by BPF",
        () if settings.condition.is_some() => "--if is done by BPF",
        () if matches!(settings.backend, Backend::BpfFentry | Backend::BpfKprobe) => "--backend names BPF",
        () if settings.remeasure => "--remeasure is a second recording, by what the first one found",
        () => return serde_json::to_string(&settings.trace).map_err(|error| format!("settings: {error}")),
    };
    Err(format!("kprism-recorder, which records there, knows ftrace alone, and {by}"))
}

/// Measures a recording that `kprism-recorder` made on another machine, and whose run was brought here.
///
/// # Errors
/// The run is not such a recording, or cannot be read or written.
pub fn brought(run: Run, progress: &Progress) -> Result<Recorded> {
    ftrace::brought(run, progress)
}

/// Names in a line the settings of tracefs that were put back after a recorder was killed.
pub fn undone_text(undone: &Undone) -> String {
    let mut text = format!("put back what a killed recording (process {}) had left in tracefs: ", undone.pid);
    match undone.restored.is_empty() {
        true => text.push_str("nothing was changed yet"),
        false => {
            let is_event = |name: &&String| name.contains("events/");
            let events = undone.restored.iter().filter(is_event).count();
            let names = undone.restored.iter().filter(|name| !is_event(name)).cloned();
            let events = (events > 0).then(|| format!("{events} events"));
            text.push_str(&names.chain(events).collect::<Vec<_>>().join(", "));
        }
    }
    text
}

/// A time in nanoseconds, as far as they go.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
