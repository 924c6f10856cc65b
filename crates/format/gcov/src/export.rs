// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes coverage for other tools: lcov's tracefile, Cobertura's XML, gcov's JSON, LLVM's JSON.
//!
//! These formats have no negative counts, so torn counters ([`Cover::torn`]) are written as 0.

mod llvm;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

pub use llvm::llvm;

use serde_json::{Value, json};

use crate::cover::{BranchCount, Cover, FunctionTotal, Source, Totals};
use crate::names::demangled;
use crate::unit::{Outcomes, Way};

/// Number of sources that are formatted at a time, on all CPUs. It is small to limit memory.
const BATCH: usize = 64;

/// Writes lcov's tracefile (geninfo(1), "FILES"), which lcov 1 and 2 and genhtml read.
///
/// # Errors
/// Write errors of `out`.
pub fn lcov(cover: &Cover, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "TN:")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut texts: Vec<Vec<u8>> = vec![Vec::new(); threads];
    for batch in cover.sources.chunks(BATCH) {
        let part = batch.len().div_ceil(threads).max(1);
        texts.iter_mut().for_each(Vec::clear);
        std::thread::scope(|scope| {
            for (sources, text) in batch.chunks(part).zip(&mut texts) {
                scope.spawn(move || sources.iter().for_each(|source| lcov_of_file(source, text)));
            }
        });
        for text in &texts {
            out.write_all(text)?;
        }
    }
    Ok(())
}

fn lcov_of_file(source: &Source, text: &mut Vec<u8>) {
    let mut number = itoa::Buffer::new();
    // Writes words and numbers alternately.
    let mut put = |words: &[&str], numbers: &[u64]| {
        for (index, word) in words.iter().enumerate() {
            text.extend_from_slice(word.as_bytes());
            if let Some(&value) = numbers.get(index) {
                text.extend_from_slice(number.format(value).as_bytes());
            }
        }
        text.push(b'\n');
    };
    let count = |count: i64| count.max(0) as u64;
    let totals = source.totals();
    put(&["SF:", &source.path], &[]);
    for function in &source.functions {
        put(&["FN:", ",", &function.name], &[function.lines.0.into()]);
    }
    for function in &source.functions {
        put(&["FNDA:", ",", &function.name], &[count(function.called)]);
    }
    put(&["FNF:", "\nFNH:"], &[totals.functions.all, totals.functions.hit]);
    let mut block = 0;
    let mut last: Option<&BranchCount> = None;
    for branch in source.branches.iter().filter(|branch| branch.way.is_branch()) {
        // lcov identifies a branch of a line by a block number and its index in the block.
        block = match last {
            Some(last) if last.line != branch.line => 0,
            Some(last) if (last.function, last.of) != (branch.function, branch.of) => block + 1,
            _ => block,
        };
        last = Some(branch);
        let place = [branch.line.into(), block, branch.place.into()];
        match branch.executed {
            0 => put(&["BRDA:", ",", ",", ",-"], &place),
            _ => put(&["BRDA:", ",", ",", ","], &[place[0], place[1], place[2], count(branch.taken)]),
        }
    }
    put(&["BRF:", "\nBRH:"], &[totals.branches.all, totals.taken]);
    for line in &source.lines {
        put(&["DA:", ","], &[line.line.into(), count(line.count)]);
    }
    put(&["LF:", "\nLH:", "\nend_of_record"], &[totals.lines.all, totals.lines.hit]);
}

/// Writes gcov's JSON (gcov(1), `--json-format`, format version 1), with all files as if from one object.
///
/// # Errors
/// Write errors of `out`.
pub fn json(cover: &Cover, out: &mut dyn Write) -> io::Result<()> {
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
        serde_json::to_writer(&mut *out, &json_of_file(cover.shown(&source.path), source))?;
    }
    writeln!(out, "]}}")
}

fn json_of_file(path: &str, source: &Source) -> Value {
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
                let conditions: Vec<Value> =
                    conditions.iter().map(|found| json_of_outcomes(found.seen)).collect();
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
fn json_of_outcomes(seen: Outcomes) -> Value {
    json!({
        "count": seen.all(), "covered": seen.seen(),
        "not_covered_true": seen.missing(true).collect::<Vec<_>>(),
        "not_covered_false": seen.missing(false).collect::<Vec<_>>(),
    })
}

/// Writes Cobertura's XML (coverage-04.dtd), with a package for each directory. `recorded` is the time of the
/// recording.
///
/// # Errors
/// Write errors of `out`.
pub fn cobertura(cover: &Cover, recorded: SystemTime, out: &mut dyn Write) -> io::Result<()> {
    let timestamp = recorded.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let mut folders: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in &cover.sources {
        let folder = cover.shown(&source.path).rsplit_once('/').map_or("", |(folder, _)| folder);
        folders.entry(folder).or_default().push(source);
    }
    let totals = cover.totals();
    writeln!(out, "<?xml version=\"1.0\" ?>")?;
    writeln!(
        out,
        "<!DOCTYPE coverage SYSTEM 'http://cobertura.sourceforge.net/xml/coverage-04.dtd'>\n\
         <coverage {} lines-covered=\"{}\" lines-valid=\"{}\" branches-covered=\"{}\" branches-valid=\"{}\" \
         complexity=\"0\" version=\"kprism\" timestamp=\"{timestamp}\">",
        rates(&totals),
        totals.lines.hit,
        totals.lines.all,
        totals.taken,
        totals.branches.all
    )?;
    let root = xml(cover.root.as_deref().unwrap_or("."));
    // File names are relative to one of these directories; for files outside the build it is the last.
    let outside = cover.sources.iter().any(|source| cover.shown(&source.path).starts_with('/'));
    let more = if outside { "<source>/</source>" } else { "" };
    writeln!(out, "<sources><source>{root}</source>{more}</sources>\n<packages>")?;
    for (folder, sources) in folders {
        let mut totals = Totals::default();
        sources.iter().for_each(|source| totals.add(&source.totals()));
        let name = xml(&folder.trim_start_matches('/').replace('/', "."));
        writeln!(out, "<package name=\"{name}\" {} complexity=\"0\"><classes>", rates(&totals))?;
        for source in sources {
            class(cover.shown(&source.path).trim_start_matches('/'), source, out)?;
        }
        writeln!(out, "</classes></package>")?;
    }
    writeln!(out, "</packages>\n</coverage>")
}

fn class(path: &str, source: &Source, out: &mut dyn Write) -> io::Result<()> {
    let name = xml(&path.replace('/', "."));
    let (path, totals) = (xml(path), source.totals());
    writeln!(out, "<class name=\"{name}\" filename=\"{path}\" {} complexity=\"0\">", rates(&totals))?;
    writeln!(out, "<methods>")?;
    for function in &source.functions {
        let rate = if function.called == 0 { 0 } else { 1 };
        writeln!(
            out,
            "<method name=\"{}\" signature=\"()\" line-rate=\"{rate}\" branch-rate=\"{rate}\" complexity=\"0\">\
             <lines><line number=\"{}\" hits=\"{}\"/></lines></method>",
            xml(&demangled(&function.name)),
            function.lines.0,
            function.called.max(0)
        )?;
    }
    writeln!(out, "</methods>\n<lines>")?;
    for line in &source.lines {
        let branches = source.branches_of(line.line).iter().filter(|branch| branch.way.is_branch());
        let (all, taken) = branches
            .fold((0u32, 0u32), |(all, taken), branch| (all + 1, taken + u32::from(branch.taken != 0)));
        let (number, hits) = (line.line, line.count.max(0));
        match (100 * taken).checked_div(all) {
            None => writeln!(out, "<line number=\"{number}\" hits=\"{hits}\" branch=\"false\"/>")?,
            Some(percent) => writeln!(
                out,
                "<line number=\"{number}\" hits=\"{hits}\" branch=\"true\" \
                 condition-coverage=\"{percent}% ({taken}/{all})\"/>",
            )?,
        }
    }
    writeln!(out, "</lines></class>")
}

fn rates(totals: &Totals) -> String {
    let rate = |hit: u64, all: u64| if all == 0 { 1.0 } else { hit as f64 / all as f64 };
    format!(
        "line-rate=\"{:.4}\" branch-rate=\"{:.4}\"",
        rate(totals.lines.hit, totals.lines.all),
        rate(totals.taken, totals.branches.all)
    )
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
