// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects the columns of a text without a header: `trace_pipe`, perf's output, or an excerpt.
//!
//! Every set of columns is tried on the first lines. The set that parses most lines wins. Among several, the one with
//! most columns wins, because a smaller set would take a column for a part of the name.

use super::columns::{self, Columns, Legend};
use super::line::Call;

/// Limit of the bytes that are examined.
const HEAD: usize = 1 << 16;
/// Limit of the lines that are examined.
const LINES: usize = 400;

/// Returns the columns, if most of the lines are ftrace's.
pub(super) fn columns(text: &[u8]) -> Option<Columns> {
    let head = &text[..text.len().min(HEAD)];
    // The last line may be truncated.
    let end = memchr::memrchr(b'\n', head).unwrap_or(head.len());
    let lines: Vec<&str> = head[..end]
        .split(|&b| b == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok())
        .filter(|line| tells(line))
        .take(LINES)
        .collect();
    // In other text, a single sentence may look like a line of ftrace.
    if lines.len() < 3 || memchr::memchr(0, head).is_some() {
        return None;
    }
    let events = lines.iter().filter(|line| columns::event(line).is_some()).count();
    if events * 2 > lines.len() {
        return Some(Columns::default());
    }
    let sets = (0u32..32).map(|bits| Columns {
        graph: true,
        time: bits & 1 != 0,
        relative: false,
        cpu: bits & 2 != 0,
        task: bits & 4 != 0,
        flags: bits & 8 != 0,
        duration: bits & 16 != 0,
        legend: Legend::default(),
    });
    let read = |columns: &Columns| lines.iter().filter(|line| fits(columns, line)).count();
    let count = |c: &Columns| [c.time, c.cpu, c.task, c.flags, c.duration].iter().filter(|on| **on).count();
    // The columns of flags and durations accept almost any text.
    let best = sets.map(|set| (read(&set), count(&set), set)).max_by_key(|s| (s.0, s.1, !s.2.flags));
    let (read, _, columns) = best?;
    // Without columns, any text with a parenthesis and a semicolon would be a call, for example a C program.
    let any = count(&columns) > 0;
    (any && read * 2 > lines.len()).then_some(columns)
}

/// Returns true if a line is an event: no separator, no message about a task switch or lost events.
fn tells(line: &str) -> bool {
    let bare = line.trim();
    let note = bare.is_empty() || bare.starts_with('#') || bare.starts_with("----") || bare.contains(" => ");
    !note && !bare.starts_with("CPU:") && !bare.starts_with("(Overruns")
}

fn fits(columns: &Columns, line: &str) -> bool {
    match columns.split(line).map(|fields| fields.call) {
        Some(Call::Entry { name, .. } | Call::Leaf { name, .. }) => {
            // `f`, `f [module]`, `f.part.0`
            let function = name.split_once(" [").map_or(name, |(function, _)| function);
            !function.contains([' ', '|', ')', '}', '/'])
        }
        Some(_) => true,
        None => false,
    }
}
