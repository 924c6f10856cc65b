// SPDX-License-Identifier: MIT OR Apache-2.0
//! gcov's JSON, of coverage. Torn counts, which are negative, are written as 0.

use std::io::{self, Write};

use kprism_cover::cover::{Cover, FunctionTotal, Outcomes, Source, Way};
use kprism_cover::demangled;
use serde_json::{Value, json};

/// Writes gcov's JSON (gcov(1), `--json-format`, format version 1), with all files as if from one object.
///
/// # Errors
/// Write errors of `out`.
pub fn write(cover: &Cover, out: &mut dyn Write) -> io::Result<()> {
    let root = cover.root.as_deref().unwrap_or("");
    let version = cover.compiler.and_then(|version| version.numbers());
    let version = version.map_or(String::new(), |(major, minor)| format!("{major}.{minor}.0"));
    let head = json!({
        "format_version": "1", "gcc_version": version, "current_working_directory": root, "data_file": "",
    });
    let head = head.to_string();
    // One file at a time: the JSON of a whole kernel would take a hundred times its size in memory.
    write!(out, "{},\"files\":[", head.trim_end_matches('}'))?;
    for (index, source) in cover.sources.iter().enumerate() {
        if index > 0 {
            out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *out, &of_file(cover.shown(&source.path), source))?;
    }
    writeln!(out, "]}}")
}

fn of_file(path: &str, source: &Source) -> Value {
    let functions: Vec<Value> = source
        .functions
        .iter()
        .map(|function| {
            json!({
                "name": function.name, "demangled_name": demangled(&function.name),
                "start_line": function.lines.0, "end_line": function.lines.1,
                "start_column": function.columns.0, "end_column": function.columns.1,
                "blocks": function.blocks.0, "blocks_executed": function.blocks.1,
                "execution_count": function.called.max(0),
            })
        })
        .collect();
    let lines: Vec<Value> = source
        .lines
        .iter()
        .map(|line| {
            let all = source.branches_of(line.line).iter().filter(|branch| branch.way.is_branch());
            let branches: Vec<Value> = all
                .map(|branch| {
                    json!({
                        "count": branch.taken.max(0), "throw": branch.way == Way::Throw,
                        "fallthrough": branch.way == Way::Fallthrough,
                    })
                })
                .collect();
            let mut value = json!({
                "line_number": line.line, "count": line.count.max(0),
                "unexecuted_block": line.unexecuted_block, "branches": branches,
            });
            if let Some(function) = function_of(source, line.line) {
                value["function_name"] = json!(function.name);
            }
            let conditions = source.conditions_of(line.line);
            if !conditions.is_empty() {
                let conditions: Vec<Value> = conditions.iter().map(|found| of_outcomes(found.seen)).collect();
                value["conditions"] = json!(conditions);
            }
            value
        })
        .collect();
    json!({"file": path, "functions": functions, "lines": lines})
}

/// Returns the innermost function that contains a line, by the functions' line ranges.
fn function_of(source: &Source, line: u32) -> Option<&FunctionTotal> {
    let started = source.functions.partition_point(|function| function.lines.0 <= line);
    source.functions[..started].iter().rev().find(|function| line <= function.lines.1)
}

/// Formats outcomes as GCC 14's gcov does.
fn of_outcomes(seen: Outcomes) -> Value {
    json!({
        "count": seen.all(), "covered": seen.seen(),
        "not_covered_true": seen.missing(true).collect::<Vec<_>>(),
        "not_covered_false": seen.missing(false).collect::<Vec<_>>(),
    })
}
