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
    /// Places where the stream could not be decoded.
    pub errors: Vec<FlowError>,
    /// What the decoder counted, per CPU.
    pub totals: Totals,
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
    /// Decode errors.
    pub errors: u64,
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

    /// Bytes lost over all CPUs.
    pub fn lost_bytes(&self) -> u64 {
        self.per_cpu.iter().map(|c| c.lost_bytes).sum()
    }
}
