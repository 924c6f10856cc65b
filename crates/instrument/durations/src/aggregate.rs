// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads functions that a recorder counted in the kernel: `streams/bpf/functions.jsonl`.
//!
//! Input: lines of JSON, one per function: `func`, `name`, `module`, `count`, `total_ns`, `self_ns`, `off_ns`,
//! `min_ns`, `max_ns`, `log2_ns` (number N counts durations from 2^N to 2^(N+1) - 1 ns). Output: [`Measured`]. Callers
//! and tasks are unknown: one task, which stands for all, calls each function.

use kprism_profile::{
    Bin, Counts, FrameKind, Func, FuncTimes, Histogram, NO_PARENT, Node, NodeTimes, Profile, Task, Times,
};
use serde::Deserialize;

use crate::measured::Measured;
use crate::names::Role;

/// One line of the file.
#[derive(Debug, Deserialize)]
struct Line {
    func: u64,
    name: String,
    module: Option<String>,
    count: u64,
    total_ns: u64,
    self_ns: u64,
    off_ns: u64,
    min_ns: u64,
    max_ns: u64,
    #[serde(default)]
    log2_ns: Vec<u64>,
}

/// A line that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("functions.jsonl: line {line}: expected a function's numbers: {source}")]
pub struct BadLine {
    /// Line number, from 1.
    pub line: usize,
    source: serde_json::Error,
}

/// Reads the file. Lines that cannot be parsed are returned as errors, and their functions are missing.
#[must_use]
pub fn read(bytes: &[u8]) -> (Measured, Vec<BadLine>) {
    let root = Node { parent: NO_PARENT, func: 0, calls: 0, insns: 0, ns: 0, kind: FrameKind::Root };
    let (mut nodes, mut funcs) = (vec![root], Vec::new());
    let mut times = Times { nodes: vec![NodeTimes::default()], funcs: Vec::new(), counts: Counts::default() };
    let mut bad = Vec::new();
    for (number, text) in (1..).zip(bytes.split(|&b| b == b'\n')) {
        if text.is_empty() {
            continue;
        }
        let line: Line = match serde_json::from_slice(text) {
            Ok(line) => line,
            Err(source) => {
                bad.push(BadLine { line: number, source });
                continue;
            }
        };
        let role = Role::of(&line.name);
        let off_ns = line.off_ns.min(line.total_ns);
        let ns = line.self_ns.min(line.total_ns - off_ns);
        let kind = if role.interrupt { FrameKind::Interrupt } else { FrameKind::Call };
        let func = funcs.len() as u32;
        nodes.push(Node { parent: 0, func, calls: line.count, insns: 0, ns, kind });
        times.nodes.push(NodeTimes { total_ns: line.total_ns, off_ns, irq_ns: 0 });
        times.funcs.push(FuncTimes { durations: histogram(&line), ..FuncTimes::default() });
        times.counts.calls = times.counts.calls.saturating_add(line.count);
        let module = line.module.map_or_else(|| "[kernel]".to_owned(), |module| format!("[{module}]"));
        funcs.push(Func { name: line.name, module, start: line.func, kernel: true });
    }
    let tasks = vec![Task { pid: 0, tgid: 0, comm: "all tasks".into(), root: 0 }];
    let profile = Profile { funcs, tasks, nodes, ..Profile::default() };
    (Measured { profile, times, ..Measured::default() }, bad)
}

fn histogram(line: &Line) -> Histogram {
    // Durations of 0 are in the first bin.
    let low = |n: u32| if n == 0 { 0 } else { 1u64 << n };
    let high = |n: u32| 1u64.checked_shl(n + 1).unwrap_or(u64::MAX);
    let bins = (0u32..64).zip(&line.log2_ns).filter(|(_, count)| **count > 0);
    Histogram {
        bins: bins.map(|(n, &count)| Bin { low: low(n), high: high(n), count }).collect(),
        count: line.count,
        sum: line.total_ns,
        min: line.min_ns.min(line.max_ns),
        max: line.max_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use proptest::prelude::*;

    const TWO: &str = concat!(
        r#"{"func":4096,"name":"nest_outer","module":"nesting","count":3,"total_ns":700,"self_ns":200,"off_ns":0,"#,
        r#""min_ns":100,"max_ns":400,"log2_ns":[0,0,0,0,0,0,1,1,1]}"#,
        "\nno JSON\n",
        r#"{"func":8192,"name":"schedule","module":null,"count":1,"total_ns":500,"self_ns":60,"off_ns":440,"#,
        r#""min_ns":500,"max_ns":500,"log2_ns":[0,0,0,0,0,0,0,0,1]}"#,
    );

    #[test]
    fn lines_become_rows() {
        let (measured, bad) = read(TWO.as_bytes());
        assert_eq!(bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [2]);
        let rows = rows::functions(&measured.profile, &measured.times, &[true]);
        let numbers = |row: &rows::Row| (row.calls, row.total_ns, row.sum_ns, row.self_ns, row.off_ns);
        assert_eq!(
            rows.iter().map(numbers).collect::<Vec<_>>(),
            [(3, 700, 700, 200, 0), (1, 500, 500, 60, 440)]
        );
        let names: Vec<_> =
            measured.profile.funcs.iter().map(|f| (f.name.as_str(), f.module.as_str())).collect();
        assert_eq!(names, [("nest_outer", "[nesting]"), ("schedule", "[kernel]")]);
        let durations = &measured.times.funcs[0].durations;
        assert_eq!((durations.percentile(50.0), durations.percentile(99.0)), (255, 400));
    }

    proptest! {
        #[test]
        fn any_bytes_are_rows_or_bad_lines(bytes: Vec<u8>, count: u64, total: u64, own: u64, off: u64, min: u64, max: u64,
            log2 in prop::collection::vec(any::<u64>(), 0..70)) {
            let _ = read(&bytes);
            let line = format!(
                r#"{{"func":1,"name":"f","module":null,"count":{count},"total_ns":{total},"self_ns":{own},"off_ns":{off},"min_ns":{min},"max_ns":{max},"log2_ns":{log2:?}}}"#
            );
            let (measured, bad) = read(line.as_bytes());
            prop_assert!(bad.is_empty());
            let rows = rows::functions(&measured.profile, &measured.times, &[true]);
            prop_assert!(rows[0].self_ns <= rows[0].total_ns);
        }
    }
}
