// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of a recording. The input is a user's choices, or JSON in a guest; the output is read by all steps of a
//! recording. They are one serializable type, so that a run can store them.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The tasks whose calls are recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// The command and the processes that it starts.
    #[default]
    Command,
    /// All tasks except the recorder's own.
    All,
    /// These processes, with all their threads and the processes that they start.
    Processes(Vec<u32>),
    /// These threads, and the tasks that they start.
    Threads(Vec<u32>),
    /// The tasks of this control group, and those that they start.
    Cgroup(PathBuf),
}

/// All settings of a recording. Globs accept `*` and `?`; `GLOB:mod:NAME` matches only functions of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The tasks to record.
    pub scope: Scope,
    /// Minimum duration of a call, a multiple of 1 µs; the kernel itself leaves shorter calls out. If `None`, all calls
    /// are recorded.
    pub longer_than: Option<Duration>,
    /// Globs of the functions to trace; all if empty.
    pub functions: Vec<String>,
    /// Globs of functions to leave out.
    pub not_functions: Vec<String>,
    /// If true, entries of `functions` that this kernel cannot trace are ignored.
    pub lenient: bool,
    /// Globs of functions; only they and their callees are traced.
    pub graph: Vec<String>,
    /// Globs of functions whose callees are left out.
    pub not_graph: Vec<String>,
    /// Maximum nesting depth of calls. `None` means no limit.
    pub depth: Option<u32>,
    /// CPUs to record, as in `0-3,7`. `None` means all.
    pub cpus: Option<String>,
    /// True if a call's duration includes the time in which its task did not run.
    pub sleep_time: bool,
    /// True if functions that run in interrupts are recorded.
    pub interrupts: bool,
    /// True if task switches and interrupts are recorded too.
    pub events: bool,
    /// Additional events, as `SYSTEM:NAME` or `SYSTEM`.
    pub more_events: Vec<String>,
    /// Ring buffer size of each CPU, in KiB.
    pub buffer_kib: u64,
    /// Name of the trace clock.
    pub clock: String,
    /// If true, uses the top-level buffer even where an instance is possible.
    pub top_level: bool,
    /// Time after which the recording stops.
    pub duration: Option<Duration>,
    /// If true, copies `/proc/kallsyms` and `/proc/modules` into the run.
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

#[cfg(test)]
mod tests {
    use kprism_manifest::SettingKey;

    use super::*;

    /// A setting without a key would be one of which nobody has said whether it chooses what is seen.
    #[test]
    fn the_manifest_knows_each_setting() {
        let value = serde_json::to_value(Settings::default()).unwrap();
        let names: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert!(names.iter().all(|name| SettingKey::named(name).is_some()), "{names:?}");
        assert_eq!(names.len(), SettingKey::ALL.len(), "{names:?}");
    }
}
