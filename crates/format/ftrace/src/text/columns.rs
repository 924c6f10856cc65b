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
    /// The header's legend of the flags.
    pub legend: Legend,
}

/// The header's lines that name the flags, `_----=> need-resched`: one for each of them, from the first on
/// (`print_lat_header` in kernel/trace/trace_functions_graph.c, `print_func_help_header_irq` in kernel/trace/trace.c). Kernels with
/// PREEMPT_RT have more flags than others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Legend {
    /// Number of flags.
    pub flags: usize,
    /// The flag of interrupts and softirqs, counted from 0.
    pub context: Option<usize>,
    /// True if the line of columns has as many bars as the legend has flags: it is theirs.
    pub is_whole: bool,
}

impl Legend {
    /// Parses a line of the header. Returns true if it is one of the legend.
    fn learn(&mut self, line: &str) -> bool {
        let Some((_, meaning)) = line.split_once("=> ").filter(|(mark, _)| mark.ends_with('-')) else {
            return false;
        };
        if meaning.starts_with("hardirq") {
            self.context = Some(self.flags);
        }
        self.flags += 1;
        true
    }

    /// The flag of interrupts among these. Without a legend of theirs, their number tells: kernels with PREEMPT_RT have
    /// need-resched-lazy before it, and seven flags or eight; others have four or five.
    fn context_of(&self, flags: &str) -> usize {
        match self.context.filter(|_| self.is_whole) {
            Some(context) => context,
            None if flags.len() > 5 => 3,
            None => 2,
        }
    }

    /// Returns the context that the flags tell.
    pub(super) fn context(&self, flags: &str) -> Context {
        match flags.as_bytes().get(self.context_of(flags)) {
            Some(b'h' | b'H' | b'z' | b'Z') => Context::Hardirq,
            Some(b's') => Context::Softirq,
            _ => Context::Task,
        }
    }
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
        if self.legend.learn(line) {
            return;
        }
        if line.contains("DURATION") || line.contains("TIMESTAMP") {
            let bars = line.split(|c| c != '|').map(str::len).max();
            self.legend.is_whole = bars == Some(self.legend.flags);
        }
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
            within = self.legend.context(flags.trim());
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

/// Width of the column of names, which are shorter: the `-` before the PID stands behind it (`%16s-%-7d` of `trace_print_context`
/// in kernel/trace/trace_output.c).
const COMM: usize = 16;

/// Splits such a line. The name may have any characters, also those that come behind it.
pub(super) fn event(line: &str) -> Option<Line<'_>> {
    let by_layout = line.split_at_checked(COMM).and_then(|(comm, rest)| {
        let (pid, rest) = pid_and_rest(rest)?;
        timed((comm.trim_start(), pid), rest)
    });
    // Other tools have other widths, and quoted lines lose blanks.
    let by_marks = || {
        line.match_indices('-').find_map(|(at, _)| {
            let (pid, rest) = pid_and_rest(&line[at..])?;
            timed((line[..at].trim(), pid), rest)
        })
    };
    by_layout.or_else(by_marks)
}

/// Parses `-PID` and the process's id behind it, `(  123)` or `(-------)` if there is one. Returns what is behind.
fn pid_and_rest(text: &str) -> Option<(u32, &str)> {
    let digits = text.strip_prefix('-')?;
    let end = digits.find(|c: char| !c.is_ascii_digit())?;
    let (pid, rest) = (digits[..end].parse().ok()?, digits[end..].strip_prefix(' ')?.trim_start());
    let Some(tgid) = rest.strip_prefix('(') else { return Some((pid, rest)) };
    let (tgid, rest) = tgid.split_once(')')?;
    let is_id = tgid.trim_start().bytes().all(|b| b.is_ascii_digit() || b == b'-');
    is_id.then_some((pid, rest.trim_start()))
}

/// Parses what is behind the task: `[CPU] FLAGS TIME: event`.
fn timed<'a>(task: (&'a str, u32), text: &'a str) -> Option<Line<'a>> {
    let (cpu, rest) = text.strip_prefix('[')?.split_once(']')?;
    let cpu = cpu.trim().parse().ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_any_characters() {
        let names = [
            "(udev-worker)",
            "(sd-pam)",
            "a [0] b",
            "x-12 [001] 1.0: ",
            "kworker/0:1-ev",
            "a (1) b",
            "-",
            "(",
            "[1]",
            "",
        ];
        for name in names {
            for middle in ["", "(    300) ", "(-------) "] {
                let text =
                    format!("{name:>16}-{:<7} {middle}[002] d..2.    10.000300: sched_wakeup: comm=x", 301);
                let line = event(&text).unwrap_or_else(|| panic!("{text}"));
                assert_eq!((line.task, line.cpu), ((name.trim_start(), 301), 2), "{text}");
                assert_eq!(
                    (line.ns, line.flags.trim(), line.text),
                    (10_000_300_000, "d..2.", "sched_wakeup: comm=x")
                );
            }
        }
        // Without the blanks before it, and with other widths.
        for name in ["(udev-worker)", "a [0] b", "kworker/0:1-ev"] {
            let text = format!("{name}-301 [002] 10.000300: x: y");
            assert_eq!(event(&text).map(|line| line.task), Some((name, 301)), "{text}");
        }
        for text in
            ["", "-1 [0] 1: x", "a-b [000] 1.0: x", "a-1 (x) [000] 1.0: x", "a-1 [x] 1.0: x", "é-1 [000"]
        {
            assert!(event(text).is_none_or(|line| line.task.0.is_empty()), "{text}");
        }
    }

    fn learnt(legend: &[&str], bars: &str) -> Legend {
        let mut columns = Columns::default();
        legend.iter().for_each(|meaning| columns.learn(&format!("#   || / _---=> {meaning}")));
        columns.learn("#  => started at: f");
        columns.learn(&format!("#      TIME       CPU  TASK/PID       {bars} DURATION    FUNCTION CALLS"));
        columns.legend
    }

    #[test]
    fn the_legend_tells_which_flag_is_of_interrupts() {
        let plain =
            ["irqs-off/BH-disabled", "need-resched", "hardirq/softirq", "preempt-depth", "migrate-disable"];
        let rt =
            ["irqs-off", "need-resched", "need-resched-lazy", "hardirq/softirq", "preempt-depth", "x", "y"];
        let legend = learnt(&plain, "|||||");
        assert_eq!(legend.context("d.h1."), Context::Hardirq);
        assert_eq!(legend.context("..s1."), Context::Softirq);
        let legend = learnt(&rt, "|||||||");
        assert_eq!((legend.context("d..h1.."), legend.context("..h....")), (Context::Hardirq, Context::Task));
        // A legend of other flags, or none: the number of flags tells.
        for legend in [learnt(&rt, "|||||"), Legend::default()] {
            assert_eq!(
                (legend.context("d.h1."), legend.context("d.h1")),
                (Context::Hardirq, Context::Hardirq)
            );
            assert_eq!(legend.context("d..h1.."), Context::Hardirq);
        }
        // Wherever the header has it.
        let legend = learnt(&["hardirq/softirq", "b", "c", "d"], "||||");
        assert_eq!(legend.context("h..."), Context::Hardirq);
    }
}
