// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the change that made a command cost more: the first commit, or the first of Debian's kernels, for which a rule of
//! `kprism gate` is true.
//!
//! In: a good and a bad revision, how to build one, a command for the guest, and rules. Out: [`Found`]: the first bad
//! revision, its run held against that of the revision before it, and every revision that was tried.
//!
//! | file | job |
//! |---|---|
//! | [`search`] | which of an ordered list to try next (kernels) |
//! | [`git`] | the same for commits, by `git bisect` in a worktree of its own |
//! | [`run`] | one revision built, recorded in the guest, and judged |
//! | [`render`] | the result as text and JSON |
//!
//! Runs of one command are the same to the instruction, so one run of each revision is enough, and a rule can be as tight as
//! one instruction. The user's working tree is not touched.

#![forbid(unsafe_code)]

pub mod git;
pub mod render;
pub mod run;
pub mod search;

pub use run::{Ended, Found, Settings, State, Tried, bisect};
