// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest lab: a stock kernel in QEMU, saved just before it would run a command.
//!
//! In: [`Options`] (which guest) and a [`Job`] (which command). Out: the command's output as it comes, its exit
//! code, and a run folder: what an observer in QEMU recorded, and the symbols to read it with. Kernel and
//! programs are Debian packages fetched by apt without root; everything made of them is kept in a
//! [`cache`], by content.
//!
//! Why it is built as it is:
//! - With [`Pace::Exact`] a run is a function of its inputs: time counts instructions, CPUs take turns, and no
//!   device of the machine acts by itself. Command and output pass through ports that only the guest touches.
//! - [`prepare`] ends with a snapshot, so that [`run`] starts in a fraction of a second.
//! - QEMU cannot outlive this process, however it ends ([`run`]'s QEMU is killed with its parent).
//!
//! Nothing here prints: what a user may want to see goes to a callback, as [`Progress`].

pub mod cache;
pub mod error;
pub mod files;
pub mod gcov_kernel;
pub mod hooks;
pub mod interrupt;

mod apt;
mod archive;
mod collect;
mod counters;
mod initramfs;
mod kernel;
mod lab;
mod modules;
mod options;
mod qemu;
mod qmp;
mod rootfs;
mod run;
mod snapshot;
mod symbols;
mod tail;

pub use error::{Error, Result};
pub use files::{find_agent, find_observer, find_qemu_user, find_recorder, find_user_plugin, qemu_program};
pub use kernel::Kernel;
pub use kprism_agent::Counters;
pub use lab::{Prepared, prepare};
pub use options::{Job, ObserverOptions, Options, Pace, Progress, Report, Share, Span};
pub use qemu::Qemu;
pub use run::{Ended, Outcome, run};
pub use snapshot::{KernelFacts, Snapshot};
