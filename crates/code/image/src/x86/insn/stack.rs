// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions that give the stack pointer a value that is not of the current stack.
//!
//! Code that switches stacks (coroutines, green threads, `longjmp`) loads the stack pointer from memory or from a register that
//! holds no address of the current frame, and then jumps or returns. The instructions by which functions allocate and free their
//! own frame (`sub`, `leave`, `mov rsp, rbp`, `lea`) are not meant. A register that calls preserve (psABI 3.2.1) holds what the
//! function itself saved of its stack pointer.

/// Returns true if the instruction at the start of `bytes`, in 64-bit code, loads the stack pointer.
#[must_use]
pub fn loads_stack(bytes: &[u8]) -> bool {
    // Prefixes of segments, sizes and repetition (SDM volume 2, 2.1.1).
    let prefix =
        |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x66 | 0x67 | 0xf2 | 0xf3);
    let prefixes = bytes.iter().take_while(|byte| prefix(byte)).count();
    match bytes[prefixes..] {
        // pop rsp; REX.B would make it r12
        [0x5c, ..] => true,
        [rex @ 0x40..=0x4f, 0x5c, ..] => rex & 1 == 0,
        // xchg rax, rsp
        [rex @ 0x48..=0x4f, 0x94, ..] => rex & 1 == 0,
        // mov rsp, r/m
        [rex @ 0x48..=0x4b, 0x8b, modrm, ..] if modrm >> 3 & 7 == 4 => {
            modrm < 0xc0 || !is_preserved(rex & 1, modrm & 7)
        }
        // mov rsp, r
        [rex @ (0x48 | 0x4a | 0x4c | 0x4e), 0x89, modrm, ..] if modrm & 0xc7 == 0xc4 => {
            !is_preserved(rex >> 2 & 1, modrm >> 3 & 7)
        }
        // xchg r, rsp
        [rex @ 0x48..=0x4f, 0x87, modrm, ..] => {
            modrm >> 3 & 7 == 4 && rex & 4 == 0 || modrm & 0xc7 == 0xc4 && rex & 1 == 0
        }
        _ => false,
    }
}

/// Returns true for rbx, rbp and r12 to r15, given the bit in the REX prefix and the three bits in ModRM.
fn is_preserved(high: u8, low: u8) -> bool {
    matches!(high << 3 | low, 3 | 5 | 12..=15)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

    use super::*;

    /// By iced: a move or exchange that writes the stack pointer, or a pop into it; not from a preserved register.
    fn judge(bytes: &[u8]) -> Option<bool> {
        let insn = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        if insn.is_invalid() {
            return None;
        }
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(&insn);
        let writes = |op: u32, access: OpAccess| {
            insn.op_kind(op) == OpKind::Register
                && insn.op_register(op) == Register::RSP
                && matches!(access, OpAccess::Write | OpAccess::ReadWrite)
        };
        let preserved =
            [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
        let from_frame = insn.op_count() == 2
            && insn.op_kind(1) == OpKind::Register
            && preserved.contains(&insn.op_register(1));
        Some(match insn.mnemonic() {
            Mnemonic::Mov => writes(0, info.op0_access()) && !from_frame,
            Mnemonic::Pop => writes(0, info.op0_access()),
            Mnemonic::Xchg => writes(0, info.op0_access()) || writes(1, info.op1_access()),
            _ => false,
        })
    }

    #[test]
    fn every_short_form_is_as_iced_says() {
        let (mut loads, mut tried) = (0, 0);
        for rex in [None].into_iter().chain((0x40..=0x4f).map(Some)) {
            for opcode in [0x5c, 0x87, 0x89, 0x8b, 0x8d, 0x8f, 0x90, 0x94, 0x95, 0xc7, 0xc9, 0x01, 0x03, 0x83]
            {
                for modrm in 0..=255u8 {
                    // What ends in the same way for all operands: a displacement of 0 and no index.
                    let tail = [0x24, 0, 0, 0, 0, 0, 0, 0, 0];
                    let bytes: Vec<u8> = rex.into_iter().chain([opcode, modrm]).chain(tail).collect();
                    // `pop r/m64` with the register form is another encoding of `pop rsp` that no compiler writes.
                    if let Some(expected) = judge(&bytes).filter(|_| opcode != 0x8f && opcode != 0xc7) {
                        // Without REX.W, the stack pointer is written in part only.
                        assert_eq!(loads_stack(&bytes), expected, "{bytes:02x?}");
                        loads += u32::from(expected);
                        tried += 1;
                    }
                }
            }
        }
        assert!(loads > 100 && tried > 10_000, "{loads} of {tried}");
        assert!(loads_stack(&[0x65, 0x48, 0x8b, 0x24, 0x25, 0, 0, 0, 0]), "mov rsp, gs:0");
        assert!(!loads_stack(&[]) && !loads_stack(&[0x48]) && !loads_stack(&[0x66]));
    }
}
