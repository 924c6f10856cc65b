// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether two groups of values differ: the rank-sum test of Mann and Whitney, exact.
//!
//! In: two groups of values. Out: the probability that groups which do not differ have ranks this far apart. Nothing is
//! assumed of how values are spread, and ties have the mean of their ranks.

/// Groups with fewer values never differ significantly: with three of each the least probability is 0.1.
pub const FEWEST: usize = 4;
/// A difference is significant below this.
pub const LEVEL: f64 = 0.05;
/// Larger groups are cut to this many values: the work grows with the fourth power.
const MOST: usize = 60;

/// The least probability that groups of these sizes can have: all values of the one are above all of the other.
pub fn least(old: usize, new: usize) -> f64 {
    let group = |from: usize, size: usize| (from..from + size).map(|value| value as f64).collect::<Vec<_>>();
    let (old, new) = (old.min(MOST), new.min(MOST));
    probability(&group(0, old), &group(old, new))
}

/// The probability, two-sided. 1 without values.
pub fn probability(old: &[f64], new: &[f64]) -> f64 {
    let (old, new) = (&old[..old.len().min(MOST)], &new[..new.len().min(MOST)]);
    if old.is_empty() || new.is_empty() {
        return 1.0;
    }
    let mut all: Vec<(f64, bool)> =
        old.iter().map(|&v| (v, false)).chain(new.iter().map(|&v| (v, true))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Twice the rank, so that means of tied ranks are whole numbers.
    let mut ranks = vec![0usize; all.len()];
    let mut begin = 0;
    while begin < all.len() {
        let end = begin + all[begin..].iter().take_while(|v| v.0 == all[begin].0).count();
        ranks[begin..end].fill(begin + 1 + end);
        begin = end;
    }
    let observed: usize = ranks.iter().zip(&all).filter(|(_, v)| v.1).map(|(rank, _)| rank).sum();
    let (size, total) = (new.len(), ranks.iter().sum::<usize>());
    // In how many choices of `size` values the ranks have which sum; as shares, which do not overflow.
    let mut ways = vec![vec![0.0f64; total + 1]; size + 1];
    ways[0][0] = 1.0;
    for &rank in &ranks {
        for chosen in (0..size).rev() {
            for sum in (rank..=total).rev() {
                ways[chosen + 1][sum] += ways[chosen][sum - rank];
            }
        }
    }
    let all_ways: f64 = ways[size].iter().sum();
    // The mean of the sum, twice: distances are compared in whole numbers.
    let mean = total * size;
    let distance = |sum: usize| (sum * all.len()).abs_diff(mean);
    let as_far = (0..=total).filter(|&sum| distance(sum) >= distance(observed));
    as_far.map(|sum| ways[size][sum]).sum::<f64>() / all_ways
}

/// The median: of an even number of values, the mean of the two in the middle. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R: `wilcox.test(x, y, exact=TRUE)$p.value`, without ties; with ties `coin::wilcox_test(distribution="exact")`.
    #[test]
    fn probabilities_are_those_of_the_exact_test() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(probability(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]), 2.0 / 70.0));
        assert!(close(probability(&[1.0, 3.0, 5.0, 7.0], &[2.0, 4.0, 6.0, 8.0]), 48.0 / 70.0));
        assert!(close(probability(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1));
        assert!(close(probability(&[5.0; 6], &[5.0; 6]), 1.0));
        assert!(close(probability(&[], &[1.0]), 1.0));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
