// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effect of one x86 instruction on the control flow. The input is raw bytes; the output is the instruction's length
//! and [`Kind`].
//!
//! The trace encoder (the observer) and the decoder must agree on which instructions produce a packet, so both use this
//! function. The classes follow Intel PT (SDM vol. 3, "Change of Flow Instruction" tables): a conditional branch gives
//! a TNT bit; a direct jump or call gives no packet; a near indirect transfer or a return gives a TIP (or a TNT bit for
//! a compressed return); a far transfer gives a TIP. FUPs occur only with asynchronous events.

pub mod pattern;
mod quick;
mod stack;

pub use stack::loads_stack;

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Operating mode of the code segment, as a MODE.Exec packet reports it (SDM: CS.L, CS.D).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// 16-bit code (CS.L = 0, CS.D = 0).
    Bits16,
    /// 32-bit code (CS.L = 0, CS.D = 1), legacy or compatibility mode.
    Bits32,
    /// 64-bit code (CS.L = 1, CS.D = 0 with EFER.LMA).
    #[default]
    Bits64,
}

impl Mode {
    /// The mode from the two bits of a MODE.Exec packet.
    pub fn from_cs(cs_l: bool, cs_d: bool) -> Self {
        match (cs_l, cs_d) {
            (true, _) => Mode::Bits64,
            (false, true) => Mode::Bits32,
            (false, false) => Mode::Bits16,
        }
    }

    /// Width of an instruction pointer in this mode, in bits.
    pub fn bits(self) -> u32 {
        match self {
            Mode::Bits16 => 16,
            Mode::Bits32 => 32,
            Mode::Bits64 => 64,
        }
    }
}

/// Kind of a far transfer. Each of them ends with a TIP (or TIP.PGD) packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Far {
    /// `syscall`.
    Syscall,
    /// `sysret`, either operand size.
    Sysret,
    /// `sysenter`.
    Sysenter,
    /// `sysexit`.
    Sysexit,
    /// `iret` of any size, `uiret`, and FRED's `eretu` and `erets`.
    Iret,
    /// `int n`, `int1`, `int3`, `into`.
    Int,
    /// Far jump, call or return, direct or indirect.
    Segment,
    /// Deliberate VM entry or exit: `vmlaunch`, `vmresume`, `vmcall`, AMD's `vmrun` and `vmmcall`.
    Vm,
    /// `rsm`.
    Rsm,
}

/// The control-flow class of an instruction. Targets are absolute linear addresses, truncated to the width of the mode
/// and operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No change of control flow; continues with the next instruction and gives no packet of its own.
    Other,
    /// Conditional near branch (`jcc`, `loop*`, `j*cxz`): one TNT bit.
    CondJump {
        /// Target address if the branch is taken.
        target: u64,
    },
    /// Unconditional direct near jump: no packet.
    Jump {
        /// Target address.
        target: u64,
    },
    /// Direct near call: no packet.
    Call {
        /// Target address. It is the address of the next instruction if the code reads its own address this way; the
        /// RET compression stack ignores such calls.
        target: u64,
    },
    /// Near indirect jump, or `jmpabs`: TIP.
    IndirectJump,
    /// Near indirect call: TIP.
    IndirectCall,
    /// Near return: a taken TNT bit when compressed, a TIP otherwise.
    Ret,
    /// A far transfer: TIP, often with a MODE.Exec or PIP.
    Far(Far),
    /// `mov cr3, reg`: a PIP follows if CR3 tracing is on. Continues with the next instruction.
    MovCr3,
    /// `ptwrite`: a PTW (and FUP) follows if enabled. Continues with the next instruction.
    Ptwrite,
    /// `xbegin`: starts a transaction. Continues with the next instruction; an abort goes to `fallback`.
    Xbegin {
        /// Address of the abort handler.
        fallback: u64,
    },
    /// `xend`: commits a transaction. Continues with the next instruction.
    Xend,
    /// `xabort`: aborts a transaction asynchronously (FUP + TIP). Outside a transaction, continues with the next
    /// instruction.
    Xabort,
    /// `cli`: disables interrupts. Continues with the next instruction. Used for interrupt-window profiles (paper 1,
    /// section 3.3).
    Cli,
    /// `sti`: enables interrupts. Continues with the next instruction.
    Sti,
    /// `popf`: may enable or disable interrupts. Continues with the next instruction.
    Popf,
    /// `pushf`: usually saves the interrupt flag. Continues with the next instruction.
    Pushf,
    /// `hlt`, `mwait`: waits for an interrupt. Continues with the next instruction.
    Halt,
    /// A string instruction with a repeat prefix (`rep stosb`): it retires once, and takes the time of all its turns. Continues with
    /// the next instruction.
    Repeat,
}

impl Kind {
    /// True if execution always continues with the next instruction, apart from events.
    pub fn falls_through(self) -> bool {
        matches!(
            self,
            Kind::Other
                | Kind::MovCr3
                | Kind::Ptwrite
                | Kind::Xbegin { .. }
                | Kind::Xend
                | Kind::Xabort
                | Kind::Cli
                | Kind::Sti
                | Kind::Popf
                | Kind::Pushf
                | Kind::Halt
                | Kind::Repeat
        )
    }
}

/// One classified instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Control-flow class.
    pub kind: Kind,
    /// Length in bytes, 1 to 15.
    pub len: u8,
}

/// The reason why bytes are not an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InsnError {
    /// The instruction is longer than the given bytes, whose number is the field.
    #[error("instruction truncated: {0} bytes are not enough")]
    Truncated(usize),
    /// The bytes are not a valid instruction.
    #[error("invalid instruction")]
    Invalid,
}

/// Classifies the instruction at the start of `bytes`, which lie at linear address `ip`.
///
/// Reads at most 15 bytes. The caller should pass as many bytes as are known, because an incomplete instruction is
/// [`InsnError::Truncated`].
#[inline]
pub fn classify(bytes: &[u8], ip: u64, mode: Mode) -> Result<Insn, InsnError> {
    if mode == Mode::Bits64
        && let Some(insn) = quick::classify(bytes, ip)
    {
        return Ok(insn);
    }
    classify_fully(bytes, ip, mode)
}

/// Skips instructions at the start of `bytes` that have no effect on the control flow, at most `max`. Returns their
/// number and their length in bytes. Stops early in doubtful cases, which are left to [`classify`]. Only for 64-bit
/// code.
pub fn plain_run(bytes: &[u8], max: u32) -> (u32, usize) {
    quick::plain_run(bytes, max)
}

/// The reference for [`classify`]: the same result by a full decode, which is slower.
#[inline(never)]
fn classify_fully(bytes: &[u8], ip: u64, mode: Mode) -> Result<Insn, InsnError> {
    let bytes = &bytes[..bytes.len().min(15)];
    // MPX and reserved-nop forms decode as on the processors that trace. No class depends on them.
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    decoder.decode_out(&mut insn);
    if insn.code() == Code::INVALID {
        if mode == Mode::Bits64 && bytes.first() == Some(&REX2) {
            return jmpabs(bytes);
        }
        return Err(match decoder.last_error() {
            DecoderError::NoMoreBytes if bytes.len() < 15 => InsnError::Truncated(bytes.len()),
            _ => InsnError::Invalid,
        });
    }
    Ok(Insn { kind: kind_of(&insn, near_target(&insn, ip, mode)), len: insn.len() as u8 })
}

/// The prefix of APX. In 64-bit mode, this byte was not a valid instruction before.
const REX2: u8 = 0xd5;

/// Classifies `jmpabs`, which iced does not know: REX2 of opcode map 0 without W, `A1`, and the target. It is a direct
/// jump but gives a TIP.
fn jmpabs(bytes: &[u8]) -> Result<Insn, InsnError> {
    const LEN: usize = 11;
    match bytes {
        [_, payload, ..] if payload & 0x88 != 0 => Err(InsnError::Invalid),
        [_, _, opcode, ..] if *opcode != 0xa1 => Err(InsnError::Invalid),
        _ if bytes.len() < LEN => Err(InsnError::Truncated(bytes.len())),
        _ => Ok(Insn { kind: Kind::IndirectJump, len: LEN as u8 }),
    }
}

/// Target of a near branch, if it is one. In 16-bit code the instruction pointer wraps at 64 KiB of its segment, whose base is not
/// known. `ip` is a linear address, so the target is taken to be at most 32 KiB away.
fn near_target(insn: &Instruction, ip: u64, mode: Mode) -> u64 {
    if mode == Mode::Bits16 && insn.op0_kind() == OpKind::NearBranch16 {
        let next = ip.wrapping_add(insn.len() as u64);
        let distance = insn.near_branch16().wrapping_sub(next as u16) as i16;
        return next.wrapping_add_signed(distance.into()) & 0xffff_ffff;
    }
    insn.near_branch_target()
}

/// Class of a decoded instruction, whose target is `target` if it is a near branch. It uses the mnemonic and operand kind instead of iced's `FlowControl`, which treats
/// `syscall` and `vmcall` as calls and far calls as indirect calls.
fn kind_of(insn: &Instruction, target: u64) -> Kind {
    use Mnemonic as M;
    match insn.mnemonic() {
        M::Jmp => match insn.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => Kind::Jump { target },
            OpKind::FarBranch16 | OpKind::FarBranch32 => Kind::Far(Far::Segment),
            _ if insn.is_jmp_far_indirect() => Kind::Far(Far::Segment),
            _ => Kind::IndirectJump,
        },
        M::Call => match insn.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => Kind::Call { target },
            OpKind::FarBranch16 | OpKind::FarBranch32 => Kind::Far(Far::Segment),
            _ if insn.is_call_far_indirect() => Kind::Far(Far::Segment),
            _ => Kind::IndirectCall,
        },
        M::Ret => Kind::Ret,
        M::Retf => Kind::Far(Far::Segment),
        M::Loop | M::Loope | M::Loopne | M::Jcxz | M::Jecxz | M::Jrcxz => Kind::CondJump { target },
        M::Syscall => Kind::Far(Far::Syscall),
        M::Sysret | M::Sysretq => Kind::Far(Far::Sysret),
        M::Sysenter => Kind::Far(Far::Sysenter),
        M::Sysexit | M::Sysexitq => Kind::Far(Far::Sysexit),
        M::Iret | M::Iretd | M::Iretq | M::Uiret | M::Eretu | M::Erets => Kind::Far(Far::Iret),
        M::Int | M::Int1 | M::Int3 | M::Into => Kind::Far(Far::Int),
        M::Vmlaunch | M::Vmresume | M::Vmcall | M::Vmrun | M::Vmmcall => Kind::Far(Far::Vm),
        M::Rsm => Kind::Far(Far::Rsm),
        M::Mov if insn.op0_register() == Register::CR3 => Kind::MovCr3,
        M::Ptwrite => Kind::Ptwrite,
        M::Xbegin => Kind::Xbegin { fallback: target },
        M::Xend => Kind::Xend,
        M::Xabort => Kind::Xabort,
        M::Cli => Kind::Cli,
        M::Sti => Kind::Sti,
        M::Popf | M::Popfd | M::Popfq => Kind::Popf,
        M::Pushf | M::Pushfd | M::Pushfq => Kind::Pushf,
        M::Hlt | M::Mwait | M::Mwaitx => Kind::Halt,
        _ if insn.is_jcc_short_or_near() => Kind::CondJump { target },
        _ if insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix()) => {
            Kind::Repeat
        }
        _ => Kind::Other,
    }
}

/// An amount that an instruction adds to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// This amount.
    Const(i32),
    /// The value of the general-purpose register with this number (in the order of their encoding).
    Reg(u8),
    /// The negated value of that register.
    NegatedReg(u8),
}

/// Where a word lies, relative to the base of `gs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsWord {
    /// At this address.
    At(u64),
    /// So many bytes behind the value of the general-purpose register with this number.
    Behind {
        /// The register's number.
        register: u8,
        /// Bytes, sign-extended.
        displacement: u64,
    },
}

/// The 32-bit word to which an instruction adds, and the amount: `inc`, `dec`, `add` or `sub` with an absolute or a RIP-relative
/// address, or with one in a register, as Linux counts what belongs to a CPU (arch/x86/include/asm/preempt.h). `bytes` is the
/// whole instruction, `next` the address of the next one.
pub fn added_to_gs(bytes: &[u8], next: u64) -> Option<(GsWord, Amount)> {
    let word = |bytes: &[u8]| bytes.first_chunk().map(|b| i32::from_le_bytes(*b));
    let (rex, rest) = match bytes {
        // With REX.X, the address has an index.
        [0x65, rex @ (0x40 | 0x41 | 0x44 | 0x45), rest @ ..] => (*rex, rest),
        [0x65, rest @ ..] => (0, rest),
        _ => return None,
    };
    let [opcode, modrm, rest @ ..] = rest else { return None };
    let middle = modrm >> 3 & 7;
    // A SIB byte without an index has a base of its own.
    let (has_sib, base, rest) = match (modrm & 7, rest) {
        (4, [sib, rest @ ..]) if sib >> 3 & 7 == 4 => (true, sib & 7, rest),
        (4, _) => return None,
        (base, _) => (false, base, rest),
    };
    let behind = |displacement: i32| GsWord::Behind {
        register: base | (rex & 1) << 3,
        displacement: i64::from(displacement) as u64,
    };
    let (place, rest) = match (modrm >> 6, base) {
        (0, 5) if has_sib => (GsWord::At(i64::from(word(rest)?) as u64), rest.get(4..)?),
        (0, 5) => (GsWord::At(next.wrapping_add_signed(word(rest)?.into())), rest.get(4..)?),
        (0, _) => (behind(0), rest),
        (1, _) => (behind(i32::from(*rest.first()? as i8)), rest.get(1..)?),
        (2, _) => (behind(word(rest)?), rest.get(4..)?),
        _ => return None,
    };
    let reg = middle | (rex & 4) << 1;
    let amount = match (opcode, middle) {
        (0xff, 0) => Amount::Const(1),
        (0xff, 1) => Amount::Const(-1),
        (0x83, 0) => Amount::Const(i32::from(*rest.first()? as i8)),
        (0x83, 5) => Amount::Const(-i32::from(*rest.first()? as i8)),
        (0x81, 0) => Amount::Const(word(rest)?),
        (0x81, 5) => Amount::Const(word(rest)?.wrapping_neg()),
        (0x01, _) => Amount::Reg(reg),
        (0x29, _) => Amount::NegatedReg(reg),
        _ => return None,
    };
    Some((place, amount))
}

/// The register that the instruction at `ip` loads with a constant, and the value: `mov $VALUE, %REG` of 32 or 64 bits, or
/// `lea VALUE(%rip), %REG`. `bytes` begins with the instruction.
pub fn loads_constant(bytes: &[u8], ip: u64) -> Option<(u8, u64)> {
    let word = |bytes: &[u8; 4]| i32::from_le_bytes(*bytes);
    match *bytes {
        [rex @ (0x48 | 0x49), 0xc7, modrm @ 0xc0..=0xc7, a, b, c, d, ..] => {
            Some((modrm & 7 | (rex & 1) << 3, i64::from(word(&[a, b, c, d])) as u64))
        }
        [0x41, opcode @ 0xb8..=0xbf, a, b, c, d, ..] => {
            Some((opcode & 7 | 8, u64::from(word(&[a, b, c, d]) as u32)))
        }
        [opcode @ 0xb8..=0xbf, a, b, c, d, ..] => Some((opcode & 7, u64::from(word(&[a, b, c, d]) as u32))),
        [rex @ (0x48 | 0x4c), 0x8d, modrm, a, b, c, d, ..] if modrm & 0xc7 == 5 => {
            let value = ip.wrapping_add(7).wrapping_add_signed(word(&[a, b, c, d]).into());
            Some((modrm >> 3 & 7 | (rex & 4) << 1, value))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
