// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to record.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whose calls are recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// The command's, and of what it starts.
    #[default]
    Command,
    /// Everybody's, but for the recorder's own.
    All,
    /// Of these processes, with all their threads and what they start.
    Processes(Vec<u32>),
    /// Of these threads, and what they start.
    Threads(Vec<u32>),
    /// Of what is in this control group, and what it starts.
    Cgroup(PathBuf),
}

/// Everything that can be chosen. Globs know `*` and `?`; `GLOB:mod:NAME` takes functions of a module only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Whose calls.
    pub scope: Scope,
    /// Calls that take less are left out, by the kernel itself. Whole microseconds; none records all.
    pub longer_than: Option<Duration>,
    /// Only these functions.
    pub functions: Vec<String>,
    /// Not these functions.
    pub not_functions: Vec<String>,
    /// Of `functions`, those that this kernel cannot trace are passed over.
    pub lenient: bool,
    /// Only what these functions call, with themselves.
    pub graph: Vec<String>,
    /// Not what these functions call.
    pub not_graph: Vec<String>,
    /// At most so many calls inside each other; none for no limit.
    pub depth: Option<u32>,
    /// CPUs to record, as in `0-3,7`; all if none.
    pub cpus: Option<String>,
    /// Whether a call's duration includes the time its task did not run.
    pub sleep_time: bool,
    /// Whether functions that ran in interrupts are recorded.
    pub interrupts: bool,
    /// Task switches and interrupts are recorded too.
    pub events: bool,
    /// Further events, `SYSTEM:NAME` or `SYSTEM`.
    pub more_events: Vec<String>,
    /// Ring buffer of each CPU, KiB.
    pub buffer_kib: u64,
    /// The trace's clock.
    pub clock: String,
    /// Use the one buffer at the top even where an instance would do.
    pub top_level: bool,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// Copy `/proc/kallsyms` and `/proc/modules` into the run.
    pub symbols: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scope: Scope::Command,
            longer_than: None,
            functions: Vec::new(),
            not_functions: Vec::new(),
            lenient: false,
            graph: Vec::new(),
            not_graph: Vec::new(),
            depth: None,
            cpus: None,
            sleep_time: true,
            interrupts: true,
            events: true,
            more_events: Vec::new(),
            buffer_kib: 4096,
            clock: "local".into(),
            top_level: false,
            duration: None,
            symbols: true,
        }
    }
}
