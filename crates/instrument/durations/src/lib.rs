// SPDX-License-Identifier: MIT OR Apache-2.0
//! Function durations: builds calls from entries and exits, and computes times from calls.
//!
//! Input: events of [`kprism_ftrace`] ([`ftrace`]), the BPF recorder's files ([`record`], [`aggregate`]), or a flow
//! ([`flow`]). Output: [`Measured`], which is the [`Profile`](kprism_profile::Profile) that every view of kprism shows,
//! plus data that only durations have ([`Times`](kprism_profile::Times)).
//!
//! | step | module |
//! |---|---|
//! | functions by address or name, numbered | [`names`] |
//! | entries and exits to calls, task by task | [`calls`] |
//! | calls to a tree of calling contexts and a timeline | [`tree`], `timeline` |
//! | the tree to rows: by function, by task, callers, callees | [`rows`] |
//! | events of a trace without calls | [`events`] |
//! | the tracer's share of a time | [`cost`] |
//!
//! A call's time is split when it ends. Its **self** time is its duration without its callees, without the time in
//! which its task was not on a CPU (**off CPU**), and without interrupts. No part is ever negative. Memory grows with
//! calling contexts and open calls, not with the length of the trace.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod calls;
pub mod cost;
pub mod events;
pub mod flow;
pub mod ftrace;
pub mod measured;
pub mod names;
mod per_cpu;
pub mod record;
pub mod rows;
mod timeline;
pub mod tree;

pub use calls::{CallEvent, Calls, TaskKey};
pub use measured::{Measured, Switch};
pub use names::Names;
pub use tree::Ended;
