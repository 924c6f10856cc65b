// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a trace: its size, its packets, and its temporal resolution (paper 1, table 3).

use kprism_pt::mix::Mix;

/// The measurements of one recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// Name of the setting, or of the run.
    pub name: String,
    /// Instructions traced.
    pub instructions: u64,
    /// Number of places that could not be decoded. The other fields exclude them.
    pub decode_errors: u64,
    /// The recording's duration; 0 if unknown.
    pub duration_ns: u64,
    /// Number and bytes of packets by kind.
    pub mix: Mix,
    /// Number of timed points.
    pub points: u64,
    /// Median of ΔT, ns; `None` with fewer than two timed points, as for the fields below.
    pub median_ns: Option<u64>,
    /// 99th percentile of ΔT, ns.
    pub p99_ns: Option<u64>,
    /// Median of ΔIc.
    pub median_insns: Option<u64>,
    /// median(ΔT) × median(ΔIc), for the temporal resolution factor.
    pub product: Option<f64>,
}

impl Cost {
    /// Size of the trace, bytes.
    pub fn bytes(&self) -> u64 {
        self.mix.total_bytes()
    }

    /// Bytes per instruction; 0 without instructions.
    pub fn bytes_per_insn(&self) -> f64 {
        if self.instructions == 0 { 0.0 } else { self.bytes() as f64 / self.instructions as f64 }
    }

    /// Bandwidth in 10^6 bytes per second of the recording's own clock, if it has one.
    pub fn megabytes_per_second(&self) -> Option<f64> {
        (self.duration_ns > 0).then(|| self.bytes() as f64 * 1e3 / self.duration_ns as f64)
    }
}

/// A packet setting that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Minimum of cycles between CYC packets.
    Cyc,
    /// MTC period, a power of two of crystal ticks.
    Mtc,
    /// Bytes between PSB packets.
    Psb,
}

impl Setting {
    /// The key in output for programs.
    pub fn key(self) -> &'static str {
        match self {
            Setting::Cyc => "cyc",
            Setting::Mtc => "mtc",
            Setting::Psb => "psb",
        }
    }

    /// The name in output for people.
    pub fn name(self) -> &'static str {
        match self {
            Setting::Cyc => "CYC threshold, cycles",
            Setting::Mtc => "MTC period, 2^N crystal ticks",
            Setting::Psb => "PSB period, bytes",
        }
    }
}

/// Recordings of the same instructions that differ in one setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The setting that varies.
    pub setting: Setting,
    /// The values, `None` for off, with their measurements.
    pub steps: Vec<(Option<u64>, Cost)>,
}
