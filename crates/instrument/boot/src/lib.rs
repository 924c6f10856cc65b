// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the profile of a traced boot.
//!
//! Input: ftrace's events of the boot, the kernel's log, and a function that names an address. Output: a [`Boot`] with
//! every initcall (level, duration, result, module) and every long call of a traced function. [`compare`] compares two
//! of them.
//!
//! The log is needed for names. The kernel frees an initcall's code after it ran, and the next module may use the
//! memory. So later on something else is at its address. With `initcall_debug` the kernel logs each initcall by name
//! when it calls it. The log's times are coarse (a tick, early on); those of the events are exact. So the two are
//! joined by task and order ([`join`]).

#![forbid(unsafe_code)]

mod compare;
mod events;
mod join;
mod log;

pub use compare::{Change, Compared, compare};
pub use events::{Formats, Read, read};
pub use join::join;
pub use log::{Call, parse as parse_log};

use serde::Serialize;

/// A boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Boot {
    /// Initcalls in order of their start.
    pub initcalls: Vec<Initcall>,
    /// Long calls in order of their start, longer ones first.
    pub calls: Vec<LongCall>,
    /// Ids and names of tasks.
    pub tasks: Vec<(u32, String)>,
    /// Number of initcalls without a line in the log. Their names are guessed from the address.
    pub unnamed: usize,
    /// Number of initcalls in the log without events. Their times are the log's, which are coarse early on. A tracer
    /// that begins during the boot empties the buffer, and earlier events with it.
    pub coarse: usize,
    /// Number of events lost.
    pub lost: u64,
    /// Number of function exits without an entry.
    pub orphans: u64,
    /// Counters of reading a text of the trace.
    #[serde(skip)]
    pub text: Option<TextCounts>,
}

/// Counters of reading a boot's trace as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextCounts {
    /// Number of events.
    pub events: u64,
    /// Number of events that the kernel had overwritten, if the text says so.
    pub overwritten: Option<u64>,
    /// Number of lines that could not be read.
    pub faults: u64,
    /// The first of these lines, with their places.
    pub fault_places: Vec<String>,
    /// Number of calls left out because the text does not give their time.
    pub untimed: u64,
}

/// A call of a function that initialises a part of the kernel, or a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Initcall {
    /// The function's name.
    pub name: String,
    /// Its module; `None` for the kernel itself.
    pub module: Option<String>,
    /// The level, such as `early` or `device`; `module` for modules; empty if unknown.
    pub level: String,
    /// Id of the task.
    pub pid: u32,
    /// Start time, ns.
    pub start_ns: u64,
    /// Duration, ns; up to the last event if its end was not seen.
    pub ns: u64,
    /// Its return value, if it returned.
    pub result: Option<i64>,
    /// Its address; 0 if only the log knows of it.
    #[serde(skip)]
    pub address: u64,
}

/// One call of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LongCall {
    /// The function's name.
    pub name: String,
    /// Id of the task.
    pub pid: u32,
    /// Number of calls around it.
    pub depth: u32,
    /// Start time, ns.
    pub start_ns: u64,
    /// Duration, ns.
    pub ns: u64,
}

impl Boot {
    /// Time of the first start and of the last end, ns.
    pub fn span(&self) -> (u64, u64) {
        let initcalls = self.initcalls.iter().map(|call| (call.start_ns, call.ns));
        let calls = self.calls.iter().map(|call| (call.start_ns, call.ns));
        initcalls.chain(calls).fold((u64::MAX, 0), |(first, last), (start, ns)| {
            (first.min(start), last.max(start.saturating_add(ns)))
        })
    }
}
