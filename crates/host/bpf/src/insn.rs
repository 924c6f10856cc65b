// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes eBPF instructions: 8 bytes each, as a `u64` in little-endian order.
//!
//! `code:8 | dst:4 src:4 | offset:16 | imm:32` (RFC 9669). Plain numbers, so that an expression compiler can emit
//! instructions without a dependency on this crate.

/// A register. `R10` is the frame pointer, read-only. Calls take `R1`–`R5`, return `R0`, and clobber all six.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Width of a memory access in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Width {
    B1,
    B2,
    B4,
    B8,
}

impl Width {
    const fn bits(self) -> u8 {
        match self {
            Width::B4 => 0x00,
            Width::B2 => 0x08,
            Width::B1 => 0x10,
            Width::B8 => 0x18,
        }
    }
}

/// Arithmetic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Neg = 0x80,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
    Arsh = 0xc0,
}

/// Condition of a jump; `Ja` is always taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Cond {
    Ja = 0x00,
    Eq = 0x10,
    Gt = 0x20,
    Ge = 0x30,
    Set = 0x40,
    Ne = 0x50,
    SGt = 0x60,
    SGe = 0x70,
    Lt = 0xa0,
    Le = 0xb0,
    SLt = 0xc0,
    SLe = 0xd0,
}

/// Helper functions of the kernel that this project calls, with their numbers in `bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    KtimeGetNs = 5,
    TracePrintk = 6,
    SmpProcessorId = 8,
    CurrentPidTgid = 14,
    CurrentComm = 16,
    GetStackid = 27,
    CurrentTask = 35,
    GetStack = 67,
    MapPush = 87,
    MapPop = 88,
    ProbeReadUser = 112,
    ProbeReadKernel = 113,
    ProbeReadUserStr = 114,
    ProbeReadKernelStr = 115,
    RingbufOutput = 130,
    RingbufReserve = 131,
    RingbufSubmit = 132,
    RingbufDiscard = 133,
    RingbufQuery = 134,
    CopyFromUser = 148,
    CurrentTaskBtf = 158,
    GetFuncIp = 173,
    GetAttachCookie = 174,
}

/// Encodes an instruction from its fields.
pub const fn encode(code: u8, dst: u8, src: u8, offset: i16, imm: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (offset as u16 as u64) << 16
        | (imm as u32 as u64) << 32
}

/// Decodes an instruction: code, destination, source, offset, immediate.
pub const fn decode(insn: u64) -> (u8, u8, u8, i16, i32) {
    (insn as u8, (insn >> 8 & 15) as u8, (insn >> 12 & 15) as u8, (insn >> 16) as i16, (insn >> 32) as i32)
}

/// `dst op= src`, 64 bits.
pub const fn alu(op: Alu, dst: Reg, src: Reg) -> u64 {
    encode(op as u8 | 0x0f, dst as u8, src as u8, 0, 0)
}

/// `dst op= imm`, 64 bits, the immediate sign-extended.
pub const fn alu_imm(op: Alu, dst: Reg, imm: i32) -> u64 {
    encode(op as u8 | 0x07, dst as u8, 0, 0, imm)
}

/// `dst op= src`, 32 bits; the upper half becomes 0.
pub const fn alu32(op: Alu, dst: Reg, src: Reg) -> u64 {
    encode(op as u8 | 0x0c, dst as u8, src as u8, 0, 0)
}

/// `dst op= imm`, 32 bits; the upper half becomes 0.
pub const fn alu32_imm(op: Alu, dst: Reg, imm: i32) -> u64 {
    encode(op as u8 | 0x04, dst as u8, 0, 0, imm)
}

/// `dst = *(base + offset)`.
pub const fn load(width: Width, dst: Reg, base: Reg, offset: i16) -> u64 {
    encode(0x61 | width.bits(), dst as u8, base as u8, offset, 0)
}

/// `*(base + offset) = src`.
pub const fn store(width: Width, base: Reg, offset: i16, src: Reg) -> u64 {
    encode(0x63 | width.bits(), base as u8, src as u8, offset, 0)
}

/// `*(base + offset) = imm`.
pub const fn store_imm(width: Width, base: Reg, offset: i16, imm: i32) -> u64 {
    encode(0x62 | width.bits(), base as u8, 0, offset, imm)
}

/// `lock *(u64 *)(base + offset) += src`.
pub const fn atomic_add(base: Reg, offset: i16, src: Reg) -> u64 {
    encode(0xdb, base as u8, src as u8, offset, 0)
}

/// As [`atomic_add`]; `src` also receives the previous value.
pub const fn fetch_add(base: Reg, offset: i16, src: Reg) -> u64 {
    encode(0xdb, base as u8, src as u8, offset, 1)
}

/// If `*(u64 *)(base + offset)` equals `R0`, sets it to `src`. `R0` receives the previous value. Atomic.
pub const fn compare_exchange(base: Reg, offset: i16, src: Reg) -> u64 {
    encode(0xdb, base as u8, src as u8, offset, 0xf1)
}

/// Calls a helper.
pub const fn call(helper: Helper) -> u64 {
    encode(0x85, 0, 0, 0, helper as i32)
}

/// Ends the program; `R0` is its return value.
pub const fn exit() -> u64 {
    encode(0x95, 0, 0, 0, 0)
}
