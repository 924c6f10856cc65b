// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of what Linux's ftrace leaves behind.
//!
//! What comes in: bytes. What goes out: [`Event`]s, one type whatever they came from:
//!
//! | source | module |
//! |---|---|
//! | the text of `trace`, function graph or not, under every option set | [`text`] |
//! | `per_cpu/cpuN/trace_pipe_raw`: pages of the ring buffer | [`raw`], by [`format`](mod@format) and [`decode`] |
//! | trace-cmd's `trace.dat`, versions 6 and 7 | [`dat`] |
//!
//! Events that no one knows stay whole ([`Data::Raw`], [`Data::Text`]). Lost events are told where they are missing
//! ([`Data::Lost`]). Any bytes give events and a list of what was wrong ([`Fault`]), or an error; nothing is copied
//! but what was compressed, and no memory is taken for a number in the input.

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
pub mod text;

pub use event::{Context, Data, Event, Exit, Func, UNKNOWN_PID};
pub use fault::{Fault, Faults, FtraceError};
