// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the temporal resolution of a trace: the distances between points whose time is known, and from them the
//! temporal resolution factor (TRF) of Sharma and Dagenais, "Hardware-assisted instruction profiling and latency
//! detection" (2016), section 4.2.4.
//!
//! A *timed point* is a place in the flow, between two instructions, at which the decoder learns a later time. Timing
//! packets (CYC, MTC, and the TSC of a PSB+) date the branch, event or PSB that follows them. A packet that does not
//! advance the time, or before which no instruction ran, makes no point. ΔT and ΔIc are the ns and the instructions
//! from one point to the next on the same CPU. They include interrupts and code that was not traced.

use std::collections::BTreeMap;

use kprism_image::resolve::Resolve;

use crate::decode::event::{Event, Sink};
use crate::decode::{Decoder, Setup, Stats};

/// Values below this are counted in an array.
const SMALL: usize = 1 << 12;

/// Number of occurrences of each value. Medians are exact. Memory does not grow with the length of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    small: Vec<u64>,
    large: BTreeMap<u64, u64>,
    len: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { small: vec![0; SMALL], large: BTreeMap::new(), len: 0 }
    }
}

impl Tally {
    /// Counts a value.
    #[inline]
    pub fn push(&mut self, value: u64) {
        self.len += 1;
        match self.small.get_mut(value as usize).filter(|_| value < SMALL as u64) {
            Some(count) => *count += 1,
            None => *self.large.entry(value).or_default() += 1,
        }
    }

    /// Number of values.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `index` in sorted order.
    pub fn sorted(&self, index: u64) -> Option<u64> {
        let small = (0u64..).zip(self.small.iter().copied());
        let large = self.large.iter().map(|(&value, &count)| (value, count));
        let mut before = 0;
        for (value, count) in small.chain(large) {
            before += count;
            if index < before {
                return Some(value);
            }
        }
        None
    }

    /// The paper's median: Sort\[(n - 1) / 2\], the lower of the two middle values.
    pub fn median(&self) -> Option<u64> {
        self.sorted(self.len.saturating_sub(1) / 2)
    }

    /// The 99th percentile: 99 of 100 values do not exceed it.
    pub fn p99(&self) -> Option<u64> {
        self.sorted((self.len * 99).div_ceil(100).saturating_sub(1))
    }
}

/// The distances between timed points.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distances {
    /// ΔT, ns.
    pub ns: Tally,
    /// ΔIc, instructions.
    pub insns: Tally,
    last_ns: Option<u64>,
    passed: u64,
}

impl Distances {
    /// Decodes a whole stream and adds its distances.
    pub fn add_stream<R: Resolve>(&mut self, bytes: &[u8], setup: Setup<'_, R>) -> Stats {
        (self.last_ns, self.passed) = (None, 0);
        Decoder::new(bytes, setup, false).run(0, bytes.len(), self)
    }

    /// median(ΔIc) × median(ΔT), the value that TRF scales. `None` if fewer than two times are known.
    pub fn product(&self) -> Option<f64> {
        Some(self.insns.median()? as f64 * self.ns.median()? as f64)
    }
}

impl Sink for Distances {
    #[inline]
    fn event(&mut self, event: Event) {
        self.passed += u64::from(event.insns);
    }

    #[inline]
    fn time(&mut self, insns: u32, ns: u64) {
        self.passed += u64::from(insns);
        match self.last_ns {
            Some(last) if ns <= last || self.passed == 0 => return,
            Some(last) => {
                self.ns.push(ns - last);
                self.insns.push(self.passed);
            }
            None => {}
        }
        self.last_ns = Some(ns);
        self.passed = 0;
    }
}

/// TRF of each product p in P: Nf · (p − min P) / (max P − min P) with Nf = 100. 0 is the finest of P, 100 the
/// coarsest. `None` for a missing p, and for all if P has fewer than two different values.
pub fn factors(products: &[Option<f64>]) -> Vec<Option<f64>> {
    let known = || products.iter().flatten().copied();
    let (min, max) = (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
    let factor = |p: f64| (max > min).then(|| 100.0 * (p - min) / (max - min));
    products.iter().map(|p| p.and_then(factor)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::event::EventKind;

    fn tally(values: &[u64]) -> Tally {
        let mut tally = Tally::default();
        values.iter().for_each(|&v| tally.push(v));
        tally
    }

    #[test]
    fn medians_are_exact() {
        assert_eq!(tally(&[]).median(), None);
        assert_eq!(tally(&[7]).median(), Some(7));
        assert_eq!(tally(&[9, 1, 5, 3]).median(), Some(3), "the lower of two");
        assert_eq!(tally(&[1 << 40, 2, u64::MAX]).median(), Some(1 << 40));
        assert_eq!(tally(&[4095, 4096, 4097]).median(), Some(4096));
        let hundred: Vec<u64> = (1..=100).rev().map(|i| i * 1000).collect();
        assert_eq!((tally(&hundred).median(), tally(&hundred).p99()), (Some(50_000), Some(99_000)));
        assert_eq!(tally(&hundred).len(), 100);
    }

    #[test]
    fn points_need_a_later_time_and_an_instruction() {
        let mut d = Distances::default();
        let count = |insns| Event { insns, ..Event::new(EventKind::Count, 0, 0) };
        d.time(5, 100);
        d.time(3, 100);
        d.event(count(4));
        d.time(1, 110);
        d.time(0, 150);
        d.time(20, 160);
        assert_eq!(d.ns, tally(&[10, 50]));
        assert_eq!(d.insns, tally(&[8, 20]));
        assert_eq!(d.product(), Some(80.0));
        assert_eq!(Distances::default().product(), None);
    }

    #[test]
    fn factors_are_scaled_by_the_extremes() {
        assert_eq!(factors(&[Some(10.0), Some(20.0), Some(60.0)]), [Some(0.0), Some(20.0), Some(100.0)]);
        assert_eq!(factors(&[Some(60.0), None, Some(10.0)]), [Some(100.0), None, Some(0.0)]);
        assert_eq!(factors(&[Some(5.0), Some(5.0)]), [None, None], "one p has no scale");
        assert_eq!(factors(&[None]), [None]);
    }

    /// The extremes that the paper reports: 14 ns and 78 instructions, 910.5 µs and 2.5 million.
    #[test]
    fn the_papers_extremes() {
        let (fine, coarse) = (14.0 * 78.0, 910_500.0 * 2.5e6);
        let trf = factors(&[Some(fine), Some(2.0 * fine), Some(coarse)]);
        assert_eq!((trf[0], trf[2]), (Some(0.0), Some(100.0)));
        assert!((trf[1].unwrap() - 100.0 * fine / coarse).abs() < 1e-12);
    }
}
