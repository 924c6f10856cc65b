// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the call structure to call stacks, and times and instructions of every calling context.
//!
//! In: the events of one chunk of a CPU's stream after another, and the task switches of the sideband. Out: the tree of
//! calling contexts, system calls, slices, and marks in the order in which each CPU and task met them.
//!
//! [`chunk`] keeps the stack while one chunk is decoded, without knowledge of what lies below it. [`stitch`] joins the
//! chunks of each CPU (a [`lane`]) to the complete stacks of the tasks, and [`causes`] applies what a chunk could not
//! decide. [`rules`] says how a complete stack changes, here and in a replay. All use the frames and the tree of
//! [`frames`]. Stacks that a program switches itself are in [`parked`]. [`switches`] finds the task that runs, [`pace`] the
//! time between two reports, which [`correct`] shortens where it was too long. [`guessed`] counts what was not followed.

pub(crate) mod causes;
pub(crate) mod chunk;
pub(crate) mod correct;
pub(crate) mod frames;
pub(crate) mod guessed;
pub(crate) mod lane;
pub(crate) mod pace;
pub(crate) mod parked;
pub(crate) mod rules;
pub(crate) mod stitch;
pub(crate) mod switches;
