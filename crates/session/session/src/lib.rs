// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library behind the command line: opens a run and gives its results as values.
//!
//! Input: a run folder, or what a recorder left. Output: a [`Profile`](kprism_profile::Profile), durations, a boot's
//! initcalls, coverage, accounts of what was lost. It prints nothing; what it is doing, it tells a [`Progress`].
//!
//! ```no_run
//! let profile = kprism_session::open("kprism.data")?.flow()?;
//! println!("{} instructions in {} functions", profile.totals.instructions(), profile.funcs.len());
//! # Ok::<(), kprism_session::Error>(())
//! ```
//!
//! `examples/` has the ten hottest kernel functions of a run, and the difference of two runs. `kprism-record` makes runs.
//!
//! | result | module |
//! |---|---|
//! | all of them, of one run | [`Session`] |
//! | the flow's profile, and all that a decode needs | [`flow`] |
//! | one system call, or one call of a function, of it | [`call`], [`function_calls`] |
//! | the functions that a text names | [`functions`] |
//! | intervals between markers | [`deltas`] |
//! | counts of the instructions of a function | [`annotate`] |
//! | durations of functions: recorded, or from a flow | [`durations`] |
//! | a boot's initcalls | [`boot`] |
//! | coverage: from gcov's counters, or from a flow; a profile for gcc | [`cover`] |
//! | gcov's counters in a kernel's memory | [`core_memory`] |
//! | the size and resolution of a trace | [`cost`] |
//! | TLB misses, their objects, the effect of larger pages | [`tlb`] |
//! | account of a recording of TLB misses | [`tlb_account`] |
//! | records of probes, their account | [`probe`] |
//! | the kernel's own tests, one by one | [`kernel_tests`] |
//! | a condition compiled, to be shown; static tracepoints | [`explain`], [`tracepoints`] |
//! | the text of an error | [`errors`] |
//! | what a run holds | [`held`] |
//! | everything in one order of time | [`moments()`] |
//! | a run as perf.data | [`perfdata`] |
//!
//! Errors are [`anyhow::Error`]s whose chain names the file and what was expected.

pub mod annotate;
pub mod boot;
pub mod call;
pub mod core_memory;
pub mod cost;
pub mod cover;
mod debug_folders;
pub mod deltas;
pub mod durations;
pub mod errors;
pub mod explain;
pub mod files;
pub mod flow;
pub mod function_calls;
pub mod functions;
pub mod held;
pub mod kernel_tests;
pub mod moments;
pub mod open;
pub mod perfdata;
mod pieces;
pub mod probe;
pub mod progress;
pub mod tlb;
pub mod tlb_account;
pub mod tracepoints;
pub mod vms;

pub use anyhow::{Error, Result};
pub use kprism_store::date;
pub use moments::{Moment, each as moments};
pub use open::{Session, open, open_profile, open_with};
pub use progress::{Progress, Update};

/// The folder in which runs are written and read unless told otherwise.
pub const DEFAULT_RUN: &str = "kprism.data";

/// The option that names this run to a command: ` -i PLACE`, or nothing for [`DEFAULT_RUN`].
pub fn input_option(run: &kprism_store::Run) -> String {
    match run.dir() == std::path::Path::new(DEFAULT_RUN) {
        true => String::new(),
        false => format!(" -i {}", run.dir().display()),
    }
}
