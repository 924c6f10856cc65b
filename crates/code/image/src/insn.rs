// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one x86 instruction means to the control flow: raw bytes in, its length and [`Kind`] out.
//!
//! The trace encoder (the observer) and the decoder must agree on which instructions produce a packet,
//! so both ask this one function. The classes follow Intel PT's own (SDM vol. 3, "Change of Flow
//! Instruction" tables): conditional branches give a TNT bit, direct jumps and calls give nothing,
//! near indirect transfers and returns give a TIP (or a TNT bit for a compressed return), and every far
//! transfer gives a TIP, with FUPs only for asynchronous events.

pub mod pattern;
mod quick;

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Operating mode of the code segment, as MODE.Exec reports it (SDM: CS.L, CS.D).
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
    /// Mode from the two bits of a MODE.Exec packet.
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

/// Which far transfer: every one of them ends with a TIP (or TIP.PGD) packet.
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
    /// `iret`, any size, `uiret`, FRED's `eretu`/`erets`.
    Iret,
    /// `int n`, `int1`, `int3`, `into`.
    Int,
    /// Far jump, call or return, direct or indirect.
    Segment,
    /// VM entry or exit on purpose: `vmlaunch`, `vmresume`, `vmcall`, AMD's `vmrun` and `vmmcall`.
    Vm,
    /// `rsm`.
    Rsm,
}

/// The control-flow class of an instruction. Targets are absolute linear addresses, already truncated to
/// the mode's and operand's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Falls through; no packet of its own.
    Other,
    /// Conditional near branch (`jcc`, `loop*`, `j*cxz`): one TNT bit.
    CondJump {
        /// Where it goes when taken.
        target: u64,
    },
    /// Unconditional direct near jump: no packet.
    Jump {
        /// Where it goes.
        target: u64,
    },
    /// Direct near call: no packet.
    Call {
        /// Where it goes. Equal to the next instruction's address for the get-my-own-address idiom, which
        /// the RET compression stack ignores.
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
    /// `mov cr3, reg`: a PIP follows when CR3 tracing is on; falls through.
    MovCr3,
    /// `ptwrite`: a PTW (and FUP) follows when enabled; falls through.
    Ptwrite,
    /// `xbegin`: starts a transaction; `fallback` is where an abort goes.
    Xbegin {
        /// Address of the abort handler.
        fallback: u64,
    },
    /// `xend`: commits a transaction; falls through.
    Xend,
    /// `xabort`: falls through outside a transaction, else aborts asynchronously (FUP + TIP).
    Xabort,
    /// `cli`: interrupts off; falls through. For interrupt-window profiles (paper 1, section 3.3).
    Cli,
    /// `sti`: interrupts on; falls through.
    Sti,
    /// `popf`: may switch interrupts either way; falls through.
    Popf,
    /// `pushf`: mostly to save whether interrupts are on; falls through.
    Pushf,
    /// `hlt`, `mwait`: waits for an interrupt; falls through.
    Halt,
}

impl Kind {
    /// Whether execution always continues with the next instruction (events aside).
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
        )
    }
}

/// One classified instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Its class.
    pub kind: Kind,
    /// Its length in bytes, 1 to 15.
    pub len: u8,
}

/// Why bytes are no instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InsnError {
    /// The instruction is longer than the bytes given.
    #[error("instruction truncated: {0} bytes are not enough")]
    Truncated(usize),
    /// No processor decodes these bytes.
    #[error("invalid instruction")]
    Invalid,
}

/// Classifies the instruction at the start of `bytes`, which lie at linear address `ip`.
///
/// At most 15 bytes are looked at. Give as many as are known: an instruction cut short is
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

/// Passes over instructions at the start of `bytes` that do nothing to the control flow, up to `max`: how many,
/// and how many bytes they take. Stops early where it is in doubt, so [`classify`] has the last word; only for
/// 64-bit code.
pub fn plain_run(bytes: &[u8], max: u32) -> (u32, usize) {
    quick::plain_run(bytes, max)
}

/// What [`classify`] does, by a full decode: slower, and the reference.
#[inline(never)]
fn classify_fully(bytes: &[u8], ip: u64, mode: Mode) -> Result<Insn, InsnError> {
    let bytes = &bytes[..bytes.len().min(15)];
    // MPX and reserved-nop forms decode as on the processors that trace; nothing here depends on them.
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
    Ok(Insn { kind: kind_of(&insn), len: insn.len() as u8 })
}

/// APX's prefix. In 64-bit mode it was no instruction before.
const REX2: u8 = 0xd5;

/// `jmpabs`, which iced does not know: REX2 of opcode map 0 without W, `A1`, the target. It is direct, but gives a
/// TIP all the same.
fn jmpabs(bytes: &[u8]) -> Result<Insn, InsnError> {
    const LEN: usize = 11;
    match bytes {
        [_, payload, ..] if payload & 0x88 != 0 => Err(InsnError::Invalid),
        [_, _, opcode, ..] if *opcode != 0xa1 => Err(InsnError::Invalid),
        _ if bytes.len() < LEN => Err(InsnError::Truncated(bytes.len())),
        _ => Ok(Insn { kind: Kind::IndirectJump, len: LEN as u8 }),
    }
}

/// Class of a decoded instruction. Goes by mnemonic and operand kind, not by iced's `FlowControl`: that one
/// files `syscall` and `vmcall` under calls and far calls under indirect calls.
fn kind_of(insn: &Instruction) -> Kind {
    use Mnemonic as M;
    match insn.mnemonic() {
        M::Jmp => match insn.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                Kind::Jump { target: insn.near_branch_target() }
            }
            OpKind::FarBranch16 | OpKind::FarBranch32 => Kind::Far(Far::Segment),
            _ if insn.is_jmp_far_indirect() => Kind::Far(Far::Segment),
            _ => Kind::IndirectJump,
        },
        M::Call => match insn.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                Kind::Call { target: insn.near_branch_target() }
            }
            OpKind::FarBranch16 | OpKind::FarBranch32 => Kind::Far(Far::Segment),
            _ if insn.is_call_far_indirect() => Kind::Far(Far::Segment),
            _ => Kind::IndirectCall,
        },
        M::Ret => Kind::Ret,
        M::Retf => Kind::Far(Far::Segment),
        M::Loop | M::Loope | M::Loopne | M::Jcxz | M::Jecxz | M::Jrcxz => {
            Kind::CondJump { target: insn.near_branch_target() }
        }
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
        M::Xbegin => Kind::Xbegin { fallback: insn.near_branch_target() },
        M::Xend => Kind::Xend,
        M::Xabort => Kind::Xabort,
        M::Cli => Kind::Cli,
        M::Sti => Kind::Sti,
        M::Popf | M::Popfd | M::Popfq => Kind::Popf,
        M::Pushf | M::Pushfd | M::Pushfq => Kind::Pushf,
        M::Hlt | M::Mwait | M::Mwaitx => Kind::Halt,
        _ if insn.is_jcc_short_or_near() => Kind::CondJump { target: insn.near_branch_target() },
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests;
