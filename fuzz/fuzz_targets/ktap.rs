// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as results of tests: as many results as lines at most, and each line of a fault is one of the text.
#![no_main]

use kprism_ktap::{Test, read};
use libfuzzer_sys::fuzz_target;

fn count(tests: &[Test]) -> usize {
    tests.iter().map(|test| 1 + test.subtests.as_deref().map_or(0, count)).sum()
}

fuzz_target!(|bytes: &[u8]| {
    let document = read(bytes);
    let lines = String::from_utf8_lossy(bytes).lines().count();
    // Levels that never got a result are tests too.
    assert!(count(&document.tests) <= 2 * lines);
    assert!(document.faults.iter().all(|fault| fault.line <= lines));
    for test in &document.tests {
        assert!(test.leaves().len() <= 2 * lines);
    }
});
