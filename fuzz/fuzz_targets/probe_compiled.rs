// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a file of compiled probes: an error, or programs that can be put together.
#![no_main]

use kprism_probe::compiled::Compiled;
use kprism_probe::program::{self, Layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(found) = Compiled::parse(bytes, "fuzz") else { return };
    let layout = Layout {
        probes: found.plans.len() as u32,
        cpus: 4,
        all_but: None,
        stop_after: Some(3),
        vars: found.vars.len() as u32,
        slide: 0,
    };
    for (number, plan) in found.plans.iter().enumerate().take(32) {
        let _ = program::probe(plan, number as u32, &layout);
        let _ = program::entry(&plan.kept, plan.site.has_registers(), &layout);
    }
    assert_eq!(Compiled::parse(&found.bytes().expect("it was read"), "again").expect("its own"), found);
});
