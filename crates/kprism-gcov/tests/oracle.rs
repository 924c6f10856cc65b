// SPDX-License-Identifier: MIT OR Apache-2.0
//! gcov as the judge: real programs, compiled and run here, counted by gcov and by us.
//!
//! Every gcc on this machine that has its gcov beside it takes part (`gcc`, `gcc-11`, …). What is compared, for each
//! object: every line's count and whether a block of it was not executed, every branch of every line in gcov's
//! order, calls in its text, every function's counts, and the totals that gcov prints for each file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_gcov::unit::{Unit, Way};
use kprism_gcov::{Data, Notes, Solver, data, notes};
use serde_json::Value;

/// (source, line, function if it has the line to itself) → (count, unexecuted block, branches).
type Lines = BTreeMap<(String, u64, Option<String>), (i64, bool, Vec<(i64, bool)>)>;
/// (source, name, start line) → (called, blocks, executed).
type Functions = BTreeMap<(String, String, u64), (i64, u64, u64)>;

/// gcc and gcov programs of this machine.
fn compilers() -> Vec<(String, String)> {
    let versions = (5..=16).map(|n| (format!("gcc-{n}"), format!("gcov-{n}")));
    std::iter::once(("gcc".to_owned(), "gcov".to_owned()))
        .chain(versions)
        .filter(|(gcc, gcov)| {
            [gcc, gcov].iter().all(|program| Command::new(program).arg("--version").output().is_ok())
        })
        .collect()
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Vec<u8> {
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    output.stdout
}

fn programs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// As gcov canonicalises: `.` goes.
fn canonical(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').filter(|part| *part != ".").collect();
    parts.join("/")
}

fn ours(notes: &Notes<'_>, unit: &Unit) -> (Lines, Functions) {
    let source = |index: u32| canonical(&notes.sources[index as usize]);
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

/// What gcov says, as JSON.
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

/// Per file of gcov's text: lines, lines executed, branches, branches executed, taken, calls, calls executed.
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

fn our_totals(notes: &Notes<'_>, unit: &Unit) -> Totals {
    let mut totals = Totals::new();
    let source = |index: u32| canonical(&notes.sources[index as usize]);
    let mut lines: BTreeMap<(String, u32), i64> = BTreeMap::new();
    for line in &unit.lines {
        *lines.entry((source(line.source), line.line)).or_default() += line.count;
    }
    for ((source, _), count) in lines {
        let entry = totals.entry(source).or_default();
        entry[0] += 1;
        entry[1] += u64::from(count != 0);
    }
    // gcov's totals leave out the branches of lines that functions have to themselves.
    for branch in unit.branches.iter().filter(|branch| !branch.in_group) {
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

fn json_lines(text: &[u8]) -> Vec<Value> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn compare(gcov: &str, folder: &Path, gcda: &Path, ours_of: (&Notes<'_>, &Unit), what: &str) {
    let (notes, unit) = ours_of;
    let gcda = gcda.to_str().unwrap();
    let json = json_lines(&run(gcov, &["-i", "-b", "-t", gcda], folder));
    assert_eq!(json.len(), 1, "{what}");
    let grouped: Vec<(String, String)> = unit
        .functions
        .iter()
        .filter(|function| function.is_group)
        .map(|function| {
            let function = &notes.functions[function.index as usize];
            (canonical(&notes.sources[function.source as usize]), function.name.clone().into_owned())
        })
        .collect();
    // A line that only carries a group function's name, outside of it, is none of its own; none of the programs
    // has one.
    let is_grouped =
        |source: &str, name: &str| grouped.iter().any(|(s, n)| (s.as_str(), n.as_str()) == (source, name));
    let (our_lines, our_functions) = ours(notes, unit);
    let (their_lines, their_functions) = theirs(&json[0], &is_grouped);
    assert_eq!(our_functions, their_functions, "{what}: functions");
    for (key, line) in &their_lines {
        assert_eq!(our_lines.get(key), Some(line), "{what}: line {key:?}");
    }
    assert_eq!(our_lines.len(), their_lines.len(), "{what}: number of lines");
    let text = run(gcov, &["-b", "-c", "-n", gcda], folder);
    let text = String::from_utf8_lossy(&text).into_owned();
    let their_totals = totals_of_text(&text);
    let our_totals = our_totals(notes, unit);
    for (file, totals) in &their_totals {
        let ours = our_totals.get(file).copied().unwrap_or_default();
        assert_eq!(&ours, totals, "{what}: totals of {file}");
    }
}

#[test]
fn every_number_of_real_programs_is_gcovs() {
    let compilers = compilers();
    if compilers.is_empty() {
        println!("skipped: no gcc with gcov");
        return;
    }
    let mut objects = 0;
    for (gcc, gcov) in &compilers {
        for program in programs() {
            for options in [&["-O0"][..], &["-O2"], &["-O2", "-fprofile-update=atomic"], &["-Os"]] {
                let folder = tempfile::tempdir().unwrap();
                let file = program.file_name().unwrap().to_str().unwrap();
                std::fs::copy(&program, folder.path().join(file)).unwrap();
                let is_cpp = file.ends_with(".cc");
                let mut arguments = vec!["--coverage", "-w", "-c", file, "-o", "unit.o"];
                arguments.extend(options);
                if is_cpp && Command::new(gcc.replace("gcc", "g++")).arg("--version").output().is_err() {
                    continue;
                }
                run(gcc, &arguments, folder.path());
                let link = if is_cpp { gcc.replace("gcc", "g++") } else { gcc.clone() };
                run(&link, &["--coverage", "unit.o", "-o", "program", "-lm"], folder.path());
                // It may end as it likes.
                Command::new(folder.path().join("program")).current_dir(folder.path()).output().unwrap();
                let what = format!("{gcc} {options:?} {file}");
                let note_bytes = std::fs::read(folder.path().join("unit.gcno")).unwrap();
                let gcda = folder.path().join("unit.gcda");
                let data_bytes = std::fs::read(&gcda).unwrap();
                let notes = notes::read(&note_bytes).unwrap();
                let data = data::read(&data_bytes).unwrap();
                let unit = Solver::default().unit(&notes, Some(&data)).unwrap();
                compare(gcov, folder.path(), &gcda, (&notes, &unit), &what);
                written_data_is_taken(gcov, folder.path(), &notes, &data, &what);
                objects += 1;
            }
        }
    }
    println!("{objects} objects of {} compilers", compilers.len());
    assert!(objects >= 4);
}

/// gcov reads what we write, and counts twice as much in a sum of two.
fn written_data_is_taken(gcov: &str, folder: &Path, notes: &Notes<'_>, data: &Data, what: &str) {
    let mut twice = data.clone();
    twice.add(data).unwrap();
    let gcda = folder.join("unit.gcda");
    std::fs::write(&gcda, twice.to_bytes()).unwrap();
    let unit = Solver::default().unit(notes, Some(&twice)).unwrap();
    compare(gcov, folder, &gcda, (notes, &unit), &format!("{what}, twice"));
    twice.subtract(data).unwrap();
    assert_eq!(Solver::default().unit(notes, Some(&twice)), Solver::default().unit(notes, Some(data)));
    let mut read = data::read(&data.to_bytes()).unwrap();
    assert_eq!(&read, data, "{what}: written and read");
    read.header.big_endian = true;
    assert_eq!(data::read(&read.to_bytes()).unwrap(), read, "{what}: big-endian");
}
