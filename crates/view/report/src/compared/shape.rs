// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distributions of a value in both runs, and curves.

use kprism_profile::Histogram;
use serde::Serialize;

use crate::table::Cell;

/// Most bins of a distribution in a page.
const BINS: usize = 160;

/// A distribution of both runs.
#[derive(Debug, Clone, Serialize)]
pub struct Shape {
    /// Name of the distributed quantity.
    pub title: String,
    /// True if the values are nanoseconds.
    pub is_time: bool,
    /// Smallest value, largest value plus one, and count of each bin, of OLD and of NEW.
    pub bins: [Vec<(i64, i64, u64)>; 2],
}

impl Shape {
    /// Of durations.
    pub fn of_times(title: &str, pair: [Option<&Histogram>; 2]) -> Self {
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let bins = |of: Option<&Histogram>| {
            let bins = of.map_or(&[][..], |histogram| &histogram.bins).iter();
            bins.map(|bin| (whole(bin.low), whole(bin.high.saturating_add(1)), bin.count)).collect()
        };
        Shape { title: title.into(), is_time: true, bins: pair.map(bins) }
    }

    /// The greatest difference between the parts of values up to any value, in percent (Kolmogorov and Smirnov's distance). None
    /// if one run has no value. 0: the same distribution; 100: no value of one lies among those of the other.
    pub fn shift(&self) -> Option<f64> {
        let totals = self.bins.each_ref().map(|bins| bins.iter().map(|bin| bin.2 as f64).sum::<f64>());
        if totals.contains(&0.0) {
            return None;
        }
        let mut ends: Vec<(i64, usize, u64)> = Vec::new();
        for (side, bins) in self.bins.iter().enumerate() {
            ends.extend(bins.iter().map(|&(_, high, n)| (high, side, n)));
        }
        ends.sort_unstable();
        let (mut sums, mut most) = ([0.0, 0.0], 0.0_f64);
        for same in ends.chunk_by(|a, b| a.0 == b.0) {
            for &(_, side, n) in same {
                sums[side] += n as f64;
            }
            most = most.max((sums[0] / totals[0] - sums[1] / totals[1]).abs());
        }
        Some(100.0 * most)
    }

    /// [`Shape::shift`] as a cell.
    pub fn shift_cell(&self) -> Cell {
        self.shift().map_or(Cell::Nothing, Cell::Percent)
    }

    /// With neighbouring bins joined, so that it is small in a page.
    pub(super) fn short(&self) -> Self {
        let join = |bins: &Vec<(i64, i64, u64)>| {
            let by = bins.len().div_ceil(BINS).max(1);
            let bin = |part: &[(i64, i64, u64)]| {
                (part[0].0, part[part.len() - 1].1, part.iter().map(|bin| bin.2).fold(0, u64::saturating_add))
            };
            bins.chunks(by).map(bin).collect()
        };
        let title = kprism_profile::units::printable(&self.title);
        Shape { title, is_time: self.is_time, bins: self.bins.each_ref().map(join) }
    }
}

/// A curve of both runs over percents from 0 to 100.
#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    /// Meaning.
    pub title: String,
    /// The horizontal axis.
    pub across: &'static str,
    /// The vertical axis.
    pub up: &'static str,
    /// Values at 0 to 100 percent; empty if the run has none.
    pub values: [Vec<f64>; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_is_the_greatest_distance() {
        let shape = |old: &[(i64, i64, u64)], new: &[(i64, i64, u64)]| Shape {
            title: String::new(),
            is_time: false,
            bins: [old.to_vec(), new.to_vec()],
        };
        let same = [(0, 1, 3), (5, 6, 7)];
        assert_eq!(shape(&same, &same).shift(), Some(0.0));
        assert_eq!(shape(&same, &[(0, 1, 6), (5, 6, 14)]).shift(), Some(0.0));
        assert_eq!(shape(&same, &[(7, 8, 1)]).shift(), Some(100.0));
        assert_eq!(shape(&[(0, 1, 1), (5, 6, 1)], &[(0, 1, 1)]).shift(), Some(50.0));
        assert_eq!(shape(&same, &[]).shift(), None);
    }

    #[test]
    fn short_shapes_keep_their_counts() {
        let bins: Vec<(i64, i64, u64)> = (0..1000).map(|i| (i, i + 1, i as u64)).collect();
        let short = Shape { title: "\u{1b}".into(), is_time: false, bins: [bins, vec![]] }.short();
        assert!(short.bins[0].len() <= BINS && !short.title.contains('\u{1b}'));
        assert_eq!(short.bins[0].iter().map(|b| b.2).sum::<u64>(), 499_500);
        assert_eq!((short.bins[0][0].0, short.bins[0].last().unwrap().1), (0, 1000));
    }
}
