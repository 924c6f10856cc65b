// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from the code that ran, without counters in it.
//!
//! Input: how often each instruction of a file was executed, and the file's debug information. Output:
//! [`Cover`](crate::Cover), and sample profiles for compilers. gcov's arcs do not exist here: a
//! conditional jump is two branches, taken and not taken; a `switch` has one for each target.
//!
//! | step | module |
//! |---|---|
//! | executed instructions to lines, branches and functions | [`gather`]; targets of a `switch` in `tables` |
//! | counts of a function's lines, by gcov's rule | `entries` |
//! | lines without an instruction of their own, told from the lines around them | [`infer`], by [`statements`] |
//! | lines whose code was merged with that of others | `settle` |
//! | sample profiles for compilers (AutoFDO) | [`sampled`] |

mod entries;
pub mod gather;
pub mod infer;
pub mod sampled;
mod settle;
pub mod statements;
mod tables;

pub use gather::{Gatherer, Inferred, Jumped, Ran};
