// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data that only measured durations have, in addition to the calling contexts of a profile. There is no input; the
//! analysis of durations fills these types. The output is [`Times`], which the store writes as tables. They are
//! separate from the profile because other instruments measure no durations.

use serde::{Deserialize, Serialize};

use crate::model::Histogram;

/// Data of measured durations, in addition to a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// One element for each function of the profile.
    pub funcs: Vec<FuncTimes>,
    /// One element for each node of the profile.
    pub nodes: Vec<NodeTimes>,
    /// Counts taken during the analysis.
    pub counts: Counts,
}

/// The durations of a function's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FuncTimes {
    /// Durations from entry to exit of all calls that ended, including the inner calls of a recursion.
    pub durations: Histogram,
    /// Calls whose end is unknown.
    pub unfinished: u64,
    /// Calls during which events were lost. Their duration is right, but their callees may be incomplete.
    pub gapped: u64,
}

/// The times of a calling context. Except for `total_ns`, they do not include its callees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeTimes {
    /// Time from entry to exit, including callees, in ns.
    pub total_ns: u64,
    /// Time off the CPU, in ns.
    pub off_ns: u64,
    /// Time in interrupts that events reported, in ns. Interrupts that functions reported are nodes.
    pub irq_ns: u64,
}

/// Counts taken during the analysis of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Calls that ended.
    pub calls: u64,
    /// Calls, among those that ended, whose entry was missing. Their start time came from the exit event.
    pub rebuilt: u64,
    /// Exits that could not be matched to a call, because the entry and its time were missing, or the name was.
    pub orphans: u64,
    /// Calls whose end is unknown.
    pub unfinished: u64,
    /// Calls that end before they begin.
    pub clock_jumps: u64,
    /// Calls whose parts are longer than the call itself. Their own time was set to 0.
    pub overfull: u64,
    /// Lost events, as far as they were counted.
    pub lost: u64,
    /// Places where an uncounted number of events was lost.
    pub lost_uncounted: u64,
    /// Calls whose callers did not appear in time. They are treated as outermost calls.
    pub uprooted: u64,
    /// Calls in which more waits came than were kept. The others count as the call's own time.
    #[serde(skip_serializing_if = "is_zero")]
    pub waits_forgotten: u64,
    /// Task switches beyond those kept for timelines.
    #[serde(skip_serializing_if = "is_zero")]
    pub switches_dropped: u64,
    /// Calls that the timeline lacks, because longer ones filled it. They are in all sums.
    #[serde(skip_serializing_if = "is_zero")]
    pub slices_dropped: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The measured cost of tracing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TracingCost {
    /// Cost of each traced call, ns.
    pub call_ns: u64,
    /// Its part between the two recorded times, ns.
    pub inside_ns: Option<u64>,
    /// Factor by which a path through many functions becomes slower.
    pub slowdown: Option<f64>,
    /// True if the kernel dropped short calls.
    pub dropped: bool,
}
