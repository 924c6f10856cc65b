// SPDX-License-Identifier: MIT OR Apache-2.0
//! From Intel PT packets and code images to the flow of instructions, call stacks and a profile.

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
