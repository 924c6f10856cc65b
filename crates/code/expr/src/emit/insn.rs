// SPDX-License-Identifier: MIT OR Apache-2.0
//! eBPF instructions (RFC 9669): encoding and disassembly.

/// One 8-byte instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Insn {
    /// Opcode: class, operation and source bits.
    pub code: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register.
    pub src: u8,
    /// Offset of a jump or of a memory operand.
    pub off: i16,
    /// Immediate operand.
    pub imm: i32,
}

impl Insn {
    /// Encodes the instruction as the kernel expects it.
    pub fn bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[0] = self.code;
        bytes[1] = self.src << 4 | self.dst;
        bytes[2..4].copy_from_slice(&self.off.to_le_bytes());
        bytes[4..].copy_from_slice(&self.imm.to_le_bytes());
        bytes
    }

    /// Decodes an instruction.
    pub fn of(bytes: [u8; 8]) -> Self {
        let [code, registers, off @ .., a, b, c, d] = bytes;
        let (dst, src) = (registers & 15, registers >> 4);
        Self { code, dst, src, off: i16::from_le_bytes(off), imm: i32::from_le_bytes([a, b, c, d]) }
    }
}

/// Serializes instructions as hexadecimal digits.
pub(super) mod hex {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::Insn;

    pub fn serialize<S: Serializer>(insns: &[Insn], out: S) -> Result<S::Ok, S::Error> {
        let text: String = insns.iter().flat_map(|i| i.bytes()).map(|b| format!("{b:02x}")).collect();
        out.serialize_str(&text)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<Insn>, D::Error> {
        let text = String::deserialize(from)?;
        let expected = || D::Error::custom("expected instructions of eBPF: 16 hexadecimal digits each");
        if !text.len().is_multiple_of(16) || !text.is_ascii() {
            return Err(expected());
        }
        let word = |at| u64::from_str_radix(text.get(at..at + 16)?, 16).ok();
        let insn = |at| Some(Insn::of(word(at)?.to_be_bytes()));
        (0..text.len()).step_by(16).map(insn).collect::<Option<_>>().ok_or_else(expected)
    }
}

/// Version of the BPF instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cpu {
    /// Version 3: supported since Linux 5.12.
    V3,
    /// Version 4: adds signed division and sign extension; supported since Linux 6.6.
    V4,
}

pub(super) const LDX: u8 = 0x61;
pub(super) const LDXSX: u8 = 0x81;
pub(super) const ST: u8 = 0x62;
pub(super) const STX: u8 = 0x63;
pub(super) const ATOMIC_DW: u8 = 0xdb;
pub(super) const LDDW: u8 = 0x18;
pub(super) const ALU: u8 = 0x04;
pub(super) const ALU64: u8 = 0x07;
pub(super) const JMP: u8 = 0x05;
pub(super) const JMP32: u8 = 0x06;
pub(super) const X: u8 = 0x08;
pub(super) const CALL: u8 = 0x85;
pub(super) const EXIT: u8 = 0x95;

pub(super) const ADD: u8 = 0x00;
pub(super) const SUB: u8 = 0x10;
pub(super) const MUL: u8 = 0x20;
pub(super) const DIV: u8 = 0x30;
pub(super) const OR: u8 = 0x40;
pub(super) const AND: u8 = 0x50;
pub(super) const LSH: u8 = 0x60;
pub(super) const RSH: u8 = 0x70;
pub(super) const MOD: u8 = 0x90;
pub(super) const XOR: u8 = 0xa0;
pub(super) const MOV: u8 = 0xb0;
pub(super) const ARSH: u8 = 0xc0;

pub(super) const JA: u8 = 0x00;
pub(super) const JEQ: u8 = 0x10;
pub(super) const JGT: u8 = 0x20;
pub(super) const JGE: u8 = 0x30;
pub(super) const JNE: u8 = 0x50;
pub(super) const JSGT: u8 = 0x60;
pub(super) const JSGE: u8 = 0x70;
pub(super) const JLT: u8 = 0xa0;
pub(super) const JLE: u8 = 0xb0;
pub(super) const JSLT: u8 = 0xc0;
pub(super) const JSLE: u8 = 0xd0;

/// Returns the size bits of a memory instruction for this many bytes.
pub(super) fn size_bits(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}

/// Numbers of the helpers that programs call (include/uapi/linux/bpf.h).
pub mod helper {
    /// bpf_map_lookup_elem.
    pub const MAP_LOOKUP: i32 = 1;
    /// bpf_map_update_elem.
    pub const MAP_UPDATE: i32 = 2;
    /// bpf_ktime_get_ns.
    pub const TIME: i32 = 5;
    /// bpf_get_smp_processor_id.
    pub const CPU: i32 = 8;
    /// bpf_get_current_pid_tgid.
    pub const PID_TGID: i32 = 14;
    /// bpf_get_current_comm.
    pub const COMM: i32 = 16;
    /// bpf_probe_read_user.
    pub const READ_USER: i32 = 112;
    /// bpf_probe_read_kernel.
    pub const READ_KERNEL: i32 = 113;
    /// bpf_probe_read_user_str.
    pub const READ_USER_STR: i32 = 114;
    /// bpf_probe_read_kernel_str.
    pub const READ_KERNEL_STR: i32 = 115;
    /// bpf_ringbuf_output.
    pub const RING_OUTPUT: i32 = 130;

    /// Returns the helper that reads this address space, or a string in it.
    pub(crate) fn read(space: crate::ir::Space, text: bool) -> i32 {
        use crate::ir::Space;
        match (space, text) {
            (Space::Kernel, false) => READ_KERNEL,
            (Space::Kernel, true) => READ_KERNEL_STR,
            (Space::User, false) => READ_USER,
            (Space::User, true) => READ_USER_STR,
        }
    }

    pub(super) fn name(number: i32) -> &'static str {
        match number {
            MAP_LOOKUP => "map_lookup_elem",
            MAP_UPDATE => "map_update_elem",
            TIME => "ktime_get_ns",
            CPU => "get_smp_processor_id",
            PID_TGID => "get_current_pid_tgid",
            COMM => "get_current_comm",
            READ_USER => "probe_read_user",
            READ_KERNEL => "probe_read_kernel",
            READ_USER_STR => "probe_read_user_str",
            READ_KERNEL_STR => "probe_read_kernel_str",
            RING_OUTPUT => "ringbuf_output",
            _ => "unknown",
        }
    }
}

/// Disassembles the instruction in bpftool's syntax. `high` is the immediate of the next instruction, for the one that
/// takes two.
pub fn text(insn: Insn, high: i32) -> String {
    let Insn { code, dst, src, off, imm } = insn;
    let memory = |reg: u8| {
        let bits = match code & 0x18 {
            0x10 => 8,
            0x08 => 16,
            0x00 => 32,
            _ => 64,
        };
        let sign = if code & 0xe0 == 0x80 { 's' } else { 'u' };
        let side = if off < 0 { '-' } else { '+' };
        format!("*({sign}{bits} *)(r{reg} {side} {})", off.unsigned_abs())
    };
    match code & 7 {
        0 if src == 2 => format!("r{dst} = map[fd {imm}] + {high}"),
        0 if src == 1 => format!("r{dst} = map[fd {imm}]"),
        0 => format!("r{dst} = {:#x} ll", (high as u32 as u64) << 32 | u64::from(imm as u32)),
        1 => format!("r{dst} = {}", memory(src)),
        2 => format!("{} = {imm}", memory(dst)),
        3 if code == ATOMIC_DW && imm == 1 => format!("r{src} = atomic_fetch_add({}, r{src})", memory(dst)),
        3 if code == ATOMIC_DW => format!("lock {} += r{src}", memory(dst)),
        3 => format!("{} = r{src}", memory(dst)),
        class @ (4 | 7) => {
            let r = if class == 4 { 'w' } else { 'r' };
            let right = if code & X != 0 { format!("{r}{src}") } else { imm.to_string() };
            let sign = if off != 0 && matches!(code & 0xf0, DIV | MOD) { "s" } else { "" };
            match code & 0xf0 {
                MOV if off != 0 => format!("{r}{dst} = (s{off}){right}"),
                MOV => format!("{r}{dst} = {right}"),
                op => {
                    let op = match op {
                        ADD => "+=",
                        SUB => "-=",
                        MUL => "*=",
                        DIV => "/=",
                        OR => "|=",
                        AND => "&=",
                        LSH => "<<=",
                        RSH => ">>=",
                        MOD => "%=",
                        XOR => "^=",
                        ARSH => "s>>=",
                        _ => "?=",
                    };
                    format!("{r}{dst} {sign}{op} {right}")
                }
            }
        }
        class => {
            let r = if class == 6 { 'w' } else { 'r' };
            let right = if code & X != 0 { format!("{r}{src}") } else { imm.to_string() };
            let op = match code & 0xf0 {
                JA => return format!("goto {off:+}"),
                0x80 => return format!("call {}#{imm}", helper::name(imm)),
                0x90 => return "exit".to_owned(),
                JEQ => "==",
                JGT => ">",
                JGE => ">=",
                JNE => "!=",
                JSGT => "s>",
                JSGE => "s>=",
                JLT => "<",
                JLE => "<=",
                JSLT => "s<",
                JSLE => "s<=",
                _ => "?",
            };
            format!("if {r}{dst} {op} {right} goto {off:+}")
        }
    }
}
