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

/// A range of addresses that belongs to a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Entry of the function, which is in another part of it if this is its `.cold` code.
    pub entry: u64,
    /// Name of the function.
    pub name: String,
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
    /// Functions of a module came, or are gone.
    Functions { module: String, gone: bool, parts: Vec<Part> },
    /// The agent's mark.
    Mark { begin: bool, pid: u32 },
}

impl What {
    /// The record as a line, at `ns` on `cpu`; of functions, a line for each.
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
            What::Functions { module, gone, parts } => {
                let line = |part: &Part| {
                    let Part { start, end, entry, name } = part;
                    let record = json!({
                        "k": "ksymbol", "t": ns, "cpu": cpu, "start": start, "end": end, "entry": entry, "gone": gone,
                        "name": name, "module": module,
                    });
                    record.to_string()
                };
                return parts.iter().map(line).collect::<Vec<_>>().join("\n");
            }
            What::Mark { begin, pid } => {
                json!({ "k": "mark", "t": ns, "cpu": cpu, "what": if *begin { "begin" } else { "end" }, "pid": pid })
            }
        };
        v.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_image::sideband::{Record, parse};

    #[test]
    fn functions_of_a_module_are_a_line_each() {
        let part = |start, name: &str| Part { start, end: start + 8, entry: 16, name: name.to_owned() };
        let parts = vec![part(16, "f"), part(64, "a \"name\"")];
        let what = What::Functions { module: "[m]".into(), gone: true, parts };
        let records = parse(what.line(5, 1).as_bytes()).unwrap();
        let [Record::Ksymbol(first), Record::Ksymbol(second)] = &records[..] else { panic!("{records:?}") };
        assert_eq!((first.t, first.cpu, first.start, first.end, first.gone), (5, 1, 16, 24, true));
        assert_eq!(
            (second.entry, second.name.as_str(), second.module.as_str()),
            (Some(16), "a \"name\"", "[m]")
        );
    }
}
