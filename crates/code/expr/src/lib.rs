// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions on a kernel's or a program's variables, as eBPF.
//!
//! In: a C expression and a place in the code ([`lower`]), or GDB's agent bytecode ([`agent`]). Out: eBPF and the
//! places in it that a loader fills in ([`emit`]).
//!
//! ```text
//! text ─ lex ─ parse ─┐                                         ┌─ interp: a value, here and now
//!                     ├─ lower ─┐                               │
//! DWARF ─ dwarf ─┐    │         ├─ ir ─ opt: shorter, the same ─┤
//! BTF ─── btf ───┴ scope        │                               │
//! agent bytecode ────── agent ──┘                               └─ emit: eBPF v3, v4
//! ```
//!
//! A [`scope::Scope`] says what can be named at a place, and where it is; [`dwarf::Place`] and [`btf::Place`] are
//! two. [`lower`] checks types by C's rules and makes IR. What can fail in a probe (a bad read, a division by zero)
//! ends the program with a fault that is counted; the optimiser never moves or drops it. [`interp`] runs the same IR
//! over any memory, and is what the eBPF is held against; [`watch`] hands it to a recorder that looks on from outside.
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

mod abi;
pub mod agent;
pub mod ast;
pub mod btf;
pub mod ctype;
pub mod dwarf;
pub mod emit;
pub mod error;
pub mod event;
pub mod interp;
pub mod ir;
pub mod lex;
pub mod lower;
pub mod opt;
pub mod parse;
mod print;
pub mod regs;
pub mod scope;
pub mod usdt;
pub mod watch;
