// SPDX-License-Identifier: MIT OR Apache-2.0
//! Histograms while they are counted. The input is any `u64` values; the output is a [`Histogram`] of at most 7,424
//! bins.
//!
//! Each value below 256 has its own bin. Above that, each power of two is divided into 128 bins, so the width of a bin
//! is at most 1/128 of its values. This bounds both the memory and the relative error.

use crate::model::{Bin, Histogram};

/// Number of bins per power of two. Values below twice this number have a bin of their own.
const SUB: u64 = 128;
const EXACT: u64 = 2 * SUB;

/// A histogram to which values are added.
#[derive(Debug, Clone, Default)]
pub struct Counter {
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

/// Index of the bin that contains a value.
fn index(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let exponent = 63 - u64::from(value.leading_zeros());
    (EXACT + (exponent - 8) * SUB + (value >> (exponent - 7) & (SUB - 1))) as usize
}

/// Smallest value and width of a bin.
fn bounds(index: usize) -> (u64, u64) {
    let index = index as u64;
    if index < EXACT {
        return (index, 1);
    }
    let (exponent, sub) = (8 + (index - EXACT) / SUB, (index - EXACT) % SUB);
    ((SUB + sub) << (exponent - 7), 1 << (exponent - 7))
}

impl Counter {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        let index = index(value);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += 1;
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// The histogram of the values added so far.
    #[must_use]
    pub fn finish(&self) -> Histogram {
        let bin = |(i, &count): (usize, &u64)| {
            let (low, width) = bounds(i);
            Bin { low, high: low.saturating_add(width), count }
        };
        Histogram {
            bins: self.counts.iter().enumerate().filter(|(_, c)| **c > 0).map(bin).collect(),
            count: self.count,
            sum: self.sum,
            min: self.min,
            max: self.max,
        }
    }
}

impl Histogram {
    /// The value that `percent` of all values do not exceed, to the precision of the bins: the largest value of the
    /// percentile's bin, limited to the smallest and largest value counted. `percent` is between 0 and 100.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (percent / 100.0 * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for bin in &self.bins {
            seen += bin.count;
            if seen >= rank {
                return (bin.high - 1).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// The mean of all values; 0 if there are none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_lies_in_its_bin(value in prop_oneof![0..1u64 << 20, any::<u64>()]) {
            let (low, width) = bounds(index(value));
            prop_assert!(low <= value && value - low < width);
            prop_assert!(value < EXACT || width <= value / SUB);
        }
    }

    #[test]
    fn bins_join_without_gaps() {
        for i in 0..index(u64::MAX) {
            let (low, width) = bounds(i);
            assert_eq!(bounds(i + 1).0, low + width);
        }
        assert_eq!(index(u64::MAX), 7423);
    }

    #[test]
    fn percentiles_of_small_values_are_exact() {
        let mut counter = Counter::default();
        (1..=100).for_each(|v| counter.add(v));
        let h = counter.finish();
        assert_eq!(
            [h.percentile(0.0), h.percentile(50.0), h.percentile(99.0), h.percentile(100.0)],
            [1, 50, 99, 100]
        );
        assert_eq!((h.count, h.sum, h.min, h.max, h.mean()), (100, 5050, 1, 100, 50.5));
        assert_eq!(Counter::default().finish().percentile(50.0), 0);
    }
}
