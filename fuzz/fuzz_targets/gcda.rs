// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as data: an error, or counters that are the same once written and read, nothing once taken from
//! themselves, and no more than the bytes have room for.
#![no_main]

use kprism_gcov::data::{self, Values};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(data) = data::read(bytes) else { return };
    let kept: usize = data
        .functions
        .iter()
        .flat_map(|function| &function.values)
        .map(|(_, values)| match values {
            Values::All(values) => values.len(),
            Values::Zeros(_) => 0,
        })
        .sum();
    assert!(kept * 8 <= bytes.len());
    assert_eq!(data::read(&data.to_bytes()).expect("what was written"), data);
    let mut sum = data.clone();
    sum.add(&data).expect("of the same build");
    sum.subtract(&data).expect("of the same build");
    data.highest();
});
