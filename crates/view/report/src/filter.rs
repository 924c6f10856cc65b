// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects the tasks of a view.

use kprism_image::glob::glob;
use kprism_profile::{NO_PARENT, Profile};

/// A selection of tasks. The default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Thread or process ids; empty for all.
    pub pids: Vec<u32>,
    /// Names with `*` and `?`; empty for all.
    pub comms: Vec<String>,
}

impl Filter {
    /// For each task of the profile, true if it is selected.
    pub fn tasks(&self, profile: &Profile) -> Vec<bool> {
        let takes = |pid, tgid, comm: &str| {
            (self.pids.is_empty() || self.pids.contains(&pid) || self.pids.contains(&tgid))
                && (self.comms.is_empty() || self.comms.iter().any(|c| glob(c, comm)))
        };
        profile.tasks.iter().map(|t| takes(t.pid, t.tgid, &t.comm)).collect()
    }
}

/// For each node, its task; `None` below roots that belong to no task.
pub(crate) fn task_of_nodes(profile: &Profile) -> Vec<Option<u32>> {
    let mut task_of = vec![None; profile.nodes.len()];
    for (task, t) in profile.tasks.iter().enumerate() {
        if let Some(slot) = task_of.get_mut(t.root as usize) {
            *slot = Some(task as u32);
        }
    }
    for (i, node) in profile.nodes.iter().enumerate() {
        if node.parent != NO_PARENT {
            task_of[i] = task_of[node.parent as usize];
        }
    }
    task_of
}
