// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which tasks a view is about.

use crate::Profile;
use kprism_image::glob::glob;

/// A choice of tasks. The default takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Thread or process ids; empty takes all.
    pub pids: Vec<u32>,
    /// Names with `*` and `?`; empty takes all.
    pub comms: Vec<String>,
}

impl Filter {
    /// For each task of the profile, whether it is taken.
    pub fn tasks(&self, profile: &Profile) -> Vec<bool> {
        profile.tasks.iter().map(|task| self.takes(task.pid, task.tgid, &task.comm)).collect()
    }

    /// Whether it takes a task with these ids and this name.
    pub fn takes(&self, pid: u32, tgid: u32, comm: &str) -> bool {
        (self.pids.is_empty() || self.pids.contains(&pid) || self.pids.contains(&tgid))
            && (self.comms.is_empty() || self.comms.iter().any(|pattern| glob(pattern, comm)))
    }
}
