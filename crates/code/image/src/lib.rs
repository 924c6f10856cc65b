// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code bytes that were visible at each address and time, and the meaning of instructions.
//!
//! The input is code fragments as recorded (or ELF text, or raw pages) and x86 instruction bytes. The output is the
//! bytes at an address space, virtual address and trace position, and the effect of an instruction on the control flow.
//! A trace cannot be decoded with the wrong code, so an address is always resolved at a position of the trace.

pub mod build_id;
pub mod code;
pub mod glob;
pub mod maps;
pub mod notes;
pub mod resolve;
pub mod sideband;
pub mod symbols;
pub mod x86;

pub use build_id::BuildId;
pub use code::Image;
pub use x86::address::is_kernel;
pub use x86::insn;
