// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sideband of a run: information that the packets alone do not contain.
//!
//! The input is the text of `streams/sideband.jsonl`, with one JSON object per line. The output is typed [`Record`]s in
//! the order of the file. A packet stream tells where the CPU executed; the sideband tells which task ran there: the
//! task that a context switch entered, the name of a task, and the file mapped at an address.
//!
//! Times are nanoseconds of the trace clock. A record of an unknown kind becomes [`Record::Other`], so that an older
//! kprism can read a newer run; [`read`] counts them. A line that is not a record is an error that names the line, and so is one
//! with a key that no record has: a key that is looked for may have that name.

use serde::Deserialize;

use crate::code::TaskSwitch;

/// The task that no record tells, as a switch states it: thread ID and thread group ID, which are -1 as in perf's records, and name.
pub const UNKNOWN_TASK: (u32, u32, &str) = (u32::MAX, u32::MAX, "unknown");

/// One sideband record. The fields' comments tell their units.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum Record {
    /// A CPU entered the kernel's task switch.
    Switch(Switch),
    /// A task was named or renamed (`prctl`, `execve`).
    Comm(Comm),
    /// A file (or anonymous memory) was mapped into an address space.
    Mmap(Mmap),
    /// A process was created. It starts with a copy of its parent's mappings.
    Fork(Fork),
    /// The traced command began or ended.
    Mark(Mark),
    /// Kernel code with a name came or went: a BPF program, a trampoline, a function of a module.
    Ksymbol(Ksymbol),
    /// A record of a kind that this version does not know.
    #[serde(other)]
    Other,
}

/// A CPU switched to another task. There are three kinds, and all records of a CPU are of the same kind:
///
/// - by entry: the flow enters `ip`; there is exactly one record for each entry, in order;
/// - by entry, `near`: the flow enters `ip` at about `t`; records or entries may be missing;
/// - by offset: user code from stream offset `offset` on belongs to `asid`, if that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Time, in ns.
    pub t: u64,
    /// CPU that switched.
    pub cpu: u32,
    /// Address of `__switch_to`; 0 if `offset` gives the position.
    #[serde(default)]
    pub ip: u64,
    /// True if `t`, and not the order, tells which entry of `ip` is meant.
    #[serde(default)]
    pub near: bool,
    /// Offset of the switch in the CPU's stream.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Address space from `offset` on. `None` if packets tell it.
    #[serde(default)]
    pub asid: Option<u64>,
    /// Thread ID of the previous task.
    pub prev_pid: u32,
    /// Thread group ID of the previous task.
    pub prev_tgid: u32,
    /// Name of the previous task.
    pub prev_comm: String,
    /// Thread ID of the next task.
    pub pid: u32,
    /// Thread group ID of the next task.
    pub tgid: u32,
    /// Name of the next task.
    pub comm: String,
}

/// A new name of a task.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comm {
    /// Time, in ns.
    pub t: u64,
    /// CPU on which it happened.
    pub cpu: u32,
    /// Thread ID.
    pub pid: u32,
    /// Thread group ID.
    pub tgid: u32,
    /// The name, of at most 15 bytes in Linux.
    pub comm: String,
}

/// A new mapping, as seen by the kernel's `perf_event_mmap`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mmap {
    /// Time, in ns.
    pub t: u64,
    /// CPU on which it happened.
    pub cpu: u32,
    /// Thread ID.
    pub pid: u32,
    /// Thread group ID.
    pub tgid: u32,
    /// Address space: CR3 without its low 12 bits.
    pub asid: u64,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset in the file, in bytes.
    #[serde(default)]
    pub pgoff: u64,
    /// True if instructions may be fetched from the mapping.
    pub exec: bool,
    /// Path on the traced machine; `[vdso]` for the vDSO; empty for anonymous memory.
    #[serde(default)]
    pub path: String,
}

/// A new process or thread.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// Time, in ns.
    pub t: u64,
    /// CPU on which it happened.
    pub cpu: u32,
    /// Thread ID of the child.
    pub pid: u32,
    /// Thread group ID of the child.
    pub tgid: u32,
    /// Thread ID of the parent.
    #[serde(default)]
    pub ppid: u32,
    /// Address space of the child, if known.
    #[serde(default)]
    pub asid: Option<u64>,
    /// Address space of the parent, if known.
    #[serde(default)]
    pub parent_asid: Option<u64>,
}

/// Beginning or end of the traced command.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Time, in ns.
    pub t: u64,
    /// CPU on which it happened.
    pub cpu: u32,
    /// The end of the traced window: `begin` or `end`.
    pub what: MarkKind,
    /// Thread ID of the thread that made the mark.
    #[serde(default)]
    pub pid: u32,
}

/// Kernel code that came or went while the run was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ksymbol {
    /// Time, in ns; 0 for code that was there when the recording began.
    pub t: u64,
    /// CPU on which it happened.
    pub cpu: u32,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// True if the code is gone from here on.
    #[serde(default)]
    pub gone: bool,
    /// Name of the function.
    pub name: String,
    /// Module of the function, as in kallsyms: `[dummy]`, `[bpf]`; `[kernel]` for the kernel's own.
    pub module: String,
    /// Entry of the function, of which this may be another part (`foo.cold`). `None` where the record is the whole function. Functions
    /// of modules have it.
    #[serde(default)]
    pub entry: Option<u64>,
}

/// The end of the traced window that a [`Mark`] stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// Tracing starts at this mark.
    Begin,
    /// Tracing stops at this mark.
    End,
}

/// A line that is not a record.
#[derive(Debug, thiserror::Error)]
#[error("sideband line {line}: expected a JSON record: {reason}")]
pub struct SidebandError {
    /// Line number, from 1.
    pub line: usize,
    /// Message of the JSON reader.
    pub reason: String,
}

/// Parses all records of a sideband file.
///
/// Names are arbitrary bytes in Linux, so bytes that are not UTF-8 are replaced. A last line without a newline belongs
/// to a recording that was cut off; it is dropped if it cannot be parsed.
///
/// # Errors
/// Fails at the first line that is not a JSON record.
pub fn parse(bytes: &[u8]) -> Result<Vec<Record>, SidebandError> {
    match read(bytes) {
        (records, Faults { first: None, .. }) => Ok(records),
        (_, Faults { first: Some(error), .. }) => Err(error),
    }
}

/// The lines that are not records.
#[derive(Debug, Default)]
pub struct Faults {
    /// Number of lines.
    pub lines: u64,
    /// Error of the first line.
    pub first: Option<SidebandError>,
}

/// Reads all valid records and counts the lines that are not records. A damaged line loses its own contents only, and
/// not the rest of the recording.
pub fn read(bytes: &[u8]) -> (Vec<Record>, Faults) {
    let mut records = Vec::new();
    let mut faults = Faults::default();
    let mut lines = bytes.split_inclusive(|&b| b == b'\n').enumerate().peekable();
    while let Some((number, raw)) = lines.next() {
        let text = String::from_utf8_lossy(raw);
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        match serde_json::from_str(text) {
            Ok(record) => records.push(record),
            Err(_) if lines.peek().is_none() && !raw.ends_with(b"\n") => {}
            Err(e) => {
                faults.lines += 1;
                faults.first.get_or_insert_with(|| SidebandError { line: number + 1, reason: e.to_string() });
            }
        }
    }
    (records, faults)
}

/// Task switches of a CPU whose offset in its stream is known.
pub fn task_switches(records: &[Record], cpu: u32) -> Vec<TaskSwitch> {
    let own = records.iter().filter_map(|record| match record {
        Record::Switch(s) if s.cpu == cpu => Some(TaskSwitch { offset: s.offset?, asid: s.asid }),
        _ => None,
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_record() {
        let text = br#"
{"k":"switch","t":5,"cpu":0,"ip":18446744071579041600,"prev_pid":1,"prev_tgid":1,"prev_comm":"init","pid":9,"tgid":9,"comm":"sh"}
{"k":"comm","t":6,"cpu":0,"pid":9,"tgid":9,"comm":"ls"}
{"k":"mmap","t":7,"cpu":0,"pid":9,"tgid":9,"asid":4096,"start":65536,"end":69632,"pgoff":4096,"exec":true,"path":"/usr/bin/ls"}
{"k":"mark","t":8,"cpu":0,"what":"end","pid":9}
{"k":"ksymbol","t":8,"cpu":0,"start":18446744072635949056,"end":18446744072635949099,"name":"bpf_prog_1","module":"[bpf]"}
{"k":"from the future","t":9}
{"k":"ksymbol","t":9,"cpu":0,"start":18446744072635949056,"end":18446744072635949099,"entry":18446744072635949000,"gone":true,"name":"f","module":"[m]"}
"#;
        let records = parse(text).unwrap();
        assert_eq!(records.len(), 7);
        assert!(matches!(&records[0], Record::Switch(s) if s.comm == "sh" && s.ip > 1 << 63));
        assert!(matches!(&records[2], Record::Mmap(m) if m.pgoff == 4096 && m.exec));
        assert!(matches!(&records[3], Record::Mark(m) if m.what == MarkKind::End));
        assert!(
            matches!(&records[4], Record::Ksymbol(s) if s.end - s.start == 43 && !s.gone && s.entry.is_none())
        );
        assert!(
            matches!(&records[6], Record::Ksymbol(s) if s.gone && s.entry.is_some_and(|entry| entry < s.start))
        );
        assert_eq!(records[5], Record::Other);
    }

    #[test]
    fn a_bad_line_is_named() {
        let err = parse(b"{\"k\":\"mark\",\"t\":8,\"cpu\":0,\"what\":\"end\"}\nhello\n").unwrap_err();
        assert_eq!(err.line, 2);
        let err = parse(b"{\"k\":\"comm\",\"t\":-1}\n").unwrap_err();
        assert_eq!(err.line, 1);
    }

    #[test]
    fn a_cut_last_line_is_dropped() {
        let records =
            parse(b"{\"k\":\"mark\",\"t\":8,\"cpu\":0,\"what\":\"end\"}\n{\"k\":\"comm\",\"t").unwrap();
        assert_eq!(records.len(), 1);
    }

    #[test]
    fn names_that_are_not_utf8_are_kept_readable() {
        let records = parse(b"{\"k\":\"comm\",\"t\":1,\"cpu\":0,\"pid\":1,\"tgid\":1,\"comm\":\"a\xff\"}\n");
        assert!(matches!(&records.unwrap()[0], Record::Comm(c) if c.comm.starts_with('a')));
    }
}
