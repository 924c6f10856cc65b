// SPDX-License-Identifier: MIT OR Apache-2.0
//! gcov's files: read and written.
//!
//! **Input:** the bytes of notes (`.gcno`, written by the compiler) and data (`.gcda`, written by the kernel or by
//! libgcov), of GCC 4.7 to 16, in either byte order; or a kernel's memory. **Output:** for one object, execution counts
//! of functions, lines and branches, equal to gcov's; data, added or subtracted, and written again for compilers.
//!
//! **Why a reader of its own:** gcov converts one object after the other to text or JSON, which the next tool parses
//! again; a kernel has more than a thousand objects. This crate converts an object to counts in one pass, and keeps only
//! what a report needs. Objects are merged into coverage in `kprism-cover`.
//!
//! | step | module |
//! |---|---|
//! | the files: words and records, notes, data, the compiler's version | `words`, [`notes`], [`data`], `version` |
//! | data read from a kernel's memory | [`memory`] |
//! | counts of all arcs of a function from the counted ones; loops within a line | `solve`, `cycles` |
//! | lines, branches and calls of an object, by gcov's rules | `count`, [`mod@unit`] |
//! | functions that only notes or only data have | [`gaps()`] |
//! | data of several windows of a kernel's run, added up | [`windows`] |
//! | data completed for gcc's `-fprofile-use` | [`profile_use`] |
//!
//! No I/O. Any bytes give a value, or an [`Error`] with an offset.

#![forbid(unsafe_code)]

mod count;
mod cycles;
pub mod data;
mod error;
mod gaps;
pub mod memory;
pub mod notes;
pub mod path;
pub mod profile_use;
mod solve;
pub mod unit;
mod version;
pub mod windows;
mod words;

pub use count::UnitCounter;
pub use data::Data;
pub use error::{Error, Result};
pub use gaps::{Gaps, gaps};
pub use notes::Notes;
pub use path::absolute;
pub use unit::Unit;
pub use version::Version;
pub use words::Header;
