// SPDX-License-Identifier: MIT OR Apache-2.0
//! Splits a line into the columns that the header defines (kernel/trace/trace_functions_graph.c).

use super::line::{self, Call};
use crate::event::Context;

/// The set of columns of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Columns {
    /// True for function graph.
    pub graph: bool,
    /// Column of times, absolute or relative.
    pub time: bool,
    /// The times count from the beginning of the trace.
    pub relative: bool,
    /// Column of the CPU.
    pub cpu: bool,
    /// Column of task name and PID.
    pub task: bool,
    /// Column of the latency format's flags.
    pub flags: bool,
    /// Column of durations.
    pub duration: bool,
}

/// A line of function graph, split into columns.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub ns: u64,
    pub cpu: u32,
    pub task: Option<(u32, &'a str)>,
    pub context: Context,
    pub duration: Option<u64>,
    pub call: Call<'a>,
}

/// A message that the CPU's following lines belong to another task.
pub(super) struct Switch<'a> {
    pub cpu: u32,
    pub prev: (u32, &'a str),
    pub next: (u32, &'a str),
}

impl Columns {
    /// Parses a line of the header.
    pub fn learn(&mut self, line: &str) {
        if !line.contains("FUNCTION CALLS") && !line.contains("DURATION") {
            return;
        }
        self.relative = line.contains("REL TIME");
        self.time = line.replace("REL TIME", "").contains("TIME") || self.relative;
        self.cpu = line.contains("CPU");
        self.task = line.contains("TASK/PID");
        self.flags = line.contains("||||");
        self.duration = line.contains("DURATION");
    }

    /// Splits a line.
    pub(super) fn split<'a>(&self, line: &'a str) -> Option<Fields<'a>> {
        let mut rest = line;
        // Number of spaces before a call at depth 0.
        let mut indent = 0;
        let mut ns = 0;
        if self.time {
            let (time, after) = rest.split_once('|')?;
            ns = seconds(time.trim())?;
            (rest, indent) = (after, 2);
        }
        let mut cpu = 0;
        if self.cpu {
            let (number, after) = rest.split_once(')')?;
            cpu = number.trim().parse().ok()?;
            (rest, indent) = (after, 1);
        }
        let mut of = None;
        if self.task {
            let (who, after) = rest.split_once('|')?;
            // The latency format puts its flags after the task, without a bar in between.
            let who = if self.flags && !after.contains('|') { who } else { who.trim() };
            let (comm, pid) = task(who)?;
            of = Some((pid, comm));
            (rest, indent) = (after, 1);
        }
        let mut within = Context::Task;
        if self.flags {
            let (flags, after) = rest.split_once('|')?;
            within = context(flags.trim());
            (rest, indent) = (after, 1);
        }
        let mut duration = None;
        if self.duration {
            let (took, after) = rest.split_once('|')?;
            if let Some(call) = line::irq(took) {
                return Some(Fields { ns, cpu, task: of, context: within, duration, call });
            }
            duration = self::duration(took)?;
            (rest, indent) = (after, 2);
        }
        let call = line::parse(rest, indent)?;
        Some(Fields { ns, cpu, task: of, context: within, duration, call })
    }
}

/// A line `TASK-PID [CPU] FLAGS TIME: event`.
pub(super) struct Line<'a> {
    pub ns: u64,
    pub cpu: u32,
    pub task: (&'a str, u32),
    pub flags: &'a str,
    pub text: &'a str,
}

/// Splits such a line.
pub(super) fn event(line: &str) -> Option<Line<'_>> {
    let (head, rest) = line.split_once(" [")?;
    let (cpu, rest) = rest.split_once(']')?;
    let cpu = cpu.trim().parse().ok()?;
    let task = task(head.split_once(" (").map_or(head, |(h, _)| h).trim())?;
    let (stamp, text) = rest.split_once(": ")?;
    let (flags, time) = stamp.trim().rsplit_once(' ').unwrap_or(("", stamp.trim()));
    Some(Line { ns: seconds(time)?, cpu, task, flags, text })
}

/// Parses `seconds.fraction` with six or nine digits, in ns. A clock without seconds counts in units of its own.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let Some((whole, part)) = text.split_once('.') else { return text.parse().ok() };
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1_000_000_000)?.checked_add(decimals(part, 9)?)
}

/// Parses digits after a decimal point as a number of units of 10^-`places`.
fn decimals(digits: &str, places: usize) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let kept: u64 = digits[..digits.len().min(places)].parse().ok()?;
    Some(kept * 10u64.pow((places - digits.len().min(places)) as u32))
}

/// Parses `+ 12.345 us` in ns. The mark only repeats the magnitude. The inner value is None if the column is empty.
fn duration(text: &str) -> Option<Option<u64>> {
    let text = text.trim().trim_start_matches(['+', '!', '#', '*', '@', '$', '&']).trim();
    if text.is_empty() {
        return Some(None);
    }
    let number = text.strip_suffix("us")?.trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().ok()?;
    Some(Some(whole.checked_mul(1_000)?.checked_add(decimals(part, 3)?)?))
}

/// Parses `comm-pid`. Names may contain `-` and spaces.
pub(super) fn task(text: &str) -> Option<(&str, u32)> {
    let (comm, pid) = text.trim().rsplit_once('-')?;
    Some((comm, pid.parse().ok()?))
}

/// Returns the context from the third flag.
pub(super) fn context(flags: &str) -> Context {
    match flags.as_bytes().get(2) {
        Some(b'h' | b'H' | b'z' | b'Z') => Context::Hardirq,
        Some(b's') => Context::Softirq,
        _ => Context::Task,
    }
}

/// Parses ` 1)    bash-162    =>     ls-262`.
pub(super) fn switch(line: &str, with_cpu: bool) -> Option<Switch<'_>> {
    let (left, right) = line.split_once("=>")?;
    let (cpu, left) = match left.split_once(')') {
        Some((cpu, left)) => (cpu.trim().parse().ok()?, left),
        None if with_cpu => return None,
        None => (0, left),
    };
    let ((prev_comm, prev), (next_comm, next)) = (task(left)?, task(right)?);
    Some(Switch { cpu, prev: (prev, prev_comm), next: (next, next_comm) })
}

/// Parses `CPU:1 [LOST 12 EVENTS]`, with or without a number.
pub(super) fn lost(line: &str) -> Option<(u32, Option<u64>)> {
    let (cpu, rest) = line.strip_prefix("CPU:")?.split_once(" [LOST ")?;
    let count = rest.strip_suffix("EVENTS]")?.trim();
    Some((cpu.trim().parse().ok()?, if count.is_empty() { None } else { Some(count.parse().ok()?) }))
}
