// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that are kept in a file beside the project, `kprism.toml`.
//!
//! In: the file, a profile's name, the definition of the command line, and what was typed. Out: the same definition in which
//! the file's options are the defaults, so that what is typed overrides them, and a list of those that apply.
//!
//! A table of the file is a command (`[lab.run]`), or `[guest]`: options of the guest, for each command that has one.
//! `[profile.NAME]` holds further tables, laid over the others if that profile is chosen. All tables are checked, those of
//! other commands and profiles too: a misspelt option is found at once.

mod apply;
mod file;
mod kept;

pub use apply::{Kept, apply};
pub use file::{Entry, NAME, OptionsFile, find};
pub use kept::{KeptOptions, command_line, definition, definition_of};
