// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a trace: its size, its packets, and its temporal resolution (paper 1, table 3).

use kprism_pt::mix::Mix;

/// One recording, measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// The setting, or the run.
    pub name: String,
    /// Instructions traced.
    pub instructions: u64,
    /// Places that could not be decoded: what follows is of the rest.
    pub decode_errors: u64,
    /// The recording's duration; 0 if unknown.
    pub duration_ns: u64,
    /// Packets.
    pub mix: Mix,
    /// Distances between timed points: how many there are.
    pub points: u64,
    /// Median of ΔT, ns; none without two timed points, like what follows.
    pub median_ns: Option<u64>,
    /// ΔT that 99 % do not exceed.
    pub p99_ns: Option<u64>,
    /// Median of ΔIc.
    pub median_insns: Option<u64>,
    /// Their product, for the temporal resolution factor.
    pub product: Option<f64>,
}

impl Cost {
    /// Size of the trace, bytes.
    pub fn bytes(&self) -> u64 {
        self.mix.total_bytes()
    }

    /// Bytes per instruction; 0 of nothing.
    pub fn bytes_per_insn(&self) -> f64 {
        if self.instructions == 0 { 0.0 } else { self.bytes() as f64 / self.instructions as f64 }
    }

    /// 10^6 bytes per second of the recording's own clock, if it has one.
    pub fn megabytes_per_second(&self) -> Option<f64> {
        (self.duration_ns > 0).then(|| self.bytes() as f64 * 1e3 / self.duration_ns as f64)
    }
}
