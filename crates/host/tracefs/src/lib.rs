// SPDX-License-Identifier: MIT OR Apache-2.0
//! ftrace, from its set-up to its end: the only crate that touches tracefs.
//!
//! In: [`Settings`] and a command. Out: the ring buffers' pages as the kernel made them, with all that is needed to
//! read them elsewhere, below `streams/ftrace/` of a run; and a tracefs as it was before.
//!
//! Why it is built as it is:
//! - A recording has an instance of its own (a folder below `instances/`), which goes with all its settings when it is
//!   removed. What exists once for the machine (`tracing_thresh`, `set_graph_function`, …) is noted in a
//!   [`journal`] before it is changed, and put back from there: at the end, on Ctrl-C, on a panic, by the [`guard`] when
//!   the recorder was killed, and if that was killed too, at the next start or by [`undo_stale`].
//! - Before a tracer is switched on, everything is decided: the threshold (a tracer looks at it once, when it starts),
//!   the functions, the processes. And nothing is recorded until it is, so that no trace begins with the tracer's own
//!   patching of the kernel.
//! - Pages go from the ring buffer to the file by splice(2), one thread a CPU: nothing is formatted, and hardly anything
//!   copied, while the machine is watched.
//!
//! | file | what |
//! |---|---|
//! | `tracefs` | finding it, and why it may not be used |
//! | `journal` | what was changed, on disk, and putting it back |
//! | `guard` | a process that does that when the recorder is killed |
//! | `functions` | globs to the kernel's function numbers |
//! | `setup` | settings to files, in order |
//! | `calibrate` | what tracing costs here |
//! | `stream` | buffers to files |
//! | `command` | the command, held back until all is ready |
//! | `record` | all of it in order |
//! | `boot` | what a boot with tracing on its command line left |

pub mod boot;
pub mod calibrate;
pub mod error;
pub mod guard;
pub mod journal;
pub mod record;
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
pub use record::{Recording, ready, record};
pub use settings::{Scope, Settings};
pub use stats::CpuStats;
pub use tracefs::Tracefs;

/// Where a recording's files go in a run.
pub const STREAMS: &str = "streams/ftrace";
