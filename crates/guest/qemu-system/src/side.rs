// SPDX-License-Identifier: GPL-2.0-or-later
//! The sideband: facts that packets do not carry (the running task, its mappings), one JSON object per line.

use serde_json::json;

/// A task's identity, from its `task_struct`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Command name.
    pub comm: String,
}

/// A sideband record, with the number of instructions of its block that ran before it.
#[derive(Debug)]
pub struct Side {
    /// Instructions of the block before it.
    pub insns: u64,
    /// The event.
    pub what: What,
}

/// A sideband event.
#[derive(Debug)]
pub enum What {
    /// The flow entered `__switch_to` at `ip`.
    Switch { ip: u64, prev: Task, next: Task },
    /// A task was renamed (exec, prctl).
    Comm(Task),
    /// A mapping was made (`perf_event_mmap`).
    Mmap { task: Task, asid: u64, start: u64, end: u64, pgoff: u64, exec: bool, path: String },
    /// The agent's mark.
    Mark { begin: bool, pid: u32 },
}

impl What {
    /// The record as a line, at `ns` on `cpu`.
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
