// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time from timing packets: TSC, TMA, MTC, CYC and CBR in, nanoseconds out.
//!
//! As SDM vol. 3, "Intel PT Timing Packets and Decoding Time": a TSC packet gives the time; TMA ties it to
//! the crystal clock (CTC), of which MTC packets then show eight bits each period; CYC counts core cycles,
//! turned into TSC ticks by the ratio of nominal to current frequency (CBR), or where that is not known, by how many
//! came between two MTCs before. A stream without any of them decodes all the same, at time 0.

/// What the processor's clocks mean; from the recording's manifest or CPUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockConfig {
    /// TSC ticks per second; 0 when unknown, and then one tick counts as one ns.
    pub tsc_hz: u64,
    /// TSC ticks per CTC tick, numerator: CPUID.15H:EBX. 0 when unknown: MTC is then ignored.
    pub art_num: u32,
    /// The same, denominator: CPUID.15H:EAX.
    pub art_den: u32,
    /// Each MTC is 2^this CTC ticks after the one before: IA32_RTIT_CTL.MTCFreq, 0 to 15.
    pub mtc_freq: u8,
    /// Nominal (maximum non-turbo) ratio: MSR_PLATFORM_INFO\[15:8\]. 0 when unknown: CYC then counts by MTC.
    pub nom_ratio: u8,
}

impl Default for ClockConfig {
    /// Nothing known: only TSC packets tell time.
    fn default() -> Self {
        Self { tsc_hz: 0, art_num: 0, art_den: 0, mtc_freq: 0, nom_ratio: 0 }
    }
}

/// The relation of CTC to TSC, from the last TMA.
#[derive(Debug, Clone, Copy)]
struct Crystal {
    /// TSC when the CTC had last turned over its unseen low bits before the TMA.
    base_tsc: u64,
    /// CTC ticks since `base_tsc`.
    ticks: u64,
    /// Payload of the last MTC.
    last: u8,
    /// The bits of `last` that are known. TMA has bits 15:0 of the CTC only, so at MTCFreq above 8 it leaves high
    /// bits of the next MTC open.
    known: u8,
}

/// The running estimate of time.
#[derive(Debug, Clone)]
pub struct Clock {
    config: ClockConfig,
    /// Current estimate, in TSC ticks; meaningless until `base` is set.
    tsc: u64,
    /// (TSC, ns) of the last TSC packet.
    base: Option<(u64, u64)>,
    crystal: Option<Crystal>,
    cyc_base: u64,
    cycles: u64,
    /// `cyc_base` is an MTC's time.
    at_mtc: bool,
    cbr: u8,
    /// TSC ticks per cycle in the last MTC period that had cycles, 32.32 fixed point. Only where CBR or the nominal
    /// ratio is not known; 0 when unknown too.
    calibrated: u64,
    /// ns per TSC tick, 32.32 fixed point; 0 for exactly one.
    mult: u64,
}

const LOW_56: u64 = (1 << 56) - 1;
const NS: u128 = 1_000_000_000;

impl Clock {
    /// A clock that has seen no packet.
    pub fn new(config: ClockConfig) -> Self {
        let one = config.tsc_hz == 0 || u128::from(config.tsc_hz) == NS;
        let mult = if one { 0 } else { ((NS << 32) / u128::from(config.tsc_hz)).min(u64::MAX.into()) as u64 };
        Self {
            config,
            tsc: 0,
            base: None,
            crystal: None,
            cyc_base: 0,
            cycles: 0,
            at_mtc: false,
            cbr: 0,
            calibrated: 0,
            mult,
        }
    }

    /// Time now, in ns; 0 before the first TSC packet.
    #[inline]
    pub fn ns(&self) -> u64 {
        match self.base {
            None => 0,
            Some(_) if self.mult == 0 => self.tsc,
            Some((tsc, ns)) => {
                let ticks = u128::from(self.tsc.saturating_sub(tsc));
                ns.saturating_add(((ticks * u128::from(self.mult)) >> 32) as u64)
            }
        }
    }

    /// TSC packet: 56 bits.
    pub fn on_tsc(&mut self, low: u64) {
        let mut tsc = self.tsc & !LOW_56 | low & LOW_56;
        // The top byte is not sent: a big step back is its carry.
        if self.base.is_some() && tsc < self.tsc && self.tsc - tsc > 1 << 55 {
            tsc = tsc.wrapping_add(1 << 56);
        }
        self.tsc = tsc;
        let ns = match self.mult {
            0 => tsc,
            _ => (u128::from(tsc) * NS / u128::from(self.config.tsc_hz)) as u64,
        };
        self.base = Some((tsc, ns));
        self.crystal = None;
        self.rebase(tsc);
    }

    /// TMA packet, right after a TSC packet: the CTC at that time, and by how many core clock ticks the TSC
    /// had run on from the CTC's last edge.
    pub fn on_tma(&mut self, ctc: u16, fast: u16) {
        let unseen = u64::from(ctc) & ((1 << self.config.mtc_freq.min(16)) - 1);
        let since = u64::from(fast).saturating_add(self.ctc_to_tsc(unseen));
        let last = (ctc.checked_shr(self.config.mtc_freq.into()).unwrap_or(0) & 0xff) as u8;
        let known = 0xffff_u16.checked_shr(self.config.mtc_freq.into()).unwrap_or(0).min(0xff) as u8;
        self.crystal = Some(Crystal { base_tsc: self.tsc.saturating_sub(since), ticks: 0, last, known });
    }

    /// MTC packet: CTC bits `mtc_freq` and up.
    ///
    /// Counted cycles are finer than the crystal's period, so an MTC moves the time forward only, and
    /// corrects the cycle count only when that has run ahead by more than a period.
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
        if tsc >= self.tsc {
            self.tsc = tsc;
            // A CYC counts from the CYC before it. When the crystal ticks twice without one (a high threshold), the
            // next still counts from the first of the two.
            if !self.at_mtc || self.cycles > 0 {
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
        self.cycles = self.cycles.saturating_add(cycles);
        let nominal = u64::from(self.config.nom_ratio);
        let ticks = match u64::from(self.cbr) {
            _ if self.base.is_none() => return,
            cbr if nominal == 0 || cbr == 0 => self.calibrated_ticks(),
            cbr if cbr == nominal => self.cycles,
            cbr => self.cycles.saturating_mul(nominal) / cbr,
        };
        self.tsc = self.tsc.max(self.cyc_base.saturating_add(ticks));
    }

    /// The time that the cycles counted take, by the last MTC period.
    #[cold]
    fn calibrated_ticks(&self) -> u64 {
        ((u128::from(self.cycles) * u128::from(self.calibrated)) >> 32).min(u64::MAX.into()) as u64
    }

    /// CBR packet: current core to bus ratio. Cycles before it were counted at the old one.
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
