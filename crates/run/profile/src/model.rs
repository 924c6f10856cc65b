// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types of a [`Profile`], the result of an analysis of calls.
//!
//! There is no input; the analyses fill these types. The output is a [`Profile`], which the store writes as tables and
//! every view reads. The types have almost no behaviour, so that a stored run can be loaded and shown without decoding
//! it again.
//!
//! Indices (`u32`) refer to the vectors of the same [`Profile`]. Times are integer nanoseconds of the trace clock that
//! the run's manifest names. Instruction counts are retired instructions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ending::{Ending, Unended};

/// The parent of a root node.
pub const NO_PARENT: u32 = u32::MAX;

/// The complete result of the analysis of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Functions seen, each once.
    pub funcs: Vec<Func>,
    /// Tasks seen, each once per (pid, tgid).
    pub tasks: Vec<Task>,
    /// The calling-context trees of all tasks in one vector; a parent comes before its children.
    pub nodes: Vec<Node>,
    /// System calls in order of their start on each CPU, merged by time.
    pub syscalls: Vec<Syscall>,
    /// Single calls that lasted longer than the recording threshold, for timelines.
    pub slices: Vec<Slice>,
    /// Kinds of intervals between markers: interrupts off, preemption off, and those that the user requested.
    pub deltas: Vec<Delta>,
    /// Executions of the instructions that the user requested, by function.
    pub counts: Vec<Count>,
    /// Places where the stream could not be decoded.
    pub errors: Vec<FlowError>,
    /// Counts taken by the decoder, per CPU.
    pub totals: Totals,
}

impl Profile {
    /// For each function, the instructions retired in itself, in all tasks and contexts.
    pub fn self_instructions(&self) -> Vec<u64> {
        let mut own = vec![0; self.funcs.len()];
        for node in self.nodes.iter().filter(|node| node.parent != NO_PARENT) {
            if let Some(own) = own.get_mut(node.func as usize) {
                *own += node.insns;
            }
        }
        own
    }

    /// Instructions that are in no function of [`Profile::self_instructions`]: no call was known in which they ran.
    pub fn insns_in_no_function(&self) -> u64 {
        self.nodes.iter().filter(|node| node.parent == NO_PARENT).map(|node| node.insns).sum()
    }

    /// Number of functions that were entered. Of durations, one whose calls all have no end counts as none: it has a node
    /// without calls, and no duration.
    pub fn called_functions(&self) -> usize {
        let mut called = vec![false; self.funcs.len()];
        for node in self.nodes.iter().filter(|node| node.parent != NO_PARENT && node.calls > 0) {
            if let Some(called) = called.get_mut(node.func as usize) {
                *called = true;
            }
        }
        called.into_iter().filter(|called| *called).count()
    }

    /// For each node, its task; `None` below roots that belong to no task.
    pub fn task_of_nodes(&self) -> Vec<Option<u32>> {
        let mut task_of = vec![None; self.nodes.len()];
        for (task, t) in self.tasks.iter().enumerate() {
            if let Some(slot) = task_of.get_mut(t.root as usize) {
                *slot = Some(task as u32);
            }
        }
        for (i, node) in self.nodes.iter().enumerate() {
            if node.parent != NO_PARENT {
                task_of[i] = task_of[node.parent as usize];
            }
        }
        task_of
    }
}

/// A function, named by the symbols of its module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Func {
    /// Symbol name, or `0x…` if the module has no symbol for the address. Untrusted, because it comes from binaries.
    pub name: String,
    /// `[kernel]`, `[name]` for a kernel module, `[vdso]`, or the path of a mapped file.
    pub module: String,
    /// Virtual address of the first instruction at run time (not an offset in the file).
    pub start: u64,
    /// True if the function runs in ring 0.
    pub kernel: bool,
}

impl Func {
    /// True of the row that stands for all kernel code without a name.
    pub fn is_nameless_kernel_code(&self) -> bool {
        self.kernel && self.name == "[unknown]"
    }
}

/// A task (thread) of the traced machine, which may be a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Thread ID.
    pub pid: u32,
    /// Thread group (process) ID.
    pub tgid: u32,
    /// Last name seen.
    pub comm: String,
    /// Index of the root of the task's tree in [`Profile::nodes`].
    pub root: u32,
}

/// A calling context: one path of functions from a task's root. The counts cover this context only, without its
/// children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Index of the caller's node, which is less than this node's index; [`NO_PARENT`] at roots.
    pub parent: u32,
    /// Index into [`Profile::funcs`]; meaningless at roots.
    pub func: u32,
    /// Number of times the context was entered.
    pub calls: u64,
    /// Instructions retired in the context itself.
    pub insns: u64,
    /// Time on the CPU spent in the context itself, in ns.
    pub ns: u64,
    /// The kind of transfer that entered the context.
    pub kind: FrameKind,
}

/// The kind of transfer that entered a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// The root of a task, which has no function.
    Root,
    /// A call instruction.
    #[default]
    Call,
    /// A jump into another function (tail call).
    Tail,
    /// SYSCALL, SYSENTER or INT from user mode to the kernel's system call entry.
    Syscall,
    /// An asynchronous interrupt.
    Interrupt,
    /// A fault, trap or abort of the interrupted instruction.
    Exception,
    /// A user signal handler.
    Signal,
    /// Execution that was already in progress when the trace, or decoding after an error, began.
    Resumed,
}

/// One system call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syscall {
    /// Index into [`Profile::tasks`].
    pub task: u32,
    /// CPU on which the call started.
    pub cpu: u16,
    /// Index of the call's entry function (such as `__x64_sys_*`) in [`Profile::funcs`].
    pub func: u32,
    /// Time at which the kernel was entered, in ns.
    pub start_ns: u64,
    /// Time from entry to return to user mode, in ns.
    pub wall_ns: u64,
    /// The part of `wall_ns` during which the task was on a CPU.
    pub on_cpu_ns: u64,
    /// Kernel instructions retired by this task during the call.
    pub insns: u64,
    /// Index of the call's calling context in [`Profile::nodes`].
    pub node: u32,
    /// Division of the call's time.
    pub parts: Parts,
}

/// The parts of a system call's time apart from its body and the time off the CPU. No time is in two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// From the system call instruction to the call of the body (`__x64_sys_*`).
    pub entry: Part,
    /// Interrupts during the call, with everything that they executed on this task's stack. Exceptions count as part of
    /// the body.
    pub interrupts: Part,
    /// From the end of the body to user code: pending work, signals, and the return path.
    pub exit: Part,
}

/// Time on the CPU and number of instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Nanoseconds on the CPU.
    pub ns: u64,
    /// Instructions retired.
    pub insns: u64,
}

/// Intervals from one marker to another: delta profiling (paper 1, algorithm 1).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Name of the interval: `irqs`, or a name that the user gave.
    pub name: String,
    /// Pattern of the marker at which intervals begin.
    pub from: String,
    /// Pattern of the marker at which intervals end.
    pub to: String,
    /// Scope of the instructions and time that count.
    pub scope: Scope,
    /// Durations, in ns.
    pub ns: Histogram,
    /// Number of instructions after the first marker, up to and including the second.
    pub insns: Histogram,
    /// The longest intervals by time and by instructions, ordered by descending time.
    pub longest: Vec<Interval>,
    /// All intervals, if the decode was asked to keep them. `None` if only `longest` is known, as in a run's tables.
    #[serde(skip)]
    pub all: Option<AllIntervals>,
    /// Contexts in which intervals began, ordered by their total time. Only the first ones are listed.
    pub sites: Vec<Site>,
    /// Number of beginnings that followed another beginning. The later beginning was used.
    pub restarted: u64,
    /// Number of intervals cut off by a loss of data or the end of the trace.
    pub unfinished: u64,
    /// How often a CPU halted in an interval of a kind that leaves idle out ([`leaves_idle_out`]). One ends there, and another one
    /// begins with what the CPU runs next; the kernel's own tracers do so too (`stop_critical_timings`). `None` if idle is in them:
    /// the kind is another one, or the table is of an older version.
    pub halts: Option<u64>,
}

/// Whether intervals between these two markers leave out what a CPU waits for work: those from interrupts or preemption off to on, on one
/// CPU. A CPU that waits holds nobody up.
#[must_use]
pub fn leaves_idle_out(from: &str, to: &str, scope: Scope) -> bool {
    let from_off_to_on = matches!(
        (from, to),
        ("irqs-off" | "superCLI", "irqs-on" | "superSTI") | ("preempt-off", "preempt-on")
    );
    from_off_to_on && scope == Scope::Cpu
}

impl Delta {
    /// True if an older version measured it, and had idle in it.
    #[must_use]
    pub fn has_idle(&self) -> bool {
        self.halts.is_none() && leaves_idle_out(&self.from, &self.to, self.scope)
    }

    /// All intervals, as far as they are known: those that were kept, or the longest if there are no others.
    #[must_use]
    pub fn known(&self) -> Option<AllIntervals> {
        let complete = self.longest.len() as u64 >= self.ns.count;
        let from_longest = || {
            let mut intervals = self.longest.clone();
            intervals.sort_by_key(|i| (i.start_ns, i.cpu));
            AllIntervals { intervals, beyond: 0 }
        };
        self.all.clone().or_else(|| complete.then(from_longest))
    }
}

/// All intervals of one kind, as far as there was room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllIntervals {
    /// The intervals, ordered by start time and CPU.
    pub intervals: Vec<Interval>,
    /// Number of intervals that were measured after the list was full, and are not in it.
    pub beyond: u64,
}

/// The scope in which an interval is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// A CPU, whatever runs on it.
    #[default]
    Cpu,
    /// A task, on whatever CPU it runs. The instructions are the task's own; the time includes its waiting.
    Task,
}

/// Numbers of values by bin. Bins are exact below 256 and at most 1/128 of their value wide above.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Bins that are not empty, in ascending order.
    pub bins: Vec<Bin>,
    /// Number of values.
    pub count: u64,
    /// Sum of the values, limited to 64 bits.
    pub sum: u64,
    /// Smallest value; 0 without values.
    pub min: u64,
    /// Largest value; 0 without values.
    pub max: u64,
}

/// A bin of the values from `low` to less than `high`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Smallest value of the bin.
    pub low: u64,
    /// Largest value of the bin plus 1.
    pub high: u64,
    /// Number of values.
    pub count: u64,
}

/// One interval between markers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Task that ran when the interval ended: index into [`Profile::tasks`].
    pub task: u32,
    /// CPU on which the interval ended.
    pub cpu: u16,
    /// Start time, in ns.
    pub start_ns: u64,
    /// Duration, in ns.
    pub ns: u64,
    /// Number of instructions.
    pub insns: u64,
    /// Address of the instruction at which the interval began.
    pub from_ip: u64,
    /// Address of the instruction at which the interval ended.
    pub to_ip: u64,
    /// Calling context in which the interval began: index into [`Profile::nodes`].
    pub from_node: u32,
    /// Calling context in which the interval ended.
    pub to_node: u32,
}

/// All intervals that began in one calling context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Index of the context in [`Profile::nodes`].
    pub node: u32,
    /// Number of intervals.
    pub count: u64,
    /// Total time of the intervals, in ns.
    pub ns: u64,
    /// Total number of instructions of the intervals.
    pub insns: u64,
    /// Duration of the longest interval, in ns.
    pub max_ns: u64,
}

/// Number of times that an instruction pattern ran in a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The pattern, as the user wrote it.
    pub pattern: String,
    /// Index into [`Profile::funcs`].
    pub func: u32,
    /// Number of executions.
    pub count: u64,
}

/// One call on the timeline, or a part of one: a program may leave the stack that a call is on ([`Ending::Left`]). Where it comes
/// back to the call, another slice begins, of the kind [`FrameKind::Resumed`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Index into [`Profile::tasks`].
    pub task: u32,
    /// CPU on which the call started.
    pub cpu: u16,
    /// Index into [`Profile::funcs`].
    pub func: u32,
    /// Number of frames below the call on the task's stack; 0 is the outermost.
    pub depth: u16,
    /// Time of entry, in ns.
    pub start_ns: u64,
    /// Time of exit, in ns; of a call that did not end, the time at which it was off its stack, or the recording over.
    pub end_ns: u64,
    /// Instructions retired by this task from entry to exit, including callees.
    pub insns: u64,
    /// The kind of transfer that entered the call.
    pub kind: FrameKind,
    /// Whether `end_ns` is the call's end. `None` in tables that an older version wrote: they do not tell it.
    #[serde(default)]
    pub ending: Option<Ending>,
}

impl Slice {
    /// The reason why its end is not that of the call, for people; `None` if the call ended there.
    pub fn unended(&self) -> Option<&'static str> {
        match self.ending {
            Some(ending) => ending.remark(),
            None => Some("an older version did not record whether it ended"),
        }
    }
}

/// A place where the stream could not be decoded. Decoding continued at the next possible place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowError {
    /// CPU of the stream.
    pub cpu: u16,
    /// Byte offset in that stream.
    pub offset: u64,
    /// Last known time before the error, in ns.
    pub ns: u64,
    /// Last known instruction address before the error.
    pub ip: u64,
    /// Description of the error, for people.
    pub kind: String,
}

/// Counts taken by the decoder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// One entry per CPU stream, by CPU number.
    pub per_cpu: Vec<CpuTotals>,
    /// Packets that state events beside the flow, by kind: `ptwrite`, `cbr` and so on. The run's tables do not keep them,
    /// but its account does.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packet_events: BTreeMap<String, u64>,
    /// What the decoder guessed of tasks and stacks, by unit in the plural. Kept as the events are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub guessed: BTreeMap<String, u64>,
    /// Calls that went off their stack without an end. Kept as the events are.
    #[serde(default)]
    pub unended: Unended,
}

/// Counts taken by the decoder on one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTotals {
    /// Instructions retired.
    pub instructions: u64,
    /// Conditional and indirect branches taken from the stream.
    pub branches: u64,
    /// Decode errors, not including overflows.
    pub errors: u64,
    /// Number of times that the processor dropped packets because its buffer was full (OVF packets).
    #[serde(default)]
    pub overflows: u64,
    /// Bytes of the stream skipped while searching for a place to continue.
    pub lost_bytes: u64,
    /// First time in the stream, in ns.
    pub first_ns: u64,
    /// Last time in the stream, in ns.
    pub last_ns: u64,
}

impl Totals {
    /// Number of instructions on all CPUs.
    pub fn instructions(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.instructions).sum()
    }

    /// Number of decode errors on all CPUs.
    pub fn errors(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.errors).sum()
    }

    /// Number of overflows on all CPUs.
    pub fn overflows(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.overflows).sum()
    }

    /// Number of bytes lost on all CPUs.
    pub fn lost_bytes(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.lost_bytes).sum()
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_counts_once_and_only_if_it_was_entered() {
        let node = |parent, func, calls| Node { parent, func, calls, insns: 0, ns: 0, kind: FrameKind::Call };
        let profile = Profile {
            funcs: vec![Func::default(); 3],
            // A root, a function twice, one whose calls have no end; the third has no node.
            nodes: vec![node(NO_PARENT, 2, 1), node(0, 0, 2), node(1, 0, 1), node(0, 1, 0)],
            ..Profile::default()
        };
        assert_eq!(profile.called_functions(), 1);
    }
}
