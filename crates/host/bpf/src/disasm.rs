// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disassembles instructions in the verifier's style, with the notes next to them.

use std::fmt::Write as _;

use crate::asm::Code;
use crate::insn::decode;

/// Lists the whole program, one line for each instruction.
pub fn listing(code: &Code) -> String {
    let mut out = String::new();
    let mut at = 0;
    while let Some(&insn) = code.insns.get(at) {
        if let Some(note) = code.notes.get(&at) {
            let _ = writeln!(out, "; {note}");
        }
        let next = code.insns.get(at + 1).copied();
        let mut text = line(insn, next, at);
        if let Some(reloc) = code.relocs.iter().find(|r| r.at == at) {
            let dst = decode(insn).1;
            text = match reloc.value {
                None => format!("r{dst} = map {}", reloc.map),
                Some(offset) => format!("r{dst} = &map {}[0] + {offset:#x}", reloc.map),
            };
        }
        let _ = writeln!(out, "{at:4}: {text}");
        at += if insn as u8 == 0x18 { 2 } else { 1 };
    }
    out
}

/// Adds the notes to the verifier's log, next to their instructions.
pub(crate) fn annotate(log: &str, code: &Code) -> String {
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

/// Disassembles the instruction at index `at`. `next` is the following one, for the second half of a `ld_imm64`.
pub fn line(insn: u64, next: Option<u64>, at: usize) -> String {
    let (code, dst, src, offset, imm) = decode(insn);
    let target = |distance: i64| at as i64 + 1 + distance;
    match code & 7 {
        0 if code == 0x18 => {
            let high = next.map_or(0, |n| n >> 32);
            let value = u64::from(imm.cast_unsigned()) | high << 32;
            if src == 0 { format!("r{dst} = {value:#x} ll") } else { format!("r{dst} = fd {imm} ll") }
        }
        1 if code & 0xe0 == 0x60 => format!("r{dst} = {}", place(code, src, offset, false)),
        1 if code & 0xe0 == 0x80 => format!("r{dst} = {}", place(code, src, offset, true)),
        2 if code & 0xe0 == 0x60 => format!("{} = {imm}", place(code, dst, offset, false)),
        3 if code & 0xe0 == 0x60 => format!("{} = r{src}", place(code, dst, offset, false)),
        3 if code & 0xe0 == 0xc0 => {
            let fetched = if imm & 1 != 0 { format!("r{src} = fetch ") } else { String::new() };
            let op = match imm & !1 {
                0x00 => "+=",
                0x40 => "|=",
                0x50 => "&=",
                0xa0 => "^=",
                0xe0 => "<->",
                0xf0 => "<-> if r0 ==",
                _ => "?=",
            };
            format!("{fetched}lock {} {op} r{src}", place(code, dst, offset, false))
        }
        4 | 7 => alu(code, dst, src, offset, imm),
        5 | 6 => match code & 0xf0 {
            0x80 if code == 0x85 => match src {
                0 => format!("call {imm}"),
                1 => format!("call pc+{imm}"),
                _ => format!("call kernel#{imm}"),
            },
            0x90 if code == 0x95 => "exit".into(),
            0x00 if code == 0x05 => format!("goto {}", target(i64::from(offset))),
            0x00 if code == 0x06 => format!("goto {}", target(i64::from(imm))),
            _ => {
                let letter = if code & 7 == 6 { 'w' } else { 'r' };
                let right = if code & 8 != 0 { format!("{letter}{src}") } else { format!("{imm}") };
                let place = target(i64::from(offset));
                match condition(code) {
                    Some(sign) => format!("if {letter}{dst} {sign} {right} goto {place}"),
                    None => unknown(insn),
                }
            }
        },
        _ => unknown(insn),
    }
}

fn unknown(insn: u64) -> String {
    format!("unknown {insn:#018x}")
}

fn place(code: u8, base: u8, offset: i16, signed: bool) -> String {
    let bits = match code & 0x18 {
        0x00 => 32,
        0x08 => 16,
        0x10 => 8,
        _ => 64,
    };
    let sign = if signed { 's' } else { 'u' };
    format!("*({sign}{bits} *)(r{base} {} {})", if offset < 0 { '-' } else { '+' }, offset.unsigned_abs())
}

fn alu(code: u8, dst: u8, src: u8, offset: i16, imm: i32) -> String {
    let letter = if code & 7 == 4 { 'w' } else { 'r' };
    let right = if code & 8 != 0 { format!("{letter}{src}") } else { format!("{imm}") };
    let signed = if offset == 1 { "s" } else { "" };
    let op = match code & 0xf0 {
        0x00 => "+=".into(),
        0x10 => "-=".into(),
        0x20 => "*=".into(),
        0x30 => format!("{signed}/="),
        0x40 => "|=".into(),
        0x50 => "&=".into(),
        0x60 => "<<=".into(),
        0x70 => ">>=".into(),
        0x80 => return format!("{letter}{dst} = -{letter}{dst}"),
        0x90 => format!("{signed}%="),
        0xa0 => "^=".into(),
        0xb0 if offset == 0 => "=".into(),
        0xb0 => format!("= (s{offset})"),
        0xc0 => "s>>=".into(),
        0xd0 => {
            let order = if code & 8 != 0 { "be" } else { "le" };
            let order = if code & 7 == 7 { "bswap" } else { order };
            return format!("r{dst} = {order}{imm} r{dst}");
        }
        _ => "?=".to_owned(),
    };
    format!("{letter}{dst} {op} {right}")
}

fn condition(code: u8) -> Option<&'static str> {
    Some(match code & 0xf0 {
        0x10 => "==",
        0x20 => ">",
        0x30 => ">=",
        0x40 => "&",
        0x50 => "!=",
        0x60 => "s>",
        0x70 => "s>=",
        0xa0 => "<",
        0xb0 => "<=",
        0xc0 => "s<",
        0xd0 => "s<=",
        _ => return None,
    })
}
