// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debug information of programs and kernels.
//!
//! Input: ELF files with DWARF, or the separate file that a build id names. Output:
//!
//! | question | module |
//! |---|---|
//! | the file with the debug information of a program | [`separate`] |
//! | a mapped file: sections, symbols, bytes at an address, .dwo files | [`mapped`] |
//! | the source lines and inlined frames of one address | [`source`] |
//! | all lines of a file with their code, and its functions | [`lines`] |
//! | discriminators and inlined calls at each address, for compilers' sample profiles | [`scopes`] |
//! | an address beside an inlined helper at which a debugger sees the locals around | [`beside`] |
//!
//! Four readers share this DWARF, since they ask for different amounts of it. `source` looks up single addresses, by
//! addr2line's index. `lines` and `scopes` read a whole file into a table, `beside` the functions around some addresses.
//! `kprism-expr` reads the few units that an expression needs: variables, types and their locations, from a mapped
//! [`Image`].

pub mod beside;
mod error;
pub mod lines;
pub mod mapped;
pub mod scopes;
mod sections;
pub mod separate;
pub mod source;

pub use error::Error;
pub use mapped::{Image, Symbol};
pub use sections::Slice;
