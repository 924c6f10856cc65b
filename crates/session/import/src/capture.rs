// SPDX-License-Identifier: MIT OR Apache-2.0
//! A capture as plain data: the result of reading a recording of another tool.

use std::path::PathBuf;

use kprism_flow::clock::ClockConfig;
use kprism_image::Bytes;
use kprism_pt::{Packet, PacketReader};

/// All data of a recording made elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capture {
    /// One stream per CPU, or per thread if the recorder traced threads.
    pub streams: Vec<Stream>,
    /// Code regions. Each is visible to the streams that refer to it.
    pub regions: Vec<Region>,
    /// Files mapped by the traced processes.
    pub modules: Vec<Module>,
    /// Names of processes.
    pub tasks: Vec<Task>,
    /// Task switches.
    pub switches: Vec<Switched>,
    /// Kernel code that came or went during the recording, in order of time.
    pub kernel_names: Vec<KernelName>,
    /// The kernel's symbols and modules, as in `/proc`; empty when unknown.
    pub kallsyms: Vec<u8>,
    /// Text of `/proc/modules`; empty when unknown.
    pub modules_list: Vec<u8>,
    /// Kernel release and build id in hex, each empty when unknown.
    pub kernel: (String, String),
    /// The recorder's command line.
    pub command: Vec<String>,
    /// Parameters for decoding time packets; 0 where unknown.
    pub clock: ClockConfig,
    /// The kinds of packets that were recorded.
    pub flow: Flow,
    /// True if snapshots of a ring were recorded, and nothing else.
    pub ring: bool,
    /// True if it is known that no code of the kernel is in the streams: files with the kernel's code have no use.
    pub programs_only: bool,
    /// True if streams contain TSC packets.
    pub timed: bool,
    /// The processor, for errata.
    pub cpu: Option<CpuModel>,
    /// First and last address of the ranges that the processor's filter let through; empty without a filter, or if unknown.
    pub filter: Vec<(u64, u64)>,
    /// Data that could not be used, as text for people: a module whose file is missing, for example.
    pub notes: Vec<String>,
}

/// The part of the flow that the recorder's settings left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// Nothing, or it is not known.
    #[default]
    Whole,
    /// All branches (BranchEn is 0): there are only the packets of other events.
    Events,
    /// Outcomes of conditional branches (DisTNT is 1): there are only addresses.
    WithoutOutcomes,
}

/// One PT stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Its origin, as text for people: `cpu 45`, `thread 3842849`, a file name.
    pub label: String,
    /// The packets.
    pub pt: Bytes,
    /// The code that this stream may run. Later versions of a place come after earlier ones.
    pub regions: Vec<Placed>,
    /// The task that runs at its beginning, if no switch states it: (thread id, time in ns).
    pub first: Option<(u32, u64)>,
}

/// A region with the address and stream offset at which a stream sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Index into [`Capture::regions`]; of no meaning if `gone` is not 0.
    pub region: usize,
    /// Address of its first byte.
    pub va: u64,
    /// Address space: CR3 without its low 12 bits; 0 for the kernel, and for all code of a stream without address
    /// spaces.
    pub asid: u64,
    /// Stream offset from which it replaces earlier code, if `replaces` is true.
    pub offset: u64,
    /// True if it replaces earlier code; otherwise it was there from the start.
    pub replaces: bool,
    /// Number of bytes of which nothing is known, as something without contents is mapped there; 0 for a region.
    pub gone: u64,
}

/// A task switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// Time, ns.
    pub t: u64,
    /// Index of the stream.
    pub cpu: usize,
    /// Position in the stream.
    pub at: SwitchAt,
    /// The task that leaves.
    pub prev: Task,
    /// The task that comes.
    pub next: Task,
}

/// Way to find a switch in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchAt {
    /// The flow enters this address (`__switch_to`), at about the record's time.
    Entry(u64),
    /// At this stream offset; user code after it belongs to the address space.
    Offset {
        /// The stream offset.
        offset: u64,
        /// The address space; `None` if packets state it.
        asid: Option<u64>,
    },
}

/// Code bytes at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Virtual address of the first byte.
    pub va: u64,
    /// The code.
    pub bytes: Bytes,
    /// The file that has the code, if it is one, and the offset of the first byte in it.
    pub file: Option<(PathBuf, u64)>,
}

/// A file mapped into a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Module {
    /// Path on the traced machine.
    pub path: String,
    /// Path of the file itself, if the capture holds it.
    pub file: Option<PathBuf>,
    /// Process id.
    pub pid: u32,
    /// First mapped address.
    pub start: u64,
    /// One past the last mapped address.
    pub end: u64,
    /// Offset in the file, bytes.
    pub pgoff: u64,
    /// Address space, as in [`Placed::asid`].
    pub asid: u64,
    /// Time from which it is mapped, ns.
    pub t: u64,
}

/// Kernel code with a name that comes or goes: a BPF program, a trampoline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelName {
    /// Time, ns; 0 for code that was there when the recording began.
    pub t: u64,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// True if the code is gone from here on.
    pub gone: bool,
    /// Name of the function.
    pub name: String,
    /// Module in brackets, as in kallsyms.
    pub module: &'static str,
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
    /// Time from which it has this name, ns.
    pub t: u64,
}

/// The processor model from CPUID leaf 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuModel {
    /// Family, including the extended family.
    pub family: u16,
    /// Model, including the extended model.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
}

impl Capture {
    /// Sets [`Capture::timed`] by searching the streams.
    pub(crate) fn look_for_time(&mut self) {
        self.timed = self.streams.iter().any(|stream| has_tsc(&stream.pt));
    }

    /// Adds a region that is present from the start, in any address space.
    pub(crate) fn add_region(&mut self, va: u64, bytes: impl Into<Bytes>) -> Placed {
        self.regions.push(Region { va, bytes: bytes.into(), file: None });
        self.placed(self.regions.len() - 1)
    }

    /// Places a region at its own address, from the start, in any address space.
    pub(crate) fn placed(&self, region: usize) -> Placed {
        Placed { region, va: self.regions[region].va, asid: 0, offset: 0, replaces: false, gone: 0 }
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
