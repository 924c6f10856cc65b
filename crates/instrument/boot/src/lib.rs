// SPDX-License-Identifier: MIT OR Apache-2.0
//! A traced boot, put together.
//!
//! In: ftrace's events of the boot, the kernel's log, a way to name an address. Out: a [`Boot`]: every initcall with its
//! level, duration, result, module; every long call of a function that was traced; and [`compare`] for two of them.
//!
//! The log is needed for names. An initcall's code is thrown away once it ran, and its memory used again by the next
//! module: by the time somebody asks what is at that address, something else is. With `initcall_debug` the kernel says
//! at the time what it calls; its times are coarse (a tick, early on), those of the events are exact. So the two are
//! joined: same task, same order ([`join`]).

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
    /// In order of their beginning.
    pub initcalls: Vec<Initcall>,
    /// In order of their beginning, longer ones first.
    pub calls: Vec<LongCall>,
    /// Tasks by their number.
    pub tasks: Vec<(u32, String)>,
    /// Initcalls of the events that the log says nothing of: their names are a guess by address.
    pub unnamed: usize,
    /// Initcalls of the log that there are no events of: their times are the log's, coarse early on. A tracer that
    /// begins during the boot empties the buffer, events of before with it.
    pub coarse: usize,
    /// Events lost.
    pub lost: u64,
    /// Ends of functions whose beginning is not there.
    pub orphans: u64,
    /// What reading a text of the trace counted.
    #[serde(skip)]
    pub text: Option<TextCounts>,
}

/// What a text of a boot's trace held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextCounts {
    /// Events.
    pub events: u64,
    /// Events that the kernel had overwritten, if the text says.
    pub overwritten: Option<u64>,
    /// Lines that could not be read, and the first of them.
    pub faults: u64,
    /// Where those are.
    pub fault_places: Vec<String>,
    /// Calls that are left out, as the text does not say when they were.
    pub untimed: u64,
}

/// A call of a function that sets a part of the kernel, or a module, up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Initcall {
    /// The function's name.
    pub name: String,
    /// Its module; none for the kernel itself.
    pub module: Option<String>,
    /// The level, such as `early` or `device`; `module` for modules; empty if unknown.
    pub level: String,
    /// The task.
    pub pid: u32,
    /// When it began.
    pub start_ns: u64,
    /// How long it took; to the last event if its end was not seen.
    pub ns: u64,
    /// What it returned, if it did.
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
    /// The task.
    pub pid: u32,
    /// Calls around it.
    pub depth: u32,
    /// When it began.
    pub start_ns: u64,
    /// How long it took.
    pub ns: u64,
}

impl Boot {
    /// From the first beginning to the last end.
    pub fn span(&self) -> (u64, u64) {
        let initcalls = self.initcalls.iter().map(|call| (call.start_ns, call.ns));
        let calls = self.calls.iter().map(|call| (call.start_ns, call.ns));
        initcalls.chain(calls).fold((u64::MAX, 0), |(first, last), (start, ns)| {
            (first.min(start), last.max(start.saturating_add(ns)))
        })
    }
}
