// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own tests: a table of them, what failed and why, and JUnit's XML.

use std::fmt::Write as _;

use kprism_ktap::Outcome;
use kprism_profile::kernel_tests::{TestRun, Tests};
use kprism_profile::units::printable;
use kprism_store::Account;
use serde_json::{Value, json};

use crate::shape;
use crate::table::{Cell, Style, Table};
use crate::xml::escaped;

/// The outcomes, in the order of the summary.
const OUTCOMES: [Outcome; 7] = [
    Outcome::Passed,
    Outcome::Failed,
    Outcome::TimedOut,
    Outcome::Error,
    Outcome::NoResult,
    Outcome::ExpectedFailure,
    Outcome::Skipped,
];

/// Suite and test.
fn full_name(test: &TestRun) -> String {
    if test.name.is_empty() { test.suite.clone() } else { format!("{}: {}", test.suite, test.name) }
}

/// A row for each test, in the order in which they ran.
pub fn table(tests: &Tests) -> Table {
    let row = |test: &TestRun| {
        let measured = test.measured;
        let count = |n: Option<u64>| n.map_or(Cell::Nothing, Cell::Count);
        let lines = measured.filter(|_| tests.lines_known);
        vec![
            Cell::Text(test.outcome.word().to_owned()),
            count(measured.map(|m| m.insns)),
            count(measured.map(|m| m.interrupt_insns)),
            measured.map_or(Cell::Nothing, |m| Cell::Ns(m.ns)),
            count(measured.map(|m| m.syscalls)),
            count(measured.map(|m| m.functions as u64)),
            count(lines.map(|m| m.lines as u64)),
            count(lines.map(|m| m.lines_alone as u64)),
            Cell::Text(test.suite.clone()),
            Cell::Text(test.name.clone()),
            Cell::Text(test.reason.clone()),
        ]
    };
    Table::new(
        &[
            ("result", "result"),
            ("instructions", "insns"),
            ("interrupt_instructions", "in irqs"),
            ("time_ns", "time"),
            ("syscalls", "syscalls"),
            ("functions", "functions"),
            ("lines", "lines"),
            ("lines_alone", "lines alone"),
            ("suite", "suite"),
            ("name", "test"),
            ("reason", "reason"),
        ],
        tests.tests.iter().map(row).collect(),
    )
}

/// Columns of the table in a terminal: those that say something of these tests.
pub fn shown(tests: &Tests) -> Vec<&'static str> {
    let some = |of: fn(&TestRun) -> u64| tests.tests.iter().any(|test| of(test) > 0);
    let mut columns = vec!["result", "instructions"];
    columns.extend(some(|t| t.measured.map_or(0, |m| m.interrupt_insns)).then_some("interrupt_instructions"));
    columns.push("time_ns");
    columns.extend(some(|t| t.measured.map_or(0, |m| m.syscalls)).then_some("syscalls"));
    columns.push("functions");
    columns.extend(tests.lines_known.then_some(["lines", "lines_alone"]).into_iter().flatten());
    columns.extend(["suite", "name"]);
    columns.extend(tests.tests.iter().any(|test| !test.reason.is_empty()).then_some("reason"));
    columns
}

/// A row for each suite: its tests by their end, instructions and time; in the order in which they ran.
pub fn suites(tests: &Tests) -> Table {
    let row = |suite: &[TestRun]| {
        let sum = |of: fn(&kprism_profile::kernel_tests::Measured) -> u64| -> u64 {
            suite.iter().filter_map(|test| test.measured.as_ref()).map(of).sum()
        };
        let count = |is: &dyn Fn(Outcome) -> bool| {
            Cell::Int(suite.iter().filter(|test| is(test.outcome)).count() as u64)
        };
        vec![
            Cell::Text(suite[0].suite.clone()),
            Cell::Int(suite.len() as u64),
            count(&|outcome| outcome == Outcome::Passed),
            count(&Outcome::is_failure),
            count(&|outcome| outcome != Outcome::Passed && !outcome.is_failure()),
            Cell::Count(sum(|measured| measured.insns)),
            Cell::Ns(sum(|measured| measured.ns)),
        ]
    };
    Table::new(
        &[
            ("suite", "suite"),
            ("tests", "tests"),
            ("passed", "passed"),
            ("failed", "failed"),
            ("others", "skipped or known to fail"),
            ("instructions", "insns"),
            ("time_ns", "time"),
        ],
        tests.tests.chunk_by(|a, b| a.suite == b.suite).map(row).collect(),
    )
}

/// The number of tests by outcome, in one line.
pub fn summary(tests: &Tests) -> String {
    let mut suites: Vec<&str> = tests.tests.iter().map(|test| test.suite.as_str()).collect();
    suites.dedup();
    let counts = OUTCOMES.iter().map(|outcome| (tests.count(*outcome), outcome.word()));
    let counts: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    let plural = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let (all, suites) = (plural(tests.tests.len(), "test"), plural(suites.len(), "suite"));
    format!("{all} of {suites}: {}", counts.join(", "))
}

/// Tests that failed, with the lines that they printed; empty if none did.
pub fn failures(tests: &Tests, style: Style) -> String {
    let mut out = String::new();
    for test in tests.tests.iter().filter(|test| test.outcome.is_failure()) {
        let head = format!("{}: {}", printable(&full_name(test)), test.outcome.word());
        writeln!(out, "{}", style.alert(&head)).ok();
        for line in &test.diagnostics {
            writeln!(out, "  {}", printable(line)).ok();
        }
    }
    out
}

/// All of it: the rows of the table, and the lines that tests printed.
pub fn to_json(tests: &Tests, account: &Account, table: &Table) -> Value {
    let said = |test: &&TestRun| !test.diagnostics.is_empty();
    let one = |test: &TestRun| json!({"suite": test.suite, "name": test.name, "lines": test.diagnostics});
    let mut value = shape::report(shape::run(None, Some(account)), table);
    value["printed"] = tests.tests.iter().filter(said).map(one).collect();
    value["notes"] = json!(tests.notes);
    value
}

/// JUnit's XML, as the schema of Jenkins' xUnit plugin has it. Times are the guest's.
pub fn junit(tests: &Tests) -> String {
    let count = |of: &[&TestRun], is: fn(Outcome) -> bool| of.iter().filter(|t| is(t.outcome)).count();
    let seconds =
        |of: &[&TestRun]| of.iter().filter_map(|t| t.measured).map(|m| m.ns as f64 / 1e9).sum::<f64>();
    let attributes = |of: &[&TestRun]| {
        format!(
            "tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{:.9}\"",
            of.len(),
            count(of, |o| matches!(o, Outcome::Failed)),
            count(of, |o| o.is_failure() && o != Outcome::Failed),
            seconds(of)
        )
    };
    let all: Vec<&TestRun> = tests.tests.iter().collect();
    let mut out = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {}>\n", attributes(&all));
    for suite in all.chunk_by(|a, b| a.suite == b.suite) {
        let name = escaped(&suite[0].suite);
        let skipped = count(suite, |o| matches!(o, Outcome::Skipped | Outcome::ExpectedFailure));
        writeln!(out, "  <testsuite name=\"{name}\" {} skipped=\"{skipped}\">", attributes(suite)).ok();
        for test in suite {
            let case = if test.name.is_empty() { &test.suite } else { &test.name };
            let time = seconds(&[test]);
            write!(out, "    <testcase classname=\"{name}\" name=\"{}\" time=\"{time:.9}\">", escaped(case))
                .ok();
            let (word, reason) = (test.outcome.word(), escaped(&test.reason));
            let said = escaped(&test.diagnostics.join("\n"));
            match test.outcome {
                Outcome::Passed => {}
                Outcome::Skipped | Outcome::ExpectedFailure => {
                    write!(out, "<skipped message=\"{}\"/>", if reason.is_empty() { word } else { &reason })
                        .ok();
                }
                Outcome::Failed => {
                    write!(out, "<failure message=\"{word}\" type=\"{word}\">{said}</failure>").ok();
                }
                Outcome::TimedOut | Outcome::Error | Outcome::NoResult => {
                    write!(out, "<error message=\"{word}\" type=\"{word}\">{said}</error>").ok();
                }
            }
            out += "</testcase>\n";
        }
        out += "  </testsuite>\n";
    }
    out + "</testsuites>\n"
}
