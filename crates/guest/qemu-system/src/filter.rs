// SPDX-License-Identifier: GPL-2.0-or-later
//! The TLB misses that are kept, if a condition says which.
//!
//! In: misses of one vCPU, and the task that runs. Out: whether to keep each; counts of those that are not.

use kprism_expr::access::{self, Condition};
use kprism_tlb::stream::Miss;

use crate::side::{Task, What};

/// Misses of the last level of the first geometry that were not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// They do not meet the condition.
    pub unmet: u64,
    /// The condition cannot be computed of them.
    pub not_computed: u64,
}

/// Selects the misses of one vCPU.
#[derive(Debug)]
pub struct Filter {
    condition: Condition,
    /// The task that runs; its name is empty until it is known.
    task: Task,
    /// Counts so far.
    pub left_out: LeftOut,
}

impl Filter {
    pub fn new(condition: Condition) -> Self {
        Filter { condition, task: Task::default(), left_out: LeftOut::default() }
    }

    /// Follows the task.
    pub fn follow(&mut self, what: &What) {
        match what {
            What::Switch { next, .. } => self.task = next.clone(),
            // Its name is not known until it executes a program.
            What::Mark { begin: true, pid } => {
                self.task = Task { pid: *pid, tgid: *pid, comm: String::new() };
            }
            What::Comm(task) if task.pid == self.task.pid => self.task = task.clone(),
            _ => {}
        }
    }

    /// Returns true if the miss is kept.
    pub fn keeps(&mut self, miss: &Miss, cpu: u32) -> bool {
        let own = access::Miss {
            va: miss.va,
            ip: miss.ip,
            page_bytes: miss.size.bytes(),
            access: miss.access as u8,
            tid: self.task.pid,
            pid: self.task.tgid,
            comm: Some(self.task.comm.as_str()).filter(|comm| !comm.is_empty()),
            cpu,
            ns: miss.ns,
        };
        let of_first = u64::from(miss.last & 1);
        match self.condition.holds(&own) {
            Ok(true) => return true,
            Ok(false) => self.left_out.unmet += of_first,
            Err(_) => self.left_out.not_computed += of_first,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_expr::access::Known;
    use kprism_tlb::{Access, PageSize};

    #[test]
    fn misses_are_judged_by_the_task_that_runs() {
        let condition = Condition::compile("$comm == \"dd\" && access == store", Known::All).unwrap();
        let mut filter = Filter::new(condition);
        let store =
            Miss { ns: 1, va: 2, ip: 3, access: Access::Store, size: PageSize::K4, first: 1, last: 1 };
        assert!(!filter.keeps(&store, 0));
        assert_eq!(filter.left_out, LeftOut { unmet: 0, not_computed: 1 }, "no name is known yet");
        let task = |pid, comm: &str| Task { pid, tgid: pid, comm: comm.to_owned() };
        filter.follow(&What::Switch { ip: 0, prev: task(1, "sh"), next: task(5, "sh") });
        assert!(!filter.keeps(&store, 0));
        filter.follow(&What::Comm(task(6, "dd")));
        assert!(!filter.keeps(&store, 0), "another task's name");
        filter.follow(&What::Comm(task(5, "dd")));
        assert!(filter.keeps(&store, 0));
        assert!(!filter.keeps(&Miss { access: Access::Load, ..store }, 0));
        // Of the second geometry only: not one of those that are counted.
        assert!(!filter.keeps(&Miss { access: Access::Load, last: 2, ..store }, 0));
        assert_eq!(filter.left_out, LeftOut { unmet: 3, not_computed: 1 });
    }
}
