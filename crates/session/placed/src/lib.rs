// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other end of `--on ssh:…`: a copy of kprism, or of `kprism-recorder`, that was put on another machine.
//!
//! Input: frames ([`frame`]) on standard input, with a command line in them. Output: frames on standard output: what the command
//! line prints, its exit code, and its run ([`archive`]). It runs the command line as a child process, and removes its folder at the
//! end, however that comes.
//!
//! It is apart from `kprism-remote`, the end that asks, because it must compile for machines that only record.
//!
//! Modules without I/O: [`frame`], [`rename`], and the names and limits in [`archive`].

pub mod archive;
pub mod frame;
mod leftover;
mod place;
pub mod rename;
mod serve;

pub use place::{Placed, SERVE, given, is_target, output, placed};
pub use serve::{Machine, serve};
