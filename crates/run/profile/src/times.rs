// SPDX-License-Identifier: MIT OR Apache-2.0
//! What measured durations have beside the calling contexts of a profile.

use serde::{Deserialize, Serialize};

use crate::model::Histogram;

/// What durations have beside a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    /// One for each function of the profile.
    pub funcs: Vec<FuncTimes>,
    /// One for each node of the profile.
    pub nodes: Vec<NodeTimes>,
    /// What was counted.
    pub counts: Counts,
}

/// The durations of a function's calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FuncTimes {
    /// Durations from entry to exit of all calls that ended, inner ones of recursion too.
    pub durations: Histogram,
    /// Calls whose end is not known.
    pub unfinished: u64,
    /// Calls in which events were lost: their duration is right, what is inside of them is not all known.
    pub gapped: u64,
}

/// The times of a calling context, without those of its callees but for `total_ns`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeTimes {
    /// From entry to exit, all of it.
    pub total_ns: u64,
    /// Not on a CPU.
    pub off_ns: u64,
    /// In interrupts that events told of; those that functions told of are nodes.
    pub irq_ns: u64,
}

/// What was counted on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Calls that ended.
    pub calls: u64,
    /// Of them, those whose entry was not there: the exit told when they began.
    pub rebuilt: u64,
    /// Exits that could not be made calls: neither entry nor time of it, or no name.
    pub orphans: u64,
    /// Calls whose end is not known.
    pub unfinished: u64,
    /// Calls that end before they begin.
    pub clock_jumps: u64,
    /// Calls whose parts are longer than they are: their own time was taken as 0.
    pub overfull: u64,
    /// Events that were lost, as far as they were counted.
    pub lost: u64,
    /// Places where events were lost without being counted.
    pub lost_uncounted: u64,
    /// Calls whose callers did not show up in time; they count as outermost.
    pub uprooted: u64,
}
