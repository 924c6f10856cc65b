// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result, as plain data.

use kprism_flow::Profile;
use kprism_flow::model::Histogram;

use crate::calls::{Counts, TaskKey};
use crate::tree::Ended;

/// Everything learned of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    /// Functions, tasks, calling contexts and the timeline, as all views want them. Times of nodes are self times on
    /// a CPU; instructions are all 0.
    pub profile: Profile,
    /// What only durations have.
    pub times: Times,
    /// Task switches, for the timeline of CPUs.
    pub switches: Vec<Switch>,
    /// If asked for: calls whose entries were not there, and their tasks, callers before callees.
    pub rebuilt: Vec<(TaskKey, Ended)>,
}

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

/// A task switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switch {
    /// CPU.
    pub cpu: u32,
    /// When, ns.
    pub ns: u64,
    /// Thread that leaves, and its name.
    pub prev: (u32, String),
    /// Thread that comes, and its name.
    pub next: (u32, String),
}
