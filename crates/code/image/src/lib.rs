// SPDX-License-Identifier: MIT OR Apache-2.0
//! kprism-image: which code bytes were visible where and when.
//!
//! In: code fragments as recorded (or ELF text, raw pages), x86 instruction bytes. Out: the bytes at
//! (address space, virtual address, trace position), and what an instruction does to the control flow.
//! A trace without the right code is noise, so an address is always resolved at a position of the trace.

pub mod code;
pub mod glob;
pub mod insn;
pub mod maps;
pub mod resolve;
pub mod sideband;
pub mod symbols;

pub use code::Image;
