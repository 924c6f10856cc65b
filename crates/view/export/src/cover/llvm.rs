// SPDX-License-Identifier: MIT OR Apache-2.0
//! LLVM's JSON, as `llvm-cov export` writes it (version 2.0.1).
//!
//! LLVM counts regions of the source, gcov lines. So a line with code becomes a region from its first column to
//! `END`. LLVM's rule for a line's count (the highest count of the regions on it and of the region that continues
//! from the line before) then gives gcov's count. A conditional jump with its two outcomes becomes one branch. gcov
//! does not record which outcome is true; the jump is written as true.

use std::io::{self, Write};

use kprism_cover::cover::{BranchCount, Cover, Ratio, Source, Totals, Way};
use serde_json::{Value, json};

/// A column after the end of every line.
const END: u32 = 9999;
/// LLVM's kind of a branch region.
const BRANCH: u32 = 4;

/// Writes the coverage in this format.
///
/// # Errors
/// Write errors of `out`.
pub fn write(cover: &Cover, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{{\"data\":[{{\"files\":[")?;
    // One file at a time: the JSON of a whole kernel would take a hundred times its size in memory.
    for (index, source) in cover.sources.iter().enumerate() {
        if index > 0 {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *out, &file(source))?;
    }
    write!(out, "],\n\"functions\":[")?;
    let functions = cover.sources.iter().flat_map(|source| {
        source.functions.iter().map(|function| {
            let (called, (first, last)) = (function.called.max(0), function.lines);
            json!({
                "name": function.name, "count": called, "filenames": [source.path], "branches": [],
                "regions": [[first, 1, last.max(first), END, called, 0, 0, 0]],
            })
        })
    });
    for (index, function) in functions.enumerate() {
        if index > 0 {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *out, &function)?;
    }
    let totals = summary(&cover.totals());
    writeln!(out, "],\n\"totals\":{totals}}}],\"type\":\"llvm.coverage.json.export\",\"version\":\"2.0.1\"}}")
}

fn file(source: &Source) -> Value {
    let mut segments: Vec<Value> = Vec::with_capacity(source.lines.len() * 2);
    for line in &source.lines {
        segments.push(json!([line.line, 1, line.count.max(0), true, true, false]));
        segments.push(json!([line.line, END, 0, false, false, false]));
    }
    json!({
        "filename": source.path, "segments": segments, "branches": branches(source), "expansions": [],
        "summary": summary(&source.totals()),
    })
}

/// Pairs the two outcomes of a jump into one branch. Each case of a switch becomes a branch of its own.
fn branches(source: &Source) -> Vec<Value> {
    let ways: Vec<&BranchCount> = source.branches.iter().filter(|branch| branch.way.is_branch()).collect();
    let branch =
        |line: u32, yes: i64, no: i64| json!([line, 1, line, END, yes.max(0), no.max(0), 0, 0, BRANCH]);
    let mut branches = Vec::new();
    let mut rest = ways.as_slice();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        let second = others.first().filter(|second| {
            (second.line, second.function, second.executed) == (first.line, first.function, first.executed)
                && (second.way == Way::Jump) != (first.way == Way::Jump)
                && first.taken.wrapping_add(second.taken) == first.executed
        });
        match second {
            Some(second) => {
                let (yes, no) = if first.way == Way::Jump { (first, second) } else { (second, first) };
                branches.push(branch(first.line, yes.taken, no.taken));
                rest = &others[1..];
            }
            None => branches.push(branch(first.line, first.taken, first.executed.wrapping_sub(first.taken))),
        }
    }
    branches
}

fn summary(totals: &Totals) -> Value {
    let part = |ratio: Ratio| json!({"count": ratio.all, "covered": ratio.hit, "percent": ratio.percent().unwrap_or(0.0)});
    let with_rest = |ratio: Ratio| {
        let mut value = part(ratio);
        value["notcovered"] = json!(ratio.all - ratio.hit);
        value
    };
    json!({
        "lines": part(totals.lines), "functions": part(totals.functions), "instantiations": part(totals.functions),
        "regions": with_rest(totals.lines),
        "branches": with_rest(Ratio { all: totals.branches.all, hit: totals.taken }),
    })
}
