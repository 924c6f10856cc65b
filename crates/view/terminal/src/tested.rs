// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own tests as screens: tests and suites; behind a suite its tests, behind a test its result and output.
//!
//! In: the tests of a run. Out: screens; the rows are those of `kprism report tests`.

use kprism_profile::kernel_tests::{TestRun, Tests};
use kprism_report::table::Cell;
use kprism_report::{Style, kernel_tests as view};

use crate::screen::{Screen, Target};

/// Tests of the whole run, those that failed, and suites.
pub fn screens(tests: &Tests) -> Vec<Screen> {
    let mut screens = vec![rows("tests", tests, |_| true)];
    let suites = view::suites(tests);
    screens.push(Screen::of_table("suites", &suites, ("suite", ""), |cells| match cells.first() {
        Some(Cell::Text(suite)) => Some(Target::Suite(suite.clone())),
        _ => None,
    }));
    let failures = view::failures(tests, Style::default());
    if !failures.is_empty() {
        screens.push(Screen::text("failures", failures.lines()));
    }
    screens
}

/// The tests of a suite; `None` if there is no such suite.
pub fn suite(tests: &Tests, name: &str) -> Option<Vec<Screen>> {
    let known = tests.tests.iter().any(|test| test.suite == name);
    known.then(|| vec![rows("tests", tests, |test| test.suite == name)])
}

/// Name, result and output of a test, by its place among the run's.
pub fn test(tests: &Tests, place: usize) -> Option<(String, Vec<Screen>)> {
    let test = tests.tests.get(place)?;
    let name = if test.name.is_empty() { &test.suite } else { &test.name };
    let mut lines = vec![format!("{} {}: {}", test.suite, test.name, test.outcome.word())];
    if !test.reason.is_empty() {
        lines.push(format!("reason: {}", test.reason));
    }
    if test.measured.is_none() {
        lines.push("its part of the flow is not known".to_owned());
    }
    lines.push(match test.diagnostics.len() {
        0 => "it printed nothing".to_owned(),
        _ => "it printed:".to_owned(),
    });
    let printed = test.diagnostics.iter().map(|line| format!("  {line}"));
    let lines: Vec<String> = lines.into_iter().chain(printed).collect();
    Some((name.clone(), vec![Screen::text("result", lines.iter().map(String::as_str))]))
}

/// A row for each test that is wanted, in the order in which they ran.
fn rows(name: &str, tests: &Tests, wanted: impl Fn(&TestRun) -> bool) -> Screen {
    let mut table = view::table(tests);
    table.select(&view::shown(tests));
    // Rows are those of the tests, in their order; two may have one name.
    let places: Vec<usize> = (0..tests.tests.len()).filter(|&n| wanted(&tests.tests[n])).collect();
    table.rows = places.iter().filter_map(|&n| table.rows.get(n).cloned()).collect();
    let mut next = places.into_iter();
    let next = std::cell::RefCell::new(&mut next);
    // An unnamed test is its suite.
    let key = if tests.tests.iter().all(|test| test.name.is_empty()) { "suite" } else { "name" };
    Screen::of_table(name, &table, (key, ""), |_| next.borrow_mut().next().map(Target::Test))
}
