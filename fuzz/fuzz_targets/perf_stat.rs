// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of `perf stat -x`: any text is counters, no more than it has lines, or an error at one of its lines.
#![no_main]

use kprism_tlb::counters;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    match counters::parse(&text) {
        Ok(all) => {
            assert!(all.len() <= text.lines().count());
            for counter in &all {
                assert!((0.0..=100.0).contains(&counter.running), "{counter:?}");
                counter.accesses();
                counters::relative_error(1, counter.count.unwrap_or(0));
            }
        }
        Err(error) => assert!((1..=text.lines().count()).contains(&error.line), "{error}"),
    }
});
