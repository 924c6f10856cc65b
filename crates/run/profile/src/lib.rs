// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of an analysis of calls, as plain data: the [`Profile`].
//!
//! There is no input; analyses fill these types. The output is functions, tasks, calling contexts, system calls and
//! intervals ([`model`]), the ways in which calls end ([`ending`]), histograms ([`histogram`]), the data that only measured
//! durations have ([`times`]), and results of the kernel's own tests ([`kernel_tests`]). The store writes them as tables, and
//! views read them. Beside them stand a choice of tasks ([`filter`]), numbers and names as text ([`units`]), and times and
//! sizes from text ([`parse`]).
//!
//! This crate does not depend on the store or any instrument, so that a stored run can be loaded and shown without
//! decoding it.

#![forbid(unsafe_code)]

pub mod ending;
pub mod filter;
pub mod histogram;
pub mod kernel_tests;
pub mod model;
pub mod parse;
pub mod times;
pub mod units;

pub use ending::{Ending, Unended};
pub use filter::Filter;
pub use model::*;
pub use times::{Counts, FuncTimes, NodeTimes, Times, TracingCost};
