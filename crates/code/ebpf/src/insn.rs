// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions of 8 bytes: `code:8 | dst:4 src:4 | offset:16 | imm:32` (RFC 9669, section 3).

use crate::opcode;

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

const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
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

    /// The same as a number.
    pub fn word(self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Decodes an instruction.
    pub fn of(bytes: [u8; 8]) -> Self {
        let [code, registers, off @ .., a, b, c, d] = bytes;
        let (dst, src) = (registers & 15, registers >> 4);
        Self { code, dst, src, off: i16::from_le_bytes(off), imm: i32::from_le_bytes([a, b, c, d]) }
    }
}

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
        opcode::size_bits(match self {
            Width::B1 => 1,
            Width::B2 => 2,
            Width::B4 => 4,
            Width::B8 => 8,
        })
    }
}

/// Arithmetic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Alu {
    Add = opcode::ADD,
    Sub = opcode::SUB,
    Mul = opcode::MUL,
    Div = opcode::DIV,
    Or = opcode::OR,
    And = opcode::AND,
    Lsh = opcode::LSH,
    Rsh = opcode::RSH,
    Neg = opcode::NEG,
    Mod = opcode::MOD,
    Xor = opcode::XOR,
    Mov = opcode::MOV,
    Arsh = opcode::ARSH,
}

/// Condition of a jump; `Ja` is always taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Cond {
    Ja = opcode::JA,
    Eq = opcode::JEQ,
    Gt = opcode::JGT,
    Ge = opcode::JGE,
    Set = opcode::JSET,
    Ne = opcode::JNE,
    SGt = opcode::JSGT,
    SGe = opcode::JSGE,
    Lt = opcode::JLT,
    Le = opcode::JLE,
    SLt = opcode::JSLT,
    SLe = opcode::JSLE,
}

/// Declares [`Helper`]: a row gives a variant, its number in `bpf.h` and its name in the kernel.
macro_rules! helpers {
    ($($variant:ident = $number:literal, $name:literal;)*) => {
        /// Helper functions of the kernel that this project calls, with their numbers in `bpf.h`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(i32)]
        #[allow(missing_docs)]
        pub enum Helper {
            $($variant = $number,)*
        }

        impl Helper {
            /// All of them.
            pub const ALL: &[Helper] = &[$(Helper::$variant,)*];

            /// Its name in the kernel, without `bpf_`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Helper::$variant => $name,)*
                }
            }
        }
    };
}

helpers! {
    MapLookup = 1, "map_lookup_elem";
    MapUpdate = 2, "map_update_elem";
    MapDelete = 3, "map_delete_elem";
    KtimeGetNs = 5, "ktime_get_ns";
    TracePrintk = 6, "trace_printk";
    SmpProcessorId = 8, "get_smp_processor_id";
    TailCall = 12, "tail_call";
    CurrentPidTgid = 14, "get_current_pid_tgid";
    CurrentComm = 16, "get_current_comm";
    GetStackid = 27, "get_stackid";
    CurrentTask = 35, "get_current_task";
    GetStack = 67, "get_stack";
    CurrentCgroupId = 80, "get_current_cgroup_id";
    MapPush = 87, "map_push_elem";
    MapPop = 88, "map_pop_elem";
    ProbeReadUser = 112, "probe_read_user";
    ProbeReadKernel = 113, "probe_read_kernel";
    ProbeReadUserStr = 114, "probe_read_user_str";
    ProbeReadKernelStr = 115, "probe_read_kernel_str";
    CurrentAncestorCgroupId = 123, "get_current_ancestor_cgroup_id";
    RingbufOutput = 130, "ringbuf_output";
    RingbufReserve = 131, "ringbuf_reserve";
    RingbufSubmit = 132, "ringbuf_submit";
    RingbufDiscard = 133, "ringbuf_discard";
    RingbufQuery = 134, "ringbuf_query";
    CopyFromUser = 148, "copy_from_user";
    TaskStorageGet = 156, "task_storage_get";
    CurrentTaskBtf = 158, "get_current_task_btf";
    GetFuncIp = 173, "get_func_ip";
    GetAttachCookie = 174, "get_attach_cookie";
}

/// `dst op= src`, 64 bits.
pub const fn alu(op: Alu, dst: Reg, src: Reg) -> Insn {
    insn(op as u8 | opcode::ALU64 | opcode::X, dst as u8, src as u8, 0, 0)
}

/// `dst op= imm`, 64 bits, the immediate sign-extended.
pub const fn alu_imm(op: Alu, dst: Reg, imm: i32) -> Insn {
    insn(op as u8 | opcode::ALU64, dst as u8, 0, 0, imm)
}

/// `dst op= src`, 32 bits; the upper half becomes 0.
pub const fn alu32(op: Alu, dst: Reg, src: Reg) -> Insn {
    insn(op as u8 | opcode::ALU | opcode::X, dst as u8, src as u8, 0, 0)
}

/// `dst op= imm`, 32 bits; the upper half becomes 0.
pub const fn alu32_imm(op: Alu, dst: Reg, imm: i32) -> Insn {
    insn(op as u8 | opcode::ALU, dst as u8, 0, 0, imm)
}

/// `dst = *(base + offset)`.
pub const fn load(width: Width, dst: Reg, base: Reg, offset: i16) -> Insn {
    insn(opcode::LDX | width.bits(), dst as u8, base as u8, offset, 0)
}

/// `*(base + offset) = src`.
pub const fn store(width: Width, base: Reg, offset: i16, src: Reg) -> Insn {
    insn(opcode::STX | width.bits(), base as u8, src as u8, offset, 0)
}

/// `*(base + offset) = imm`.
pub const fn store_imm(width: Width, base: Reg, offset: i16, imm: i32) -> Insn {
    insn(opcode::ST | width.bits(), base as u8, 0, offset, imm)
}

/// `lock *(u64 *)(base + offset) += src`.
pub const fn atomic_add(base: Reg, offset: i16, src: Reg) -> Insn {
    insn(opcode::ATOMIC_DW, base as u8, src as u8, offset, 0)
}

/// As [`atomic_add`]; `src` also receives the previous value.
pub const fn fetch_add(base: Reg, offset: i16, src: Reg) -> Insn {
    insn(opcode::ATOMIC_DW, base as u8, src as u8, offset, 1)
}

/// If `*(u64 *)(base + offset)` equals `R0`, sets it to `src`. `R0` receives the previous value. Atomic.
pub const fn compare_exchange(base: Reg, offset: i16, src: Reg) -> Insn {
    insn(opcode::ATOMIC_DW, base as u8, src as u8, offset, 0xf1)
}

/// Calls a helper.
pub const fn call(helper: Helper) -> Insn {
    insn(opcode::CALL, 0, 0, 0, helper as i32)
}

/// Ends the program; `R0` is its return value.
pub const fn exit() -> Insn {
    insn(opcode::EXIT, 0, 0, 0, 0)
}

/// Calls a kernel function by its BTF ID. `btf` is 0 for vmlinux, or the index of a module's BTF in the descriptors passed at
/// load time.
pub const fn kfunc(id: u32, btf: i16) -> Insn {
    insn(opcode::CALL, 0, 2, btf, id.cast_signed())
}

/// Always jumps; the target is set later.
pub const fn goto() -> Insn {
    insn(opcode::JMP | opcode::JA, 0, 0, 0, 0)
}

/// Jumps if `dst cond src`; the target is set later.
pub const fn branch(cond: Cond, dst: Reg, src: Reg) -> Insn {
    insn(opcode::JMP | opcode::X | cond as u8, dst as u8, src as u8, 0, 0)
}

/// Jumps if `dst cond imm`; the target is set later.
pub const fn branch_imm(cond: Cond, dst: Reg, imm: i32) -> Insn {
    insn(opcode::JMP | cond as u8, dst as u8, 0, 0, imm)
}

/// `dst = value` in two instructions. `src` says what the value is: 0 for a number, 1 and 2 for a map or its memory.
pub const fn load_imm64(dst: Reg, src: u8, value: u64) -> [Insn; 2] {
    [insn(opcode::LDDW, dst as u8, src, 0, value as i32), insn(0, 0, 0, 0, (value >> 32) as i32)]
}

/// Serializes instructions as hexadecimal digits.
pub mod hex {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::Insn;

    /// For serde's `with`.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(insns: &[Insn], out: S) -> Result<S::Ok, S::Error> {
        let text: String = insns.iter().flat_map(|i| i.bytes()).map(|b| format!("{b:02x}")).collect();
        out.serialize_str(&text)
    }

    /// For serde's `with`.
    ///
    /// # Errors
    /// The text is no sequence of 16 hexadecimal digits each.
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
