// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording with ftrace from set-up to clean-up. This is the only crate that touches tracefs.
//!
//! The input is [`Settings`] and a command. The output is the ring buffers' pages exactly as the kernel made them,
//! together with everything needed to decode them elsewhere, below `streams/ftrace/` of a run. tracefs is left as it
//! was found.
//!
//! The design has these reasons:
//! - A recording has its own instance (a folder below `instances/`), and removing the instance removes all its
//!   settings. Settings that exist once for the machine (`tracing_thresh`, `set_graph_function`, …) are noted in a
//!   [`journal`] before they are changed, and restored from it: at the end, on Ctrl-C, on a panic, by the [`guard`] if
//!   the recorder was killed, and if the guard was killed too, at the next start or by [`undo_stale`].
//! - The threshold and the functions are set before the tracer is switched on; the tracer reads the threshold only
//!   once, when it starts. Recording begins after the tracer is on and the tasks are chosen, so that no trace starts
//!   with the tracer's own patching of the kernel.
//! - Pages move from the ring buffer to the file by splice(2), with one thread per CPU. Nothing is formatted, and
//!   almost nothing is copied, while the machine is observed.
//!
//! | file | content |
//! |---|---|
//! | `tracefs` | locating tracefs, and the reasons why it may be unusable |
//! | `journal` | the changes made, on disk, and undoing them |
//! | `guard` | a process that undoes them when the recorder is killed |
//! | `functions` | conversion of globs to the kernel's function numbers |
//! | `setup` | writing the settings to files, in order |
//! | `calibrate` | overhead of tracing on this machine |
//! | `stream` | copying buffers to files |
//! | `command` | the command, held until everything is ready |
//! | `record` | the sequence of a whole recording |
//! | `beside` | events beside another instrument, in a guest |
//! | `boot` | trace of a boot that had tracing on its command line |
//! | `run` | a run folder for a recording, by a program without kprism's store |
//! | `guest` | a recording in a guest: made ready, then recorded; nothing is put back |

pub mod beside;
pub mod boot;
pub mod calibrate;
pub mod error;
pub mod guard;
pub mod guest;
pub mod journal;
pub mod path;
pub mod record;
pub mod run;
pub mod settings;
pub mod signals;
pub mod stats;
pub mod tracefs;

mod command;
mod describe;
mod functions;
mod setup;
mod stream;

pub use command::find as find_command;
pub use error::{Error, Result};
pub use journal::{Undone, undo_stale};
pub use record::{INTERRUPTED, Recording, ready, record};
pub use settings::{Scope, Settings};
pub use stats::CpuStats;
pub use tracefs::Tracefs;

/// Folder of a recording's files within a run.
pub const STREAMS: &str = "streams/ftrace";

/// Folder of the events that were recorded beside another instrument ([`beside`]), within a run.
pub const EVENTS: &str = "streams/events";
