// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of several CPUs' rings in the order of their times.
//!
//! Each ring gives its records nearly in order: one that came while another was written is behind it, and may have an earlier
//! time. What is later than the time until which all is known of every ring waits for the next round.

use std::collections::BTreeMap;

use kprism_bpf::cpu_ring::CpuRing;

use crate::plan::Plan;
use crate::stream::{HEADER, needs_tidying, tidy, u32_at, u64_at};

/// Records that wait, in one piece of memory.
#[derive(Debug)]
pub(crate) struct Merge {
    bytes: Vec<u8>,
    /// Time and place.
    index: Vec<(u64, usize)>,
    /// Whether they lie there in the order of their times: one CPU's do, but for those that interrupted others.
    is_sorted: bool,
    /// By CPU: when no record was being written.
    idle: BTreeMap<u16, u64>,
    /// By probe: whether a record may have bytes that its values do not use.
    loose: Vec<bool>,
}

impl Merge {
    /// Nothing yet, of these probes.
    pub fn new(plans: &[Plan]) -> Self {
        let loose = plans.iter().map(|plan| needs_tidying(&plan.probe)).collect();
        Self { bytes: Vec::new(), index: Vec::new(), is_sorted: true, idle: BTreeMap::new(), loose }
    }

    /// Takes what a ring has, at `now` or later. Before the time returned, nothing can come of it any more: if a record is
    /// still being written, that at which there was none. (A program that waits for memory, or is interrupted, has taken its
    /// room; its time may be before that of any that came behind it.)
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

    /// Its time. The program leaves it to us to say which CPU it was.
    fn add(&mut self, record: &[u8], cpu: u16, plans: &[Plan]) -> u64 {
        if record.len() < HEADER {
            return 0;
        }
        let from = self.bytes.len();
        self.bytes.extend_from_slice(record);
        let own = &mut self.bytes[from..];
        own[6..8].copy_from_slice(&cpu.to_le_bytes());
        let (time, probe) = (u64_at(own, 8), usize::from(u32_at(own, 4) as u16));
        if self.loose.get(probe) == Some(&true) || u64_at(own, 24) != 0 {
            tidy(own, &plans[probe].probe);
        }
        self.is_sorted &= self.index.last().is_none_or(|(before, _)| *before <= time);
        self.index.push((time, from));
        time
    }

    /// Gives the records up to this time, one or more at once; how many there were.
    pub fn give(&mut self, until: u64, mut take: impl FnMut(&[u8])) -> u64 {
        if !self.is_sorted {
            // Several runs that are sorted already: what this sort is best at.
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
