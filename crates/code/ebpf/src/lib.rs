// SPDX-License-Identifier: MIT OR Apache-2.0
//! eBPF instructions (RFC 9669): one encoding, one assembler, one disassembler.
//!
//! Input: instructions one by one ([`asm::Asm`]), or made by a compiler ([`insn::Insn`]). Output: [`asm::Code`] that a loader
//! gives to the kernel, and text in bpftool's syntax ([`disasm`]). The crate touches no kernel.

pub mod asm;
pub mod disasm;
pub mod insn;
pub mod opcode;
