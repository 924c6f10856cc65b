// SPDX-License-Identifier: MIT OR Apache-2.0
//! The event type that all readers return.

/// A traced event, or a message of the trace about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// Time in units of the trace's clock: ns, except for the clocks `counter`, `uptime` and `x86-tsc`.
    pub ns: u64,
    /// CPU whose buffer contains the event.
    pub cpu: u32,
    /// Running thread; 0 is idle. In text without a column of tasks it is [`UNKNOWN_PID`] until the CPU's first switch.
    pub pid: u32,
    /// Execution context, as far as the trace records it.
    pub context: Context,
    /// The event's type and contents.
    pub data: Data<'a>,
}

/// Thread of an event, if the trace does not contain it.
pub const UNKNOWN_PID: u32 = u32::MAX;

/// Execution context: the code that interrupted the thread, if any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Context {
    /// The thread itself, or unknown.
    #[default]
    Task,
    /// A softirq handler.
    Softirq,
    /// A handler of a hardware interrupt or NMI.
    Hardirq,
}

/// A function, identified as in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Func<'a> {
    /// Address of the function.
    Address(u64),
    /// Name, in text. Functions of modules are `name [module]`.
    Name(&'a str),
}

/// Type and contents of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data<'a> {
    /// A function was entered.
    Entry {
        /// The function.
        func: Func<'a>,
        /// Number of traced functions that were already open.
        depth: u32,
    },
    /// A function returned.
    Exit(Exit<'a>),
    /// The CPU switched to another thread.
    Switch {
        /// Thread that stops running.
        prev_pid: u32,
        /// Its name; empty if unknown.
        prev_comm: &'a [u8],
        /// Thread that starts running.
        next_pid: u32,
        /// Its name; empty if unknown.
        next_comm: &'a [u8],
    },
    /// An interrupt handler began, according to an event of its own.
    IrqEnter,
    /// An interrupt handler ended.
    IrqExit,
    /// Events before this one on this CPU were lost.
    Lost {
        /// Number of lost events, if known.
        count: Option<u64>,
    },
    /// Any other event of the ring buffer.
    Raw {
        /// Event number in the formats.
        id: u16,
        /// The record, including the common fields.
        bytes: &'a [u8],
    },
    /// Any other event of a text: `name: contents`.
    Text(&'a str),
    /// A caller: a line of the stack trace of the previous event.
    Stack(&'a str),
}

/// A function's return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit<'a> {
    /// The function, if the trace contains it.
    pub func: Option<Func<'a>>,
    /// Number of traced functions that stay open.
    pub depth: u32,
    /// Time of entry, if the exit record contains it.
    pub call_ns: Option<u64>,
    /// Time of return, if the exit record contains it; otherwise the event's time applies.
    pub ret_ns: Option<u64>,
    /// Calls that the tracer missed because its stack was full.
    pub overrun: u64,
}
