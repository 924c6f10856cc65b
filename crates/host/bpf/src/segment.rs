// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inserts a compiled segment into a program. The segment has its own registers and stack; the caller resolves its maps
//! and addresses.

use kprism_ebpf::asm::{Asm, Label};
use kprism_ebpf::insn::{Alu, Helper, Reg, Width};
use kprism_ebpf::opcode::{CALL, EXIT};
use kprism_expr::emit::{Program, Reloc};

/// Bytes of stack that segments may use, from the top.
pub const STACK: u32 = 464;
/// Stack offset at which the program keeps its context, the input of every segment.
pub const CONTEXT: i16 = -512;

/// Replacement for a relocation of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A map, by its index in the program.
    Map(usize),
    /// An offset in a map's memory.
    Memory(usize, u32),
    /// An offset in the memory whose address the program keeps at this offset of its stack.
    Kept(i16, u32),
    /// An address.
    Address(u64),
}

/// Inserts a segment into a program that may sleep (`sleeps`) or not. Execution continues at the returned label with
/// the value in r0, or at `fault` after a fault.
pub fn insert(
    asm: &mut Asm,
    segment: &Program,
    find: &dyn Fn(Reloc) -> Option<Operand>,
    fault: Label,
    sleeps: bool,
) -> Result<Label, String> {
    let Program { insns, relocs, faulted, stack, .. } = segment;
    if *stack > STACK {
        return Err("too large for a program's stack; split it, or collect less at once".to_owned());
    }
    let value = asm.label();
    asm.load(Width::B8, Reg::R1, Reg::R10, CONTEXT);
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        let Some(reloc) = relocs.iter().find(|r| r.0 == at).map(|r| r.1) else {
            match insn.code {
                EXIT => asm.goto(if faulted.contains(&at) { fault } else { value }),
                // It has the same arguments, and pages in memory that the process has not touched yet.
                CALL if sleeps && insn.imm == Helper::ProbeReadUser as i32 && insn.src == 0 => {
                    asm.call(Helper::CopyFromUser)
                }
                _ => asm.put(*insn),
            };
            at += 1;
            continue;
        };
        let dst = register(insn.dst);
        match find(reloc).ok_or_else(|| format!("a value here has no {reloc:?}"))? {
            Operand::Map(map) => asm.map(dst, map),
            Operand::Memory(map, offset) => asm.map_value(dst, map, offset),
            Operand::Kept(slot, offset) => {
                asm.load(Width::B8, dst, Reg::R10, slot).alu_imm(Alu::Add, dst, offset.cast_signed())
            }
            Operand::Address(address) => asm.mov_wide(dst, address),
        };
        at += 2;
    }
    Ok(value)
}

fn register(number: u8) -> Reg {
    use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
    [R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10][usize::from(number.min(10))]
}
