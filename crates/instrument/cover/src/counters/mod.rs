// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from gcov's counters.
//!
//! Input: data and notes of objects, each a [`kprism_gcov::Unit`] once its arcs are solved. Output:
//! [`Cover`](crate::Cover), and for several runs the lines that each of them executed.
//!
//! | step | module |
//! |---|---|
//! | counts between two readings, without those that reading itself adds | [`window`] |
//! | objects merged into counts of source files | [`collect`], one source file in `merge_source` |
//! | which run executed a line | [`runs`] |

pub mod collect;
mod merge_source;
pub mod runs;
pub mod window;

pub use collect::{Collector, Object};
pub use runs::{Marks, Runs};
