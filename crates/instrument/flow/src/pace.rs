// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time between two reports of the time: reckoned from the pace of the interval before, instruction by
//! instruction. Where that falls short of the next report, a rest remains; where it runs ahead, later time makes
//! up for it. At one instruction a tick, as recordings that count instructions have it, it is exact.

/// One ns an instruction, in the unit of [`Pace::pace`].
const EXACT: u64 = 1 << 32;

/// An interval slower than this says nothing of the pace of running code: the CPU slept.
const SLOWEST: u64 = 8;

/// A clock that is set by reports and runs on by instructions.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pace {
    /// Time, counted on from the last report; runs ahead of the next one at times. 0 before the first.
    pub now: u64,
    /// Expected ns an instruction, 32.32; 0 while nothing is known of the time.
    pace: u64,
    /// The pace of the last interval, and where that began: time, and instructions so far.
    measured: u64,
    since: (u64, u64),
}

impl Pace {
    /// The ns that so many instructions are expected to take.
    #[inline(always)]
    pub fn of(&self, insns: u32) -> u64 {
        ((u128::from(insns) * u128::from(self.pace)) >> 32) as u64
    }

    /// It is `ns` after `insns` instructions in all. Returns how far that is beyond what was reckoned; `None` at
    /// the first report, as nothing before it has a time.
    #[inline(always)]
    pub fn report(&mut self, ns: u64, insns: u64) -> Option<u64> {
        let (before, insns_before) = std::mem::replace(&mut self.since, (ns, insns));
        if self.pace == 0 {
            self.now = ns;
            (self.pace, self.measured) = (EXACT, EXACT);
            return None;
        }
        // Across chunks time may step back: a TSC packet corrects what was reckoned before it.
        self.measure(ns.saturating_sub(before), insns - insns_before);
        let rest = ns.saturating_sub(self.now);
        self.now += rest;
        Some(rest)
    }

    /// Learns the pace: the faster of the last two intervals, as one may have begun with a rest.
    #[inline]
    fn measure(&mut self, ns: u64, insns: u64) {
        let measured = match ns {
            _ if insns == 0 => return,
            _ if ns == insns => EXACT,
            _ if ns < insns.saturating_mul(SLOWEST) && ns < 1 << 31 => (ns << 32) / insns,
            _ => return,
        };
        self.pace = measured.min(self.measured).max(1);
        self.measured = measured;
    }
}
