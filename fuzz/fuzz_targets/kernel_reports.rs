// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a guest's console: reports of the kernel's faults, of which a bounded number is kept, each a line for a terminal.
#![no_main]

use kprism_lab::{KernelReports, MOST_REPORTS};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let reports = KernelReports::find(bytes);
    assert!(reports.reports.len() <= MOST_REPORTS);
    for note in reports.notes() {
        assert!(!note.is_empty() && note.chars().all(|c| !c.is_control()), "{note:?}");
    }
});
