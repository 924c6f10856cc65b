// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from gcov's files.
//!
//! **Input:** the bytes of notes (`.gcno`, written by the compiler) and data (`.gcda`, written by the kernel or by
//! libgcov), of GCC 4.7 to 16, in either byte order. **Output:** execution counts of functions, lines and branches,
//! equal to gcov's; data, added or subtracted; reports for other tools.
//!
//! **Why a reader of its own:** gcov converts one object after the other to text or JSON, which the next tool parses
//! again; a kernel has more than a thousand objects. This crate converts objects to counts in one pass, many at a time,
//! and keeps only what a report needs.
//!
//! Modules: [`notes`] and [`data`] parse the files, `words` contains the parts they share; `solve` computes the counts
//! of all arcs, `cycles` the loops within a line, [`mod@unit`] the lines and branches of an object; [`cover`] merges
//! objects, [`export`] writes them for other tools, [`runs`] records which run executed a line. [`memory`] reads data
//! from a kernel's memory, [`window`] computes the counts between two points in time, [`profile`] prepares data for
//! `-fprofile-use`.
//!
//! No I/O. Any bytes give a value, or an [`Error`] with an offset.

#![forbid(unsafe_code)]

pub mod cover;
mod cycles;
pub mod data;
mod error;
pub mod export;
pub mod memory;
mod names;
pub mod notes;
pub mod path;
pub mod profile;
pub mod runs;
mod solve;
pub mod unit;
mod version;
pub mod window;
mod words;

pub use cover::{Collector, Cover};
pub use data::Data;
pub use error::{Error, Result};
pub use names::demangled;
pub use notes::Notes;
pub use path::{absolute, common};
pub use unit::{Gaps, Solver, Unit, gaps};
pub use version::Version;
pub use words::Header;
