// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings of all CPUs → records in order of time, in the form of `hits.bin`.

use kprism_bpf::cpu_ring::CpuRing;
use kprism_bpf::host;

use super::Session;
use super::merge::Merge;

impl Session {
    /// Returns a reader of the rings.
    pub fn reader(&self) -> Reader<'_> {
        let layout = &self.layout.rings;
        let ring = |cpu: u32| CpuRing::new(&self.rings, layout, cpu as usize);
        Reader { rings: (0..layout.cpus).map(ring).collect(), session: self, merge: Merge::new(&self.plans) }
    }
}

/// Reads records from the rings. It polls: a wake-up would cost time at each hit.
#[derive(Debug)]
pub struct Reader<'s> {
    rings: Vec<CpuRing<'s>>,
    session: &'s Session,
    merge: Merge,
}

impl Reader<'_> {
    /// Passes the records of all CPUs to `take`, in order of time and in the form of the file, one or more at once.
    /// Returns their number. Records that another CPU's could still precede are kept for the next call.
    pub fn drain(&mut self, take: impl FnMut(&[u8])) -> u64 {
        // Records made from now on have later times.
        let now = host::monotonic_ns();
        let mut safe = now;
        for ring in &mut self.rings {
            safe = safe.min(self.merge.fill(ring, &self.session.plans, now));
        }
        self.merge.give(safe, take)
    }

    /// Passes on all remaining records, after the end of the recording.
    pub fn finish(&mut self, take: impl FnMut(&[u8])) -> u64 {
        for ring in &mut self.rings {
            self.merge.fill(ring, &self.session.plans, u64::MAX);
        }
        self.merge.give(u64::MAX, take)
    }
}
