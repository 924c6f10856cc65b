// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long tests of breadth, and long tables of cases: a run of the suite takes a part of them, and each day another part. Within as
//! many days as there are parts, everything has run. `make test-whole` runs all of it at once.
//!
//! In: the day, `$KPRISM_TEST_DAY` (days since 1970; by default today's), and `$KPRISM_TEST_WHOLE`, which is 1 for all parts. A failure
//! of an earlier day is had again by that day's number, which is printed.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::skip;

/// The day's number; `None` if everything is to run.
fn day() -> Option<u64> {
    match std::env::var("KPRISM_TEST_WHOLE").as_deref() {
        Ok("1") => return None,
        Ok("") | Err(_) => {}
        Ok(other) => panic!("KPRISM_TEST_WHOLE={other}: expected 1, or nothing"),
    }
    let given = std::env::var("KPRISM_TEST_DAY").ok();
    let given =
        given.map(|day| day.parse().unwrap_or_else(|_| panic!("KPRISM_TEST_DAY={day}: expected a number")));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    Some(given.unwrap_or_else(now))
}

/// Ends this test as ignored, unless it is its turn: on each day whose number leaves `remainder` when it is divided by `days`.
///
/// # Panics
/// `remainder` is not below `days`: the test would never run.
pub fn turn(days: u64, remainder: u64) {
    assert!(remainder < days, "a turn that never comes");
    if let Some(day) = day().filter(|day| day % days != remainder) {
        let wait = (days + remainder - day % days) % days;
        skip(format!(
            "it runs every {days} days, and next in {wait}; KPRISM_TEST_WHOLE=1 or `make test-whole` runs it now"
        ));
    }
}

/// Of a table of cases, the `number` whose turn it is, in the table's order; all of them if no more are there.
///
/// # Panics
/// `number` is 0.
pub fn of_today<T>(cases: impl IntoIterator<Item = T>, number: usize) -> Vec<T> {
    let cases: Vec<T> = cases.into_iter().collect();
    match day() {
        Some(day) if number < cases.len() => {
            let parts = cases.len().div_ceil(number) as u64;
            println!("day {day}: part {} of {parts} of the {} cases", day % parts + 1, cases.len());
            part(cases, number, day)
        }
        _ => cases,
    }
}

/// The part of a table whose turn it is on this day. The last part begins earlier, so that it is as long as the others.
fn part<T>(cases: Vec<T>, number: usize, day: u64) -> Vec<T> {
    assert!(number > 0, "a part without a case tests nothing");
    let parts = cases.len().div_ceil(number);
    let part = (day % parts as u64) as usize;
    let first = (part * number).min(cases.len() - number);
    cases.into_iter().skip(first).take(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_its_turn() {
        for (cases, number) in [(1_usize, 1), (7, 3), (9, 3), (12, 4), (5, 4)] {
            let parts = cases.div_ceil(number) as u64;
            for first in [0, 20_787] {
                let mut seen: Vec<usize> = Vec::new();
                for day in first..first + parts {
                    let today = part((0..cases).collect(), number, day);
                    assert_eq!(today.len(), number);
                    assert!(today.is_sorted());
                    seen.extend(today);
                }
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), cases, "{cases} cases, {number} a day, from day {first}");
            }
        }
    }
}
