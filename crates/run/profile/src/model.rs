// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of the flow instrument as plain data.
//!
//! What comes in: nothing; these are the types that the analyses fill. What goes out: a [`Profile`],
//! which the store writes as tables and every view reads. Kept free of behaviour so that a stored run
//! can be loaded and shown without decoding again.
//!
//! Indices (`u32`) refer to the vectors of the same [`Profile`]. Times are integer nanoseconds of the
//! trace clock named in the run's manifest. Instruction counts are retired instructions.

use serde::{Deserialize, Serialize};

/// The parent of a root node.
pub const NO_PARENT: u32 = u32::MAX;

/// Everything the flow instrument learned of one run.
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
    /// Intervals between markers: interrupts off, preemption off, and those asked for.
    pub deltas: Vec<Delta>,
    /// Executions of the instructions asked for, by function.
    pub counts: Vec<Count>,
    /// Places where the stream could not be decoded.
    pub errors: Vec<FlowError>,
    /// What the decoder counted, per CPU.
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

/// A function, resolved by the symbols of its module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Func {
    /// Symbol name, or `0x…` where the module has no symbol for the address. Untrusted: comes from binaries.
    pub name: String,
    /// `[kernel]`, `[name]` for a kernel module, `[vdso]`, or the path of a mapped file.
    pub module: String,
    /// Address of the first instruction as it ran (virtual, not file-relative).
    pub start: u64,
    /// Runs in ring 0.
    pub kernel: bool,
}

/// A task (thread) of the guest or traced machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Thread id.
    pub pid: u32,
    /// Thread group (process) id.
    pub tgid: u32,
    /// The last name seen.
    pub comm: String,
    /// Index of the root of its tree in [`Profile::nodes`].
    pub root: u32,
}

/// A calling context: one path of functions from a task's root. Counts are of this context alone,
/// without its children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Index of the caller's node, less than the own index; [`NO_PARENT`] at roots.
    pub parent: u32,
    /// Index into [`Profile::funcs`]; without meaning at roots.
    pub func: u32,
    /// How often the context was entered.
    pub calls: u64,
    /// Instructions retired in it (self).
    pub insns: u64,
    /// On-CPU nanoseconds spent in it (self).
    pub ns: u64,
    /// How it was entered.
    pub kind: FrameKind,
}

/// How a frame was entered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// The root of a task: no function.
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
    /// Execution that was already under way when the trace or the decode (again) began.
    Resumed,
}

/// One system call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syscall {
    /// Index into [`Profile::tasks`].
    pub task: u32,
    /// CPU on which it started.
    pub cpu: u16,
    /// Index of its entry function (`__x64_sys_*` and the like) in [`Profile::funcs`].
    pub func: u32,
    /// Time of the kernel's entry.
    pub start_ns: u64,
    /// From entry to return to user mode.
    pub wall_ns: u64,
    /// The part of `wall_ns` that the task was on a CPU.
    pub on_cpu_ns: u64,
    /// Kernel instructions retired by this task in it.
    pub insns: u64,
    /// Index of its calling context in [`Profile::nodes`].
    pub node: u32,
    /// Where its time went.
    pub parts: Parts,
}

/// What a system call's time was spent on, beside its body and being off the CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// From the system call instruction to the call of the body (`__x64_sys_*`).
    pub entry: Part,
    /// Interrupts meanwhile, with all that they did on this task's stack. Exceptions are the body's own doing.
    pub interrupts: Part,
    /// From the body's end to user code: pending work, signals, the way out.
    pub exit: Part,
}

/// Time on the CPU, and instructions.
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
    /// What it is called: `irqs`, or what the user wrote.
    pub name: String,
    /// Where intervals begin, as a pattern.
    pub from: String,
    /// Where they end.
    pub to: String,
    /// Whose instructions and time count.
    pub scope: Scope,
    /// Durations in ns.
    pub ns: Histogram,
    /// Instructions after the first marker, up to and with the second.
    pub insns: Histogram,
    /// The longest intervals, by time and by instructions, longest time first.
    pub longest: Vec<Interval>,
    /// Where intervals began, by the total of their time; the rest is not listed.
    pub sites: Vec<Site>,
    /// Beginnings that followed a beginning: the later one counted.
    pub restarted: u64,
    /// Intervals cut off by a loss of data or the end of the trace.
    pub unfinished: u64,
}

/// Whose clock an interval is measured with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// A CPU, whatever runs on it.
    #[default]
    Cpu,
    /// A task, wherever it runs: instructions are its own, time goes on while it waits.
    Task,
}

/// Counts of values in bins that are exact below 256 and 1/128 of their value wide above.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Bins that are not empty, in order.
    pub bins: Vec<Bin>,
    /// Number of values.
    pub count: u64,
    /// Their sum, as far as 64 bits hold it.
    pub sum: u64,
    /// The smallest; 0 without values.
    pub min: u64,
    /// The largest.
    pub max: u64,
}

/// Values from `low` up to, not with, `high`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Smallest value.
    pub low: u64,
    /// One more than the largest.
    pub high: u64,
    /// How many values.
    pub count: u64,
}

/// One interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Index into [`Profile::tasks`]: who ran when it ended.
    pub task: u32,
    /// CPU on which it ended.
    pub cpu: u16,
    /// When it began.
    pub start_ns: u64,
    /// How long it took.
    pub ns: u64,
    /// Instructions in it.
    pub insns: u64,
    /// Address of the instruction at which it began.
    pub from_ip: u64,
    /// Address of the one at which it ended.
    pub to_ip: u64,
    /// Calling context in which it began: index into [`Profile::nodes`].
    pub from_node: u32,
    /// Calling context in which it ended.
    pub to_node: u32,
}

/// All intervals that began in one calling context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The context: index into [`Profile::nodes`].
    pub node: u32,
    /// How many.
    pub count: u64,
    /// Their total time.
    pub ns: u64,
    /// Their total instructions.
    pub insns: u64,
    /// The longest time.
    pub max_ns: u64,
}

/// How often an instruction pattern ran in a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The pattern.
    pub pattern: String,
    /// Index into [`Profile::funcs`].
    pub func: u32,
    /// Executions.
    pub count: u64,
}

/// One call on the timeline.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Index into [`Profile::tasks`].
    pub task: u32,
    /// CPU on which it started.
    pub cpu: u16,
    /// Index into [`Profile::funcs`].
    pub func: u32,
    /// Frames below it on the task's stack; 0 is outermost.
    pub depth: u16,
    /// Time of entry.
    pub start_ns: u64,
    /// Time of exit.
    pub end_ns: u64,
    /// Instructions retired from entry to exit by this task, callees included.
    pub insns: u64,
    /// How it was entered.
    pub kind: FrameKind,
}

/// A place where the stream could not be decoded; decoding went on at the next place possible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowError {
    /// CPU whose stream it is.
    pub cpu: u16,
    /// Byte offset in that stream.
    pub offset: u64,
    /// Last time known before it.
    pub ns: u64,
    /// Last instruction address known before it.
    pub ip: u64,
    /// What was wrong, for people.
    pub kind: String,
}

/// What the decoder counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// One entry per CPU stream, by CPU number.
    pub per_cpu: Vec<CpuTotals>,
}

/// What the decoder counted on one CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTotals {
    /// Instructions retired.
    pub instructions: u64,
    /// Conditional and indirect branches taken from the stream.
    pub branches: u64,
    /// Decode errors, overflows not among them.
    pub errors: u64,
    /// Times that the processor dropped packets because its buffer was full (OVF packets).
    #[serde(default)]
    pub overflows: u64,
    /// Bytes of the stream skipped while searching for a place to go on.
    pub lost_bytes: u64,
    /// First time in the stream.
    pub first_ns: u64,
    /// Last time in the stream.
    pub last_ns: u64,
}

impl Totals {
    /// Instructions over all CPUs.
    pub fn instructions(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.instructions).sum()
    }

    /// Decode errors over all CPUs.
    pub fn errors(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.errors).sum()
    }

    /// Overflows over all CPUs.
    pub fn overflows(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.overflows).sum()
    }

    /// Bytes lost over all CPUs.
    pub fn lost_bytes(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.lost_bytes).sum()
    }
}
