// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exact confidence interval of a Poisson count (Garwood 1936): bounded by the means for which a count this large
//! or larger, and this small or smaller, has a probability of 2.5 % each.

/// Probability on each side outside the interval.
const TAIL: f64 = 0.025;
/// From here on Byar's approximation (Breslow, Day 1987, 2.4) agrees to four digits.
const MANY: f64 = 1000.0;
/// The normal distribution's quantile for [`TAIL`].
const Z: f64 = 1.959_964;

/// The 95 % interval of the mean, for this count.
pub fn interval(count: f64) -> (f64, f64) {
    let count = count.max(0.0);
    if count > MANY {
        let cube = |n: f64, z: f64| n * (1.0 - 1.0 / (9.0 * n) + z / (3.0 * n.sqrt())).powi(3);
        return (cube(count, -Z), cube(count + 1.0, Z));
    }
    // With samples of different weights the count is no integer. The integers around it are used.
    let (least, most) = (count.floor() as u64, count.ceil() as u64);
    let low = match least {
        0 => 0.0,
        n => root(|mean| at_most(n - 1, mean) < 1.0 - TAIL, count),
    };
    (low, root(|mean| at_most(most, mean) < TAIL, count))
}

/// The probability of this count or a smaller one.
fn at_most(count: u64, mean: f64) -> f64 {
    let (mut log, mut sum) = (-mean, (-mean).exp());
    for n in 1..=count {
        log += mean.ln() - (n as f64).ln();
        sum += log.exp();
    }
    sum
}

/// The smallest mean for which `holds` is true; it is also true for all larger ones.
fn root(holds: impl Fn(f64) -> bool, near: f64) -> f64 {
    let (mut from, mut to) = (0.0, near * 2.0 + 20.0);
    for _ in 0..60 {
        let middle = (from + to) / 2.0;
        *(if holds(middle) { &mut to } else { &mut from }) = middle;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Garwood's table, as in Ulm, American Journal of Epidemiology 131 (1990).
    #[test]
    fn intervals_are_the_published_ones() {
        for (count, low, high) in [
            (0.0, 0.0, 3.689),
            (1.0, 0.0253, 5.572),
            (2.0, 0.2422, 7.225),
            (10.0, 4.795, 18.390),
            (50.0, 37.111, 65.919),
            (100.0, 81.364, 121.627),
        ] {
            let (l, h) = interval(count);
            assert!((l - low).abs() < 0.001 && (h - high).abs() < 0.001, "{count}: {l} {h}");
        }
    }

    #[test]
    fn both_ways_meet() {
        let (exact, near) = (interval(MANY), interval(MANY + 0.001));
        assert!(
            (exact.0 / near.0 - 1.0).abs() < 1e-4 && (exact.1 / near.1 - 1.0).abs() < 1e-4,
            "{exact:?} {near:?}"
        );
    }
}
