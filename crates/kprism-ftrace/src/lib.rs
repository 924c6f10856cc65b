// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of what Linux's ftrace leaves behind.
//!
//! What comes in: bytes. What goes out: [`Event`]s, the same type from the text of `trace`, from raw pages of the
//! ring buffer and from trace-cmd's `trace.dat`.

#![forbid(unsafe_code)]

pub mod event;

pub use event::{Context, Data, Event, Exit, Func};
