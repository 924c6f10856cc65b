// SPDX-License-Identifier: MIT OR Apache-2.0
//! A capture as plain data.

use std::path::PathBuf;

use kprism_pt::{Packet, PacketReader};

/// Everything known about a recording made elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capture {
    /// One per CPU, or per thread where the recorder traced threads.
    pub streams: Vec<Stream>,
    /// Code, each region seen by the streams that name it.
    pub regions: Vec<Region>,
    /// Files mapped by the traced processes.
    pub modules: Vec<Module>,
    /// Names of processes.
    pub tasks: Vec<Task>,
    /// How to read time packets.
    pub clock: Clock,
    /// The processor, for errata.
    pub cpu: Option<CpuModel>,
    /// What could not be used, for people: a module whose file is missing, for example.
    pub notes: Vec<String>,
}

/// One PT stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Where it came from, for people: `cpu 45`, `thread 3842849`, a file name.
    pub label: String,
    /// The packets.
    pub pt: Vec<u8>,
    /// Indices into [`Capture::regions`]: the code this stream may run.
    pub regions: Vec<usize>,
}

/// Code bytes at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Virtual address of the first byte.
    pub va: u64,
    /// The code.
    pub bytes: Vec<u8>,
}

/// A file mapped into a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Path on the traced machine.
    pub path: String,
    /// The file itself, where the capture holds it.
    pub file: Option<PathBuf>,
    /// Process.
    pub pid: u32,
    /// First mapped address.
    pub start: u64,
    /// One past the last mapped address.
    pub end: u64,
    /// Offset in the file, bytes.
    pub pgoff: u64,
}

/// A process or thread with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Thread group.
    pub tgid: u32,
    /// Name, empty when unknown.
    pub comm: String,
}

/// Clock ratios; 0 where unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    /// Whether streams hold TSC packets at all.
    pub timed: bool,
    /// TSC ticks per second.
    pub tsc_hz: u64,
    /// TSC ticks per crystal tick, numerator (CPUID.15H:EBX).
    pub art_num: u32,
    /// The same, denominator (CPUID.15H:EAX).
    pub art_den: u32,
    /// IA32_RTIT_CTL.MTCFreq.
    pub mtc_freq: u8,
    /// Maximum non-turbo ratio (MSR_PLATFORM_INFO bits 15:8).
    pub nom_ratio: u8,
}

impl Clock {
    /// TSC ticks per second from perf's conversion, ns = TSC · `mult` >> `shift` (the kernel's
    /// `struct perf_event_mmap_page`, fields `time_mult` and `time_shift`). 0 for nonsense.
    pub fn hz_from_perf(mult: u64, shift: u64) -> u64 {
        if mult == 0 || shift > 64 {
            return 0;
        }
        let hz = ((1_000_000_000u128 << shift) + u128::from(mult) / 2) / u128::from(mult);
        u64::try_from(hz).unwrap_or(0)
    }
}

/// What CPUID leaf 1 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuModel {
    /// Family, extended family added.
    pub family: u16,
    /// Model, extended model included.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
}

impl Capture {
    /// Fills in [`Clock::timed`] from the streams themselves.
    pub(crate) fn look_for_time(&mut self) {
        self.clock.timed = self.streams.iter().any(|stream| has_tsc(&stream.pt));
    }

    /// Adds a region and returns its index.
    pub(crate) fn add_region(&mut self, va: u64, bytes: Vec<u8>) -> usize {
        self.regions.push(Region { va, bytes });
        self.regions.len() - 1
    }
}

fn has_tsc(pt: &[u8]) -> bool {
    let mut reader = PacketReader::new(pt);
    while reader.resync().is_some() {
        if reader.by_ref().any(|packet| matches!(packet, Ok((_, Packet::Tsc { .. })))) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_from_the_kernels_conversion() {
        assert_eq!(Clock::hz_from_perf(1_076_264_588, 31), 1_995_312_000);
        assert_eq!(Clock::hz_from_perf(1 << 10, 10), 1_000_000_000);
        assert_eq!(Clock::hz_from_perf(0, 31), 0);
        assert_eq!(Clock::hz_from_perf(1, 200), 0);
    }
}
