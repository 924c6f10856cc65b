// SPDX-License-Identifier: MIT OR Apache-2.0
//! A gate for continuous integration: rules over the exact counts of a run, and of a baseline.
//!
//! In: runs or saved summaries, and rules such as `kernel_insns[openat] > +0.5%`. Out: a [`Verdict`]: each rule with both
//! values, and for those that fired the functions and paths that grew; written as text, Markdown, JUnit, SARIF, and in
//! two forms of services that keep benchmarks.
//!
//! | file | job |
//! |---|---|
//! | [`summary`] | the numbers of a run that rules are about |
//! | [`metric`] | one number of a summary, by name |
//! | [`rule`] | the text of a rule |
//! | `comparable` | whether both sides recorded the same |
//! | [`names`] | whether the names in rules are names of anything |
//! | [`rank`] | whether two groups of runs differ, for machines whose counts vary |
//! | [`verdict`] | rules held against summaries |
//! | [`blame`] | functions and paths behind a difference |
//! | [`render`] | the verdict, for people and for services |
//!
//! **Why exact counts need no statistics.** Two runs of a command in one environment of the lab are the same to the
//! instruction, so any difference is a change of the command, and one run of each is enough; of several, the medians are compared as
//! they are. Recordings of real machines vary; there each side wants several runs, of which the medians are compared, and a relative
//! rule fires only where a rank test calls the difference significant. A rule that no outcome could make fire is refused.

#![forbid(unsafe_code)]

pub mod blame;
mod comparable;
pub mod metric;
pub mod names;
pub mod rank;
pub mod render;
pub mod rule;
pub mod summary;
pub mod verdict;

pub use rule::Rule;
pub use summary::Summary;
pub use verdict::{Damage, Side, State, Verdict, judge};
