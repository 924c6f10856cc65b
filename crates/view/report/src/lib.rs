// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views of a run for people and other tools.
//!
//! Input: a [`Profile`](kprism_profile::Profile) and the run's [`Manifest`](kprism_store::Manifest), from the decoder
//! or from the store. Output:
//!
//! | view | module | for |
//! |---|---|---|
//! | tables (text, JSON, CSV) of functions, system calls, tasks, errors | [`tables`], [`table`] | terminals, scripts |
//! | intervals between markers, with histograms | [`deltas`] | terminals, scripts |
//! | the impact of tracers on system calls | [`impact`] | terminals, scripts, browsers |
//! | function durations | [`durations`] | terminals, scripts |
//! | comparison of two runs | [`diff`] | terminals, scripts |
//! | a boot, and two of them | [`boot`] | terminals, scripts, browsers |
//! | the call tree | [`calltree`] | terminals |
//! | folded stacks | [`folded`] | flame graph tools |
//! | Perfetto trace | [`perfetto`] | ui.perfetto.dev, its trace processor |
//! | pprof's profile | [`pprof`] | pprof, and tools that read its files |
//! | size and resolution of a trace by packet settings | [`cost`] | choosing settings |
//! | coverage: tables, annotated source, differences | [`cover`] | terminals, scripts |
//! | records and counts of probes | [`probe`] | terminals, scripts, browsers |
//! | TLB misses | [`tlb`] | terminals, scripts, browsers |
//! | the kernel's own tests | [`kernel_tests`] | terminals, scripts, continuous integration |
//! | a compiled condition; static tracepoints | [`explain`], [`tracepoints`] | terminals, scripts |
//! | facts on a run, lists of runs | [`info`] | terminals |
//! | any text, so that nothing in it commands a terminal | [`plain`](mod@plain) | terminals |
//! | any text inside XML | [`xml`] | JUnit, Cobertura |
//! | two runs of an instrument: text, JSON, one HTML file | [`compared`] | terminals, scripts, browsers |
//! | events of any source in lanes on one clock, within a budget | [`lanes`] | timelines of pages |
//! | one HTML file: sunburst, flame graph, tables | [`html`] | browsers, without a network |
//!
//! All views are in one crate because they are pure functions of the same rows, so they cannot disagree. Names come
//! from binaries and are untrusted; each view escapes them for its own medium.

pub mod boot;
pub mod calltree;
pub mod compared;
pub mod cost;
pub mod cover;
pub mod deltas;
pub mod diff;
pub mod durations;
pub mod environment;
pub mod explain;
pub mod folded;
pub mod header;
pub mod html;
pub mod impact;
pub mod info;
pub mod kernel_tests;
pub mod lanes;
pub mod perfetto;
pub mod plain;
mod poisson;
pub mod pprof;
pub mod probe;
pub mod rows;
pub mod shape;
pub mod table;
pub mod tables;
pub mod tlb;
pub mod tracepoints;
pub mod tree;
pub mod vms;
pub mod xml;

pub use table::{Shown, Style, Table, UnknownColumn};
