// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a file of compiled probes: an error, or programs that can be put together.
#![no_main]

use kprism_bpf::cpu_ring;
use kprism_probe::compiled::Compiled;
use kprism_probe::program::{self, Layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(found) = Compiled::parse(bytes, "fuzz") else { return };
    let probes = found.plans.len() as u32;
    let longest = found.plans.iter().map(|plan| plan.probe.record_bytes).max().unwrap_or(0);
    let Ok(rings) = cpu_ring::Layout::fitting(4, probes.saturating_mul(program::CELL), 1 << 16, longest) else { return };
    let layout = Layout {
        probes,
        rings,
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
