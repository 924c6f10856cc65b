// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sorts the records by time: the tasks that ran on each CPU, the processes' mappings, and changes in the kernel.

use std::collections::BTreeMap;

use kprism_perfdata::attr::kind;
use kprism_perfdata::record::sample;
use kprism_perfdata::{Auxtrace, Event, Fields, Header, Mapped, Record, Trailer};

/// A thread: (thread id, process id).
pub(crate) type Thread = (u32, u32);

/// A task switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskSwitch {
    /// perf's time, ns.
    pub ns: u64,
    pub prev: Option<Thread>,
    pub next: Thread,
}

/// One program in one process: from `execve` (or `fork`) to the next one or to the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    pub pid: u32,
    pub from: u64,
    /// (time, mapping) in order of time; those of a parent come first.
    pub maps: Vec<(u64, Mapped)>,
}

/// A name given to a thread.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub ns: u64,
    pub thread: Thread,
    pub comm: String,
}

/// All events of the recording.
#[derive(Debug, Default)]
pub(crate) struct History<'a> {
    /// Task switches by CPU, in order of time.
    pub turns: BTreeMap<u32, Vec<TaskSwitch>>,
    /// True if switches were recorded for whole CPUs, not only for some tasks.
    pub cpu_wide: bool,
    pub lives: Vec<Life>,
    pub names: Vec<Name>,
    pub kernel_maps: Vec<Mapped>,
    /// Changes of code: (time, address, old, new).
    pub pokes: Vec<(u64, u64, &'a [u8], &'a [u8])>,
    /// Code that appeared during the recording: (address, length, name).
    pub symbols: Vec<(u64, u32, String)>,
    /// Number of records that perf lost.
    pub lost: u64,
    /// AUX records with flags: losses, overwrites, collisions.
    pub gaps: Vec<Gap>,
    /// Number of mappings of a virtual machine's own kernel and programs.
    pub guest_maps: u64,
    /// Trace data in samples, in order of time.
    pub aux_samples: Vec<(Auxtrace, &'a [u8])>,
    /// Types of records that are not known here, with their numbers.
    pub unknown: BTreeMap<u32, u64>,
    /// The process of each thread.
    pub process_of: BTreeMap<u32, u32>,
}

/// Trace data with flags, of a CPU's buffer or a thread's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    pub cpu: Option<u32>,
    pub tid: Option<u32>,
    /// Offset of their end in the stream.
    pub offset: u64,
    /// Bits of [`kprism_perfdata::record::aux`].
    pub flags: u64,
}

/// Types of records up to which all are known: those of the kernel and those of perf, in Linux 6.17.
const KERNEL_TYPES: std::ops::RangeInclusive<u32> = 1..=22;
const OWN_TYPES: std::ops::RangeInclusive<u32> = 64..=86;

/// The id of kernel threads and the idle task in records.
const NOBODY: u32 = u32::MAX;

/// Builds the history from the records, which are sorted by time first. Records without a time are from before the
/// recording.
pub(crate) fn history<'a>(mut events: Vec<Event<'a>>, header: &Header) -> History<'a> {
    events.sort_by_key(|e| e.trailer.time.unwrap_or(0));
    let mut h = History::default();
    // The current life of each process.
    let mut now: BTreeMap<u32, usize> = BTreeMap::new();
    for Event { record, trailer, attr } in events {
        let ns = trailer.time.unwrap_or(0);
        let task = trailer.tid.zip(trailer.pid).filter(|t| t.0 != NOBODY);
        if let Some((tid, pid)) = task {
            h.process_of.insert(tid, pid);
        }
        match record {
            Record::Mmap(m) if m.kernel => h.kernel_maps.push(m),
            Record::Mmap(m) => {
                let life = *now.entry(m.pid).or_insert_with(|| h.begin(m.pid, ns, Vec::new()));
                h.lives[life].maps.push((ns, m));
            }
            Record::Comm { pid, tid, exec, comm } => {
                h.process_of.insert(tid, pid);
                h.names.push(Name { ns, thread: (tid, pid), comm });
                if exec {
                    now.insert(pid, h.begin(pid, ns, Vec::new()));
                }
            }
            Record::Fork { pid, ppid, tid, ptid, time } => {
                h.process_of.insert(tid, pid);
                if pid != ppid {
                    let parent = now.get(&ppid).map(|&life| h.lives[life].maps.clone());
                    now.insert(pid, h.begin(pid, time, parent.unwrap_or_default()));
                }
                let name = h.names.iter().rev().find(|n| n.thread.0 == ptid).map(|n| n.comm.clone());
                h.names.extend(name.map(|comm| Name { ns, thread: (tid, pid), comm }));
            }
            Record::ItraceStart { pid, tid } => {
                if let Some(cpu) = trailer.cpu {
                    h.turn(cpu, TaskSwitch { ns, prev: None, next: (tid, pid) });
                }
            }
            Record::SwitchCpuWide { out, pid, tid } => {
                h.cpu_wide = true;
                if let (Some(cpu), Some(task)) = (trailer.cpu, task) {
                    let other = (if tid == NOBODY { 0 } else { tid }, if pid == NOBODY { 0 } else { pid });
                    let (prev, next) = if out { (task, other) } else { (other, task) };
                    h.turn(cpu, TaskSwitch { ns, prev: Some(prev), next });
                }
            }
            Record::Switch { out: false } => {
                if let (Some(cpu), Some(next)) = (trailer.cpu, task) {
                    h.turn(cpu, TaskSwitch { ns, prev: None, next });
                }
            }
            Record::Sample(body) => {
                if let Some(bytes) = aux_of(body, attr, header) {
                    let (cpu, tid) = (trailer.cpu.unwrap_or(NOBODY), trailer.tid.unwrap_or(NOBODY));
                    let size = bytes.len() as u64;
                    h.aux_samples.push((Auxtrace { size, cpu, tid, ..Auxtrace::default() }, bytes));
                }
                if let Some((cpu, turn)) = sched_switch(body, attr.unwrap_or(0), header, &h.process_of) {
                    h.cpu_wide = true;
                    h.turn(cpu, turn);
                }
            }
            Record::Ksymbol { addr, len, gone: false, name } => h.symbols.push((addr, len, name)),
            Record::TextPoke { addr, old, new } => h.pokes.push((ns, addr, old, new)),
            Record::Lost { lost } => h.lost = h.lost.saturating_add(lost),
            Record::Aux { offset, size, flags } if flags != 0 => {
                let (Trailer { cpu, tid, .. }, offset) = (trailer, offset.saturating_add(size));
                h.gaps.push(Gap { cpu, tid, offset, flags });
            }
            Record::GuestMmap(_) => h.guest_maps += 1,
            Record::Other(kind) if !KERNEL_TYPES.contains(&kind) && !OWN_TYPES.contains(&kind) => {
                *h.unknown.entry(kind).or_default() += 1;
            }
            _ => {}
        }
    }
    h
}

impl History<'_> {
    fn begin(&mut self, pid: u32, from: u64, maps: Vec<(u64, Mapped)>) -> usize {
        self.lives.push(Life { pid, from, maps });
        self.lives.len() - 1
    }

    /// Adds a turn unless it is known. A switch is recorded when a task leaves, when the next one comes, and possibly
    /// by sched_switch as well. The first record counts, because it comes before the switch itself.
    fn turn(&mut self, cpu: u32, turn: TaskSwitch) {
        let turns = self.turns.entry(cpu).or_default();
        if turns.last().is_none_or(|last| last.next != turn.next) {
            turns.push(turn);
        }
    }
}

/// Trace data in a sample, if its event takes any.
fn aux_of<'a>(body: &'a [u8], attr: Option<usize>, header: &Header<'_>) -> Option<&'a [u8]> {
    let attr = header.attrs.get(attr.unwrap_or(0)).filter(|attr| attr.sample_type & sample::AUX != 0)?;
    super::sample::parse(attr, body)?.aux.filter(|bytes| !bytes.is_empty())
}

/// Reads a sample of the tracepoint sched:sched_switch. Its fields have been at the same offsets since Linux 4.14
/// (`prev_comm`, 16 bytes, at 8; `prev_pid` 24, `next_comm` 40, `next_pid` 56).
fn sched_switch(
    body: &[u8],
    attr: usize,
    header: &Header,
    process_of: &BTreeMap<u32, u32>,
) -> Option<(u32, TaskSwitch)> {
    let attr = header.attrs.get(attr).filter(|a| a.kind == kind::TRACEPOINT)?;
    let named =
        |id: &u64| header.names.iter().any(|(known, name)| known == id && name == "sched:sched_switch");
    if !attr.ids.iter().any(named) {
        return None;
    }
    let has = |bit| attr.sample_type & bit != 0;
    let mut f = Fields(body);
    let trailer = Trailer::of_sample(attr.sample_type, &mut f)?;
    if has(sample::PERIOD) {
        f.u64()?;
    }
    if has(sample::READ) || !has(sample::RAW) {
        return None;
    }
    if has(sample::CALLCHAIN) {
        let count = usize::try_from(f.u64()?).ok()?;
        f.take(count.checked_mul(8)?)?;
    }
    let len = f.u32()?;
    let raw = f.take(len as usize)?;
    let pid_at = |at: usize| Fields(raw.get(at..)?).u32();
    let thread = |tid| (tid, process_of.get(&tid).copied().unwrap_or(tid));
    let turn = TaskSwitch { ns: trailer.time?, prev: Some(thread(pid_at(24)?)), next: thread(pid_at(56)?) };
    Some((trailer.cpu?, turn))
}
