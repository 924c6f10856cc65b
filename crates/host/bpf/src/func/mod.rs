// SPDX-License-Identifier: MIT OR Apache-2.0
//! Function durations, measured in the kernel.
//!
//! **In:** functions, whose calls, and what is to be kept of them. **Out:** for each function the number of its
//! calls, their time with and without what they called, shortest, longest, a histogram; or one record for each call
//! that took long enough, and nothing at all for the others. And what was missed, counted.
//!
//! ```text
//!  entry ──► frame on the task's stack ──► return ──► row of (CPU, function)      [aggregate]
//!                     ▲                          └──► record, if long enough      [records]
//!            sched_switch: whose stack
//! ```
//!
//! **Why a stack of our own:** a call's self time is its time without that of the calls from it, so each must know
//! its caller. A hash by task would cost more at each call than the rest together. Here the switch of tasks, which
//! is rare, exchanges the stack, and entry and return find it by the CPU's number: `layout`.
//!
//! Right for recursion (each call has its frame), across migrations (the stack goes with the task), and across what
//! the kernel does not let a program see: frames carry whose they are, so that a missed entry or return is noticed,
//! counted, and costs no other call its measure.

mod emit;
mod layout;
mod sched;
mod session;
mod stats;

pub use emit::{Keep, Regions, Shape, Site, entry as entry_program, exit as exit_program};
pub use session::{Config, Hook, LeftOut, Scope, Session, choose};
pub use stats::{FunctionStats, Losses};
