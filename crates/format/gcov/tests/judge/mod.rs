// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares this crate's counts with gcov's, number by number.

use std::collections::BTreeMap;

use kprism_gcov::Notes;
use kprism_gcov::unit::{Unit, Way};
use serde_json::Value;

/// (source, line, grouped function) → (count, unexecuted block, branches).
type Lines = BTreeMap<(String, u64, Option<String>), (i64, bool, Vec<(i64, bool)>)>;
/// (source, name, start line) → (called, blocks, executed).
type Functions = BTreeMap<(String, String, u64), (i64, u64, u64)>;

fn ours(notes: &Notes<'_>, unit: &Unit) -> (Lines, Functions) {
    let source = |index: u32| notes.sources[index as usize].clone().into_owned();
    let name = |index: u32| notes.functions[index as usize].name.clone().into_owned();
    let mut lines = Lines::new();
    for line in &unit.lines {
        let key = (source(line.source), line.line.into(), line.function.map(name));
        lines.insert(key, (line.count, line.unexecuted_block, Vec::new()));
    }
    for branch in unit.branches.iter().filter(|branch| branch.way.is_branch()) {
        let own = branch.in_group.then(|| name(branch.function));
        let key = (source(branch.source), branch.line.into(), own);
        let line = lines.get_mut(&key).expect("a branch has a line");
        line.2.push((branch.taken, branch.way == Way::Fallthrough));
    }
    let functions = unit.functions.iter().map(|count| {
        let function = &notes.functions[count.index as usize];
        let key = (source(function.source), function.name.clone().into_owned(), function.start_line.into());
        (key, (count.called, count.blocks.into(), count.executed.into()))
    });
    let functions = functions.collect();
    (lines, functions)
}

/// Converts gcov's JSON.
fn theirs(json: &Value, groups: &dyn Fn(&str, &str) -> bool) -> (Lines, Functions) {
    let mut lines = Lines::new();
    let mut functions = Functions::new();
    for file in json["files"].as_array().unwrap() {
        let source = file["file"].as_str().unwrap();
        for line in file["lines"].as_array().unwrap() {
            let function = line["function_name"].as_str().unwrap_or("").to_owned();
            let own = groups(source, &function).then_some(function);
            let branches = line["branches"].as_array().unwrap().iter();
            let branches = branches
                .map(|branch| (branch["count"].as_i64().unwrap(), branch["fallthrough"].as_bool().unwrap()))
                .collect();
            let key = (source.to_owned(), line["line_number"].as_u64().unwrap(), own);
            let value = (line["count"].as_i64().unwrap(), line["unexecuted_block"] == true, branches);
            lines.insert(key, value);
        }
        for function in file["functions"].as_array().unwrap() {
            let number = |key: &str| function[key].as_u64().unwrap();
            let key =
                (source.to_owned(), function["name"].as_str().unwrap().to_owned(), number("start_line"));
            let called = function["execution_count"].as_i64().unwrap();
            functions.insert(key, (called, number("blocks"), number("blocks_executed")));
        }
    }
    (lines, functions)
}

/// Totals of each file in gcov's text: lines, lines executed, branches, branches executed, taken, calls, calls
/// executed.
type Totals = BTreeMap<String, [u64; 7]>;

fn totals_of_text(text: &str) -> Totals {
    let mut totals = Totals::new();
    let mut file = String::new();
    // The last line is a summary of all files.
    let mut text: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    text.pop();
    for line in text {
        if let Some(name) = line.strip_prefix("File '") {
            file = name.trim_end_matches('\'').to_owned();
            totals.insert(file.clone(), [0; 7]);
            continue;
        }
        let Some((what, rest)) = line.split_once(':') else { continue };
        let Some((percent, of)) = rest.split_once("% of ") else { continue };
        let (percent, of): (f64, u64) = (percent.parse().unwrap(), of.parse().unwrap());
        let part = (percent * of as f64 / 100.0).round() as u64;
        let Some(entry) = totals.get_mut(&file) else { continue };
        match what {
            "Lines executed" => (entry[0], entry[1]) = (of, part),
            "Branches executed" => (entry[2], entry[3]) = (of, part),
            "Taken at least once" => entry[4] = part,
            "Calls executed" => (entry[5], entry[6]) = (of, part),
            other => panic!("{other}"),
        }
    }
    totals
}

/// gcov 14 adds each line and branch of grouped functions (several that begin on one line) to the totals, beside the
/// line that all of them make together; older versions leave the branches out. `with_groups`: as gcov 14.
fn our_totals(notes: &Notes<'_>, unit: &Unit, with_groups: bool) -> Totals {
    let mut totals = Totals::new();
    let source = |index: u32| notes.sources[index as usize].clone().into_owned();
    let mut lines: BTreeMap<(String, u32), i64> = BTreeMap::new();
    let mut count = |source: String, count: i64| {
        let entry = totals.entry(source).or_default();
        entry[0] += 1;
        entry[1] += u64::from(count != 0);
    };
    for line in &unit.lines {
        *lines.entry((source(line.source), line.line)).or_default() += line.count;
        if with_groups && line.function.is_some() {
            count(source(line.source), line.count);
        }
    }
    lines.into_iter().for_each(|((source, _), executed)| count(source, executed));
    for branch in unit.branches.iter().filter(|branch| with_groups || !branch.in_group) {
        let entry = totals.entry(source(branch.source)).or_default();
        if branch.way.is_branch() {
            entry[2] += 1;
            entry[3] += u64::from(branch.executed != 0);
            entry[4] += u64::from(branch.taken != 0);
        } else {
            entry[5] += 1;
            entry[6] += u64::from(branch.executed != 0);
        }
    }
    totals
}

/// Parses a text with a JSON value on each line.
pub fn json_lines(text: &[u8]) -> Vec<Value> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Compares all functions, lines and branches.
pub fn compare_json(json: &Value, (notes, unit): (&Notes<'_>, &Unit), what: &str) {
    let grouped: Vec<(String, String)> = unit
        .functions
        .iter()
        .filter(|function| function.is_group)
        .map(|function| {
            let function = &notes.functions[function.index as usize];
            (notes.sources[function.source as usize].clone().into_owned(), function.name.clone().into_owned())
        })
        .collect();
    let is_grouped =
        |source: &str, name: &str| grouped.iter().any(|(s, n)| (s.as_str(), n.as_str()) == (source, name));
    let (our_lines, our_functions) = ours(notes, unit);
    let (their_lines, their_functions) = theirs(json, &is_grouped);
    assert_eq!(our_functions, their_functions, "{what}: functions");
    for (key, line) in &their_lines {
        assert_eq!(our_lines.get(key), Some(line), "{what}: line {key:?}");
    }
    assert_eq!(our_lines.len(), their_lines.len(), "{what}: number of lines");
}

/// Compares the totals of each file, including taken branches and calls: all files by the rule of one version of gcov.
pub fn compare_totals(text: &str, (notes, unit): (&Notes<'_>, &Unit), what: &str) {
    let theirs = totals_of_text(text);
    let ours = |with_groups| {
        let all = our_totals(notes, unit, with_groups);
        theirs
            .keys()
            .map(|file| (file.clone(), all.get(file).copied().unwrap_or_default()))
            .collect::<Totals>()
    };
    let newer = ours(true);
    if newer != theirs {
        assert_eq!(ours(false), theirs, "{what}: totals");
    }
}
