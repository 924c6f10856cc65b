// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges the records of several CPUs' rings in order of time.
//!
//! Each ring gives its records nearly in order: a record that came while another was being written lies after it, and
//! may have an earlier time. Records later than the time up to which every ring is complete wait for the next round.

use std::collections::BTreeMap;

use kprism_bpf::cpu_ring::CpuRing;

use crate::plan::Plan;
use crate::stream::{HEADER, needs_tidying, tidy, u32_at, u64_at};

/// Waiting records, in one piece of memory.
#[derive(Debug)]
pub(crate) struct Merge {
    bytes: Vec<u8>,
    /// Time and offset of each record.
    index: Vec<(u64, usize)>,
    /// True if the index is in order of time. One CPU's records are, except for those that interrupted others.
    is_sorted: bool,
    /// By CPU: the time at which no record was being written.
    idle: BTreeMap<u16, u64>,
    /// By probe: true if a record may have bytes that its values do not use.
    loose: Vec<bool>,
}

impl Merge {
    /// Creates an empty merge for these probes.
    pub fn new(plans: &[Plan]) -> Self {
        let loose = plans.iter().map(|plan| needs_tidying(&plan.probe)).collect();
        Self { bytes: Vec::new(), index: Vec::new(), is_sorted: true, idle: BTreeMap::new(), loose }
    }

    /// Takes a ring's records, at time `now` or later. Returns the time before which no further record of this ring can
    /// come. If a record is still being written, that is the last time at which none was. (A program that waits for
    /// memory, or is interrupted, has reserved its room already. Its time may be before that of any record after it.)
    pub fn fill(&mut self, ring: &mut CpuRing<'_>, plans: &[Plan], now: u64) -> u64 {
        let cpu = ring.cpu as u16;
        ring.drain(|record| {
            self.add(record, cpu, plans);
        });
        if !ring.is_busy() {
            self.idle.insert(cpu, now);
        }
        self.idle.get(&cpu).copied().unwrap_or(0)
    }

    /// Adds a record and returns its time. The program leaves the CPU's number to be filled in here.
    fn add(&mut self, record: &[u8], cpu: u16, plans: &[Plan]) -> u64 {
        if record.len() < HEADER {
            return 0;
        }
        let from = self.bytes.len();
        self.bytes.extend_from_slice(record);
        let own = &mut self.bytes[from..];
        own[6..8].copy_from_slice(&cpu.to_le_bytes());
        let (time, probe) = (u64_at(own, 8), usize::from(u32_at(own, 4) as u16));
        // The last word of the header has a bit for each value that could not be read.
        if self.loose.get(probe) == Some(&true) || u64_at(own, 24) != 0 {
            tidy(own, &plans[probe].probe);
        }
        self.is_sorted &= self.index.last().is_none_or(|(before, _)| *before <= time);
        self.index.push((time, from));
        time
    }

    /// Passes on the records up to this time, one or more at once. Returns their number.
    pub fn give(&mut self, until: u64, mut take: impl FnMut(&[u8])) -> u64 {
        if !self.is_sorted {
            // The index consists of sorted runs, on which this sort is fast.
            self.index.sort_by_key(|(time, _)| *time);
        }
        let given = self.index.partition_point(|(time, _)| *time <= until);
        let mut piece = 0..0;
        for (_, from) in &self.index[..given] {
            let to = from + u32_at(&self.bytes, *from) as usize;
            if *from != piece.end {
                if !piece.is_empty() {
                    take(&self.bytes[piece.clone()]);
                }
                piece = *from..*from;
            }
            piece.end = to;
        }
        if !piece.is_empty() {
            take(&self.bytes[piece]);
        }
        let mut rest = Vec::new();
        let later = self.index.split_off(given);
        self.index.clear();
        for (time, from) in later {
            let at = rest.len();
            rest.extend_from_slice(&self.bytes[from..from + u32_at(&self.bytes, from) as usize]);
            self.index.push((time, at));
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(&rest);
        self.is_sorted = true;
        given as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::hits;

    fn record(time: u64) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[0] = 32;
        bytes[8..16].copy_from_slice(&time.to_le_bytes());
        bytes
    }

    #[test]
    fn by_time_and_not_before_it() {
        let mut merge = Merge::new(&[]);
        let mut given = Vec::new();
        let mut round = |merge: &mut Merge, records: &[(u64, u16)], until| {
            records.iter().for_each(|(time, cpu)| assert_eq!(merge.add(&record(*time), *cpu, &[]), *time));
            given.clear();
            let count = merge.give(until, |bytes| {
                let records = hits(bytes).map(|hit| hit.expect("a record"));
                given.extend(records.map(|hit| (hit.time_ns, hit.cpu)));
            });
            assert_eq!(count, given.len() as u64);
            given.clone()
        };
        assert_eq!(round(&mut merge, &[(5, 0), (7, 0), (9, 0), (6, 1)], 6), [(5, 0), (6, 1)]);
        assert_eq!(round(&mut merge, &[(8, 1), (12, 1), (10, 2)], 10), [(7, 0), (8, 1), (9, 0), (10, 2)]);
        assert_eq!(round(&mut merge, &[], u64::MAX), [(12, 1)]);
        assert!(round(&mut merge, &[], u64::MAX).is_empty());
    }
}
