// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result, as plain data.

use kprism_profile::{Profile, Times};

use crate::calls::TaskKey;
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
