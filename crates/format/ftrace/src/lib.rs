// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of Linux ftrace data.
//!
//! Input: bytes. Output: [`Event`]s, of the same type for all sources:
//!
//! | source | module |
//! |---|---|
//! | the text of `trace`, function graph or not, under every option set | [`text`] |
//! | `per_cpu/cpuN/trace_pipe_raw`: pages of the ring buffer | [`raw`], by [`format`](mod@format) and [`decode`] |
//! | trace-cmd's `trace.dat`, versions 6 and 7 | [`dat`] |
//!
//! Pages may be in memory ([`raw`], [`merge`]), or be read as they are needed ([`stream`]).
//!
//! Unknown events are returned unparsed ([`Data::Raw`], [`Data::Text`]). Lost events are reported at their position
//! ([`Data::Lost`]). Any input gives events and a list of faults ([`Fault`]), or an error. Only compressed data is
//! copied, and memory use never depends on a number in the input.

#![forbid(unsafe_code)]

mod bytes;
pub mod dat;
pub mod decode;
pub mod event;
pub mod fault;
pub mod format;
pub mod merge;
pub mod raw;
pub mod show;
pub mod side;
pub mod stream;
pub mod text;

pub use event::{Context, Data, Event, Exit, Func, UNKNOWN_PID};
pub use fault::{Fault, Faults, FtraceError};
