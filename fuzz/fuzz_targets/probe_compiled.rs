// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a file of compiled probes: an error, or programs that can be put together.
#![no_main]

use kprism_probe::plan::file::Compiled;
use kprism_probe::program::{self, Layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(found) = Compiled::parse(bytes, "fuzz") else { return };
    let (vars, thread_vars) = (found.vars.len() as u32, found.thread_vars.len() as u32);
    let Ok(layout) = Layout::of(&found.plans, 4, 1 << 16) else { return };
    let layout = Layout { stop_after: Some(3), vars, thread_vars, ..layout };
    for (number, plan) in found.plans.iter().enumerate().take(32) {
        let _ = program::probe(plan, number as u32, &layout);
        let _ = program::entry(plan, number as u32, &layout);
    }
    assert_eq!(Compiled::parse(&found.bytes().expect("it was read"), "again").expect("its own"), found);
});
