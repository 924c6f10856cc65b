// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another clock of the guest on the clock of the flow.
//!
//! In: pairs of both, measured before and after the command. Out: times of the flow. The clock of the flow is the TSC, of which
//! the kernel's clocks are a multiple: between two pairs the line through them holds.

use kprism_tracefs::beside::Pair;

/// Another clock on that of the flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OtherClock {
    first: Point,
    last: Point,
    /// By how much a time can be wrong, ns.
    pub error_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Point {
    /// Time of the other clock.
    ns: u64,
    /// Offset to add to it, ns.
    offset: i64,
}

impl OtherClock {
    /// The clock of these pairs, whose times are rounded to `step` ns; none without pairs, or if the TSC ran backwards in one.
    pub fn new(pairs: &[Pair], step: u64) -> Option<Self> {
        let point = |pair: &Pair| {
            let width = pair.after.checked_sub(pair.before)?;
            let middle = i64::try_from(pair.before + width / 2).ok()?;
            Some(Point { ns: pair.ns, offset: middle.checked_sub_unsigned(pair.ns)? })
        };
        let (first, last) = (pairs.first()?, pairs.last()?);
        let half = |pair: &Pair| pair.after.saturating_sub(pair.before).div_ceil(2);
        let error_ns = half(first).max(half(last)).saturating_add(step);
        Some(OtherClock { first: point(first)?, last: point(last)?, error_ns })
    }

    /// A time of the other clock by that of the flow.
    pub fn flow_ns(&self, ns: u64) -> u64 {
        let drift = i128::from(self.last.offset) - i128::from(self.first.offset);
        let span = i128::from(self.last.ns) - i128::from(self.first.ns);
        let since = i128::from(ns) - i128::from(self.first.ns);
        let offset =
            i128::from(self.first.offset) + if span > 0 { drift.saturating_mul(since) / span } else { 0 };
        u64::try_from((i128::from(ns) + offset).max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_two_pairs() {
        let pair = |middle: u64, ns| Pair { before: middle - 20, ns, after: middle + 21 };
        assert_eq!(OtherClock::new(&[], 0), None);
        assert_eq!(OtherClock::new(&[Pair { before: 9, ns: 1, after: 8 }], 0), None);
        let clock = OtherClock::new(&[pair(5_000, 1_000), pair(7_010, 3_000)], 3).unwrap();
        assert_eq!(clock.error_ns, 24);
        assert_eq!([0, 1_000, 2_000, 3_000].map(|ns| clock.flow_ns(ns)), [3_995, 5_000, 6_005, 7_010]);
        let same = OtherClock::new(&[pair(5_000, 1_000)], 0).unwrap();
        assert_eq!(same.flow_ns(77), 4_077);
        assert_eq!(OtherClock::default().flow_ns(77), 77);
        // Any pairs give times.
        let wild = Pair { before: 0, ns: u64::MAX, after: u64::MAX };
        let far = OtherClock::new(&[pair(5_000, 1_000), wild], 0);
        assert!(far.is_none_or(|far| far.flow_ns(u64::MAX) > 0));
    }
}
