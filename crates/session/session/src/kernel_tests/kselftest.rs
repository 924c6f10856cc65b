// SPDX-License-Identifier: MIT OR Apache-2.0
//! kselftest. Each test is a program; its part of the flow is that of its process, and of the processes and threads that were
//! made while it ran. The tests run one after the other.

use std::path::Path;

use anyhow::{Context as _, Result};
use kprism_flow::replay::spans::{Rule, Spans};
use kprism_image::sideband::Record;
use kprism_ktap::Outcome;
use kprism_store::{Account, Fate, Run};

use super::measure::measure;
use super::{TestRun, Tests, UNMEASURED, named};
use crate::cover::DebugFiles;
use crate::files::{read, read_if_there};
use crate::flow;
use crate::progress::Progress;

/// Exit code of a test that could not run here (Linux, tools/testing/selftests/kselftest.h).
const SKIPPED: i32 = 4;
/// Exit code of timeout(1).
const TIMED_OUT: i32 = 124;
/// Lines of a test's output that are kept with its result.
const LINES: usize = 40;

/// Reads the results and measures each test.
///
/// # Errors
/// The run cannot be read.
pub fn load(run: &Run, debug: &DebugFiles, progress: &Progress) -> Result<(Tests, Account)> {
    let mut tests = Tests::default();
    let mut pids = Vec::new();
    for number in 1.. {
        let file = |ending: &str| run.tests().join(format!("{number}.{ending}"));
        if !file("name").exists() {
            break;
        }
        tests.tests.push(result(&file)?);
        let pid = String::from_utf8_lossy(&read_if_there(&file("pid"))?).trim().parse::<u32>();
        pids.push(pid.ok());
    }
    if tests.tests.is_empty() {
        tests.notes.push(format!("{}: no results: the guest did not come to its end", run.tests().display()));
    }
    let loaded = flow::load(run, progress)?;
    progress.step("measuring the tests");
    let roots: Vec<(u32, u64)> =
        pids.iter().flatten().map(|&pid| (pid, began(&loaded.records, pid))).collect();
    let mut listener = Spans::new(Rule::Families { roots: &roots, exit: named(&loaded.symbols, "do_exit") });
    let account = flow::follow(&loaded, &mut listener, progress);
    let spans = listener.finish();
    let mut measured = spans.iter();
    let of = |pid: &Option<u32>| pid.and_then(|_| measured.next()).filter(|span| span.ended);
    let chosen: Vec<_> = pids.iter().map(of).collect();
    let unmeasured = chosen.iter().filter(|span| span.is_none()).count();
    measure(run, &loaded, debug, &chosen, &mut tests);
    progress.clear();
    Ok((tests, account.with(Fate::Lost, UNMEASURED, unmeasured as u64)))
}

/// The time at which the test's program begins. Its process is a shell before, that writes down its number: the first name is
/// the shell's, the second the test's.
fn began(records: &[Record], pid: u32) -> u64 {
    let named = |record: &Record| match record {
        Record::Comm(comm) if comm.pid == pid => Some(comm.t),
        _ => None,
    };
    let names: Vec<u64> = records.iter().filter_map(named).collect();
    names.get(1).or(names.first()).copied().unwrap_or(0)
}

/// A test's name, exit code and output.
fn result(file: &dyn Fn(&str) -> std::path::PathBuf) -> Result<TestRun> {
    let name = String::from_utf8_lossy(&read(&file("name"))?).trim().to_owned();
    let (suite, name) = name.split_once(':').with_context(|| not_a_name(&file("name")))?;
    let output = read_if_there(&file("out"))?;
    let code = String::from_utf8_lossy(&read_if_there(&file("code"))?).trim().parse::<i32>().ok();
    let document = kprism_ktap::read(&output);
    let leaves: Vec<_> = document.tests.iter().flat_map(|test| test.leaves()).collect();
    let outcome = match code {
        Some(0) => Outcome::Passed,
        Some(SKIPPED) => Outcome::Skipped,
        Some(TIMED_OUT) => Outcome::TimedOut,
        Some(126 | 127) => Outcome::Error,
        Some(_) => Outcome::Failed,
        None => Outcome::NoResult,
    };
    let mut reasons = Vec::new();
    if !leaves.is_empty() {
        let passed = leaves.iter().filter(|(_, test)| test.outcome == Outcome::Passed).count();
        reasons.push(format!("{passed} of {} subtests passed", leaves.len()));
    }
    if let Some(code) = code.filter(|code| ![0, SKIPPED, TIMED_OUT].contains(code)) {
        reasons.push(format!("exit code {code}"));
    }
    let text = String::from_utf8_lossy(&output);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    // The end of a long output tells why.
    let from = lines.len().saturating_sub(LINES);
    let mut diagnostics: Vec<String> = lines[from..].iter().map(|&line| line.to_owned()).collect();
    if from > 0 {
        diagnostics.insert(0, format!("… {from} more lines in {}", file("out").display()));
    }
    Ok(TestRun {
        suite: suite.to_owned(),
        name: name.to_owned(),
        outcome,
        reason: reasons.join(", "),
        diagnostics,
        measured: None,
    })
}

fn not_a_name(path: &Path) -> String {
    format!("{}: expected COLLECTION:TEST", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_and_output_are_a_result() {
        let dir = tempfile::tempdir().unwrap();
        let file = |ending: &str| dir.path().join(format!("1.{ending}"));
        std::fs::write(file("name"), "timers:a_test\n").unwrap();
        let of = |code: &str, output: &str| {
            std::fs::write(file("code"), code).unwrap();
            std::fs::write(file("out"), output).unwrap();
            result(&file).unwrap()
        };
        let good = of("0\n", "TAP version 13\n1..2\nok 1 x\nok 2 y # SKIP z\n");
        assert_eq!(
            (good.suite.as_str(), good.name.as_str(), good.outcome),
            ("timers", "a_test", Outcome::Passed)
        );
        assert_eq!(good.reason, "1 of 2 subtests passed");
        assert_eq!(of("4\n", "no device").outcome, Outcome::Skipped);
        assert_eq!(of("124\n", "").outcome, Outcome::TimedOut);
        let bad = of("1\n", &"line\n".repeat(100));
        assert_eq!(
            (bad.outcome, bad.reason.as_str(), bad.diagnostics.len()),
            (Outcome::Failed, "exit code 1", 41)
        );
        assert_eq!(of("", "").outcome, Outcome::NoResult);
        std::fs::write(file("name"), "nothing").unwrap();
        assert!(result(&file).unwrap_err().to_string().contains("COLLECTION:TEST"));
    }
}
