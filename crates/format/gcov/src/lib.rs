// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from gcov's files.
//!
//! **In:** the bytes of notes (`.gcno`, written by the compiler) and data (`.gcda`, written by the kernel or by
//! libgcov), of GCC 4.7 to 16, in either byte order. **Out:** which functions, lines and branches were executed how
//! often, to the number as gcov says; data again, added up or subtracted; reports for other tools.
//!
//! **Why own code:** gcov reads one object after the other into text or JSON, which the next tool parses again; a
//! kernel has more than a thousand of them. Here an object goes from bytes to counts in one pass and is forgotten,
//! many at a time, and what is kept is what a report shows.
//!
//! Layout: [`notes`] and [`data`] are the formats, `words` what they share; `solve` finds the counts of all arcs,
//! `cycles` the loops within a line, [`mod@unit`] the lines and branches of an object; [`cover`] puts objects together,
//! [`export`] writes them for other tools, [`runs`] keeps apart which run executed a line. [`memory`] finds data in a
//! kernel's memory, [`window`] is what was counted between two moments, [`profile`] makes data such that a compiler is
//! guided by it.
//!
//! No I/O; any bytes give a value or an [`Error`] that names the place.

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
pub use path::absolute;
pub use unit::{Solver, Unit};
pub use version::Version;
pub use words::Header;
