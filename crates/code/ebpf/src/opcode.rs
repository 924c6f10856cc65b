// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of opcodes (RFC 9669, section 3): a class or whole opcode, `|` an operation, `|` [`X`].

// Whole opcodes, but for the size of a memory operand.
/// Load, zero-extended: class LDX, mode MEM.
pub const LDX: u8 = 0x61;
/// Load, sign-extended (version 4).
pub const LDXSX: u8 = 0x81;
/// Store of an immediate.
pub const ST: u8 = 0x62;
/// Store of a register.
pub const STX: u8 = 0x63;
/// Atomic operation on 64 bits; the immediate names it.
pub const ATOMIC_DW: u8 = 0xdb;
/// Load of 64 bits, in two instructions.
pub const LDDW: u8 = 0x18;
/// Call of a helper or kernel function.
pub const CALL: u8 = 0x85;
/// End of the program.
pub const EXIT: u8 = 0x95;

// Classes.
/// Arithmetic on 32 bits.
pub const ALU: u8 = 0x04;
/// Arithmetic on 64 bits.
pub const ALU64: u8 = 0x07;
/// Jump by 64 bits.
pub const JMP: u8 = 0x05;
/// Jump by 32 bits.
pub const JMP32: u8 = 0x06;
/// The right operand is a register.
pub const X: u8 = 0x08;

// Operations of ALU and ALU64.
/// `+=`.
pub const ADD: u8 = 0x00;
/// `-=`.
pub const SUB: u8 = 0x10;
/// `*=`.
pub const MUL: u8 = 0x20;
/// `/=`.
pub const DIV: u8 = 0x30;
/// `|=`.
pub const OR: u8 = 0x40;
/// `&=`.
pub const AND: u8 = 0x50;
/// `<<=`.
pub const LSH: u8 = 0x60;
/// `>>=`.
pub const RSH: u8 = 0x70;
/// negation.
pub const NEG: u8 = 0x80;
/// `%=`.
pub const MOD: u8 = 0x90;
/// `^=`.
pub const XOR: u8 = 0xa0;
/// `=`.
pub const MOV: u8 = 0xb0;
/// `>>=`, signed.
pub const ARSH: u8 = 0xc0;
/// change of byte order.
pub const END: u8 = 0xd0;

// Conditions of JMP and JMP32.
/// always.
pub const JA: u8 = 0x00;
/// `==`.
pub const JEQ: u8 = 0x10;
/// `>`.
pub const JGT: u8 = 0x20;
/// `>=`.
pub const JGE: u8 = 0x30;
/// `&`.
pub const JSET: u8 = 0x40;
/// `!=`.
pub const JNE: u8 = 0x50;
/// `>`, signed.
pub const JSGT: u8 = 0x60;
/// `>=`, signed.
pub const JSGE: u8 = 0x70;
/// `<`.
pub const JLT: u8 = 0xa0;
/// `<=`.
pub const JLE: u8 = 0xb0;
/// `<`, signed.
pub const JSLT: u8 = 0xc0;
/// `<=`, signed.
pub const JSLE: u8 = 0xd0;

/// Returns the size bits of a memory instruction for this many bytes.
pub const fn size_bits(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}
