// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disassembles instructions in the syntax of bpftool and the verifier, with the notes next to them.

use std::fmt::Write as _;

use crate::asm::Code;
use crate::insn::{Helper, Insn};
use crate::opcode::{
    ADD, ALU, AND, ARSH, ATOMIC_DW, CALL, DIV, END, EXIT, JA, JEQ, JGE, JGT, JLE, JLT, JMP, JMP32, JNE, JSET,
    JSGE, JSGT, JSLE, JSLT, LDDW, LSH, MOD, MOV, MUL, NEG, OR, RSH, SUB, X, XOR,
};

/// Lists the whole program, one line for each instruction.
pub fn listing(code: &Code) -> String {
    let mut out = String::new();
    let mut at = 0;
    while let Some(&insn) = code.insns.get(at) {
        if let Some(note) = code.notes.get(&at) {
            let _ = writeln!(out, "; {note}");
        }
        let high = code.insns.get(at + 1).map_or(0, |next| next.imm);
        let mut text = line(insn, high, Some(at));
        if let Some(reloc) = code.relocs.iter().find(|r| r.at == at) {
            text = match reloc.value {
                None => format!("r{} = map {}", insn.dst, reloc.map),
                Some(offset) => format!("r{} = &map {}[0] + {offset:#x}", insn.dst, reloc.map),
            };
        }
        let _ = writeln!(out, "{at:4}: {text}");
        at += if insn.code == LDDW { 2 } else { 1 };
    }
    out
}

/// Adds the notes to the verifier's log, next to their instructions.
pub fn annotate(log: &str, code: &Code) -> String {
    let mut out = String::with_capacity(log.len());
    for line in log.lines() {
        out.push_str(line);
        let number = line.split_once(": (").and_then(|(number, _)| number.trim().parse().ok());
        if let Some(note) = number.and_then(|at: usize| code.notes.get(&at)) {
            let _ = write!(out, "   ; {note}");
        }
        out.push('\n');
    }
    out
}

/// Disassembles an instruction. `high` is the immediate of the next one, for [`LDDW`], which takes two. Targets of jumps are
/// indices if the instruction's own (`at`) is given, else distances.
pub fn line(insn: Insn, high: i32, at: Option<usize>) -> String {
    let Insn { code, dst, src, off, imm } = insn;
    let goto = |distance: i64| match at {
        Some(at) => format!("goto {}", at as i64 + 1 + distance),
        None => format!("goto {distance:+}"),
    };
    match code & 7 {
        0 if code == LDDW && src == 2 => format!("r{dst} = map[fd {imm}] + {high}"),
        0 if code == LDDW && src == 1 => format!("r{dst} = map[fd {imm}]"),
        0 if code == LDDW => format!("r{dst} = {:#x} ll", (high as u32 as u64) << 32 | u64::from(imm as u32)),
        1 if code & 0xe0 == 0x60 => format!("r{dst} = {}", place(code, src, off, 'u')),
        1 if code & 0xe0 == 0x80 => format!("r{dst} = {}", place(code, src, off, 's')),
        2 if code & 0xe0 == 0x60 => format!("{} = {imm}", place(code, dst, off, 'u')),
        3 if code & 0xe0 == 0x60 => format!("{} = r{src}", place(code, dst, off, 'u')),
        3 if code & 0xe0 == ATOMIC_DW & 0xe0 => atomic(insn),
        4 | 7 => alu(insn),
        5 | 6 if code == CALL => call(insn),
        5 | 6 if code == EXIT => "exit".to_owned(),
        5 | 6 if code == JMP | JA => goto(off.into()),
        5 | 6 if code == JMP32 | JA => goto(imm.into()),
        5 | 6 => {
            let letter = if code & 7 == JMP32 { 'w' } else { 'r' };
            let right = if code & X != 0 { format!("{letter}{src}") } else { imm.to_string() };
            match condition(code) {
                Some(sign) => format!("if {letter}{dst} {sign} {right} {}", goto(off.into())),
                None => unknown(insn),
            }
        }
        _ => unknown(insn),
    }
}

fn unknown(insn: Insn) -> String {
    format!("unknown {:#018x}", insn.word())
}

fn place(code: u8, base: u8, off: i16, sign: char) -> String {
    let bits = match code & 0x18 {
        0x00 => 32,
        0x08 => 16,
        0x10 => 8,
        _ => 64,
    };
    format!("*({sign}{bits} *)(r{base} {} {})", if off < 0 { '-' } else { '+' }, off.unsigned_abs())
}

fn atomic(Insn { code, dst, src, off, imm }: Insn) -> String {
    let place = place(code, dst, off, 'u');
    match imm {
        0x01 => format!("r{src} = atomic_fetch_add({place}, r{src})"),
        0x41 => format!("r{src} = atomic_fetch_or({place}, r{src})"),
        0x51 => format!("r{src} = atomic_fetch_and({place}, r{src})"),
        0xa1 => format!("r{src} = atomic_fetch_xor({place}, r{src})"),
        0xe1 => format!("r{src} = atomic_xchg({place}, r{src})"),
        0xf1 => format!("r0 = atomic_cmpxchg({place}, r0, r{src})"),
        0x00 => format!("lock {place} += r{src}"),
        0x40 => format!("lock {place} |= r{src}"),
        0x50 => format!("lock {place} &= r{src}"),
        0xa0 => format!("lock {place} ^= r{src}"),
        _ => format!("lock {place} ?= r{src}"),
    }
}

fn call(Insn { src, imm, .. }: Insn) -> String {
    match src {
        0 => {
            let name = Helper::ALL
                .iter()
                .find(|helper| **helper as i32 == imm)
                .map_or("unknown", |helper| helper.name());
            format!("call {name}#{imm}")
        }
        1 => format!("call pc{imm:+}"),
        _ => format!("call kernel-function#{imm}"),
    }
}

fn alu(insn: Insn) -> String {
    let Insn { code, dst, src, off, imm } = insn;
    let letter = if code & 7 == ALU { 'w' } else { 'r' };
    let right = if code & X != 0 { format!("{letter}{src}") } else { imm.to_string() };
    let signed = if off != 0 { "s" } else { "" };
    let op = match code & 0xf0 {
        ADD => "+=".to_owned(),
        SUB => "-=".to_owned(),
        MUL => "*=".to_owned(),
        DIV => format!("{signed}/="),
        OR => "|=".to_owned(),
        AND => "&=".to_owned(),
        LSH => "<<=".to_owned(),
        RSH => ">>=".to_owned(),
        NEG => return format!("{letter}{dst} = -{letter}{dst}"),
        MOD => format!("{signed}%="),
        XOR => "^=".to_owned(),
        MOV if off == 0 => "=".to_owned(),
        MOV => return format!("{letter}{dst} = (s{off}){right}"),
        ARSH => "s>>=".to_owned(),
        END => {
            let order = match (letter, code & X != 0) {
                ('r', _) => "bswap",
                (_, true) => "be",
                (_, false) => "le",
            };
            return format!("r{dst} = {order}{imm} r{dst}");
        }
        _ => return unknown(insn),
    };
    format!("{letter}{dst} {op} {right}")
}

fn condition(code: u8) -> Option<&'static str> {
    Some(match code & 0xf0 {
        JEQ => "==",
        JGT => ">",
        JGE => ">=",
        JSET => "&",
        JNE => "!=",
        JSGT => "s>",
        JSGE => "s>=",
        JLT => "<",
        JLE => "<=",
        JSLT => "s<",
        JSLE => "s<=",
        _ => return None,
    })
}
