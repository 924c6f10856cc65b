// SPDX-License-Identifier: MIT OR Apache-2.0
//! Estimates the time between two reports, instruction by instruction, at the pace of the interval before. If the
//! estimate falls short of the next report, a rest remains. If it runs ahead, whoever keeps the clock sets it back
//! ([`Pace::ahead`]), or knows the next report beforehand ([`Pace::limit`]): no time exceeds the next report. At
//! one instruction a tick, as in recordings that count instructions, the estimate is exact.

/// One ns per instruction, in the unit of [`Pace::pace`].
const EXACT: u64 = 1 << 32;

/// Slowest interval, in ns per instruction, that is taken as the pace of running code. In a slower one the CPU slept.
const SLOWEST: u64 = 8;

/// Most time by which an estimate may exceed a report until the next one, ns. A packet of the crystal (MTC) comes before the packet with
/// the branches in whose middle it was made, so its time is a little behind its place.
pub(crate) const TOLERATED: u64 = 256;

/// Instructions of which that is the time: some more than the branches of a packet have between them.
const TOLERATED_INSNS: u32 = 256;

/// A clock that reports set and instructions advance.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pace {
    /// Current estimate, ns. It may run ahead of the next report. 0 before the first.
    pub now: u64,
    /// Expected ns per instruction, 32.32 fixed point; 0 while no time is known.
    pace: u64,
    /// The pace of the last interval, 0 before the first one, and its start: time, and instructions so far.
    measured: u64,
    since: (u64, u64),
}

impl Pace {
    /// Expected ns of `insns` instructions.
    #[inline(always)]
    pub fn of(&self, insns: u32) -> u64 {
        ((u128::from(insns) * u128::from(self.pace)) >> 32) as u64
    }

    /// The estimate after `insns` more instructions, ns.
    pub fn after(&self, insns: u64) -> u64 {
        let ns = (u128::from(insns) * u128::from(self.pace)) >> 32;
        self.now.saturating_add(ns.min(u64::MAX.into()) as u64)
    }

    /// Returns the time by which the estimate exceeds a report of `ns`; 0 if it does not, or before the first report.
    #[inline(always)]
    pub fn ahead(&self, ns: u64) -> u64 {
        if self.pace == 0 { 0 } else { self.now.saturating_sub(ns) }
    }

    /// Time of the last report, ns; 0 before the first.
    pub fn last_report(&self) -> u64 {
        self.since.0
    }

    /// Returns true if no instruction ran since the last report.
    pub fn is_at(&self, insns: u64) -> bool {
        self.since.1 == insns
    }

    /// Slows the estimate down if the next report, of `ns` after `insns` more instructions, is earlier than expected.
    pub fn limit(&mut self, ns: u64, insns: u64) {
        let left = ns.saturating_sub(self.now);
        let expected = (u128::from(insns) * u128::from(self.pace)) >> 32;
        if self.pace != 0 && insns != 0 && expected > u128::from(left) + u128::from(self.tolerated()) {
            // At least 1: 0 is for no time at all.
            self.pace = (((u128::from(left)) << 32) / u128::from(insns)).max(1) as u64;
        }
    }

    /// Time by which the estimate may exceed the next report. Nothing while the pace is one that no interval had: a processor may run
    /// sixteen instructions in a nanosecond.
    fn tolerated(&self) -> u64 {
        ((u64::from(TOLERATED_INSNS) * self.measured) >> 32).min(TOLERATED)
    }

    /// Sets the time to `ns` after `insns` instructions in all. Returns by how much that exceeds the estimate; `None`
    /// at the first report, as nothing before it has a time. With `has_repeat`, a repeated instruction ran in the interval, which may
    /// be why it was slow.
    #[inline(always)]
    pub fn report(&mut self, ns: u64, insns: u64, has_repeat: bool) -> Option<u64> {
        let (before, insns_before) = std::mem::replace(&mut self.since, (ns, insns));
        if self.pace == 0 {
            self.now = ns;
            self.pace = EXACT;
            return None;
        }
        // Across chunks time may step back: a TSC packet corrects an estimate made before it.
        self.measure(ns.saturating_sub(before), insns - insns_before, has_repeat);
        let rest = ns.saturating_sub(self.now);
        self.now += rest;
        Some(rest)
    }

    /// Updates the pace: the faster one of the last two intervals, as one of them may include a rest.
    #[inline]
    fn measure(&mut self, ns: u64, insns: u64, has_repeat: bool) {
        let measured = match ns {
            _ if insns == 0 => return,
            _ if ns == insns => EXACT,
            _ if ns < insns.saturating_mul(SLOWEST) && ns < 1 << 31 => (ns << 32) / insns,
            _ => return,
        };
        if has_repeat && measured > self.pace {
            return;
        }
        let before = if self.measured == 0 { EXACT } else { self.measured };
        self.pace = measured.min(before).max(1);
        self.measured = measured.max(1);
    }
}
