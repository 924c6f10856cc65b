// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the model's speed where nearly every access misses. Prints the numbers; asserts only limits that hold on a
//! loaded machine.

use std::hint::black_box;

use kprism_tlb::presets::{NAMES, preset};
use kprism_tlb::{Access, Bank, Page};

/// CPU time of this thread, seconds: other threads may be busy.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// GUPS: a table of 256 MiB, each update a load and a store of a random word.
#[test]
#[ignore = "a measurement: make bench-tlb"]
fn gups() {
    const UPDATES: u64 = 20_000_000;
    for name in NAMES {
        let mut bank = Bank::new(&[preset(name).unwrap()]);
        let mut state = 1u64;
        let begin = cpu_seconds();
        for _ in 0..UPDATES {
            state = state << 1 ^ if state >> 63 == 1 { 7 } else { 0 };
            let va = 0x7f00_0000_0000 + (state.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36 & !7);
            black_box(bank.access(va, Access::Load, || Page::K4));
            black_box(bank.access(va, Access::Store, || Page::K4));
        }
        let seconds = cpu_seconds() - begin;
        let missed = bank.counts().next().map_or(0, |c| c.last[0] + c.last[1]);
        println!(
            "{name:16} {:6.1} M references/s, {:4.1} % of updates miss",
            2.0 * UPDATES as f64 / seconds / 1e6,
            100.0 * missed as f64 / UPDATES as f64
        );
        assert!(missed > UPDATES / 2);
    }
}
