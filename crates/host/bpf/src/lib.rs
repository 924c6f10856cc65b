// SPDX-License-Identifier: MIT OR Apache-2.0
//! bpf(2) without a compiler: the only crate that loads and attaches BPF programs.
//!
//! **In:** instructions, written with [`asm`] here or by another maker as plain words with relocations
//! ([`asm::Code`]), and what to attach them to. **Out:** maps and rings being read, links that hold as long as this
//! process lives, errors that say what the kernel lacks or what its verifier said, beside what we meant.
//!
//! | module | job |
//! |---|---|
//! | [`insn`], [`asm`], [`disasm`] | instructions: encode, assemble with labels, list |
//! | [`map`], [`ring`], [`mapping`] | memory shared with programs |
//! | [`cpu_ring`] | rings of our own, one for each CPU: the cheapest way for a record |
//! | [`wanted`] | whose hits count: a byte for each process |
//! | [`prog`], [`link`] | load, test, attach |
//! | [`kernel`] | the running kernel's types, functions and addresses in one place |
//! | [`host`] | what the machine allows, and the remedy where it does not |
//! | [`func`] | function durations measured in the kernel |
//!
//! **Why not libbpf:** everything here is emitted by us, so its ELF loader and relocations would have nothing to do;
//! what remains is a dozen system calls whose layouts are frozen. In exchange for these there is no C to build, the
//! binary stays static, and every error can be ours. The two system calls and all their `unsafe` are in one file.

pub mod asm;
pub mod cpu_ring;
pub mod disasm;
mod error;
pub mod func;
pub mod host;
pub mod insn;
pub mod kernel;
pub mod link;
pub mod map;
pub mod mapping;
pub mod numbers;
pub mod prog;
pub mod ring;
mod sys;
pub mod wanted;

pub use error::{Error, VerifierLog};
