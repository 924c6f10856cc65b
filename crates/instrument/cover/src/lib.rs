// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage: which source lines, functions, branches and calls were executed, and how often.
//!
//! Input: gcov's counters with the compiler's notes ([`kprism_gcov`]); or counts of executed instructions, from a flow,
//! with debug information ([`kprism_debuginfo`]). Output: one [`Cover`] for both, so that every view and export takes
//! either; and sample profiles for compilers. No I/O.
//!
//! | step | module |
//! |---|---|
//! | the result: files, lines, functions, branches, totals | [`mod@cover`] |
//! | counters of gcov to coverage: windows between readings, objects merged, several runs told apart | [`counters`] |
//! | executed instructions to coverage, and to sample profiles | [`executed`] |
//! | both coverages of one run compared line by line, with the reasons of differences | [`why`] |
//! | folders of sources, moved or common; names of functions as in the source | [`path`], [`demangled`] |

#![forbid(unsafe_code)]

pub mod counters;
pub mod cover;
pub mod executed;
pub mod lcov;
mod names;
pub mod path;
pub mod why;

pub use cover::Cover;
pub use names::demangled;
