// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sideband of a run: what the packets alone cannot tell.
//!
//! In: the text of `streams/sideband.jsonl`, one JSON object a line. Out: typed [`Record`]s in file
//! order. A packet stream says *where* the CPU was; the sideband says *who* ran there: which task a
//! context switch entered, what a task calls itself, which file was mapped where.
//!
//! Times are nanoseconds of the trace clock. A record of a kind this version does not know becomes
//! [`Record::Other`], so that an older kprism reads a newer run; a line that is no record at all is an
//! error that names the line.

use serde::Deserialize;

/// One sideband record; see the field comments for units.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum Record {
    /// A CPU entered the kernel's task switch.
    Switch(Switch),
    /// A task was named or renamed (`prctl`, `execve`).
    Comm(Comm),
    /// A file (or anonymous memory) was mapped into an address space.
    Mmap(Mmap),
    /// A process was created: it starts with a copy of its parent's mappings.
    Fork(Fork),
    /// The traced command began or ended.
    Mark(Mark),
    /// A record of a kind unknown to this version.
    #[serde(other)]
    Other,
}

/// A CPU takes up another task. Three kinds, of which a CPU's records are all of one:
///
/// - by entry: the flow enters `ip`; exactly one record for each entry, in order;
/// - by entry, `near`: the flow enters `ip` at about `t`; records or entries may be missing;
/// - by place: at stream offset `offset`, from where on user code is that of `asid`, if that is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Switch {
    /// Time, ns.
    pub t: u64,
    /// CPU that switched.
    pub cpu: u32,
    /// Address of `__switch_to`; 0 where the place tells.
    #[serde(default)]
    pub ip: u64,
    /// `t` tells which entry of `ip` it is, not the order.
    #[serde(default)]
    pub near: bool,
    /// Where in the CPU's stream.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Address space from `offset` on; none where packets tell it.
    #[serde(default)]
    pub asid: Option<u64>,
    /// Thread id that leaves.
    pub prev_pid: u32,
    /// Its thread group.
    pub prev_tgid: u32,
    /// Its name.
    pub prev_comm: String,
    /// Thread id that enters.
    pub pid: u32,
    /// Its thread group.
    pub tgid: u32,
    /// Its name.
    pub comm: String,
}

/// A task's new name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Comm {
    /// Time, ns.
    pub t: u64,
    /// CPU it happened on.
    pub cpu: u32,
    /// Thread id.
    pub pid: u32,
    /// Thread group.
    pub tgid: u32,
    /// The name, at most 15 bytes in Linux.
    pub comm: String,
}

/// A new mapping, as the kernel's `perf_event_mmap` sees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Mmap {
    /// Time, ns.
    pub t: u64,
    /// CPU it happened on.
    pub cpu: u32,
    /// Thread id.
    pub pid: u32,
    /// Thread group.
    pub tgid: u32,
    /// Address space: CR3 without its low 12 bits.
    pub asid: u64,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset in the file, bytes.
    #[serde(default)]
    pub pgoff: u64,
    /// Whether instructions may be fetched from it.
    pub exec: bool,
    /// Path in the guest; `[vdso]` for the vdso; empty for anonymous memory.
    #[serde(default)]
    pub path: String,
}

/// A new process or thread.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Fork {
    /// Time, ns.
    pub t: u64,
    /// CPU it happened on.
    pub cpu: u32,
    /// Thread id of the child.
    pub pid: u32,
    /// Thread group of the child.
    pub tgid: u32,
    /// Thread id of the parent.
    #[serde(default)]
    pub ppid: u32,
    /// Address space of the child, where known.
    #[serde(default)]
    pub asid: Option<u64>,
    /// Address space of the parent, where known.
    #[serde(default)]
    pub parent_asid: Option<u64>,
}

/// Begin or end of the traced command.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Mark {
    /// Time, ns.
    pub t: u64,
    /// CPU it happened on.
    pub cpu: u32,
    /// `begin` or `end`.
    pub what: MarkKind,
    /// Thread id that made the mark.
    #[serde(default)]
    pub pid: u32,
}

/// Which end of the traced window a [`Mark`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkKind {
    /// Tracing starts here.
    Begin,
    /// Tracing stops here.
    End,
}

/// A line that is no record.
#[derive(Debug, thiserror::Error)]
#[error("sideband line {line}: expected a JSON record: {reason}")]
pub struct SidebandError {
    /// Line, from 1.
    pub line: usize,
    /// What the JSON reader objects to.
    pub reason: String,
}

/// Reads every record of a sideband file.
///
/// Names are bytes in Linux, so bytes that are not UTF-8 are replaced, not refused. A last line without
/// its newline is a recording that was cut off: it is dropped when it does not parse.
///
/// # Errors
/// The first line that is not a JSON record.
pub fn parse(bytes: &[u8]) -> Result<Vec<Record>, SidebandError> {
    match read(bytes) {
        (records, Faults { first: None, .. }) => Ok(records),
        (_, Faults { first: Some(error), .. }) => Err(error),
    }
}

/// Lines that are no record.
#[derive(Debug, Default)]
pub struct Faults {
    /// How many.
    pub lines: u64,
    /// The first.
    pub first: Option<SidebandError>,
}

/// Reads every record that there is, and counts the lines that are none: one damaged line costs what it said, not the
/// recording.
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
{"k":"from the future","t":9}
"#;
        let records = parse(text).unwrap();
        assert_eq!(records.len(), 5);
        assert!(matches!(&records[0], Record::Switch(s) if s.comm == "sh" && s.ip > 1 << 63));
        assert!(matches!(&records[2], Record::Mmap(m) if m.pgoff == 4096 && m.exec));
        assert!(matches!(&records[3], Record::Mark(m) if m.what == MarkKind::End));
        assert_eq!(records[4], Record::Other);
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
