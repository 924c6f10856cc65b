// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs kprism on another machine through ssh, and brings its run back.
//!
//! Input: a [`Target`] and a command line of kprism. Output: what the command line prints there, its exit code, and its run in
//! a folder here. The user's own `ssh` connects, so that keys, agents, jumps and passwords work as they do elsewhere.
//!
//! One connection carries all of it, in this order:
//!
//! 1. A POSIX shell on the target tells its system and processor ([`script`]), makes a folder that only its user can enter, and
//!    takes a program, which must be static ([`program`]): this one, or, where the processor is another, the recorder for that one.
//! 2. The copy is started on the target (`kprism-placed`). From here on both sides speak in frames ([`frame`]).
//! 3. It runs the command line as a child process, passes its output on, and then sends its run ([`archive`]).
//! 4. It removes the folder.
//!
//! The target watches the connection. If it is closed, or silent for a minute, the target ends the recording as Ctrl-C does,
//! kills what is left of it, and removes the folder. So a `kill -9` here leaves nothing there.
//!
//! Modules without I/O: [`target`], [`program`].

mod bring;
mod connect;
pub mod program;
mod run;
pub mod script;
pub mod target;

pub use kprism_placed::{archive, frame};
pub use program::Copied;
pub use run::{Ended, Job, Recorder, Stream, run};
pub use target::Target;
