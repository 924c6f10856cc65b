// SPDX-License-Identifier: GPL-2.0-or-later
//! Sideband: what the packets alone cannot tell (which task runs, what it mapped), one JSON object a line.

use serde_json::json;

/// Who a task is, as its `task_struct` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Command name.
    pub comm: String,
}

/// One sideband record, with the number of instructions of its block that ran before it.
#[derive(Debug)]
pub struct Side {
    /// Instructions into the block.
    pub insns: u64,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Debug)]
pub enum What {
    /// The flow entered `__switch_to` at `ip`.
    Switch { ip: u64, prev: Task, next: Task },
    /// A task was renamed (exec, prctl).
    Comm(Task),
    /// A mapping came to be (`perf_event_mmap`).
    Mmap { task: Task, asid: u64, start: u64, end: u64, pgoff: u64, exec: bool, path: String },
    /// The agent's mark.
    Mark { begin: bool, pid: u32 },
}

impl What {
    /// The record's line, at `ns` on `cpu`.
    pub fn line(&self, ns: u64, cpu: u32) -> String {
        let v = match self {
            What::Switch { ip, prev, next } => json!({
                "k": "switch", "t": ns, "cpu": cpu, "ip": ip,
                "prev_pid": prev.pid, "prev_tgid": prev.tgid, "prev_comm": prev.comm,
                "pid": next.pid, "tgid": next.tgid, "comm": next.comm,
            }),
            What::Comm(t) => {
                json!({ "k": "comm", "t": ns, "cpu": cpu, "pid": t.pid, "tgid": t.tgid, "comm": t.comm })
            }
            What::Mmap { task, asid, start, end, pgoff, exec, path } => json!({
                "k": "mmap", "t": ns, "cpu": cpu, "pid": task.pid, "tgid": task.tgid, "asid": asid,
                "start": start, "end": end, "pgoff": pgoff, "exec": exec, "path": path,
            }),
            What::Mark { begin, pid } => {
                json!({ "k": "mark", "t": ns, "cpu": cpu, "what": if *begin { "begin" } else { "end" }, "pid": pid })
            }
        };
        v.to_string()
    }
}
