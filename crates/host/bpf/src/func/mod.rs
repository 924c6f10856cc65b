// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures function durations in the kernel.
//!
//! **Input:** functions, the tasks whose calls count, and what to keep. **Output:** for each function the number of
//! calls, their time with and without callees, minimum, maximum and a histogram; or a record for each call that took
//! long enough, and nothing for the others. Also counts of the calls that were missed.
//!
//! ```text
//!  entry ──► frame on the task's stack ──► return ──► row of (CPU, function)      [aggregate]
//!                     ▲                          └──► record, if long enough      [records]
//!            sched_switch: selects the stack
//! ```
//!
//! **Why a shadow stack:** a call's self time excludes the calls that it makes, so each call must know its caller. A
//! hash map by task would cost more at each call than everything else. Here the program at the task switch, which is
//! rare, selects the stack, and entry and return find it by the CPU number: see `layout`.
//!
//! This is right for recursion (each call has its own frame) and for migration (the stack stays with the task). If the
//! kernel skips a program, the frames' keys show the missing entry or return; it is counted, and other calls are still
//! measured correctly.

mod emit;
mod layout;
mod sched;
mod session;
mod stats;

pub use emit::{Condition, Keep, Regions, Shape, Site, entry as entry_program, exit as exit_program};
pub use session::{Config, Hook, LeftOut, Scope, Session, choose};
pub use stats::{FunctionStats, Losses};
