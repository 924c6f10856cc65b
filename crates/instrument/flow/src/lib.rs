// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes Intel PT: turns packets and code images into the flow of instructions, call stacks and a profile.
//!
//! Input: the packet stream of each CPU, an [`Image`](kprism_image::Image) of the code that ran, symbols, and the
//! sideband (task switches and names). Output: a [`Profile`](kprism_profile::Profile) from [`profile`], or every
//! instruction in order of time from [`replay`]. The crate does no I/O: it can be fuzzed, and used in other programs.
//!
//! ```text
//! stream ── decode ── events ─┬─ stack ── measure ── profile
//!                             └─ replay: calls and instructions in order of time
//! ```
//!
//! `stream` divides a CPU's packets into chunks. `decode` follows the code and reports events of the call structure.
//! `stack` keeps call stacks from them, and passes marks on to `measure`. `profile` does all that for every chunk, on
//! several threads.

mod decode;
mod measure;
mod profile;
pub mod replay;
mod stack;
mod stream;
pub mod vms;

pub use decode::{Decoder, Setup, Stats, clock, digest, errata, error, event, marks, packet_event};
pub use measure::{cost, delta, resolution, window};
pub use profile::{Options, profile};
pub use stack::guessed::Guessed;
pub use stream::Stream;

/// The tests' machine names this crate as other crates do.
#[cfg(test)]
extern crate self as kprism_flow;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/machine/mod.rs"]
mod machine;
