// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and attaches BPF programs through bpf(2), without a compiler. No other crate does this.
//!
//! **Input:** instructions ([`kprism_ebpf::asm::Code`]) and attachment points. **Output:** maps and rings, links that last as long as this process, and
//! errors that name the missing kernel feature or contain the verifier's log with the notes on the instructions.
//!
//! | module | job |
//! |---|---|
//! | [`map`], [`ring`], [`mapping`] | memory shared with programs |
//! | [`cpu_ring`] | per-CPU rings, independent of the kernel's: the cheapest way to write a record |
//! | [`wanted`] | selection of processes: a byte for each |
//! | [`prog`], [`link`] | load, test, attach |
//! | [`kernel`] | the running kernel's types, functions and addresses |
//! | [`names`] | what a condition names in the kernel: functions, containers |
//! | [`segment`] | a condition or value that `kprism-expr` compiled, as a part of a program |
//! | [`host`] | checks of the machine, with remedies |
//! | [`func`] | function durations measured in the kernel |
//!
//! **Why not libbpf:** all programs are generated here, so its ELF loader and relocations are not needed; what remains
//! is bpf(2) with a dozen commands, and perf_event_open(2), with stable layouts. Without it there is no C to build, the binary stays static, and error
//! messages are under this crate's control. Both calls, with all their `unsafe`, are in `sys.rs`.

pub mod cpu_ring;
mod error;
pub mod func;
pub mod host;
pub mod kernel;
pub mod link;
pub mod map;
pub mod mapping;
pub mod names;
pub mod numbers;
pub mod prog;
pub mod ring;
pub mod segment;
mod sys;
pub mod wanted;

pub use error::{Error, VerifierLog};
