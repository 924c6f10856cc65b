// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of several CPUs' rings in the order of their times.
//!
//! Each ring gives its records nearly in order: one that interrupted another is behind it, with an earlier time. What is
//! later than the last that is known of every ring waits for the next round.

use kprism_bpf::cpu_ring::CpuRing;

use crate::plan::Plan;
use crate::stream::{Hit, tidy};

/// Records that wait, in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    bytes: Vec<u8>,
    /// Time and place.
    index: Vec<(u64, usize, usize)>,
}

impl Merge {
    /// Takes what a ring has. Before the time returned, nothing can come of it any more: that of its last record if a
    /// record is still being written, else no time at all.
    pub fn fill(&mut self, ring: &mut CpuRing<'_>, plans: &[Plan]) -> u64 {
        let mut last = 0;
        let cpu = ring.cpu as u16;
        ring.drain(|record| last = self.add(record, cpu, plans));
        if ring.is_busy() { last } else { u64::MAX }
    }

    /// Its time. The program leaves it to us to say which CPU it was.
    fn add(&mut self, record: &[u8], cpu: u16, plans: &[Plan]) -> u64 {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(record);
        if let Some(place) = self.bytes.get_mut(from + 6..from + 8) {
            place.copy_from_slice(&cpu.to_le_bytes());
        }
        let Ok(hit) = Hit::parse(record) else {
            self.bytes.truncate(from);
            return 0;
        };
        if let Some(plan) = plans.get(usize::from(hit.probe)) {
            tidy(&mut self.bytes[from..], &plan.probe);
        }
        self.index.push((hit.time_ns, from, self.bytes.len()));
        hit.time_ns
    }

    /// Gives the records up to this time; how many there were.
    pub fn give(&mut self, until: u64, mut take: impl FnMut(&[u8])) -> u64 {
        // Several runs that are sorted already: what this sort is best at.
        self.index.sort_by_key(|(time, ..)| *time);
        let given = self.index.partition_point(|(time, ..)| *time <= until);
        for (_, from, to) in &self.index[..given] {
            take(&self.bytes[*from..*to]);
        }
        let mut rest = Vec::new();
        let later = self.index.split_off(given);
        self.index.clear();
        for (time, from, to) in later {
            let at = rest.len();
            rest.extend_from_slice(&self.bytes[from..to]);
            self.index.push((time, at, rest.len()));
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(&rest);
        given as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time: u64) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[0] = 32;
        bytes[8..16].copy_from_slice(&time.to_le_bytes());
        bytes
    }

    #[test]
    fn by_time_and_not_before_it() {
        let mut merge = Merge::default();
        let mut given = Vec::new();
        let mut round = |merge: &mut Merge, records: &[(u64, u16)], until| {
            records.iter().for_each(|(time, cpu)| assert_eq!(merge.add(&record(*time), *cpu, &[]), *time));
            given.clear();
            let count = merge.give(until, |bytes| {
                let hit = Hit::parse(bytes).expect("a record");
                given.push((hit.time_ns, hit.cpu));
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
