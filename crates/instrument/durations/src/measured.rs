// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result, as plain data.

use std::sync::Arc;

use kprism_profile::{Profile, Times};

use crate::calls::TaskKey;
use crate::tree::Ended;

/// Durations of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measured {
    /// Functions, tasks, calling contexts and the timeline, in the form for all views. Times of nodes are self times on
    /// a CPU; instructions are all 0.
    pub profile: Profile,
    /// Data that only durations have.
    pub times: Times,
    /// Task switches, for the timeline of CPUs.
    pub switches: Vec<Switch>,
    /// If enabled: calls without an entry, with their tasks, callers before callees.
    pub rebuilt: Vec<(TaskKey, Ended)>,
}

/// A task switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switch {
    /// CPU number.
    pub cpu: u32,
    /// Time, ns.
    pub ns: u64,
    /// Id and name of the thread that leaves.
    pub prev: (u32, Arc<str>),
    /// Id and name of the thread that comes. All switches of a thread share its name.
    pub next: (u32, Arc<str>),
}
