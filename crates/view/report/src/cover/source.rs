// SPDX-License-Identifier: MIT OR Apache-2.0
//! A source file with the counts of its lines, as gcov shows it, as text and JSON.

use std::collections::BTreeSet;
use std::fmt::Write;

use kprism_cover::counters::Runs;
use kprism_cover::cover::{BranchCount, FunctionTotal, LineCount, Outcomes, Source, Way};
use kprism_cover::{Cover, demangled};
use serde_json::{Value, json};

use crate::table::Style;
use kprism_profile::units::{grouped, printable};

/// Options of the output.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// First and last line.
    pub lines: (u32, u32),
    /// If true, a line for each branch and call.
    pub branches: bool,
    /// For several runs: the runs that executed each line.
    pub runs: Option<&'a Runs>,
    /// Of a flow, lines without code: their counts follow from lines around them.
    pub inferred: Option<&'a BTreeSet<u32>>,
}

impl Shown<'_> {
    fn is_inferred(&self, line: u32) -> bool {
        self.inferred.is_some_and(|inferred| inferred.contains(&line))
    }
}

/// The heading above the columns, with the runs and their numbers.
pub fn header(shown: Shown<'_>, style: Style) -> String {
    let mut out = String::new();
    for (number, name) in shown.runs.iter().flat_map(|runs| &runs.names).enumerate() {
        let _ = writeln!(out, "run {}: {}", number + 1, printable(name));
    }
    if shown
        .inferred
        .is_some_and(|inferred| inferred.iter().any(|line| (shown.lines.0..=shown.lines.1).contains(line)))
    {
        let _ = writeln!(
            out,
            "~ behind a count: a line without code or with merged code, told from lines around"
        );
    }
    let runs = if shown.runs.is_some() { format!("{:<RUNS$}  ", "runs") } else { String::new() };
    let _ =
        writeln!(out, "{}", style.bold(&format!("{:>13}  {:>7}  {runs}{:>6}", "executed", "taken", "line")));
    out
}

/// Width of the column with the runs.
const RUNS: usize = 7;

/// Numbers of runs, from 1 on, as `1-3,7`.
pub fn run_numbers(runs: &[u16]) -> String {
    let words = runs.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => (one + 1).to_string(),
        [first, .., last] => format!("{}-{}", first + 1, last + 1),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(",")
}

/// The source as text: count, branches taken, line number, source. `text` is the file's, if it could be read.
pub fn to_text(source: &Source, text: Option<&str>, shown: Shown<'_>, style: Style) -> String {
    let mut out = String::new();
    let texts: Vec<&str> = text.map(|text| text.lines().collect()).unwrap_or_default();
    let last = (texts.len() as u32).max(source.lines.last().map_or(0, |line| line.line)).min(shown.lines.1);
    let mut at = source.lines.partition_point(|line| line.line < shown.lines.0);
    let mut function = source.functions.partition_point(|function| function.lines.0 < shown.lines.0);
    for number in shown.lines.0.max(1)..=last {
        while let Some(found) = source.functions.get(function).filter(|found| found.lines.0 == number) {
            let _ = writeln!(out, "{}", style.dim(&head(found)));
            function += 1;
        }
        let line = source.lines.get(at).filter(|line| line.line == number);
        at += usize::from(line.is_some());
        let branches = source.branches_of(number);
        let text = printable(&spaces(texts.get(number as usize - 1).copied().unwrap_or("")));
        if texts.is_empty() && line.is_none() {
            continue;
        }
        let runs = shown.runs.map(|runs| {
            let numbers = run_numbers(runs.of_line(&source.path, number));
            format!("{numbers:<RUNS$}  ")
        });
        let runs = runs.unwrap_or_default();
        let mark = if line.is_some() && shown.is_inferred(number) { "~" } else { "" };
        let beginning = format!("{:>13}  {:>7}  {runs}{number:>6}", count(line) + mark, taken(branches));
        let whole = format!("{beginning}  {text}");
        let painted = match line {
            Some(line) if line.count == 0 => style.alert(whole.trim_end()),
            Some(_) => whole.trim_end().to_owned(),
            None => style.dim(whole.trim_end()),
        };
        let _ = writeln!(out, "{painted}");
        if shown.branches {
            // gcov numbers all branches of a line together, over all functions.
            for (number, branch) in branches.iter().enumerate() {
                let _ = writeln!(out, "{}", style.dim(&one(number, branch)));
            }
            for (index, condition) in source.conditions_of(number).iter().enumerate() {
                let _ = writeln!(out, "{:>32}  {}", "", style.dim(&outcomes(index, condition.seen)));
            }
        }
    }
    out
}

/// Replaces tabs by spaces, because the columns before them shift the text.
fn spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\t' => out.extend(std::iter::repeat_n(' ', 8 - out.chars().count() % 8)),
            letter => out.push(letter),
        }
    }
    out
}

fn head(function: &FunctionTotal) -> String {
    let (all, executed) = function.blocks;
    let share = |part: i64, all: i64| if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
    let name = printable(&demangled(&function.name));
    let called = format!("{:>13}  {:>7}  {:>6}  {name}: called {}", "", "", "", signed(function.called));
    if all == 0 {
        // A tracefile of another program tells no more.
        return called;
    }
    format!(
        "{called}, returned {:.0}%, blocks executed {:.0}%",
        share(function.returned, function.called),
        share(executed.into(), all.into())
    )
}

/// The count as in gcov: `-` for no code, `#####` for never executed, `=====` for never executed and reached only by
/// exceptions, a star if a part was not executed.
fn count(line: Option<&LineCount>) -> String {
    match line {
        None => "-".into(),
        Some(line) if line.count == 0 && line.exceptional => "=====".into(),
        Some(line) if line.count == 0 => "#####".into(),
        Some(line) => {
            format!("{}{}", signed(line.count), if line.unexecuted_block { "*" } else { "" })
        }
    }
}

fn signed(count: i64) -> String {
    let sign = if count < 0 { "-" } else { "" };
    format!("{sign}{}", grouped(count.unsigned_abs()))
}

/// Number of branches taken, and of all branches.
fn taken(branches: &[BranchCount]) -> String {
    let all = branches.iter().filter(|branch| branch.way.is_branch());
    let (all, taken) = all.fold((0, 0), |(all, taken), b| (all + 1, taken + u32::from(b.taken != 0)));
    if all == 0 { String::new() } else { format!("{taken}/{all}") }
}

fn one(number: usize, branch: &BranchCount) -> String {
    let (what, done) = if branch.way.is_branch() { ("branch", "taken") } else { ("call", "returned") };
    let how = match branch.way {
        Way::Fallthrough => " (fallthrough)",
        Way::Throw => " (throw)",
        Way::Jump | Way::Call => "",
    };
    let beginning = format!("{:>32}  {what} {number}", "");
    if branch.executed == 0 {
        return format!("{beginning} never executed");
    }
    let share = 100.0 * branch.taken as f64 / branch.executed as f64;
    format!("{beginning} {done} {} of {} ({share:.1}%){how}", signed(branch.taken), signed(branch.executed))
}

/// The observed outcomes of a decision's conditions, as text.
pub fn outcomes(index: usize, seen: Outcomes) -> String {
    let mut text = format!("decision {index}: {} of {} outcomes of conditions seen", seen.seen(), seen.all());
    for outcome in [true, false] {
        let missing: Vec<String> = seen.missing(outcome).map(|term| (term + 1).to_string()).collect();
        if !missing.is_empty() {
            let plural = if missing.len() == 1 { "" } else { "s" };
            let _ = write!(text, "; condition{plural} {} never {outcome}", missing.join(", "));
        }
    }
    text
}

/// The source as JSON.
pub fn to_json(path: &str, source: &Source, shown: Shown<'_>) -> Value {
    let within = |line: u32| (shown.lines.0..=shown.lines.1).contains(&line);
    let branch = |branch: &BranchCount| {
        json!({
            "kind": if branch.way.is_branch() { "branch" } else { "call" },
            "fallthrough": branch.way == Way::Fallthrough, "throw": branch.way == Way::Throw,
            "taken": branch.taken, "executed": branch.executed,
        })
    };
    let lines = source.lines.iter().filter(|line| within(line.line)).map(|line| {
        let branches: Vec<Value> = source.branches_of(line.line).iter().map(branch).collect();
        let mut value = json!({
            "line": line.line, "count": line.count, "unexecuted_block": line.unexecuted_block,
            "exceptional": line.exceptional,
            "branches": branches,
        });
        if shown.inferred.is_some() {
            value["inferred"] = json!(shown.is_inferred(line.line));
        }
        let conditions = source.conditions_of(line.line);
        if !conditions.is_empty() {
            let all = conditions.iter().map(|condition| {
                let seen = condition.seen;
                json!({
                    "outcomes": seen.all(), "seen": seen.seen(),
                    "never_true": seen.missing(true).collect::<Vec<_>>(),
                    "never_false": seen.missing(false).collect::<Vec<_>>(),
                })
            });
            value["conditions"] = json!(all.collect::<Vec<_>>());
        }
        if let Some(runs) = shown.runs {
            let names =
                runs.of_line(&source.path, line.line).iter().map(|&run| &runs.names[usize::from(run)]);
            value["runs"] = json!(names.collect::<Vec<_>>());
        }
        value
    });
    let functions = source.functions.iter().filter(|function| within(function.lines.0)).map(|function| {
        json!({
            "name": function.name, "demangled_name": demangled(&function.name), "line": function.lines.0, "last_line": function.lines.1,
            "called": function.called, "returned": function.returned,
            "blocks": function.blocks.0, "blocks_executed": function.blocks.1,
        })
    });
    json!({
        "file": path, "functions": functions.collect::<Vec<_>>(), "lines": lines.collect::<Vec<_>>(),
    })
}

/// The functions that a name could mean, each with its source, as text. `what` is the name.
pub fn several(what: &str, cover: &Cover, functions: &[(&Source, &FunctionTotal)]) -> String {
    let mut out = format!("{what} is several functions; choose one by its lines:\n");
    for (source, function) in functions {
        let (path, (first, last)) = (cover.shown(&source.path), function.lines);
        let called = grouped(function.called.max(0) as u64);
        let name = printable(&demangled(&function.name));
        let _ = writeln!(out, "{called:>15} called  {}:{first}-{last}  {name}", printable(path));
    }
    out
}

/// The same as JSON.
pub fn several_json(cover: &Cover, functions: &[(&Source, &FunctionTotal)]) -> Value {
    let rows = functions.iter().map(|(source, function)| {
        json!({
            "function": function.name, "demangled_name": demangled(&function.name),
            "file": cover.shown(&source.path), "line": function.lines.0, "last_line": function.lines.1,
            "called": function.called,
        })
    });
    json!({ "several": rows.collect::<Vec<_>>() })
}
