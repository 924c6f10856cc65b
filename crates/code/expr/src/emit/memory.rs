// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code generation for memory, maps and records. All of these call helpers.

use crate::ir::{Fault, Kept, Record, Space, Text, Val, Width};

use super::code::{A, B, Emitter, FP, Label};
use super::insn::{self, Cpu, helper, size_bits};
use super::{HEADER, LOST, MAX_RECORD, Map, Reloc, VARS};

/// Kinds of records, in their first word.
const MEMORY: i32 = 1;
const TEXT: i32 = 2;
const VAR: i32 = 3;
const FORMAT: i32 = 4;

impl Emitter<'_> {
    /// Emits r`reg` = frame pointer + `at`.
    pub(super) fn stack(&mut self, reg: u8, at: i16) {
        self.mov(reg, FP);
        self.push(insn::ALU64 | insn::ADD, reg, 0, 0, i32::from(at));
    }

    pub(super) fn load(&mut self, v: Val, space: Space, size: u8, signed: bool, addr: Val) {
        self.into(3, addr);
        self.stack(1, -8);
        self.mov_imm(2, u64::from(size));
        let call = if space == Space::Kernel { helper::READ_KERNEL } else { helper::READ_USER };
        self.push(insn::CALL, 0, 0, 0, call);
        self.jump(insn::JMP | insn::JNE, 0, 0, 0, Label::Fault(Fault::Read));
        if !self.alloc.is_used(v) {
            return;
        }
        let d = self.dst(v);
        let width = self.func.width(v);
        let narrow = u32::from(size) * 8 < width.bits();
        if signed && narrow && self.cpu == Cpu::V4 {
            self.push(insn::LDXSX | size_bits(size), d, FP, -8, 0);
        } else {
            self.push(insn::LDX | size_bits(size), d, FP, -8, 0);
            if signed && narrow {
                let class = if width == Width::W32 { insn::ALU } else { insn::ALU64 };
                let shift = width.bits() as i32 - i32::from(size) * 8;
                self.push(class | insn::LSH, d, 0, 0, shift);
                self.push(class | insn::ARSH, d, 0, 0, shift);
            }
        }
        self.made(v, d);
    }

    pub(super) fn text_eq(&mut self, v: Val, text: Text, wanted: &[u8]) {
        let at = -self.buffer;
        let no = self.local();
        let end = self.local();
        let mut compared = wanted.to_vec();
        match text {
            Text::Comm => {
                self.stack(1, at);
                self.mov_imm(2, 16);
                self.push(insn::CALL, 0, 0, 0, helper::COMM);
                compared.push(0);
            }
            Text::Memory { space, addr, limit } => {
                // One byte more than the text: so a longer string is recognised.
                let size = limit.map_or(wanted.len() + 2, |n| (n as usize + 1).min(wanted.len() + 2));
                self.into(3, addr);
                if space == Space::User {
                    self.push(insn::STX | 0x18, FP, 3, -8, 0);
                }
                let read = |emitter: &mut Self, call| {
                    emitter.stack(1, at);
                    emitter.mov_imm(2, size as u64);
                    emitter.push(insn::CALL, 0, 0, 0, call);
                };
                if space == Space::Kernel {
                    read(self, helper::READ_KERNEL_STR);
                } else {
                    // The string helper does not fault in missing pages, and the helper that does cannot stop at a zero
                    // byte. So if the string cannot be read, a plain read brings the pages in (in a sleepable program),
                    // and the string is read again.
                    let fine = self.local();
                    read(self, helper::READ_USER_STR);
                    self.jump(insn::JMP | insn::JSGE, 0, 0, 0, fine);
                    for call in [helper::READ_USER, helper::READ_USER_STR] {
                        self.push(insn::LDX | 0x18, 3, FP, -8, 0);
                        read(self, call);
                    }
                    self.here(fine);
                }
                self.jump(insn::JMP | insn::JSLT, 0, 0, 0, Label::Fault(Fault::Read));
                // The returned length includes the zero byte. Before Linux 6.15, it is 0 for an empty string in user
                // memory.
                let other = if wanted.is_empty() { insn::JGT } else { insn::JNE };
                self.jump(insn::JMP | other, 0, 0, wanted.len() as i32 + 1, no);
            }
        }
        let mut done = 0;
        while done < compared.len() {
            let left = compared.len() - done;
            let size = [8, 4, 2, 1].into_iter().find(|s| *s <= left).unwrap_or(1);
            let mut bytes = [0; 8];
            bytes[..size].copy_from_slice(&compared[done..done + size]);
            let number = u64::from_le_bytes(bytes);
            self.push(insn::LDX | size_bits(size as u8), A, FP, at + done as i16, 0);
            match i32::try_from(number) {
                Ok(n) => self.jump(insn::JMP | insn::JNE, A, 0, n, no),
                Err(_) => {
                    self.mov_imm(B, number);
                    self.jump(insn::JMP | insn::JNE | insn::X, A, B, 0, no);
                }
            }
            done += size;
        }
        let d = self.dst(v);
        self.mov_imm(d, 1);
        self.jump(insn::JMP | insn::JA, 0, 0, 0, end);
        self.here(no);
        self.mov_imm(d, 0);
        self.here(end);
        self.made(v, d);
    }

    pub(super) fn kept(&mut self, v: Val, what: Kept, frame: Val) {
        let r = self.reg(frame, A);
        self.push(insn::STX | 0x18, FP, r, -8, 0);
        self.push(insn::CALL, 0, 0, 0, helper::PID_TGID);
        self.push(insn::STX | 0x18, FP, 0, -16, 0);
        self.relocated(1, Reloc::Map(Map::Entries));
        self.stack(2, -16);
        self.push(insn::CALL, 0, 0, 0, helper::MAP_LOOKUP);
        self.jump(insn::JMP | insn::JEQ, 0, 0, 0, Label::Fault(Fault::NoEntry));
        let word = self.out.kept.iter().position(|k| *k == what).unwrap_or(0) as i16;
        let d = self.dst(v);
        self.push(insn::LDX | 0x18, d, 0, 8 * word, 0);
        self.made(v, d);
    }

    /// Builds a record in the scratch memory and sends it. The stack holds the record's address at -16 and the length
    /// of its data at -24: both are needed after the helper that reads.
    pub(super) fn record(&mut self, record: &Record) {
        self.push(insn::ST, FP, 0, -8, 0);
        self.relocated(1, Reloc::Map(Map::Scratch));
        self.stack(2, -8);
        self.push(insn::CALL, 0, 0, 0, helper::MAP_LOOKUP);
        self.jump(insn::JMP | insn::JEQ, 0, 0, 0, Label::Fault(Fault::Scratch));
        self.push(insn::STX | 0x18, FP, 0, -16, 0);
        // From here on r1 to r4 are free, and r0 points to the record.
        match record {
            Record::Memory { space, addr, len, text } => {
                self.into(3, *addr);
                self.into(2, *len);
                self.bound(2);
                self.push(insn::ST, 0, 0, 0, if *text { TEXT } else { MEMORY });
                self.push(insn::STX, 0, 2, 4, 0);
                self.push(insn::STX | 0x18, 0, 3, 8, 0);
                self.push(insn::STX | 0x18, FP, 2, -24, 0);
                self.mov(1, 0);
                self.push(insn::ALU64 | insn::ADD, 1, 0, 0, HEADER);
                let call = helper::read(*space, *text);
                self.push(insn::CALL, 0, 0, 0, call);
                if *text {
                    self.jump(insn::JMP | insn::JSLT, 0, 0, 0, Label::Fault(Fault::Read));
                    self.at_least_one();
                    self.push(insn::LDX | 0x18, 2, FP, -16, 0);
                    self.push(insn::STX, 2, 0, 4, 0);
                    self.push(insn::STX | 0x18, FP, 0, -24, 0);
                } else {
                    self.jump(insn::JMP | insn::JNE, 0, 0, 0, Label::Fault(Fault::Read));
                }
            }
            Record::Var(n) => {
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(insn::LDX | 0x18, 1, B, 0, 0);
                self.words(VAR, *n, &[None]);
            }
            Record::Format(n, args) => {
                let args: Vec<_> = args.iter().map(|a| Some(*a)).collect();
                self.words(FORMAT, *n, &args);
            }
        }
        self.push(insn::LDX | 0x18, 3, FP, -24, 0);
        self.bound(3);
        self.push(insn::ALU64 | insn::ADD, 3, 0, 0, HEADER);
        self.relocated(1, Reloc::Map(Map::Ring));
        self.push(insn::LDX | 0x18, 2, FP, -16, 0);
        self.mov_imm(4, 0);
        self.push(insn::CALL, 0, 0, 0, helper::RING_OUTPUT);
        let kept = self.local();
        self.jump(insn::JMP | insn::JEQ, 0, 0, 0, kept);
        self.count(LOST);
        self.here(kept);
    }

    /// Writes a record of 64-bit words. None stands for the value in r1.
    fn words(&mut self, kind: i32, what: u16, words: &[Option<Val>]) {
        let len = 8 * words.len() as i32;
        self.push(insn::ST, 0, 0, 0, kind);
        self.push(insn::ST, 0, 0, 4, len);
        self.push(insn::ST | 0x18, 0, 0, 8, i32::from(what));
        for (i, word) in words.iter().enumerate() {
            let r = word.map_or(1, |v| self.reg(v, B));
            self.push(insn::STX | 0x18, 0, r, HEADER as i16 + 8 * i as i16, 0);
        }
        self.push(insn::ST | 0x18, FP, 0, -24, len);
    }

    /// Raises a string's length in r0 to at least 1 for the zero byte. Before Linux 6.15 the helper returns 0 for an
    /// empty string in user memory.
    pub(super) fn at_least_one(&mut self) {
        let fine = self.local();
        self.jump(insn::JMP | insn::JNE, 0, 0, 0, fine);
        self.mov_imm(0, 1);
        self.here(fine);
    }

    /// Limits the register to a record's capacity, in a form that the verifier recognises.
    pub(super) fn bound(&mut self, r: u8) {
        let fits = self.local();
        self.jump(insn::JMP | insn::JLE, r, 0, MAX_RECORD, fits);
        self.mov_imm(r, MAX_RECORD as u64);
        self.here(fits);
    }
}
