// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long functions took: from entries and exits to calls, from calls to numbers.
//!
//! What comes in: events of [`kprism_ftrace`] ([`ftrace`]), what the BPF recorder left ([`record`], [`aggregate`]), or a
//! flow ([`flow`]). What goes out: [`Measured`]: the [`Profile`](kprism_profile::Profile) that every view of kprism
//! shows, and beside it what only durations have ([`Times`](kprism_profile::Times)).
//!
//! | step | module |
//! |---|---|
//! | functions by address or name, numbered | [`names`] |
//! | entries and exits to calls, task by task | [`calls`] |
//! | calls to a tree of calling contexts and a timeline | [`tree`] |
//! | the tree to rows: by function, by task, callers, callees | [`rows`] |
//! | what of it is the tracer's own | [`cost`] |
//!
//! Where a call's time went is told apart as it ends: **self** is what remains of its duration after the functions
//! that it called, the time in which its task was not on a CPU (**off CPU**), and interrupts. None of them is ever
//! negative. Memory grows with calling contexts and open calls, not with the length of the trace.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod calls;
pub mod cost;
pub mod flow;
pub mod ftrace;
pub mod measured;
pub mod names;
pub mod record;
pub mod rows;
pub mod tree;

pub use calls::{Calls, TaskKey, Told};
pub use measured::{Measured, Switch};
pub use names::Names;
pub use tree::Ended;
