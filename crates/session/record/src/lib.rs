// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes runs. Input: settings. Output: a run folder.
//!
//! Each module is one recorder: its `Settings`, and a function that records. A recorder refuses what it cannot do before it
//! changes anything, says what it does to a [`Progress`], and leaves nothing attached when it returns or the process ends.
//! It reads no command line and prints nothing.
//!
//! | recorder | module |
//! |---|---|
//! | a command in the guest, with the observer | [`guest`], [`condition`] |
//! | a run of the lab once more, up to one instruction | [`goto`] |
//! | a machine of the user's in QEMU, with the observer | [`observe`] |
//! | the flow, by this processor's Intel PT through perf | [`flow`] |
//! | durations of functions: by ftrace or BPF, here or in the guest | [`durations`] |
//! | a boot | [`boot`] |
//! | TLB misses: by models, off the bus, by this processor | [`tlb`] |
//! | probes: compiled, attached and recorded, here or in the guest | [`probe`] |
//! | gcov's counters: of this kernel, of one built for it in the guest | [`cover`], [`gcov_kernel`] |
//! | the kernel's own tests, in the guest | [`kernel_tests`] |
//! | one command again and again: with tracers, with other packets | [`impact`], [`flow_cost`] |
//! | recordings of other tools | [`import`] |
//! | nothing: which of these work on this machine | [`check`] |
//!
//! [`here`] starts a command on this machine, [`wait`] waits for the end of a recording by BPF, [`notes`] has the notes on a run in the
//! guest.
//!
//! A recording ends when [`kprism_signals::end_requested`]. A program that wants Ctrl-C to request it calls
//! [`kprism_signals::catch`].
//!
//! ```no_run
//! use kprism_record::durations::{self, Settings};
//! use kprism_session::Progress;
//!
//! let settings = Settings { command: vec!["ls".into()], ..Settings::default() };
//! let recorded = durations::record(&settings, &Progress::silent(), &mut |_| {})?;
//! println!("{} calls", recorded.measured.map_or(0, |measured| measured.times.counts.calls));
//! # Ok::<(), kprism_session::Error>(())
//! ```

pub mod boot;
pub mod check;
mod check_plugins;
pub mod condition;
pub mod cover;
pub mod durations;
mod events;
pub mod flow;
pub mod flow_cost;
pub mod gcov_kernel;
pub mod goto;
pub mod guest;
pub mod here;
pub mod impact;
pub mod import;
pub mod import_beside;
pub mod kernel_tests;
pub mod like_host;
mod modules;
pub mod notes;
pub mod observe;
pub mod probe;
pub mod tlb;
pub mod wait;
mod warm;
pub mod written;

pub use kprism_session::{Progress, Result};
pub(crate) use kprism_store::NOT_ENDED;
pub use kprism_store::this_kernel;
use kprism_store::{Manifest, OptionKey, begun};
pub use kprism_tracefs::beside::Beside;
use serde_json::Value;

/// The manifest of a recording by BPF that has begun. Its times are those of the monotonic clock; `options` are kept in it.
fn begun_by_bpf(command: &[String], options: Vec<(OptionKey, Value)>) -> Manifest {
    let mut manifest = begun(command);
    manifest.vcpus = kprism_bpf::host::possible_cpus() as u32;
    manifest.clock.name = "monotonic".into();
    manifest.clock.tsc_hz = 1_000_000_000;
    manifest.set_all(options);
    manifest
}
