// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code bytes that were visible at each address and time, and the meaning of instructions.
//!
//! The input is code fragments as recorded (or ELF text, or raw pages) and x86 instruction bytes. The output is the
//! bytes at an address space, virtual address and trace position, and the effect of an instruction on the control flow.
//! A trace cannot be decoded with the wrong code, so an address is always resolved at a position of the trace.
//!
//! | module | job |
//! |---|---|
//! | [`maps`] | the code that ran, as the observer writes it: one dictionary, a map for each CPU |
//! | [`sideband`] | task switches and mappings, in the order of the file |
//! | [`code`] | the bytes at an address and a position |
//! | [`symbols`] | ELF files and kallsyms: the function at an address and a time |
//! | [`resolve`] | functions at a position, as the analyses ask for them |
//! | [`x86`] | the effect of instructions on the control flow; the kernel's half of addresses |
//! | [`build_id`], [`notes`] | the build id of a file or a kernel |
//! | [`separate`] | the places of debug files, by the build id or a debug link |
//! | [`glob`] | patterns of function names |
//! | [`bytes`], [`ranges`] | bytes in memory or in a file; values by address |

pub mod build_id;
pub mod bytes;
pub mod code;
pub mod glob;
pub mod maps;
pub mod notes;
pub mod ranges;
pub mod resolve;
pub mod separate;
pub mod sideband;
pub mod symbols;
pub mod x86;

pub use build_id::BuildId;
pub use bytes::Bytes;
pub use code::Image;
pub use x86::address::is_kernel;
pub use x86::insn;
