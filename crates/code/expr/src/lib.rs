// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles conditions on the variables of a kernel or a program to eBPF.
//!
//! Input: a C expression and a place in the code ([`lower`]), or GDB's agent bytecode ([`agent`]). Output: eBPF
//! instructions, and the list of operands that the loader has to fill in ([`emit`]).
//!
//! ```text
//! text ─ lex ─ parse ─┐                                         ┌─ interp: a value, here and now
//!                     ├─ lower ─┐                               │
//! DWARF ─ dwarf ─┐    │         ├─ ir ─ opt: shorter, the same ─┤
//! BTF ─── btf ───┴ scope        │                               │
//! agent bytecode ────── agent ──┘                               └─ emit: eBPF v3, v4
//! ```
//!
//! A [`scope::Scope`] lists the names that are visible at a place, and the location of each. [`dwarf::Place`] and
//! [`btf::Place`] implement it. [`lower`] checks types by C's rules and builds the IR. An operation that fails in a
//! probe (a bad read, a division by zero) ends the program with a fault, which is counted; the optimiser never moves or
//! removes such an operation. [`interp`] runs the same IR over any memory; tests compare the eBPF with it. [`watch`]
//! hands the IR to a recorder that observes the machine from outside, [`access`] to one that sees accesses to memory.
//!
//! ```
//! use kprism_expr::{emit, ir::Space, lower, opt, scope::Bare};
//!
//! let env = lower::Env { scope: &Bare(Space::Kernel), vars: &[] };
//! let mut func = lower::condition("2*(int)$rdi + 3*(int)$rsi < 0", env).unwrap().func;
//! opt::optimise(&mut func);
//! let program = emit::program(&func, emit::Cpu::V3, emit::Output::Verdict).unwrap();
//! assert_eq!(program.longest(), 8);
//! ```

pub mod access;
pub mod agent;
pub mod ast;
pub mod btf;
pub mod ctype;
pub mod dwarf;
pub mod emit;
pub mod error;
pub mod event;
pub mod explained;
pub mod interp;
pub mod ir;
pub mod lex;
pub mod lower;
pub mod opt;
pub mod parse;
mod print;
pub mod scope;
pub mod usdt;
pub mod watch;
pub mod x86;

pub use x86::regs;
