// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counts of probes in words: hits, records, losses.

use kprism_profile::units::grouped;

use crate::stream::{Counts, Probe};

/// Lines on how often a probe was hit, and what came of it.
pub fn counted(probe: &Probe, counts: &Counts) -> Vec<String> {
    let hits = grouped(counts.hits);
    let first = match probe.record_bytes {
        0 => format!("{hits} hits, {} counted", grouped(counts.passed)),
        _ => {
            let kept = counts.passed.saturating_sub(counts.lost);
            format!("{hits} hits, {} records, {} lost", grouped(kept), grouped(counts.lost))
        }
    };
    let mut lines = vec![first];
    let mut also = |n: u64, what: &str| {
        if n > 0 {
            lines.push(format!("  {} × {what}", grouped(n)));
        }
    };
    also(counts.left_out, "left out: skipped, or enough");
    also(counts.keys_lost, "not counted by keys: no room for more of them (--keys)");
    also(counts.keys_failed, "not counted by keys: they could not be read");
    for (what, errors) in [("condition", &counts.condition_errors), ("value", &counts.value_errors)] {
        for (why, n) in errors {
            also(*n, &format!("{what}: {why}"));
        }
    }
    also(
        counts.unreturned,
        "called, but not seen to return: more than 64 deep in recursion, where the kernel gives up; not over yet; or left \
         by longjmp or exit",
    );
    also(counts.missed, "not seen: in the program already");
    lines
}

/// Lines with the sums of hits of each place that is at several addresses.
pub fn sums(probes: &[Probe], counts: &[Counts]) -> Vec<String> {
    let mut all: Vec<(&Probe, u64, u64)> = Vec::new();
    for (probe, counts) in probes.iter().zip(counts) {
        let same = |other: &Probe| {
            other.place == probe.place && other.condition == probe.condition && other.file == probe.file
        };
        match all.last_mut() {
            Some((first, hits, places)) if same(first) && first.found_apart(probe) => {
                *hits += counts.hits;
                *places += 1;
            }
            _ => all.push((probe, counts.hits, 1)),
        }
    }
    let several = all.iter().filter(|(_, _, places)| *places > 1);
    several
        .map(|(probe, hits, places)| {
            format!("{}: {} hits at {places} places in all", probe.place, grouped(*hits))
        })
        .collect()
}
