// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes Intel PT: turns packets and code images into the flow of instructions, call stacks and a profile.
//!
//! Input: the packet stream of each CPU, an [`Image`](kprism_image::Image) of the code that ran, symbols, and the
//! sideband (task switches and names). Output: a [`Profile`](kprism_profile::Profile) from [`profile`], or every
//! instruction in order of time from [`replay`]. The crate does no I/O: it can be fuzzed, and used in other programs.

mod analyses;
pub mod annotate;
mod block;
mod build;
pub mod calls;
mod causes;
pub mod clock;
pub mod cost;
pub mod decode;
pub mod delta;
pub mod digest;
mod entries;
pub mod error;
pub mod event;
mod frames;
mod intervals;
mod irqs;
pub mod marks;
mod memo;
mod pace;
mod packets;
pub mod parallel;
mod readers;
pub mod replay;
pub mod resolution;
mod retstack;
mod stack;
mod stitch;
mod switches;
mod tnt;
mod walk;
pub mod window;

pub use parallel::{Options, Stream, profile};
