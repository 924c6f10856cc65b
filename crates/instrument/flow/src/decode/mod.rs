// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets and code to events of the call structure.
//!
//! In: the packets of one CPU, the code that it ran, symbols. Out, to a [`Sink`](event::Sink): calls, returns, kernel
//! entries, task switches, times, marked instructions, each with the number of instructions since the one before.
//!
//! A packet's way: the loop of `flow` reads it and keeps its state; `tnt` applies branch outcomes, `packets` TIP, FUP and the
//! rare ones; `follow` goes where they say, along the blocks of `block`. `build` makes blocks from code bytes, and `readers` says which ones a change of code
//! invalidates. `memo` skips eight branches at a time in long loops. `walk` follows code instruction by instruction to
//! an address that a packet states. `retstack` resolves compressed returns, [`clock`] the time. [`Decoder`] decodes ranges of a stream.

pub(crate) mod block;
pub(crate) mod build;
pub mod clock;
pub(crate) mod decoder;
pub mod digest;
pub(crate) mod entries;
pub mod errata;
pub mod error;
pub mod event;
pub(crate) mod events;
pub(crate) mod flow;
pub(crate) mod follow;
pub mod marks;
pub(crate) mod memo;
pub mod packet_event;
pub(crate) mod packets;
pub(crate) mod readers;
pub(crate) mod retstack;
pub(crate) mod tnt;
pub(crate) mod walk;

pub use decoder::{Decoder, Setup};
pub use flow::Stats;
