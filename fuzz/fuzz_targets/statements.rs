// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any text as a C source: lines that are told are within it, and were not known before.
#![no_main]

use std::collections::{BTreeMap, HashSet};

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let lines = text.lines().count() as u32;
    // Every third line has code, every second of these ran.
    let known: BTreeMap<u32, u64> =
        (1..=lines).filter(|n| n % 3 == 0).map(|n| (n, u64::from(n % 2))).collect();
    let told = kprism_cover::executed::infer::infer(&text, &known, &HashSet::new());
    assert!(told.keys().all(|line| (1..=lines).contains(line) && !known.contains_key(line)));
});
