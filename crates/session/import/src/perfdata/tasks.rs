// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sorts the records by time: the tasks that ran on each CPU, the processes' mappings, and changes in the kernel.

use std::collections::BTreeMap;
use std::rc::Rc;

use kprism_image::sideband::UNKNOWN_TASK;
use kprism_perfdata::attr::kind;
use kprism_perfdata::record::{ksymbol, sample};
use kprism_perfdata::{Auxtrace, Event, Fields, Header, Mapped, Record, Trailer};

use super::comms::{Comms, NOBODY, Name, Thread};
use crate::KernelName;

/// The task that no record tells ([`UNKNOWN_TASK`]).
pub(crate) const UNKNOWN: Thread = (UNKNOWN_TASK.0, UNKNOWN_TASK.1);

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
    pub maps: Vec<Timed>,
}

/// Time of a mapping, and the mapping, which children share.
pub(crate) type Timed = (u64, Rc<Mapped>);

/// Maximum of mappings that children inherit. A child for whose no room is left has only its own.
pub(super) const MAX_INHERITED: usize = 1 << 24;

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
    /// Kernel code that came or went during the recording, in order of time, which is perf's.
    pub symbols: Vec<KernelName>,
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
    /// Number of mappings that children inherited.
    pub inherited: usize,
    /// Number of processes for whose parents' mappings there was no room.
    pub bare: u64,
    /// The process of each thread.
    pub process_of: BTreeMap<u32, u32>,
    /// Number of records of a task that had exited, and of which nothing tells which it was.
    pub nameless: u64,
    /// True if a process has the page of the old system calls (`[vsyscall]`).
    pub vsyscall: bool,
    /// By CPU.
    pub dying: BTreeMap<u32, Dying>,
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

/// perf's name of the page of the old system calls, which every process has (arch/x86/entry/vsyscall).
pub(super) const VSYSCALL: &str = "[vsyscall]";

/// The modules of kernel code that comes and goes: that of BPF programs in kallsyms, and the kernel's own.
pub(super) const BPF: &str = "[bpf]";
const OWN: &str = "[kernel]";

/// Types of records up to which all are known: those of the kernel and those of perf, in Linux 6.17.
const KERNEL_TYPES: std::ops::RangeInclusive<u32> = 1..=22;
const OWN_TYPES: std::ops::RangeInclusive<u32> = 64..=86;

/// The threads of a CPU that have no id any more.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dying {
    /// The thread that ended here, and has not left the CPU yet.
    ends: Option<Thread>,
    /// The last that left the CPU without an id. It may come back once more, until its last instruction.
    left: Option<Thread>,
}

/// Builds the history from the records, which are sorted by time first. Records without a time are from before the
/// recording.
pub(crate) fn history<'a>(mut events: Vec<Event<'a>>, header: &Header) -> History<'a> {
    events.sort_by_key(|e| e.trailer.time.unwrap_or(0));
    let (mut h, mut comms) = (History::default(), Comms::default());
    // The current life of each process.
    let mut now: BTreeMap<u32, usize> = BTreeMap::new();
    for Event { record, trailer, attr } in events {
        let ns = trailer.time.unwrap_or(0);
        let task = trailer.tid.zip(trailer.pid).filter(|t| t.0 != NOBODY);
        if let Some((tid, pid)) = task
            && pid != NOBODY
        {
            h.process_of.insert(tid, pid);
        }
        match record {
            Record::Mmap(m) if m.path == VSYSCALL => h.vsyscall = true,
            Record::Mmap(m) if m.kernel => h.kernel_maps.push(m),
            Record::Mmap(m) => {
                let life = *now.entry(m.pid).or_insert_with(|| h.begin(m.pid, ns, Vec::new()));
                h.lives[life].maps.push((ns, Rc::new(m)));
            }
            Record::Comm { pid, tid, exec, .. } if tid != NOBODY => {
                comms.add(ns, record);
                h.process_of.insert(tid, pid);
                if exec {
                    now.insert(pid, h.begin(pid, ns, Vec::new()));
                }
            }
            Record::Fork { pid, ppid, tid, time, existed, .. } => {
                comms.add(ns, record);
                h.process_of.insert(tid, pid);
                if pid != ppid && existed {
                    now.entry(pid).or_insert_with(|| h.begin(pid, time, Vec::new()));
                } else if pid != ppid {
                    let maps = now.get(&ppid).map(|&life| h.inherit(life, MAX_INHERITED));
                    now.insert(pid, h.begin(pid, time, maps.unwrap_or_default()));
                }
            }
            Record::Exit { pid, tid } if tid != NOBODY => {
                if let Some(cpu) = trailer.cpu {
                    h.dying.entry(cpu).or_default().ends = Some((tid, pid));
                }
            }
            Record::ItraceStart { pid, tid } => {
                if let Some(cpu) = trailer.cpu {
                    let next = h.comes(cpu, (tid, pid));
                    h.turn(cpu, TaskSwitch { ns, prev: None, next });
                }
            }
            Record::SwitchCpuWide { out, pid, tid } => {
                h.cpu_wide = true;
                if let (Some(cpu), Some(own)) = (trailer.cpu, trailer.tid.zip(trailer.pid)) {
                    let (leaves, comes) = if out { (own, (tid, pid)) } else { ((tid, pid), own) };
                    h.switch(cpu, ns, leaves, comes);
                }
            }
            Record::Switch { out: false } => {
                if let (Some(cpu), Some(next)) = (trailer.cpu, task) {
                    let next = h.whole(next);
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
            Record::Ksymbol { addr, len, gone, kind, name } => {
                // A name without a length is that of its address.
                let end = addr.saturating_add(len.max(1).into());
                let module = if kind == ksymbol::BPF { BPF } else { OWN };
                h.symbols.push(KernelName { t: ns, start: addr, end, gone, name, module });
            }
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
    h.names = comms.names();
    h
}

impl History<'_> {
    /// For each of the kernel's names: true if its addresses had another name at another time of the recording.
    pub fn shared_addresses(&self) -> Vec<bool> {
        let mut shared = vec![false; self.symbols.len()];
        let mut by_start: Vec<usize> = (0..self.symbols.len()).collect();
        by_start.sort_by_key(|&number| self.symbols[number].start);
        // Runs of names each of which overlaps one before it.
        let (mut runs, mut reach): (Vec<Vec<usize>>, u64) = Default::default();
        for number in by_start {
            let KernelName { start, end, .. } = self.symbols[number];
            match runs.last_mut() {
                Some(run) if start < reach => run.push(number),
                _ => runs.push(vec![number]),
            }
            reach = reach.max(end);
        }
        let place = |number: usize| {
            let KernelName { start, end, name, .. } = &self.symbols[number];
            (start, end, name)
        };
        for run in runs.iter().filter(|run| run.iter().any(|&number| place(number) != place(run[0]))) {
            run.iter().for_each(|&number| shared[number] = true);
        }
        shared
    }

    fn begin(&mut self, pid: u32, from: u64, maps: Vec<Timed>) -> usize {
        self.lives.push(Life { pid, from, maps });
        self.lives.len() - 1
    }

    /// A parent's mappings for a child; none if children inherited `most` of them already.
    fn inherit(&mut self, parent: usize, most: usize) -> Vec<Timed> {
        let maps = &self.lives[parent].maps;
        if self.inherited + maps.len() > most {
            self.bare += 1;
            return Vec::new();
        }
        self.inherited += maps.len();
        maps.clone()
    }

    /// A switch of a whole CPU, by the task that leaves or by the one that comes.
    fn switch(&mut self, cpu: u32, ns: u64, leaves: Thread, comes: Thread) {
        let next = self.comes(cpu, comes);
        let last = self.turns.get(&cpu).and_then(|turns| turns.last()).map(|turn| turn.next);
        if last == Some(next) {
            return;
        }
        let dying = self.dying.entry(cpu).or_default();
        let ends = dying.ends.take();
        let prev = if leaves.0 == NOBODY {
            let thread = ends.or(last).filter(|thread| *thread != UNKNOWN);
            self.nameless += u64::from(thread.is_none());
            dying.left = thread;
            thread.unwrap_or(UNKNOWN)
        } else {
            self.whole(leaves)
        };
        self.turn(cpu, TaskSwitch { ns, prev: Some(prev), next });
    }

    /// The task that comes to a CPU, or runs there when tracing begins.
    fn comes(&mut self, cpu: u32, named: Thread) -> Thread {
        if named.0 != NOBODY {
            return self.whole(named);
        }
        let known = self.dying.get(&cpu).and_then(|dying| dying.ends.or(dying.left));
        self.nameless += u64::from(known.is_none());
        known.unwrap_or(UNKNOWN)
    }

    /// A thread whose process may have no id any more.
    fn whole(&self, (tid, pid): Thread) -> Thread {
        let known = || self.process_of.get(&tid).copied().unwrap_or(tid);
        (tid, if pid == NOBODY { known() } else { pid })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn event(ns: u64, task: (u32, u32), record: Record<'static>) -> Event<'static> {
        let (tid, pid) = task;
        let trailer =
            Trailer { pid: Some(pid), tid: Some(tid), time: Some(ns), cpu: Some(0), ..Trailer::default() };
        Event { record, trailer, attr: None }
    }

    fn out(ns: u64, own: (u32, u32), next: (u32, u32)) -> Event<'static> {
        event(ns, own, Record::SwitchCpuWide { out: true, pid: next.1, tid: next.0 })
    }

    fn into(ns: u64, own: (u32, u32), prev: (u32, u32)) -> Event<'static> {
        event(ns, own, Record::SwitchCpuWide { out: false, pid: prev.1, tid: prev.0 })
    }

    fn turns(events: Vec<Event<'static>>) -> (Vec<(u64, Option<Thread>, Thread)>, u64) {
        let h = history(events, &Header::default());
        let turns = h.turns.get(&0).map_or(&[][..], Vec::as_slice);
        (turns.iter().map(|t| (t.ns, t.prev, t.next)).collect(), h.nameless)
    }

    const DEAD: (u32, u32) = (NOBODY, NOBODY);
    const IDLE: (u32, u32) = (0, 0);

    #[test]
    fn a_thread_that_has_exited_is_the_one_that_ran() {
        let (thread, other) = ((8, 7), (9, 9));
        // A thread comes, ends, and leaves without an id; both sides of each switch are told.
        let both = |dead| {
            vec![
                out(10, IDLE, thread),
                into(11, thread, IDLE),
                event(15, thread, Record::Exit { pid: 7, tid: 8 }),
                out(20, dead, other),
                into(21, other, dead),
                out(30, other, IDLE),
                into(31, IDLE, other),
            ]
        };
        let expected = vec![(10, Some(IDLE), thread), (20, Some(thread), other), (30, Some(other), IDLE)];
        assert_eq!(turns(both(DEAD)), (expected.clone(), 0));
        // Some kernels still have the process's number.
        assert_eq!(turns(both((NOBODY, 7))), (expected.clone(), 0));
        // One side of each switch alone tells the same.
        let of_side = |side: bool| {
            let is = |event: &Event<'_>| match event.record {
                Record::SwitchCpuWide { out, .. } => out == side,
                _ => true,
            };
            let (turns, nameless) = turns(both(DEAD).into_iter().filter(is).collect());
            (turns.into_iter().map(|t| (t.1, t.2)).collect::<Vec<_>>(), nameless)
        };
        let tasks: Vec<_> = expected.iter().map(|t| (t.1, t.2)).collect();
        assert_eq!((of_side(true), of_side(false)), ((tasks.clone(), 0), (tasks, 0)));
    }

    #[test]
    fn a_dead_thread_may_be_preempted_and_come_back() {
        let (thread, other) = ((8, 7), (9, 9));
        let events = vec![
            event(5, thread, Record::Exit { pid: 7, tid: 8 }),
            out(10, DEAD, other),
            out(20, other, DEAD),
            out(30, DEAD, IDLE),
        ];
        let expected = vec![(10, Some(thread), other), (20, Some(other), thread), (30, Some(thread), IDLE)];
        assert_eq!(turns(events), (expected, 0));
    }

    #[test]
    fn a_dead_thread_of_which_nothing_is_known_is_counted_and_is_not_the_idle_task() {
        let other = (9, 9);
        assert_eq!(turns(vec![out(10, DEAD, other)]), (vec![(10, Some(UNKNOWN), other)], 1));
        // It has perf's -1, which no task has.
        assert_eq!(UNKNOWN, (NOBODY, NOBODY));
        // 0 is the idle task, and no unknown one.
        assert_eq!(turns(vec![out(10, IDLE, other)]), (vec![(10, Some(IDLE), other)], 0));
    }

    #[test]
    fn a_task_that_was_there_before_inherits_nothing() {
        let mapped = |pid, start| {
            let m = Mapped { pid, tid: pid, start, len: 0x1000, path: "/x".into(), ..Mapped::default() };
            event(0, IDLE, Record::Mmap(m))
        };
        let fork = |pid, time| Record::Fork { pid, ppid: 1, tid: pid, ptid: 1, time, existed: time == 0 };
        let h = history(
            vec![
                mapped(1, 0x1000),
                event(0, IDLE, fork(2, 0)),
                mapped(2, 0x5000),
                event(9, (1, 1), fork(3, 9)),
            ],
            &Header::default(),
        );
        let maps = |pid: u32| -> Vec<u64> {
            h.lives.iter().filter(|l| l.pid == pid).flat_map(|l| l.maps.iter().map(|m| m.1.start)).collect()
        };
        assert_eq!((maps(1), maps(2), maps(3)), (vec![0x1000], vec![0x5000], vec![0x1000]));
    }

    #[test]
    fn children_without_room_for_their_parents_mappings_are_counted() {
        let mut h = History::default();
        let maps = (0..3).map(|start| (1, Rc::new(Mapped { start, ..Mapped::default() }))).collect();
        let parent = h.begin(1, 0, maps);
        let inherited = [(); 3].map(|()| h.inherit(parent, 6).len());
        assert_eq!((inherited, h.bare), ([3, 3, 0], 1));
        let nothing = h.begin(2, 0, Vec::new());
        assert_eq!((h.inherit(nothing, 6).len(), h.bare), (0, 1));
    }

    #[test]
    fn names_of_kernel_code_that_share_addresses_are_counted() {
        let symbol = |addr, len, name: &str| {
            let kind = if name == "t" { ksymbol::OUT_OF_LINE } else { ksymbol::BPF };
            event(1, IDLE, Record::Ksymbol { addr, len, gone: false, kind, name: name.into() })
        };
        let shared = |events| history(events, &Header::default()).shared_addresses();
        let apart = vec![symbol(100, 10, "a"), symbol(110, 10, "b"), symbol(100, 10, "a")];
        assert_eq!(shared(apart), [false; 3]);
        assert_eq!(
            shared(vec![symbol(100, 10, "a"), symbol(50, 10, "c"), symbol(109, 10, "b")]),
            [true, false, true]
        );
        let several = vec![symbol(9, 100, "a"), symbol(10, 1, "t"), symbol(50, 9, "c"), symbol(109, 1, "d")];
        assert_eq!(shared(several), [true, true, true, false]);
        let h = history(vec![symbol(100, 10, "a"), symbol(200, 10, "t")], &Header::default());
        let modules: Vec<&str> = h.symbols.iter().map(|symbol| symbol.module).collect();
        assert_eq!(modules, [BPF, OWN]);
    }
}
