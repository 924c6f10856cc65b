// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as lcov's tracefile: an error with its line, or coverage with no more in it than the text has lines.
#![no_main]

use kprism_cover::lcov;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let lines = String::from_utf8_lossy(bytes).lines().count();
    match lcov::read(bytes) {
        Ok(found) => {
            let all = found.cover.sources.iter();
            let kept = all.map(|s| s.lines.len() + s.functions.len() + s.branches.len()).sum::<usize>();
            assert!(kept <= lines);
            found.cover.totals();
        }
        Err(error) => assert!(error.line >= 1 && error.line <= lines.max(1)),
    }
});
