// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one type of event that every reader gives.

/// Something that was traced, or that the trace says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// Time in units of the trace's clock, which are ns for all clocks but `counter`, `uptime` and `x86-tsc`.
    pub ns: u64,
    /// CPU in whose buffer it is.
    pub cpu: u32,
    /// Thread that ran; 0 is idle. In text without a column of tasks, [`UNKNOWN_PID`] until the CPU's first switch.
    pub pid: u32,
    /// In what context it ran, as far as the trace tells.
    pub context: Context,
    /// What happened.
    pub data: Data<'a>,
}

/// The thread of an event in a text that does not name it.
pub const UNKNOWN_PID: u32 = u32::MAX;

/// What interrupted the thread, if anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Context {
    /// The thread itself, as far as is known.
    #[default]
    Task,
    /// A softirq.
    Softirq,
    /// A hardware interrupt or NMI.
    Hardirq,
}

/// A function as the trace names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Func<'a> {
    /// By address.
    Address(u64),
    /// By name, in text; modules as `name [module]`.
    Name(&'a str),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data<'a> {
    /// A function was entered.
    Entry {
        /// Which.
        func: Func<'a>,
        /// Traced functions open below it.
        depth: u32,
    },
    /// A function returned.
    Exit(Exit<'a>),
    /// The CPU went over to another thread.
    Switch {
        /// Thread that leaves.
        prev_pid: u32,
        /// Its name, empty if not told.
        prev_comm: &'a [u8],
        /// Thread that comes.
        next_pid: u32,
        /// Its name, empty if not told.
        next_comm: &'a [u8],
    },
    /// A handler of interrupts began, told by an event rather than a function.
    IrqEnter,
    /// It ended.
    IrqExit,
    /// Events that came before this one on this CPU were lost.
    Lost {
        /// How many, if known.
        count: Option<u64>,
    },
    /// Any other event of the ring buffer.
    Raw {
        /// Its number in the formats.
        id: u16,
        /// Its record, from the common fields on.
        bytes: &'a [u8],
    },
    /// Any other event of a text: `name: what it says`.
    Text(&'a str),
    /// A line of the stack of the event before: a caller.
    Stack(&'a str),
}

/// A function's return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit<'a> {
    /// Which, where the trace says.
    pub func: Option<Func<'a>>,
    /// Traced functions open below it.
    pub depth: u32,
    /// Time of entry as the exit tells it.
    pub call_ns: Option<u64>,
    /// Time of return as the exit tells it; otherwise the event's time is taken.
    pub ret_ns: Option<u64>,
    /// Calls that the tracer could not follow for lack of room on its stack.
    pub overrun: u64,
}
