// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf's records, in both directions.
//!
//! Each is a head of eight bytes (type, misc, size), a body, and, if the event's attributes request it
//! (`sample_id_all`), a [`Trailer`] with task, time and CPU. Types below 64 are the kernel's (`enum perf_event_type` in
//! include/uapi/linux/perf_event.h), from 64 on perf's own (tools/lib/perf/include/perf/event.h). An unknown type is
//! [`Record::Other`], because readers of perf.data must skip record types of later versions.

use crate::bytes::{Fields, Put};

const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const AUX: u32 = 11;
const ITRACE_START: u32 = 12;
const LOST_SAMPLES: u32 = 13;
const SWITCH: u32 = 14;
const SWITCH_CPU_WIDE: u32 = 15;
const KSYMBOL: u32 = 17;
const TEXT_POKE: u32 = 20;
const OWN: u32 = 64;
const ATTR: u32 = 64;
const BUILD_ID: u32 = 67;
const ID_INDEX: u32 = 69;
const AUXTRACE_INFO: u32 = 70;
const AUXTRACE: u32 = 71;
const TIME_CONV: u32 = 79;
const FEATURE: u32 = 80;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// Privilege mode of the CPU: bits of the head's `misc`.
const CPUMODE: u16 = 7;
/// `misc` of kernel code.
pub const KERNEL: u16 = 1;
/// `misc` of user code.
pub const USER: u16 = 2;
/// `misc` of code of a guest's kernel.
const GUEST_KERNEL: u16 = 4;
/// `misc` of code of a guest's programs.
const GUEST_USER: u16 = 5;
/// `misc` of a switch: the task leaves. Of a name: by exec. Of a fork: it is none, the task was there before.
const SWITCH_OUT: u16 = 1 << 13;
/// `misc` of a mapping: not for code.
const MMAP_DATA: u16 = 1 << 13;
/// `misc` of a mapping: its build id is stated.
const MMAP_BUILD_ID: u16 = 1 << 14;
/// `misc` of a build id: its size is stated.
const BUILD_ID_SIZE: u16 = 1 << 15;
/// `PROT_READ | PROT_EXEC`.
const PROT_CODE: u32 = 5;
const PROT_EXEC: u32 = 4;
/// PROT_READ.
const PROT_DATA: u32 = 1;
/// Types of kernel code that comes and goes (`enum perf_record_ksymbol_type` in include/uapi/linux/perf_event.h).
pub mod ksymbol {
    /// A BPF program, or a trampoline to one.
    pub const BPF: u16 = 1;
    /// Instructions out of their place: of kprobes, trampolines of ftrace.
    pub const OUT_OF_LINE: u16 = 2;
}

/// Bits of `perf_event_attr::sample_type` that define the trailer, in its order.
pub mod sample {
    /// Address.
    pub const IP: u64 = 1;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time.
    pub const TIME: u64 = 1 << 2;
    /// Address of the access.
    pub const ADDR: u64 = 1 << 3;
    /// Counters.
    pub const READ: u64 = 1 << 4;
    /// Call stack.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// Id of the event.
    pub const ID: u64 = 1 << 6;
    /// CPU.
    pub const CPU: u64 = 1 << 7;
    /// Events since the last sample.
    pub const PERIOD: u64 = 1 << 8;
    /// Id of the event on its CPU or of its thread.
    pub const STREAM_ID: u64 = 1 << 9;
    /// A tracepoint's data.
    pub const RAW: u64 = 1 << 10;
    /// Branches.
    pub const BRANCH_STACK: u64 = 1 << 11;
    /// Registers of the program.
    pub const REGS_USER: u64 = 1 << 12;
    /// A copy of the program's stack.
    pub const STACK_USER: u64 = 1 << 13;
    /// Cost of the access.
    pub const WEIGHT: u64 = 1 << 14;
    /// Level of the memory hierarchy that supplied the data.
    pub const DATA_SRC: u64 = 1 << 15;
    /// Id of the event, at a fixed place.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Reason of an abort.
    pub const TRANSACTION: u64 = 1 << 17;
    /// Registers of the interrupted code.
    pub const REGS_INTR: u64 = 1 << 18;
    /// Physical address of the access.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// cgroup.
    pub const CGROUP: u64 = 1 << 21;
    /// Data of an AUX buffer.
    pub const AUX: u64 = 1 << 20;
    /// Page size of the code.
    pub const CODE_PAGE_SIZE: u64 = 1 << 23;
    /// Page size of the access.
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    /// Costs of the access.
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}

/// Flags of an AUX record.
pub mod aux {
    /// The buffer was full. Later data is lost.
    pub const TRUNCATED: u64 = 1;
    /// Newer data overwrote older: a snapshot.
    pub const OVERWRITE: u64 = 2;
    /// The data has gaps.
    pub const PARTIAL: u64 = 4;
    /// A sample was taken while another one was.
    pub const COLLISION: u64 = 8;
}

/// Task, time and CPU (`struct sample_id`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trailer {
    /// Process.
    pub pid: Option<u32>,
    /// Thread.
    pub tid: Option<u32>,
    /// Time, in nanoseconds of the event's clock.
    pub time: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
    /// One of the event's ids.
    pub id: Option<u64>,
}

impl Trailer {
    /// Its length under `sample_type`.
    pub fn len(kind: u64) -> usize {
        let own =
            sample::TID | sample::TIME | sample::ID | sample::STREAM_ID | sample::CPU | sample::IDENTIFIER;
        8 * (kind & own).count_ones() as usize
    }

    fn parse(kind: u64, mut from: Fields<'_>) -> Option<Self> {
        let mut trailer = Self::default();
        if kind & sample::TID != 0 {
            trailer.pid = Some(from.u32()?);
            trailer.tid = Some(from.u32()?);
        }
        if kind & sample::TIME != 0 {
            trailer.time = Some(from.u64()?);
        }
        if kind & sample::ID != 0 {
            trailer.id = Some(from.u64()?);
        }
        if kind & sample::STREAM_ID != 0 {
            from.u64()?;
        }
        if kind & sample::CPU != 0 {
            trailer.cpu = Some(from.u32()?);
            from.u32()?;
        }
        if kind & sample::IDENTIFIER != 0 {
            trailer.id = Some(from.u64()?);
        }
        Some(trailer)
    }

    /// Reads the trailer's fields at the start of a sample, and leaves the fields after them.
    pub fn of_sample(kind: u64, from: &mut Fields<'_>) -> Option<Self> {
        let mut trailer = Self::default();
        let has = |bit| kind & bit != 0;
        if has(sample::IDENTIFIER) {
            trailer.id = Some(from.u64()?);
        }
        if has(sample::IP) {
            from.u64()?;
        }
        if has(sample::TID) {
            (trailer.pid, trailer.tid) = (Some(from.u32()?), Some(from.u32()?));
        }
        if has(sample::TIME) {
            trailer.time = Some(from.u64()?);
        }
        for bit in [sample::ADDR, sample::ID, sample::STREAM_ID] {
            if has(bit) {
                from.u64()?;
            }
        }
        if has(sample::CPU) {
            trailer.cpu = Some(from.u32()?);
            from.u32()?;
        }
        Some(trailer)
    }

    fn encode(&self, kind: u64, out: &mut Vec<u8>) {
        if kind & sample::TID != 0 {
            out.u32(self.pid.unwrap_or(u32::MAX));
            out.u32(self.tid.unwrap_or(u32::MAX));
        }
        if kind & sample::TIME != 0 {
            out.u64(self.time.unwrap_or(0));
        }
        if kind & sample::ID != 0 {
            out.u64(self.id.unwrap_or(0));
        }
        if kind & sample::STREAM_ID != 0 {
            out.u64(self.id.unwrap_or(0));
        }
        if kind & sample::CPU != 0 {
            out.u32(self.cpu.unwrap_or(u32::MAX));
            out.u32(0);
        }
        if kind & sample::IDENTIFIER != 0 {
            out.u64(self.id.unwrap_or(0));
        }
    }
}

/// A mapping for code: a file, or memory without one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file, bytes.
    pub pgoff: u64,
    /// The file, or a name in brackets of memory without one.
    pub path: String,
    /// Empty when the record states none.
    pub build_id: Vec<u8>,
    /// True for kernel code.
    pub kernel: bool,
}

/// perf's conversion of TSC to its own time: `TSC · mult >> shift + zero`, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeConv {
    /// Binary digits after the point of `mult`.
    pub shift: u64,
    /// Nanoseconds of a tick.
    pub mult: u64,
    /// The time at TSC 0, ns.
    pub zero: u64,
}

/// Trace data that follows its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Auxtrace {
    /// Bytes of trace.
    pub size: u64,
    /// Its offset in the stream.
    pub offset: u64,
    /// A TSC from about that time, for the bits that TSC packets omit.
    pub reference: u64,
    /// Number of the buffer.
    pub idx: u32,
    /// Thread of the buffer; all bits set in one of a CPU.
    pub tid: u32,
    /// CPU of the buffer; all bits set in one of a thread.
    pub cpu: u32,
}

/// A record's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record<'a> {
    /// A mapping for code.
    Mmap(Mapped),
    /// A mapping that is not for code.
    MmapData(Mapped),
    /// A mapping in a virtual machine; `pid` is the machine's process. Its addresses are not the host's.
    GuestMmap(Mapped),
    /// Records were lost.
    Lost {
        /// Number of them.
        lost: u64,
    },
    /// Only samples were lost.
    LostSamples {
        /// Number of them.
        lost: u64,
    },
    /// A task has a new name.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// By exec.
        exec: bool,
        /// The name.
        comm: String,
    },
    /// A task ends.
    Exit {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    },
    /// A task begins.
    Fork {
        /// Its process.
        pid: u32,
        /// The parent's process.
        ppid: u32,
        /// Its thread.
        tid: u32,
        /// The parent's thread.
        ptid: u32,
        /// Time, in nanoseconds of the event's clock.
        time: u64,
        /// perf made the record of /proc: the task was there before the recording. Its mappings follow, it inherits none
        /// (`PERF_RECORD_MISC_FORK_EXEC`; before Linux 4.20 only a time of 0 tells it).
        existed: bool,
    },
    /// A sample: its fields, by the event's `sample_type`.
    Sample(&'a [u8]),
    /// The kernel has put trace data into an AUX buffer.
    Aux {
        /// Offset in the buffer's stream.
        offset: u64,
        /// Bytes.
        size: u64,
        /// Bits of [`aux`].
        flags: u64,
    },
    /// Tracing began while this task ran.
    ItraceStart {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    },
    /// The event's task enters or leaves the CPU.
    Switch {
        /// It leaves.
        out: bool,
    },
    /// A task switch on a CPU. `pid`, `tid`: the task that enters if `out`, else the one that left.
    SwitchCpuWide {
        /// The record's own task leaves.
        out: bool,
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    },
    /// The kernel has new code, such as a program of BPF, or has it no longer.
    Ksymbol {
        /// First address.
        addr: u64,
        /// Bytes.
        len: u32,
        /// It was removed.
        gone: bool,
        /// Its type; see [`ksymbol`].
        kind: u16,
        /// Symbol.
        name: String,
    },
    /// The kernel has changed its own code.
    TextPoke {
        /// Address of the change.
        addr: u64,
        /// Bytes before.
        old: &'a [u8],
        /// Bytes after.
        new: &'a [u8],
    },
    /// In a pipe: an event's attributes, and its ids.
    Attr(&'a [u8]),
    /// Build id of a file.
    BuildId {
        /// Process; all bits set for the kernel of the host.
        pid: u32,
        /// The build id.
        id: Vec<u8>,
        /// The file.
        path: String,
    },
    /// For each id of an event: id, index, CPU, thread.
    IdIndex(Vec<[u64; 4]>),
    /// Settings of the traces.
    AuxtraceInfo {
        /// Type of the traces; 1 is Intel PT.
        kind: u32,
        /// The settings, in an order of that type (tools/perf/util/intel-pt.h).
        words: Vec<u64>,
    },
    /// Trace data follows.
    Auxtrace(Auxtrace),
    /// Conversion of TSC to time.
    TimeConv(TimeConv),
    /// In a pipe: a feature section.
    Feature {
        /// Number: one of [`crate::feature`].
        id: u64,
        /// Contents.
        body: &'a [u8],
    },
    /// A piece of compressed records.
    Compressed(&'a [u8]),
    /// A type that is not known here.
    Other(u32),
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Type of the record.
    pub kind: u32,
    /// Bits whose meaning depends on the type.
    pub misc: u16,
    /// Size of the whole record, bytes.
    pub size: u16,
}

impl Head {
    /// Bytes of a head.
    pub const LEN: usize = 8;

    /// Reads a head. `None` if there are not enough bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut f = Fields(bytes);
        Some(Self { kind: f.u32()?, misc: f.u16()?, size: f.u16()? })
    }

    /// Returns true if a trailer may follow the body.
    pub fn has_trailer(self) -> bool {
        self.kind < OWN && self.kind != SAMPLE
    }
}

/// Parses a record; `body` follows the head. `sample_type` is that of its event's attributes; for records other than
/// samples, 0 without `sample_id_all`. `None` when it is too short for its type.
pub fn parse(head: Head, body: &[u8], sample_type: u64) -> Option<(Record<'_>, Trailer)> {
    let mut trailer = Trailer::default();
    let mut f = Fields(body);
    if head.has_trailer() && sample_type != 0 {
        let at = body.len().checked_sub(Trailer::len(sample_type))?;
        trailer = Trailer::parse(sample_type, Fields(&body[at..]))?;
        f = Fields(&body[..at]);
    }
    let out = head.misc & SWITCH_OUT != 0;
    let record = match head.kind {
        MMAP | MMAP2 => mapped(head, f)?,
        LOST => Record::Lost { lost: f.u64().and(f.u64())? },
        LOST_SAMPLES => Record::LostSamples { lost: f.u64()? },
        COMM => {
            let (pid, tid) = (f.u32()?, f.u32()?);
            Record::Comm { pid, tid, exec: out, comm: f.text() }
        }
        EXIT | FORK => {
            let (pid, ppid, tid, ptid, time) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?, f.u64()?);
            trailer.time = trailer.time.or(Some(time));
            match head.kind {
                EXIT => Record::Exit { pid, tid },
                _ => Record::Fork { pid, ppid, tid, ptid, time, existed: out || time == 0 },
            }
        }
        SAMPLE => {
            trailer = Trailer::of_sample(sample_type, &mut f)?;
            Record::Sample(body)
        }
        AUX => Record::Aux { offset: f.u64()?, size: f.u64()?, flags: f.u64()? },
        ITRACE_START => Record::ItraceStart { pid: f.u32()?, tid: f.u32()? },
        SWITCH => Record::Switch { out },
        SWITCH_CPU_WIDE => Record::SwitchCpuWide { out, pid: f.u32()?, tid: f.u32()? },
        KSYMBOL => {
            let (addr, len, kind, flags) = (f.u64()?, f.u32()?, f.u16()?, f.u16()?);
            Record::Ksymbol { addr, len, gone: flags & 1 != 0, kind, name: f.text() }
        }
        TEXT_POKE => {
            let (addr, old, new) = (f.u64()?, f.u16()?, f.u16()?);
            Record::TextPoke { addr, old: f.take(old.into())?, new: f.take(new.into())? }
        }
        ATTR => Record::Attr(body),
        BUILD_ID => {
            let (pid, id) = (f.u32()?, f.take(24)?);
            let len = if head.misc & BUILD_ID_SIZE != 0 { usize::from(id[20]).min(20) } else { 20 };
            Record::BuildId { pid, id: id[..len].to_vec(), path: f.text() }
        }
        ID_INDEX => {
            // Behind them may be as many pairs about virtual machines.
            let count = usize::try_from(f.u64()?).unwrap_or(usize::MAX);
            let (entries, _) = f.0.as_chunks::<32>();
            let entries = &entries[..entries.len().min(count)];
            let entry = |e: &[u8; 32]| {
                let mut words = Fields(e).words();
                std::array::from_fn(|_| words.next().unwrap_or(0))
            };
            Record::IdIndex(entries.iter().map(entry).collect())
        }
        AUXTRACE_INFO => {
            let kind = f.u32()?;
            f.u32()?;
            Record::AuxtraceInfo { kind, words: f.words().collect() }
        }
        AUXTRACE => {
            let (size, offset, reference) = (f.u64()?, f.u64()?, f.u64()?);
            Record::Auxtrace(Auxtrace {
                size,
                offset,
                reference,
                idx: f.u32()?,
                tid: f.u32()?,
                cpu: f.u32()?,
            })
        }
        TIME_CONV => Record::TimeConv(TimeConv { shift: f.u64()?, mult: f.u64()?, zero: f.u64()? }),
        FEATURE => Record::Feature { id: f.u64()?, body: f.0 },
        COMPRESSED => Record::Compressed(body),
        COMPRESSED2 => {
            let len = usize::try_from(f.u64()?).unwrap_or(usize::MAX);
            // Before it was mended, perf wrote 0, or the size of several records, where one piece of a ring buffer gave
            // more than one record (KDAB/hotspot#736): these have no padding.
            Record::Compressed(f.0.get(..len).filter(|data| !data.is_empty()).unwrap_or(f.0))
        }
        kind => Record::Other(kind),
    };
    Some((record, trailer))
}

fn mapped<'a>(head: Head, mut f: Fields<'_>) -> Option<Record<'a>> {
    let mut map = Mapped {
        pid: f.u32()?,
        tid: f.u32()?,
        start: f.u64()?,
        len: f.u64()?,
        pgoff: f.u64()?,
        kernel: matches!(head.misc & CPUMODE, KERNEL | GUEST_KERNEL),
        ..Mapped::default()
    };
    let mut code = head.misc & MMAP_DATA == 0;
    if head.kind == MMAP2 {
        let inode = f.take(24)?;
        if head.misc & MMAP_BUILD_ID != 0 {
            map.build_id = inode[4..4 + usize::from(inode[0]).min(20)].to_vec();
        }
        code = f.u32()? & PROT_EXEC != 0;
        f.u32()?;
    }
    map.path = f.text();
    Some(match (head.misc & CPUMODE, code) {
        (GUEST_KERNEL | GUEST_USER, _) => Record::GuestMmap(map),
        (_, true) => Record::Mmap(map),
        (_, false) => Record::MmapData(map),
    })
}

impl Record<'_> {
    /// Appends the record with its trailer under `sample_type`. Of [`Record::Other`] only the type is known: its body is empty.
    pub fn encode(&self, sample_type: u64, trailer: &Trailer, out: &mut Vec<u8>) {
        let begin = out.len();
        out.u64(0);
        let (kind, misc) = self.encode_body(out);
        let head = Head { kind, misc, size: 0 };
        if head.has_trailer() {
            trailer.encode(sample_type, out);
        }
        let size = (out.len() - begin) as u64;
        let head = u64::from(kind) | u64::from(misc) << 32 | size << 48;
        out[begin..begin + 8].copy_from_slice(&head.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) -> (u32, u16) {
        let switch = |leaves: bool| if leaves { SWITCH_OUT } else { 0 };
        match self {
            Self::GuestMmap(m) => {
                encode_place(m, out);
                out.padded_text(&m.path);
                (MMAP, if m.kernel { GUEST_KERNEL } else { GUEST_USER })
            }
            Self::Mmap(m) | Self::MmapData(m) if m.kernel => {
                encode_place(m, out);
                out.padded_text(&m.path);
                (MMAP, KERNEL | if matches!(self, Self::MmapData(_)) { MMAP_DATA } else { 0 })
            }
            Self::Mmap(m) | Self::MmapData(m) => {
                encode_place(m, out);
                let id = m.build_id.get(..20).unwrap_or(&m.build_id);
                out.u32(id.len() as u32);
                out.put(id);
                out.put(&[0; 20][id.len()..]);
                out.u32(if matches!(self, Self::MmapData(_)) { PROT_DATA } else { PROT_CODE });
                out.u32(2); // MAP_PRIVATE
                out.padded_text(&m.path);
                (MMAP2, USER | if id.is_empty() { 0 } else { MMAP_BUILD_ID })
            }
            Self::Comm { pid, tid, exec, comm } => {
                out.u32(*pid);
                out.u32(*tid);
                out.padded_text(comm);
                (COMM, switch(*exec))
            }
            Self::Lost { lost } => {
                out.u64(0); // id of the event
                out.u64(*lost);
                (LOST, 0)
            }
            Self::LostSamples { lost } => {
                out.u64(*lost);
                (LOST_SAMPLES, 0)
            }
            Self::Exit { pid, tid } => {
                [*pid, 0, *tid, 0].iter().for_each(|word| out.u32(*word));
                out.u64(0);
                (EXIT, 0)
            }
            Self::Fork { pid, ppid, tid, ptid, time, existed } => {
                [*pid, *ppid, *tid, *ptid].iter().for_each(|word| out.u32(*word));
                out.u64(*time);
                (FORK, switch(*existed))
            }
            Self::Sample(body) => {
                out.put(body);
                (SAMPLE, USER)
            }
            Self::Switch { out: leaves } => (SWITCH, switch(*leaves)),
            Self::Ksymbol { addr, len, gone, kind, name } => {
                out.u64(*addr);
                out.u32(*len);
                out.u16(*kind);
                out.u16((*gone).into());
                out.padded_text(name);
                (KSYMBOL, 0)
            }
            Self::Attr(body) => {
                out.put(body);
                (ATTR, 0)
            }
            Self::Feature { id, body } => {
                out.u64(*id);
                out.put(body);
                (FEATURE, 0)
            }
            Self::Compressed(body) => {
                out.put(body);
                (COMPRESSED, 0)
            }
            Self::Other(kind) => (*kind, 0),
            Self::Aux { offset, size, flags } => {
                [*offset, *size, *flags].iter().for_each(|word| out.u64(*word));
                (AUX, 0)
            }
            Self::ItraceStart { pid, tid } => {
                out.u32(*pid);
                out.u32(*tid);
                (ITRACE_START, 0)
            }
            Self::SwitchCpuWide { out: leaves, pid, tid } => {
                out.u32(*pid);
                out.u32(*tid);
                (SWITCH_CPU_WIDE, switch(*leaves))
            }
            Self::TextPoke { addr, old, new } => {
                out.u64(*addr);
                out.u16(old.len() as u16);
                out.u16(new.len() as u16);
                out.put(old);
                out.put(new);
                let used = 4 + old.len() + new.len();
                out.put(&[0; 8][..used.next_multiple_of(8) - used]);
                (TEXT_POKE, KERNEL)
            }
            Self::BuildId { pid, id, path } => {
                out.u32(*pid);
                let id = id.get(..20).unwrap_or(id);
                out.put(id);
                out.put(&[0; 20][id.len()..]);
                out.u32(id.len() as u32);
                out.padded_text(path);
                (BUILD_ID, BUILD_ID_SIZE | if path.starts_with('[') { KERNEL } else { USER })
            }
            Self::IdIndex(entries) => {
                out.u64(entries.len() as u64);
                entries.iter().flatten().for_each(|word| out.u64(*word));
                (ID_INDEX, 0)
            }
            Self::AuxtraceInfo { kind, words } => {
                out.u64((*kind).into());
                words.iter().for_each(|word| out.u64(*word));
                (AUXTRACE_INFO, 0)
            }
            Self::Auxtrace(a) => {
                [a.size, a.offset, a.reference].iter().for_each(|word| out.u64(*word));
                [a.idx, a.tid, a.cpu, 0].iter().for_each(|word| out.u32(*word));
                (AUXTRACE, 0)
            }
            Self::TimeConv(t) => {
                // Since Linux 5.8 with the counter's width, and a flag for a valid conversion.
                [t.shift, t.mult, t.zero, 0, u64::MAX, 1].iter().for_each(|word| out.u64(*word));
                (TIME_CONV, 0)
            }
        }
    }
}

fn encode_place(m: &Mapped, out: &mut Vec<u8>) {
    out.u32(m.pid);
    out.u32(m.tid);
    [m.start, m.len, m.pgoff].iter().for_each(|word| out.u64(*word));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_as_it_was_written() {
        let map = |kernel, path: &str| Mapped {
            pid: 1,
            tid: 2,
            start: 0x1000,
            len: 0x2000,
            pgoff: 0x3000,
            kernel,
            path: path.into(),
            ..Mapped::default()
        };
        let records = [
            Record::Mmap(map(true, "[kernel.kallsyms]_text")),
            Record::Mmap(Mapped { build_id: vec![7; 20], ..map(false, "/bin/true") }),
            Record::MmapData(map(true, "[data]")),
            Record::MmapData(map(false, "/dev/shm/x")),
            Record::GuestMmap(map(true, "[guest.kernel.kallsyms.77]_text")),
            Record::GuestMmap(map(false, "/bin/guest")),
            Record::Lost { lost: 3 },
            Record::LostSamples { lost: 4 },
            Record::Comm { pid: 1, tid: 2, exec: true, comm: "sh".into() },
            Record::Exit { pid: 1, tid: 2 },
            Record::Fork { pid: 1, ppid: 2, tid: 3, ptid: 4, time: 5, existed: false },
            Record::Fork { pid: 1, ppid: 2, tid: 1, ptid: 2, time: 0, existed: true },
            Record::Sample(b"12345678"),
            Record::Aux { offset: 1, size: 2, flags: 3 },
            Record::ItraceStart { pid: 1, tid: 2 },
            Record::Switch { out: true },
            Record::SwitchCpuWide { out: false, pid: 1, tid: 2 },
            Record::Ksymbol { addr: 1, len: 2, gone: true, kind: ksymbol::BPF, name: "bpf_prog_1".into() },
            Record::TextPoke { addr: 1, old: b"\x90", new: b"\xcc" },
            Record::Attr(b"12345678"),
            Record::BuildId { pid: 1, id: vec![9; 20], path: "/bin/true".into() },
            Record::IdIndex(vec![[1, 2, 3, 4]]),
            Record::AuxtraceInfo { kind: 1, words: vec![5, 6] },
            Record::Auxtrace(Auxtrace { size: 1, offset: 2, reference: 3, idx: 4, tid: 5, cpu: 6 }),
            Record::TimeConv(TimeConv { shift: 1, mult: 2, zero: 3 }),
            Record::Feature { id: 1, body: b"12345678" },
            Record::Compressed(b"12345678"),
            Record::Other(99),
        ];
        for record in records {
            let mut bytes = Vec::new();
            record.encode(0, &Trailer::default(), &mut bytes);
            let head = Head::parse(&bytes).unwrap();
            assert_eq!(usize::from(head.size), bytes.len(), "{record:?}");
            let read = parse(head, &bytes[Head::LEN..], 0).unwrap().0;
            assert_eq!(format!("{read:?}"), format!("{record:?}"));
        }
    }

    /// perf without the mend wrote sizes of 0, and of several records together.
    #[test]
    fn compressed_records_with_a_wrong_size_are_taken_whole() {
        let head = Head { kind: COMPRESSED2, misc: 0, size: 24 };
        for (size, data) in [(5_u64, "zstd!"), (0, "zstd!..."), (70_000, "zstd!..."), (u64::MAX, "zstd!...")]
        {
            let body = [size.to_le_bytes().as_slice(), b"zstd!..."].concat();
            let record = parse(head, &body, 0).map(|(record, _)| record);
            assert!(matches!(record, Some(Record::Compressed(found)) if found == data.as_bytes()), "{size}");
        }
    }
}
