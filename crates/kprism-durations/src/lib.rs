// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long functions took: from entries and exits to calls, from calls to numbers.
//!
//! What comes in: events of [`kprism_ftrace`], records of the BPF recorder ([`record`]), or the entries and exits
//! of a flow. What goes out: calls, and durations by function, calling context and task.

#![forbid(unsafe_code)]

pub mod record;
