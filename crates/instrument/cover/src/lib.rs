// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from the code that ran, without counters in it.
//!
//! Input: how often each instruction of a file was executed (from a flow), and the file's debug information
//! ([`kprism_debuginfo`]). Output: coverage in the terms of gcov ([`kprism_gcov::Cover`]), and sample profiles for compilers.
//!
//! | step | module |
//! |---|---|
//! | executed instructions to lines, branches and functions | [`gather`] |
//! | lines without an instruction of their own, told from the lines around them | [`infer`], by [`statements`] |
//! | sample profiles for compilers (AutoFDO) | [`sampled`] |
//! | coverage by gcov and by the flow compared line by line, with reasons | [`why`] |

pub mod gather;
pub mod infer;
pub mod sampled;
pub mod statements;
mod tables;
pub mod why;
