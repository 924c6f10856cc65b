// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts timing packets (TSC, TMA, MTC, CYC, CBR) to time in nanoseconds.
//!
//! As in SDM vol. 3, "Intel PT Timing Packets and Decoding Time": a TSC packet states the time. TMA relates it to the
//! crystal clock (CTC); each MTC packet then gives eight bits of the CTC. CYC counts core cycles. They become TSC ticks
//! by the ratio of nominal to current frequency (CBR), or, where that is unknown, by the number of cycles between the
//! last two MTCs. A stream without timing packets decodes at time 0.

use kprism_pt::Packet;

/// perf's conversion of TSC ticks to the ns of its clock: `time_mult`, `time_shift` and `time_zero` of the kernel's
/// `struct perf_event_mmap_page` (include/uapi/linux/perf_event.h).
///
/// Times of this clock are those of perf's records and, as it is the kernel's `sched_clock`, those of the kernel's log. `zero` is
/// the time at TSC 0, modulo 2^64: on most machines it is negative, as the TSC was running before the kernel's clock began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerfTime {
    mult: u64,
    shift: u32,
    zero: u64,
}

impl PerfTime {
    /// A conversion; `None` if the values are not valid: a multiplier of 0, a shift of more than 63 bits.
    pub fn new(mult: u64, shift: u64, zero: u64) -> Option<Self> {
        let shift = u32::try_from(shift).ok().filter(|&shift| shift < u64::BITS)?;
        (mult != 0).then_some(Self { mult, shift, zero })
    }

    /// Multiplier, shift, and the time at TSC 0.
    pub fn parts(&self) -> (u64, u32, u64) {
        (self.mult, self.shift, self.zero)
    }

    /// The time at a TSC value, ns: `tsc_to_perf_time` of tools/perf/util/tsc.c, bit by bit.
    #[inline]
    pub fn ns(&self, tsc: u64) -> u64 {
        let (quot, rem) = (tsc >> self.shift, tsc & ((1 << self.shift) - 1));
        let whole = self.zero.wrapping_add(quot.wrapping_mul(self.mult));
        whole.wrapping_add(rem.wrapping_mul(self.mult) >> self.shift)
    }

    /// The TSC value at a time in ns: `perf_time_to_tsc` of tools/perf/util/tsc.c, bit by bit.
    pub fn tsc(&self, ns: u64) -> u64 {
        let since = ns.wrapping_sub(self.zero);
        let (quot, rem) = (since / self.mult, since % self.mult);
        (quot << self.shift).wrapping_add((rem << self.shift) / self.mult)
    }

    /// Ticks per second, rounded; 0 if they do not fit.
    pub fn hz(&self) -> u64 {
        let hz = ((NS << self.shift) + u128::from(self.mult) / 2) / u128::from(self.mult);
        u64::try_from(hz).unwrap_or(0)
    }
}

/// Parameters of the processor's clocks, from the recording's manifest or CPUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockConfig {
    /// TSC ticks per second; 0 when unknown, and then one tick counts as one ns.
    pub tsc_hz: u64,
    /// perf's conversion, if the recording states it. Times are then perf's, to the nanosecond.
    pub perf: Option<PerfTime>,
    /// TSC ticks per CTC tick, numerator: CPUID.15H:EBX. 0 when unknown: MTC is then ignored.
    pub art_num: u32,
    /// The same, denominator: CPUID.15H:EAX.
    pub art_den: u32,
    /// MTC packets come every 2^this CTC ticks: IA32_RTIT_CTL.MTCFreq, 0 to 15.
    pub mtc_freq: u8,
    /// Nominal (maximum non-turbo) ratio: MSR_PLATFORM_INFO\[15:8\]. 0 when unknown: CYC then counts by MTC.
    pub nom_ratio: u8,
    /// Minimum of cycles between two CYC packets: IA32_RTIT_CTL.CycThresh. 0 when all are sent, or unknown.
    pub cyc_threshold: u64,
}

impl ClockConfig {
    /// Returns true for the lab's clock, a tick of a nanosecond: an instruction takes a tick, and estimates of time are exact.
    pub(crate) fn counts_instructions(&self) -> bool {
        u128::from(self.tsc_hz) == NS && matches!(Scale::new(self), Scale::One)
    }
}

impl Default for ClockConfig {
    /// All parameters unknown: only TSC packets give the time.
    fn default() -> Self {
        Self { tsc_hz: 0, perf: None, art_num: 0, art_den: 0, mtc_freq: 0, nom_ratio: 0, cyc_threshold: 0 }
    }
}

/// The relation of CTC to TSC, from the last TMA.
#[derive(Debug, Clone, Copy)]
struct Crystal {
    /// TSC when the CTC's low bits, which MTC does not carry, were last all zero before the TMA.
    base_tsc: u64,
    /// CTC ticks since `base_tsc`.
    ticks: u64,
    /// Payload of the last MTC.
    last: u8,
    /// Mask of the bits of `last` that are known. TMA carries bits 15:0 of the CTC only. So at MTCFreq above 8 the high
    /// bits of the next MTC are unknown.
    known: u8,
    /// Time of the last MTC in TSC ticks; before the first MTC, time of the CTC tick before the TMA.
    seen_tsc: u64,
}

/// The current estimate of time.
#[derive(Debug, Clone)]
pub struct Clock {
    config: ClockConfig,
    /// Current estimate, in TSC ticks; meaningless until `base` is set.
    tsc: u64,
    /// (TSC, ns) of the last TSC packet; the ns count only at a frequency.
    base: Option<(u64, u64)>,
    crystal: Option<Crystal>,
    cyc_base: u64,
    cycles: u64,
    /// `cyc_base` is the time of an MTC.
    at_mtc: bool,
    /// No CYC packet came since the last TSC packet.
    first_cyc: bool,
    cbr: u8,
    /// TSC ticks per cycle in the last MTC period that had cycles, 32.32 fixed point. Used only where CBR or the
    /// nominal ratio is unknown; 0 while unknown itself.
    calibrated: u64,
    scale: Scale,
}

/// Way from TSC ticks to ns.
#[derive(Debug, Clone, Copy)]
enum Scale {
    /// A tick is a ns.
    One,
    /// At a frequency: ns per tick, 32.32 fixed point.
    Hz(u64),
    /// As perf converts them.
    Perf(PerfTime),
}

impl Scale {
    fn new(config: &ClockConfig) -> Self {
        let hz = u128::from(config.tsc_hz);
        match config.perf {
            Some(perf) if (u128::from(perf.mult), perf.zero) == (1 << perf.shift, 0) => Scale::One,
            Some(perf) => Scale::Perf(perf),
            None if hz == 0 || hz == NS => Scale::One,
            None => Scale::Hz(((NS << 32) / hz).min(u64::MAX.into()) as u64),
        }
    }
}

const LOW_56: u64 = (1 << 56) - 1;
const NS: u128 = 1_000_000_000;

impl Clock {
    /// A clock that has seen no packet.
    pub fn new(config: ClockConfig) -> Self {
        Self {
            config,
            tsc: 0,
            base: None,
            crystal: None,
            cyc_base: 0,
            cycles: 0,
            at_mtc: false,
            first_cyc: false,
            cbr: 0,
            calibrated: 0,
            scale: Scale::new(&config),
        }
    }

    /// Current time, ns; 0 before the first TSC packet.
    #[inline]
    pub fn ns(&self) -> u64 {
        match self.base {
            None => 0,
            Some((tsc, ns)) => match self.scale {
                Scale::One => self.tsc,
                Scale::Hz(mult) => {
                    let ticks = u128::from(self.tsc.saturating_sub(tsc));
                    ns.saturating_add(((ticks * u128::from(mult)) >> 32) as u64)
                }
                Scale::Perf(perf) => perf.ns(self.tsc),
            },
        }
    }

    /// Takes over what a packet says of time. Returns false if it is not a timing packet.
    pub fn on_packet(&mut self, packet: &Packet) -> bool {
        match *packet {
            Packet::Tsc { tsc } => self.on_tsc(tsc),
            Packet::Tma { ctc, fast } => self.on_tma(ctc, fast),
            Packet::Mtc { ctc } => self.on_mtc(ctc),
            Packet::Cyc { cycles } => self.on_cyc(cycles),
            Packet::Cbr { ratio } => self.on_cbr(ratio),
            _ => return false,
        }
        true
    }

    /// TSC packet: 56 bits.
    pub fn on_tsc(&mut self, low: u64) {
        let mut tsc = self.tsc & !LOW_56 | low & LOW_56;
        // The top byte is not sent. A large step back is a carry into it.
        if self.base.is_some() && tsc < self.tsc && self.tsc - tsc > 1 << 55 {
            tsc = tsc.wrapping_add(1 << 56);
        }
        self.tsc = tsc;
        let ns = match self.scale {
            Scale::Hz(_) => (u128::from(tsc) * NS / u128::from(self.config.tsc_hz)) as u64,
            Scale::One | Scale::Perf(_) => tsc,
        };
        self.base = Some((tsc, ns));
        self.crystal = None;
        self.first_cyc = true;
        self.rebase(tsc);
    }

    /// TMA packet, right after a TSC packet: the CTC at that time, and the TSC ticks since the CTC's last edge.
    pub fn on_tma(&mut self, ctc: u16, fast: u16) {
        let unseen = u64::from(ctc) & ((1 << self.config.mtc_freq.min(16)) - 1);
        let since = u64::from(fast).saturating_add(self.ctc_to_tsc(unseen));
        let last = (ctc.checked_shr(self.config.mtc_freq.into()).unwrap_or(0) & 0xff) as u8;
        let known = 0xffff_u16.checked_shr(self.config.mtc_freq.into()).unwrap_or(0).min(0xff) as u8;
        let base_tsc = self.tsc.saturating_sub(since);
        self.crystal = Some(Crystal { base_tsc, ticks: 0, last, known, seen_tsc: base_tsc });
    }

    /// MTC packet: CTC bits `mtc_freq` and up.
    ///
    /// Counted cycles are finer than the crystal's period. So an MTC only moves the time forward, and corrects the
    /// cycle count only if that has run ahead by more than a period.
    pub fn on_mtc(&mut self, ctc: u8) {
        if self.config.art_num == 0 || self.config.art_den == 0 {
            return;
        }
        let freq = self.config.mtc_freq.min(16);
        let Some(crystal) = &mut self.crystal else { return };
        crystal.ticks += u64::from(ctc.wrapping_sub(crystal.last) & crystal.known) << freq;
        (crystal.last, crystal.known) = (ctc, 0xff);
        let Crystal { base_tsc, ticks, .. } = *crystal;
        let tsc = base_tsc.saturating_add(self.ctc_to_tsc(ticks));
        if (self.cbr == 0 || self.config.nom_ratio == 0) && self.at_mtc && self.cycles > 0 {
            let ticks = u128::from(tsc.saturating_sub(self.cyc_base));
            self.calibrated = ((ticks << 32) / u128::from(self.cycles)).min(u64::MAX.into()) as u64;
        }
        let period = self.ctc_to_tsc(1 << freq);
        if let Some(crystal) = &mut self.crystal {
            crystal.seen_tsc = tsc;
        }
        if tsc >= self.tsc {
            self.tsc = tsc;
            // A CYC counts from the CYC before it. If the crystal ticks twice without one (a high threshold), the next
            // still counts from the first tick. If the threshold is known, `on_rare_cyc` is more exact.
            if self.config.cyc_threshold == 0 && (!self.at_mtc || self.cycles > 0) {
                self.rebase(tsc);
                self.at_mtc = true;
            }
        } else if self.tsc - tsc > period {
            self.rebase(tsc);
        }
    }

    /// CYC packet: core cycles since the last one.
    #[inline]
    pub fn on_cyc(&mut self, cycles: u64) {
        if self.config.cyc_threshold > 0 {
            return self.on_rare_cyc(cycles);
        }
        self.cycles = self.cycles.saturating_add(cycles);
        if self.base.is_some() {
            self.tsc = self.tsc.max(self.cyc_base.saturating_add(self.cycle_ticks()));
        }
    }

    /// A CYC packet under a threshold, where TSC and MTC packets come without a CYC before them.
    ///
    /// The processor's count continues through them (SDM, "Cycle Counter": reset when a CYC packet is sent), so they do
    /// not reset the count here. They are lower bounds of the time and, as MTCs come at known times, upper bounds.
    fn on_rare_cyc(&mut self, cycles: u64) {
        // This count began before the TSC packet, by an unknown time below the threshold. Subtracting the threshold
        // makes the clock too slow rather than too fast.
        let before = if std::mem::take(&mut self.first_cyc) { self.config.cyc_threshold } else { 0 };
        self.cycles = self.cycles.saturating_add(cycles.saturating_sub(before));
        if self.base.is_none() {
            return;
        }
        let counted = self.cyc_base.saturating_add(self.cycle_ticks());
        let latest = match self.crystal {
            Some(crystal) if crystal.seen_tsc > crystal.base_tsc => {
                crystal.seen_tsc.saturating_add(self.ctc_to_tsc(1 << self.config.mtc_freq.min(16)))
            }
            _ => u64::MAX,
        };
        let tsc = counted.min(latest).max(self.tsc);
        self.tsc = tsc;
        if tsc != counted {
            self.rebase(tsc);
        }
    }

    /// Cycles counted since `cyc_base`, as TSC ticks.
    #[inline]
    fn cycle_ticks(&self) -> u64 {
        let nominal = u64::from(self.config.nom_ratio);
        match u64::from(self.cbr) {
            cbr if nominal == 0 || cbr == 0 => self.calibrated_ticks(),
            cbr if cbr == nominal => self.cycles,
            cbr => self.cycles.saturating_mul(nominal) / cbr,
        }
    }

    /// TSC ticks of the counted cycles, at the rate of the last MTC period.
    #[cold]
    fn calibrated_ticks(&self) -> u64 {
        ((u128::from(self.cycles) * u128::from(self.calibrated)) >> 32).min(u64::MAX.into()) as u64
    }

    /// CBR packet: current core to bus ratio. Cycles before it were at the old ratio.
    pub fn on_cbr(&mut self, ratio: u8) {
        if ratio != self.cbr {
            self.cbr = ratio;
            self.rebase(self.tsc);
        }
    }

    fn rebase(&mut self, tsc: u64) {
        self.cyc_base = tsc;
        self.cycles = 0;
        self.at_mtc = false;
    }

    fn ctc_to_tsc(&self, ticks: u64) -> u64 {
        match self.config.art_den {
            0 => 0,
            1 => ticks.saturating_mul(self.config.art_num.into()),
            den => (u128::from(ticks) * u128::from(self.config.art_num) / u128::from(den)) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAB: ClockConfig = ClockConfig {
        tsc_hz: 1_000_000_000,
        perf: None,
        art_num: 40,
        art_den: 1,
        mtc_freq: 3,
        nom_ratio: 10,
        cyc_threshold: 0,
    };

    /// A clock after a PSB+ at `ns`.
    fn clock(config: ClockConfig, ns: u64) -> Clock {
        let mut clock = Clock::new(config);
        clock.on_tsc(ns);
        let art = ns / 40;
        clock.on_tma(art as u16, (ns % 40) as u16);
        clock.on_cbr(10);
        clock
    }

    /// If MTC packets come more rarely than every 2^8 ticks, they carry bits of the crystal's clock that TMA does not.
    #[test]
    fn rare_mtc_packets_are_told_from_the_tma() {
        for mtc_freq in 0..=15 {
            let period = 40u64 << mtc_freq;
            for start in [period * 77 + 5, period * 255 + 39, period * 700_000 + 1] {
                let mut clock = clock(ClockConfig { mtc_freq, ..LAB }, start);
                for i in 1..=300 {
                    let edge = start / period + i;
                    clock.on_mtc(edge as u8);
                    assert_eq!(clock.ns(), edge * period, "2^{mtc_freq} ticks, from {start}, the {i}th");
                }
            }
        }
    }

    /// The processor counts cycles from CYC to CYC, whatever packets come between.
    #[test]
    fn a_threshold_does_not_count_time_twice() {
        let mut clock = clock(ClockConfig { cyc_threshold: 256, ..LAB }, 10_000);
        // The count began at 9,900; no packet says so.
        clock.on_cyc(300);
        assert!((10_000..=10_200).contains(&clock.ns()), "not past the true time: {}", clock.ns());
        // Periods of 320 ns: edges at 10,240 and 10,560.
        clock.on_mtc((10_240 / 320) as u8);
        assert_eq!(clock.ns(), 10_240);
        clock.on_cyc(256);
        let ns = clock.ns();
        assert!((10_240..=10_456).contains(&ns), "{ns} of 10,456");
        clock.on_mtc((10_560 / 320) as u8);
        for i in 1..40 {
            clock.on_cyc(256);
            let now = 10_456 + i * 256;
            assert!((now - 256..=now).contains(&clock.ns()), "{} of {now}", clock.ns());
            for edge in (now - 256) / 320 + 1..=now / 320 {
                clock.on_mtc(edge as u8);
            }
        }
    }

    /// What tools/perf/util/tsc.c computes, in arithmetic without bounds, modulo 2^64.
    #[test]
    fn times_are_perfs() {
        const MODULUS: u128 = 1 << 64;
        // A 2.893 GHz machine whose kernel's clock began 3.1 s after its TSC; one whose clock began before; a tick a ns.
        for (mult, shift, zero) in [
            (742_350_000, 31, (-3_100_000_000i64) as u64),
            (4_194_304, 22, 77),
            (1, 0, 0),
            (!0 >> 32, 31, u64::MAX / 2),
            (10, 2, u64::MAX),
        ] {
            let perf = PerfTime::new(mult, shift, zero).unwrap();
            for tsc in [1 << 33, 8_970_300_000, 1 << 45, (1 << 55) + 12_345, LOW_56] {
                let (quot, rem) = (u128::from(tsc) >> shift, u128::from(tsc) & ((1 << shift) - 1));
                let (mult, zero) = (u128::from(mult), u128::from(zero));
                let right = (zero + quot * mult + ((rem * mult) >> shift)) % MODULUS;
                assert_eq!(u128::from(perf.ns(tsc)), right, "{perf:?} at {tsc}");
                let since = (right + MODULUS - zero) % MODULUS;
                let back = (((since / mult) << shift) + ((since % mult) << shift) / mult) % MODULUS;
                assert_eq!(u128::from(perf.tsc(perf.ns(tsc))), back, "{perf:?} at {tsc}");
                let mut clock = Clock::new(ClockConfig { perf: Some(perf), ..ClockConfig::default() });
                clock.on_tsc(tsc);
                assert_eq!(clock.ns(), perf.ns(tsc));
            }
        }
        assert_eq!(PerfTime::new(0, 31, 0), None);
        assert_eq!(PerfTime::new(1, 64, 0), None);
        assert_eq!(PerfTime::new(1_076_264_588, 31, 0).unwrap().hz(), 1_995_312_000);
        assert_eq!(PerfTime::new(1 << 10, 10, 5).unwrap().hz(), 1_000_000_000);
    }

    /// Cycles between two TSC packets advance the time in ticks, which are converted as those of the packets are.
    #[test]
    fn cycles_are_converted_as_ticks() {
        let perf = PerfTime::new(742_350_000, 31, (-3_100_000_000i64) as u64).unwrap();
        let mut clock = Clock::new(ClockConfig { tsc_hz: perf.hz(), perf: Some(perf), nom_ratio: 29, ..LAB });
        clock.on_tsc(1 << 40);
        clock.on_cbr(29);
        for cycles in 1..1000 {
            clock.on_cyc(1);
            assert_eq!(clock.ns(), perf.ns((1 << 40) + cycles));
        }
    }
}
