// SPDX-License-Identifier: MIT OR Apache-2.0
//! KUnit. Each test is a call of `kunit_try_run_case`, on a task of its own (Linux, lib/kunit/test.c). The calls are in the order
//! of the results. A suite whose calls are not as many as its results has no measurements, and a note says so.

use std::collections::HashMap;

use anyhow::Result;
use kprism_flow::replay::spans::{Rule, Span, Spans};
use kprism_ktap::{Document, Outcome, Test};
use kprism_store::{Account, Fate, Run};

use super::measure::measure;
use super::{FAULTS, TestRun, Tests, UNMEASURED, named};
use crate::cover::DebugFiles;
use crate::files::{read, read_if_there};
use crate::flow;
use crate::progress::Progress;

/// Reads the results and measures each test.
///
/// # Errors
/// The run cannot be read.
pub fn load(run: &Run, debug: &DebugFiles, progress: &Progress) -> Result<(Tests, Account)> {
    let document = kprism_ktap::read(&read(&run.stdout())?);
    let booted = kprism_ktap::read(&read_if_there(&run.tests().join("boot.ktap"))?);
    let (mut tests, mut account) = (Tests::default(), Account::new());
    for fault in &document.faults {
        tests.notes.push(format!("{}: line {}: {}", run.stdout().display(), fault.line, fault.reason));
    }
    let loaded = flow::load(run, progress)?;
    progress.step("measuring the tests");
    let symbols = &loaded.symbols;
    let (func, group) = (named(symbols, "kunit_try_run_case"), named(symbols, "kunit_run_tests"));
    let mut spans = Vec::new();
    if let (Some(func), Some(group)) = (func, group) {
        let mut listener = Spans::new(Rule::Calls { func, group, exit: named(symbols, "do_exit") });
        account = flow::follow(&loaded, &mut listener, progress);
        spans = listener.finish();
    } else {
        tests.notes.push("no test is measured: the kernel has no kunit_try_run_case".to_owned());
    }
    let (mut chosen, mut unmeasured) = (Vec::new(), 0);
    for (suite, group) in document.tests.iter().zip(1..) {
        let calls: Vec<&Span> = spans.iter().filter(|span| span.group == group).collect();
        let results = suite.leaves();
        match assigned(&results, &calls) {
            Some(assigned) => chosen.extend(assigned),
            None => {
                unmeasured += results.len();
                chosen.extend(results.iter().map(|_| None));
                tests.notes.push(format!(
                    "suite {}: {} results and {} calls of tests: its tests are not measured",
                    suite.name,
                    results.len(),
                    calls.len()
                ));
            }
        }
        tests.tests.extend(results.iter().map(|(path, test)| test_run(suite, path, test)));
    }
    compare_with_boot(&mut tests, &booted);
    measure(run, &loaded, debug, &chosen, &mut tests);
    let faults: Vec<String> = document.faults.iter().map(|fault| fault.reason.clone()).collect();
    let account = account.with(Fate::Lost, UNMEASURED, unmeasured as u64).at(
        Fate::Lost,
        FAULTS,
        faults.len() as u64,
        faults,
    );
    progress.clear();
    Ok((tests, account))
}

/// The call of each result; none for a test that was skipped in the boot: KUnit does not call it again, and has no reason.
fn assigned<'s>(results: &[(Vec<&str>, &Test)], calls: &[&'s Span]) -> Option<Vec<Option<&'s Span>>> {
    let all = calls.len() == results.len();
    let ran = |test: &Test| all || test.outcome != Outcome::Skipped || !test.reason.is_empty();
    if results.iter().filter(|(_, test)| ran(test)).count() != calls.len() {
        return None;
    }
    let mut calls = calls.iter().copied();
    Some(results.iter().map(|(_, test)| if ran(test) { calls.next() } else { None }).collect())
}

fn test_run(suite: &Test, path: &[&str], test: &Test) -> TestRun {
    let names: Vec<&str> = path.iter().skip(1).copied().chain([test.name.as_str()]).collect();
    TestRun {
        suite: suite.name.clone(),
        // A suite without tests of its own is one.
        name: if path.is_empty() { String::new() } else { names.join("/") },
        outcome: test.outcome,
        reason: test.reason.clone(),
        diagnostics: test.diagnostics.clone(),
        measured: None,
    }
}

/// Enters the boot's reasons of tests that were skipped there, and notes tests that passed there and failed now.
fn compare_with_boot(tests: &mut Tests, booted: &Document) {
    let leaves = booted.tests.iter().flat_map(|suite| {
        let runs = suite.leaves().into_iter().map(|(path, test)| test_run(suite, &path, test));
        runs.collect::<Vec<_>>()
    });
    let then: HashMap<(String, String), TestRun> =
        leaves.map(|test| ((test.suite.clone(), test.name.clone()), test)).collect();
    let mut turned = Vec::new();
    for test in &mut tests.tests {
        let Some(before) = then.get(&(test.suite.clone(), test.name.clone())) else { continue };
        if test.outcome == Outcome::Skipped && test.reason.is_empty() {
            test.reason.clone_from(&before.reason);
        }
        if test.outcome.is_failure() && before.outcome == Outcome::Passed {
            turned.push(format!("{}: {}", test.suite, test.name));
        }
    }
    if !turned.is_empty() {
        tests.notes.push(format!(
            "passed in the boot, and failed when they were repeated for this recording: {}",
            turned.join(", ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(lines: &str) -> Document {
        kprism_ktap::read(format!("KTAP version 1\n1..1\n{lines}ok 1 s\n").as_bytes())
    }

    #[test]
    fn calls_belong_to_results_in_their_order() {
        let document = suite("    1..3\n    ok 1 a\n    ok 2 b # SKIP\n    ok 3 c # SKIP why\n");
        let results = document.tests[0].leaves();
        let spans: Vec<Span> = (0..4).map(|n| Span { insns: n, ..Span::default() }).collect();
        let calls: Vec<&Span> = spans.iter().collect();
        let insns = |count: usize| {
            let assigned = assigned(&results, &calls[..count])?;
            Some(assigned.into_iter().map(|span| span.map(|span| span.insns)).collect::<Vec<_>>())
        };
        assert_eq!(insns(3), Some(vec![Some(0), Some(1), Some(2)]));
        assert_eq!(insns(2), Some(vec![Some(0), None, Some(1)]));
        assert_eq!((insns(1), insns(4)), (None, None));
    }

    #[test]
    fn what_the_boot_said_is_told() {
        let now = suite("    ok 1 a # SKIP\n    not ok 2 b\n    not ok 3 c\n");
        let of = |document: &Document| {
            let suite = &document.tests[0];
            suite.leaves().iter().map(|(path, test)| test_run(suite, path, test)).collect::<Vec<_>>()
        };
        let mut tests = Tests { tests: of(&now), ..Tests::default() };
        compare_with_boot(&mut tests, &suite("    ok 1 a # SKIP no device\n    ok 2 b\n    not ok 3 c\n"));
        assert_eq!(tests.tests[0].reason, "no device");
        assert!(tests.notes[0].ends_with("recording: s: b"), "{:?}", tests.notes);
    }
}
