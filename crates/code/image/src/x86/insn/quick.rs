// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fast classifier for the most common 64-bit instructions. The input is instruction bytes; the output is the class
//! and length, or `None` to use the full decoder. It is several times faster than a full decode. This matters because a
//! decoder with a cold start spends most of its time on finding instruction boundaries.
//!
//! It accepts only encodings that are valid whatever the other bytes are. All others, and incomplete instructions, are
//! left to the full decoder. A test compares both over every one-byte and `0F` opcode and every ModRM byte, with 14
//! combinations of prefixes.

use super::{Far, Insn, Kind};

/// The operand bytes that follow an opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Form {
    /// The opcode is not handled here.
    Full,
    /// No operand bytes.
    Plain,
    /// No operand bytes; with a repeat prefix it is [`Kind::Repeat`].
    String,
    /// An 8-bit immediate.
    Imm8,
    /// A 32-bit immediate, or 16-bit with the operand size prefix.
    ImmZ,
    /// As [`Form::ImmZ`], but 64-bit with REX.W (`mov r, imm`).
    ImmV,
    /// A ModRM operand.
    Rm,
    /// ModRM and an 8-bit immediate.
    RmImm8,
    /// ModRM and a 32-bit (or 16-bit) immediate.
    RmImmZ,
    /// ModRM; if the register field is 0 or 1, an 8-bit immediate follows (`F6`).
    Group3b,
    /// ModRM; if the register field is 0 or 1, a 32-bit (or 16-bit) immediate follows (`F7`).
    Group3z,
    /// ModRM; register fields 0 and 1 only (`FE`).
    Group4,
    /// ModRM; increments, near indirect branches, push (`FF`).
    Group5,
    /// ModRM that refers to memory (`LEA`).
    Mem,
    /// ModRM, register field 0 only, 8-bit immediate (`C6`).
    Mov8,
    /// ModRM, register field 0 only, 32-bit (or 16-bit) immediate (`C7`).
    MovZ,
    /// Short conditional branch.
    Jcc8,
    /// Short jump.
    Jmp8,
    /// Near call or jump, without an operand size prefix.
    Call32,
    Jmp32,
    /// Near return.
    Ret,
}

/// Forms of the one-byte opcodes.
const ONE: [Form; 256] = {
    use Form::*;
    let mut t = [Full; 256];
    let mut op = 0;
    while op < 0x40 {
        match op % 8 {
            0..=3 => t[op] = Rm,
            4 => t[op] = Imm8,
            5 => t[op] = ImmZ,
            _ => {}
        }
        op += 1;
    }
    while op < 0x100 {
        t[op] = match op {
            0x50..=0x5f | 0x90..=0x99 | 0xc9 => Plain,
            0x63 | 0x84..=0x8b | 0xd0..=0xd3 => Rm,
            0x68 | 0xa9 => ImmZ,
            0x69 | 0x81 => RmImmZ,
            0x6a | 0xa8 | 0xb0..=0xb7 => Imm8,
            0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 => RmImm8,
            0x70..=0x7f => Jcc8,
            0x8d => Mem,
            0xa4..=0xa7 | 0xaa..=0xaf => String,
            0xb8..=0xbf => ImmV,
            0xc3 => Ret,
            0xc6 => Mov8,
            0xc7 => MovZ,
            0xe8 => Call32,
            0xe9 => Jmp32,
            0xeb => Jmp8,
            0xf6 => Group3b,
            0xf7 => Group3z,
            0xfe => Group4,
            0xff => Group5,
            _ => Full,
        };
        op += 1;
    }
    t
};

/// Form of a `0F xx` opcode that is valid with any of the prefixes accepted here.
const fn two(op: u8) -> Form {
    match op {
        0x10 | 0x11 | 0x1f | 0x40..=0x4f | 0x51 | 0x58..=0x59 | 0x5c..=0x5f | 0x90..=0x9f => Form::Rm,
        0xa3 | 0xab | 0xaf | 0xb3 | 0xb6 | 0xb7 | 0xbb | 0xbe | 0xbf | 0xb0 | 0xb1 | 0xc0 | 0xc1 => Form::Rm,
        0xa4 | 0xac => Form::RmImm8,
        0x31 | 0xa2 | 0xc8..=0xcf => Form::Plain,
        _ => Form::Full,
    }
}

/// True for vector moves and logic that are invalid with a repeat prefix but valid without one or with `66`.
const fn two_without_repeat(op: u8) -> bool {
    matches!(op, 0x14 | 0x15 | 0x28 | 0x29 | 0x2e | 0x2f | 0x54..=0x57 | 0x60..=0x62 | 0x6e | 0x6f | 0x74..=0x76 | 0x7e | 0x7f | 0xd4 | 0xdb | 0xeb | 0xef | 0xf8..=0xfb | 0xfc..=0xfe)
}

/// Length of ModRM, SIB and displacement in bytes. `None` if the bytes are incomplete.
#[inline(always)]
fn rm_len(rest: &[u8]) -> Option<usize> {
    let modrm = *rest.first()?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut len = 1;
    if mode != 3 && rm == 4 {
        len += 1;
        if mode == 0 && *rest.get(1)? & 7 == 5 {
            len += 4;
        }
    }
    Some(match mode {
        0 if rm == 5 => len + 4,
        1 => len + 1,
        2 => len + 4,
        _ => len,
    })
}

/// The results of [`two`] and [`two_without_repeat`] as tables: without a repeat prefix and with one.
const TWO: [[Form; 256]; 2] = {
    let mut t = [[Form::Full; 256]; 2];
    let mut op = 0;
    while op < 256 {
        t[1][op] = two(op as u8);
        t[0][op] = if two_without_repeat(op as u8) { Form::Rm } else { t[1][op] };
        op += 1;
    }
    t
};

/// Length in bytes of the 64-bit instruction at the window's start if it has no effect on the control flow, otherwise
/// 0.
#[inline(always)]
fn plain_len(w: &[u8; 16]) -> usize {
    let at = |i: usize| w[i & 15];
    let (mut pos, mut word, mut repeat) = (0, false, false);
    let mut op = w[0];
    // `gs` is not included, because the kernel uses it to count preemption, and those instructions are of interest
    // individually.
    while matches!(op, 0x66 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x64) {
        word |= op == 0x66;
        repeat |= matches!(op, 0xf2 | 0xf3);
        pos += 1;
        if pos > 2 {
            return 0;
        }
        op = at(pos);
    }
    let mut wide = false;
    if op & 0xf0 == 0x40 {
        wide = op & 8 != 0;
        pos += 1;
        op = at(pos);
    }
    pos += 1;
    let form = if op == 0x0f {
        pos += 1;
        TWO[usize::from(repeat)][usize::from(at(pos - 1))]
    } else {
        ONE[usize::from(op)]
    };
    let imm = if word && !wide { 2 } else { 4 };
    let (modrm, sib) = (at(pos), at(pos + 1));
    let (mode, rm, reg) = (modrm >> 6, modrm & 7, modrm >> 3 & 7);
    let has_sib = mode != 3 && rm == 4;
    let disp = match mode {
        0 if rm == 5 || has_sib && sib & 7 == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    let rm_len = 1 + usize::from(has_sib) + disp;
    let len = match form {
        Form::Plain => 0,
        Form::String if !repeat => 0,
        Form::Imm8 => 1,
        Form::ImmZ => imm,
        Form::ImmV if wide => 8,
        Form::ImmV => imm,
        Form::Rm => rm_len,
        Form::RmImm8 => rm_len + 1,
        Form::RmImmZ => rm_len + imm,
        Form::Group3b => rm_len + usize::from(reg < 2),
        Form::Group3z if reg < 2 => rm_len + imm,
        Form::Group3z => rm_len,
        Form::Group4 if reg < 2 => rm_len,
        Form::Group5 if matches!(reg, 0 | 1 | 6) => rm_len,
        Form::Mem if mode != 3 => rm_len,
        Form::Mov8 if reg == 0 => rm_len + 1,
        Form::MovZ if reg == 0 => rm_len + imm,
        _ => return 0,
    };
    if pos + len <= 15 { pos + len } else { 0 }
}

/// Implementation of [`super::plain_run`].
pub(super) fn plain_run(bytes: &[u8], max: u32) -> (u32, usize) {
    let (mut count, mut pos) = (0, 0);
    while count < max
        && let Some(window) = bytes.get(pos..).and_then(|rest| rest.first_chunk())
    {
        let len = plain_len(window);
        if len == 0 {
            break;
        }
        count += 1;
        pos += len;
    }
    (count, pos)
}

/// Classifies one 64-bit instruction. Returns `None` for an instruction that is left to the full decoder.
#[inline]
pub(super) fn classify(bytes: &[u8], ip: u64) -> Option<Insn> {
    let (mut at, mut wide, mut word, mut repeat) = (0, false, false, false);
    let mut op = *bytes.first()?;
    // At most two legacy prefixes are accepted, then REX. `lock` and the address size prefix are left to the full
    // decoder.
    while matches!(op, 0x66 | 0xf2 | 0xf3 | 0x2e | 0x3e | 0x64 | 0x65) {
        word |= op == 0x66;
        repeat |= matches!(op, 0xf2 | 0xf3);
        at += 1;
        if at > 2 {
            return None;
        }
        op = *bytes.get(at)?;
    }
    if op & 0xf0 == 0x40 {
        wide = op & 8 != 0;
        at += 1;
        op = *bytes.get(at)?;
    }
    at += 1;
    // REX.W overrides the operand size prefix.
    let imm = if word && !wide { 2 } else { 4 };
    let form = if op == 0x0f {
        let op = *bytes.get(at)?;
        at += 1;
        match op {
            0x80..=0x8f if !word => {
                let disp = i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
                return Some(branch(ip, at + 4, disp.into(), |target| Kind::CondJump { target }));
            }
            0x05 if at == 2 => return Some(Insn { kind: Kind::Far(Far::Syscall), len: 2 }),
            _ if two_without_repeat(op) && !repeat => Form::Rm,
            _ => two(op),
        }
    } else {
        ONE[usize::from(op)]
    };
    let rest = bytes.get(at..)?;
    let reg = |rest: &[u8]| rest.first().map(|modrm| modrm >> 3 & 7);
    let mut kind = Kind::Other;
    let len = match form {
        Form::Full => return None,
        Form::Plain => 0,
        Form::String => {
            if repeat {
                kind = Kind::Repeat;
            }
            0
        }
        Form::Imm8 => 1,
        Form::ImmZ => imm,
        Form::ImmV => {
            if wide {
                8
            } else {
                imm
            }
        }
        Form::Rm => rm_len(rest)?,
        Form::RmImm8 => rm_len(rest)? + 1,
        Form::RmImmZ => rm_len(rest)? + imm,
        Form::Group3b => rm_len(rest)? + usize::from(reg(rest)? < 2),
        Form::Group3z => rm_len(rest)? + if reg(rest)? < 2 { imm } else { 0 },
        Form::Group4 if reg(rest)? < 2 => rm_len(rest)?,
        Form::Group5 => {
            kind = match reg(rest)? {
                0 | 1 | 6 => Kind::Other,
                2 => Kind::IndirectCall,
                4 => Kind::IndirectJump,
                _ => return None,
            };
            rm_len(rest)?
        }
        Form::Mem if *rest.first()? < 0xc0 => rm_len(rest)?,
        Form::Mov8 if reg(rest)? == 0 => rm_len(rest)? + 1,
        Form::MovZ if reg(rest)? == 0 => rm_len(rest)? + imm,
        Form::Group4 | Form::Mem | Form::Mov8 | Form::MovZ => return None,
        Form::Ret => {
            kind = Kind::Ret;
            0
        }
        Form::Jcc8 | Form::Jmp8 => {
            if word {
                return None;
            }
            let disp = i64::from(*rest.first()? as i8);
            return Some(branch(ip, at + 1, disp, |target| match form {
                Form::Jcc8 => Kind::CondJump { target },
                _ => Kind::Jump { target },
            }));
        }
        Form::Call32 | Form::Jmp32 => {
            if word {
                return None;
            }
            let disp = i32::from_le_bytes(*rest.first_chunk()?);
            return Some(branch(ip, at + 4, disp.into(), |target| match form {
                Form::Call32 => Kind::Call { target },
                _ => Kind::Jump { target },
            }));
        }
    };
    (len <= rest.len() && at + len <= 15).then_some(Insn { kind, len: (at + len) as u8 })
}

#[inline(always)]
fn branch(ip: u64, len: usize, disp: i64, kind: impl Fn(u64) -> Kind) -> Insn {
    let target = ip.wrapping_add(len as u64).wrapping_add_signed(disp);
    Insn { kind: kind(target), len: len as u8 }
}
