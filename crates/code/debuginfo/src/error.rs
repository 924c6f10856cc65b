// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors in debug information.

/// An error in debug information, or a missing item.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// The file is not a readable object file.
    #[error("{0}: not an object file that can be read: {1}")]
    Object(String, object::Error),
    /// The file has no debug information.
    #[error("{0}: no debug information (.debug_info); build with -g, or name the file that has it")]
    Stripped(String),
    /// The file has debug information only, and belongs to a program or library.
    #[error(
        "{0}: it has debug information only, no code to probe; name the program with --exec, and this file with --debug-file"
    )]
    DebugOnly(String),
    /// The file is a program for another machine, or another mode of this one. File, machine.
    #[error("{0}: a program for {1}; probes read registers and stacks of 64-bit x86 programs only")]
    Machine(String, String),
    /// The debug information violates the DWARF format. File, section, cause.
    #[error("{0}: {1}: {2}")]
    Dwarf(String, &'static str, gimli::Error),
    /// The requested item does not exist.
    #[error("{0}")]
    Nothing(String),
}
