// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a PT stream of a host with virtual machines: reading ends, and no place has more time than was observed.
#![no_main]

use kprism_flow::clock::ClockConfig;
use kprism_flow::errata::Errata;
use kprism_flow::vms::{Place, residency};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = residency(bytes, ClockConfig::default(), Errata::NONE);
    assert!(found.skipped <= bytes.len() as u64);
    assert!(found.unknown <= found.observed && found.widest <= found.observed);
    for (place, stay) in &found.places {
        assert!(stay.least <= stay.most && stay.most <= found.observed, "{place:?}: {stay:?}");
    }
    let changes = found.changes.len() as u64;
    assert_eq!(found.places.values().map(|stay| stay.entries).sum::<u64>(), changes);
    let exits = |place: &Place| found.changes.iter().filter(|change| change.from == *place).count() as u64;
    assert!(found.places.iter().all(|(place, stay)| stay.exits == exits(place)));
});
