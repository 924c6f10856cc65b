// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logarithmic bins for latencies: four per octave, exact below four nanoseconds. Computed in integers, so that every
//! machine puts a value into the same bin.

use std::collections::BTreeMap;

/// The bin of a value: its power of two and the two bits below the leading one.
fn bin(ns: u64) -> u32 {
    if ns < 4 {
        return ns as u32;
    }
    let octave = ns.ilog2();
    (octave << 2) | ((ns >> (octave - 2)) & 3) as u32
}

/// Pairs of bin and count, flat, by bin.
pub(super) fn bins(values: &[u64]) -> Vec<u64> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for &value in values {
        *counts.entry(bin(value)).or_default() += 1;
    }
    counts.into_iter().flat_map(|(bin, count)| [bin.into(), count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's rule (`histogram.ts`).
    fn lower_bound(bin: u32) -> u64 {
        if bin < 8 { bin.into() } else { u64::from(4 + (bin & 3)) << ((bin >> 2) - 2) }
    }

    #[test]
    fn a_value_lies_between_its_bin_and_the_next() {
        for value in (0..5_000).chain([1 << 40, (1 << 40) - 1, u64::MAX / 3, u64::MAX]) {
            let b = bin(value);
            let next = if b == 3 { 8 } else { b + 1 };
            assert!(lower_bound(b) <= value, "{value}");
            assert!(next >= 256 || value < lower_bound(next), "{value}");
        }
    }

    #[test]
    fn equal_values_share_a_bin() {
        assert_eq!(bins(&[0, 5, 5, 1000, 1001]), [0, 1, 9, 2, 39, 2]);
    }
}
