// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts that a recorder leaves in the manifest for the readers of its run, by instrument. Absent ones were not counted.

use kprism_profile::TracingCost;
use serde::{Deserialize, Serialize};

/// Facts of a recording of durations, or of a boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DurationFacts {
    /// Events in ftrace's ring buffers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// Events that ftrace lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_events: Option<u64>,
    /// The cost of tracing, measured where the run was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing_cost: Option<TracingCost>,
    /// Calls that BPF kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Duration of the recording by BPF, ns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_ns: Option<u64>,
    /// Calls that BPF could not measure or keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<CallLosses>,
}

/// Calls that BPF could not measure or keep, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallLosses {
    /// Calls for which the ring had no room.
    pub lost: u64,
    /// Calls beyond the number that may be open in a task, or beyond the number of tasks.
    pub overflowed: u64,
    /// Entries or returns that the kernel skipped, because it was in the same program already.
    pub missed: u64,
    /// Calls whose return was not seen.
    pub abandoned: u64,
    /// Returns without an entry.
    pub orphans: u64,
    /// Calls that never returned, because their task ended.
    pub unfinished: u64,
}

/// The kernel's own tests that a run is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelTests {
    /// KUnit: tests in the kernel. Their results are the run's standard output.
    Kunit,
    /// kselftest: programs. Their results are in the run's folder `tests`.
    Kselftest,
}

/// Facts of a recording of probes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeFacts {
    /// Records in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Records for which a ring had no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_records: Option<u64>,
    /// Remarks of the recorder.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Probes that could not be attached, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_attached: Vec<String>,
}
