// SPDX-License-Identifier: MIT OR Apache-2.0
//! Marks to intervals, counts, and the parts of system calls; a trace's cost and resolution.
//!
//! In: the marks of each CPU and task, in order, from the stitcher. Out: histograms and the longest intervals
//! ([`Delta`](kprism_profile::Delta)), executions of instruction patterns, how long each system call took to enter, to exit
//! and in interrupts.
//!
//! [`delta`] holds the wishes of the user ([`Plan`](delta::Plan)), `mark` the input. `analyses` keeps the state of each CPU
//! and task, `irqs` whether interrupts and preemption are off, `intervals` the sums. [`window`] restricts a profile to a
//! task and a stretch of time. [`cost`] and [`resolution`] measure the trace itself.

pub(crate) mod analyses;
pub mod cost;
pub mod delta;
pub(crate) mod intervals;
pub(crate) mod irqs;
pub(crate) mod mark;
pub mod resolution;
pub mod window;
