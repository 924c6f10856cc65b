// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any lines as QEMU's trace of a memory window: each is told once, times run forward, and what they told goes through the
//! reverse page table, every access explained once.
#![no_main]

use kprism_tlb::bus::qemu::{Monitor, Line};
use kprism_tlb::bus::rpt::replay;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut monitor = Monitor::default();
    let (mut accesses, mut records, mut lines) = (Vec::new(), Vec::new(), 0u64);
    for line in bytes.split(|&b| b == b'\n') {
        lines += 1;
        match monitor.line(line) {
            Line::Access(access) => accesses.push(access),
            Line::Record(record) => records.push(record),
            Line::Nothing => {}
        }
    }
    assert!(accesses.is_sorted_by(|a, b| a.time < b.time || a.time == u64::MAX));
    let told = accesses.len() as u64 + monitor.words.mailbox_writes + monitor.words.before + monitor.others;
    assert_eq!(told, lines);
    assert!(records.len() as u64 <= monitor.words.mailbox_writes);
    let region = monitor.words.region.unwrap_or((0, u64::MAX));
    let all = accesses.len() as u64;
    let counts = replay(region, records.into_iter(), accesses.into_iter(), |_| {});
    assert_eq!(counts.all(), all);
});
