// SPDX-License-Identifier: MIT OR Apache-2.0
//! kprism-expr
mod abi;
pub mod agent;
pub mod ast;
pub mod btf;
pub mod ctype;
pub mod dwarf;
pub mod emit;
pub mod error;
pub mod interp;
pub mod ir;
pub mod lex;
pub mod lower;
pub mod opt;
pub mod parse;
pub mod print;
pub mod regs;
pub mod scope;
