// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of an analysis of calls, as plain data: the [`Profile`].
//!
//! What comes in: nothing. Analyses fill these types, the store writes them as tables, views read them.
//! What goes out: functions, tasks, calling contexts, system calls, intervals ([`model`]); histograms ([`histogram`]);
//! and what only measured durations have ([`times`]). Beside them: a
//! choice of tasks ([`filter`]), and numbers and names as text ([`units`]).
//!
//! It stands below the store and all instruments, so that a stored run can be loaded and shown without decoding it.

#![forbid(unsafe_code)]

pub mod filter;
pub mod histogram;
pub mod model;
pub mod times;
pub mod units;

pub use filter::Filter;
pub use model::*;
pub use times::{Counts, FuncTimes, NodeTimes, Times};
