// SPDX-License-Identifier: MIT OR Apache-2.0
//! `manifest.json` of a run: what ran, where, with which clock, and what was lost.
//!
//! In: facts of a recorder or a decoder. Out: a [`Manifest`]. It is apart from the store, whose tables need a compressor in C,
//! so that `kprism-recorder` writes runs on machines for which only Rust is compiled.

mod account;
mod conditions;
pub mod date;
mod environment;
mod facts;
mod filtered;
pub mod hash;
mod here;
mod huge_pages;
mod instrument;
mod manifest;
mod option;
mod option_facts;
mod part;
pub mod recorded;

pub use account::{Account, Entry, Fate, NOT_WHOLE, PLACES, WHOLE};
pub use conditions::{Condition, ConditionKind, LIKE_HOST_NOTE};
pub use environment::{Difference, Environment};
pub use facts::{CallLosses, DurationFacts, KernelTests, ProbeFacts};
pub use here::{NOT_ENDED, begun, this_kernel};
pub use huge_pages::{HugePageMode, HugePages};
pub use instrument::{About, Instrument};
pub use manifest::{
    Clock, Kernel, KernelModule, KernelTree, Manifest, NO_CLOCK, PerfClock, Processor, RunKind, table_path,
};
pub use option::{Bearing, OptionKey, SettingKey};
pub use option_facts::{OptionFacts, StorageFacts};
pub use recorded::Recorded;
