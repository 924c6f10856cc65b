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
    /// Task switches.
    pub switches: Vec<Switched>,
    /// The kernel's symbols and modules, as in `/proc`; empty when unknown.
    pub kallsyms: Vec<u8>,
    /// See `kallsyms`.
    pub modules_list: Vec<u8>,
    /// Kernel release and build id in hex, each empty when unknown.
    pub kernel: (String, String),
    /// The recorder's command line.
    pub command: Vec<String>,
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
    /// The code this stream may run, later versions of a place behind earlier ones.
    pub regions: Vec<Placed>,
    /// Who runs at its beginning, where no switch tells: (thread id, time).
    pub first: Option<(u32, u64)>,
}

/// A region where and from when on a stream sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Index into [`Capture::regions`].
    pub region: usize,
    /// Address of its first byte.
    pub va: u64,
    /// Address space: CR3 without its low 12 bits, 0 for the kernel, and for whatever a stream without address
    /// spaces runs.
    pub asid: u64,
    /// Stream offset from which on it replaces what was there, if it does.
    pub offset: u64,
    /// See `offset`; else it was there from the start.
    pub replaces: bool,
}

/// A task takes a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// Time, ns.
    pub t: u64,
    /// Stream.
    pub cpu: usize,
    /// Where in the stream.
    pub at: SwitchAt,
    /// Who leaves.
    pub prev: Task,
    /// Who comes.
    pub next: Task,
}

/// How a switch is found in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchAt {
    /// Where the flow enters this address (`__switch_to`), at about the record's time.
    Entry(u64),
    /// At this stream offset, from where on user code is that of the address space.
    Offset {
        /// The stream offset.
        offset: u64,
        /// The address space; none where packets tell it.
        asid: Option<u64>,
    },
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
    /// Address space, as in [`Placed::asid`].
    pub asid: u64,
    /// Since when, ns.
    pub t: u64,
}

/// A process or thread with its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Thread group.
    pub tgid: u32,
    /// Name, empty when unknown.
    pub comm: String,
    /// Since when it is called so, ns.
    pub t: u64,
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
    /// Least cycles between two CYC packets (IA32_RTIT_CTL.CycThresh); 0 when all are sent.
    pub cyc_threshold: u64,
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

    /// Adds a region, which lies there from the start in whatever address space.
    pub(crate) fn add_region(&mut self, va: u64, bytes: Vec<u8>) -> Placed {
        self.regions.push(Region { va, bytes });
        self.placed(self.regions.len() - 1)
    }

    /// A region where it says that it lies, from the start, in whatever address space.
    pub(crate) fn placed(&self, region: usize) -> Placed {
        Placed { region, va: self.regions[region].va, asid: 0, offset: 0, replaces: false }
    }

    /// Adds a module unless it is known.
    pub(crate) fn add_module(&mut self, module: Module) {
        if !self.modules.contains(&module) {
            self.modules.push(module);
        }
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
