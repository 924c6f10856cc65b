// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums the rows of all CPUs.

use super::layout::{ROW, cpu, row};
use crate::mapping::Mapping;

/// Statistics of a function's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionStats {
    /// Number of calls.
    pub count: u64,
    /// Total time in ns.
    pub total_ns: u64,
    /// Time on a CPU in ns, without traced callees.
    pub self_ns: u64,
    /// Time off the CPU in ns, in the calls and in traced callees.
    pub off_ns: u64,
    /// Shortest call in ns; 0 without calls.
    pub min_ns: u64,
    /// Longest call in ns.
    pub max_ns: u64,
    /// Number of calls that took from 2^N to 2^(N+1) - 1 ns; those of 0 ns are in the first bucket.
    pub buckets: [u64; 64],
}

/// Counts of calls, records and program runs that are missing from the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Calls not measured because too many were open.
    pub overflowed: u64,
    /// Returns of calls whose entry was not seen: they began before the recording, or the entry was missed.
    pub orphans: u64,
    /// Calls whose return was not seen.
    pub abandoned: u64,
    /// Calls that were open when their task ended, so that they never return.
    pub unfinished: u64,
    /// Records lost because the ring was full.
    pub lost: u64,
    /// Calls that were left out, because their condition did not hold. They are no loss.
    pub filtered: u64,
    /// Number of times the kernel skipped a program because it was already running on that CPU (in an interrupt).
    pub missed: u64,
}

impl Losses {
    /// Returns true if a count or a time is too low.
    pub fn any(&self) -> bool {
        self.overflowed + self.abandoned + self.lost + self.missed > 0
    }
}

pub(super) fn read_losses(regions: &Mapping, bases: &[usize], missed: u64) -> Losses {
    let sum = |field: i16| bases.iter().map(|base| regions.read(base + field as usize)).sum();
    Losses {
        overflowed: sum(cpu::OVERFLOWED),
        orphans: sum(cpu::ORPHANS),
        abandoned: sum(cpu::ABANDONED),
        unfinished: sum(cpu::UNFINISHED),
        lost: sum(cpu::LOST),
        filtered: sum(cpu::FILTERED),
        missed,
    }
}

pub(super) fn row_of(base: usize, function: usize) -> usize {
    base + cpu::BYTES as usize + function * ROW as usize
}

pub(super) fn read_function(regions: &Mapping, bases: &[usize], function: usize) -> FunctionStats {
    let mut stats = FunctionStats {
        count: 0,
        total_ns: 0,
        self_ns: 0,
        off_ns: 0,
        min_ns: u64::MAX,
        max_ns: 0,
        buckets: [0; 64],
    };
    let mut child = 0u64;
    for &base in bases {
        let at = row_of(base, function);
        let read = |field: i16| regions.read(at + field as usize);
        stats.total_ns = stats.total_ns.wrapping_add(read(row::TOTAL));
        child = child.wrapping_add(read(row::CHILD));
        stats.off_ns = stats.off_ns.wrapping_add(read(row::AWAY));
        stats.min_ns = stats.min_ns.min(!read(row::NOT_MIN));
        stats.max_ns = stats.max_ns.max(read(row::MAX));
        for (bucket, count) in stats.buckets.iter_mut().enumerate() {
            *count += read(row::BUCKETS + 8 * bucket as i16);
        }
        // Calls of the current range are not yet in their bucket.
        let bucket = (read(row::BUCKET) / 8) as usize & 63;
        stats.buckets[bucket] += read(row::AT_HAND);
    }
    stats.count = stats.buckets.iter().sum();
    stats.self_ns = stats.total_ns.saturating_sub(child).saturating_sub(stats.off_ns);
    if stats.count == 0 {
        stats.min_ns = 0;
    }
    stats
}
