// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code generation for memory, maps and records. All of these call helpers.

use kprism_ebpf::insn::Helper;
use kprism_ebpf::opcode::{self, size_bits};

use crate::ir::{Fault, Kept, Record, Space, Text, Val, Width};

use super::emitter::{A, B, Emitter, FP, Label};
use super::{Cpu, HEADER, LOST, MAX_RECORD, Map, Reloc, VARS};

/// Kinds of records, in their first word.
const MEMORY: i32 = 1;
const TEXT: i32 = 2;
const VAR: i32 = 3;
const FORMAT: i32 = 4;

/// The helper that reads this address space, or a string in it.
pub(super) fn reader(space: Space, text: bool) -> Helper {
    match (space, text) {
        (Space::Kernel, false) => Helper::ProbeReadKernel,
        (Space::Kernel, true) => Helper::ProbeReadKernelStr,
        (Space::User, false) => Helper::ProbeReadUser,
        (Space::User, true) => Helper::ProbeReadUserStr,
    }
}

impl Emitter<'_> {
    /// Emits r`reg` = frame pointer + `at`.
    pub(super) fn stack(&mut self, reg: u8, at: i16) {
        self.mov(reg, FP);
        self.push(opcode::ALU64 | opcode::ADD, reg, 0, 0, i32::from(at));
    }

    pub(super) fn load(&mut self, v: Val, space: Space, size: u8, signed: bool, addr: Val) {
        self.into(3, addr);
        self.stack(1, -8);
        self.mov_imm(2, u64::from(size));
        let call = if space == Space::Kernel { Helper::ProbeReadKernel } else { Helper::ProbeReadUser };
        self.push(opcode::CALL, 0, 0, 0, call as i32);
        self.jump(opcode::JMP | opcode::JNE, 0, 0, 0, Label::Fault(Fault::Read));
        if !self.alloc.is_used(v) {
            return;
        }
        let d = self.dst(v);
        let width = self.func.width(v);
        let narrow = u32::from(size) * 8 < width.bits();
        if signed && narrow && self.cpu == Cpu::V4 {
            self.push(opcode::LDXSX | size_bits(size), d, FP, -8, 0);
        } else {
            self.push(opcode::LDX | size_bits(size), d, FP, -8, 0);
            if signed && narrow {
                let class = if width == Width::W32 { opcode::ALU } else { opcode::ALU64 };
                let shift = width.bits() as i32 - i32::from(size) * 8;
                self.push(class | opcode::LSH, d, 0, 0, shift);
                self.push(class | opcode::ARSH, d, 0, 0, shift);
            }
        }
        self.place_result(v, d);
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
                self.push(opcode::CALL, 0, 0, 0, Helper::CurrentComm as i32);
                compared.push(0);
            }
            Text::Memory { space, addr, limit } => {
                // One byte more than the text: so a longer string is recognised.
                let size = limit.map_or(wanted.len() + 2, |n| (n as usize + 1).min(wanted.len() + 2));
                self.into(3, addr);
                if space == Space::User {
                    self.push(opcode::STX | 0x18, FP, 3, -8, 0);
                }
                let read = |emitter: &mut Self, call: Helper| {
                    emitter.stack(1, at);
                    emitter.mov_imm(2, size as u64);
                    emitter.push(opcode::CALL, 0, 0, 0, call as i32);
                };
                if space == Space::Kernel {
                    read(self, Helper::ProbeReadKernelStr);
                } else {
                    // The string helper does not fault in missing pages, and the helper that does cannot stop at a zero
                    // byte. So if the string cannot be read, a plain read brings the pages in (in a sleepable program),
                    // and the string is read again.
                    let fine = self.local();
                    read(self, Helper::ProbeReadUserStr);
                    self.jump(opcode::JMP | opcode::JSGE, 0, 0, 0, fine);
                    for call in [Helper::ProbeReadUser, Helper::ProbeReadUserStr] {
                        self.push(opcode::LDX | 0x18, 3, FP, -8, 0);
                        read(self, call);
                    }
                    self.here(fine);
                }
                self.jump(opcode::JMP | opcode::JSLT, 0, 0, 0, Label::Fault(Fault::Read));
                // The returned length includes the zero byte. Before Linux 6.15, it is 0 for an empty string in user
                // memory.
                let other = if wanted.is_empty() { opcode::JGT } else { opcode::JNE };
                self.jump(opcode::JMP | other, 0, 0, wanted.len() as i32 + 1, no);
            }
        }
        let mut done = 0;
        while done < compared.len() {
            let left = compared.len() - done;
            let size = [8, 4, 2, 1].into_iter().find(|s| *s <= left).unwrap_or(1);
            let mut bytes = [0; 8];
            bytes[..size].copy_from_slice(&compared[done..done + size]);
            let number = u64::from_le_bytes(bytes);
            self.push(opcode::LDX | size_bits(size as u8), A, FP, at + done as i16, 0);
            match i32::try_from(number) {
                Ok(n) => self.jump(opcode::JMP | opcode::JNE, A, 0, n, no),
                Err(_) => {
                    self.mov_imm(B, number);
                    self.jump(opcode::JMP | opcode::JNE | opcode::X, A, B, 0, no);
                }
            }
            done += size;
        }
        let d = self.dst(v);
        self.mov_imm(d, 1);
        self.jump(opcode::JMP | opcode::JA, 0, 0, 0, end);
        self.here(no);
        self.mov_imm(d, 0);
        self.here(end);
        self.place_result(v, d);
    }

    pub(super) fn kept(&mut self, v: Val, what: Kept, frame: Val) {
        let r = self.reg(frame, A);
        self.push(opcode::STX | 0x18, FP, r, -8, 0);
        self.push(opcode::CALL, 0, 0, 0, Helper::CurrentPidTgid as i32);
        self.push(opcode::STX | 0x18, FP, 0, -16, 0);
        self.relocated(1, Reloc::Map(Map::Entries));
        self.stack(2, -16);
        self.push(opcode::CALL, 0, 0, 0, Helper::MapLookup as i32);
        self.jump(opcode::JMP | opcode::JEQ, 0, 0, 0, Label::Fault(Fault::NoEntry));
        let word = self.out.kept.iter().position(|k| *k == what).unwrap_or(0) as i16;
        let d = self.dst(v);
        self.push(opcode::LDX | 0x18, d, 0, 8 * word, 0);
        self.place_result(v, d);
    }

    /// Builds a record in the scratch memory and sends it. The stack holds the record's address at -16 and the length
    /// of its data at -24: both are needed after the helper that reads.
    pub(super) fn record(&mut self, record: &Record) {
        self.push(opcode::ST, FP, 0, -8, 0);
        self.relocated(1, Reloc::Map(Map::Scratch));
        self.stack(2, -8);
        self.push(opcode::CALL, 0, 0, 0, Helper::MapLookup as i32);
        self.jump(opcode::JMP | opcode::JEQ, 0, 0, 0, Label::Fault(Fault::Scratch));
        self.push(opcode::STX | 0x18, FP, 0, -16, 0);
        // From here on r1 to r4 are free, and r0 points to the record.
        match record {
            Record::Memory { space, addr, len, text } => {
                self.into(3, *addr);
                self.into(2, *len);
                self.bound(2);
                self.push(opcode::ST, 0, 0, 0, if *text { TEXT } else { MEMORY });
                self.push(opcode::STX, 0, 2, 4, 0);
                self.push(opcode::STX | 0x18, 0, 3, 8, 0);
                self.push(opcode::STX | 0x18, FP, 2, -24, 0);
                self.mov(1, 0);
                self.push(opcode::ALU64 | opcode::ADD, 1, 0, 0, HEADER);
                let call = reader(*space, *text);
                self.push(opcode::CALL, 0, 0, 0, call as i32);
                if *text {
                    self.jump(opcode::JMP | opcode::JSLT, 0, 0, 0, Label::Fault(Fault::Read));
                    self.at_least_one();
                    self.push(opcode::LDX | 0x18, 2, FP, -16, 0);
                    self.push(opcode::STX, 2, 0, 4, 0);
                    self.push(opcode::STX | 0x18, FP, 0, -24, 0);
                } else {
                    self.jump(opcode::JMP | opcode::JNE, 0, 0, 0, Label::Fault(Fault::Read));
                }
            }
            Record::Var(n) => {
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(opcode::LDX | 0x18, 1, B, 0, 0);
                self.words(VAR, *n, &[None]);
            }
            Record::Format(n, args) => {
                let args: Vec<_> = args.iter().map(|a| Some(*a)).collect();
                self.words(FORMAT, *n, &args);
            }
        }
        self.push(opcode::LDX | 0x18, 3, FP, -24, 0);
        self.bound(3);
        self.push(opcode::ALU64 | opcode::ADD, 3, 0, 0, HEADER);
        self.relocated(1, Reloc::Map(Map::Ring));
        self.push(opcode::LDX | 0x18, 2, FP, -16, 0);
        self.mov_imm(4, 0);
        self.push(opcode::CALL, 0, 0, 0, Helper::RingbufOutput as i32);
        let kept = self.local();
        self.jump(opcode::JMP | opcode::JEQ, 0, 0, 0, kept);
        self.count(LOST);
        self.here(kept);
    }

    /// Writes a record of 64-bit words. None stands for the value in r1.
    fn words(&mut self, kind: i32, what: u16, words: &[Option<Val>]) {
        let len = 8 * words.len() as i32;
        self.push(opcode::ST, 0, 0, 0, kind);
        self.push(opcode::ST, 0, 0, 4, len);
        self.push(opcode::ST | 0x18, 0, 0, 8, i32::from(what));
        for (i, word) in words.iter().enumerate() {
            let r = word.map_or(1, |v| self.reg(v, B));
            self.push(opcode::STX | 0x18, 0, r, HEADER as i16 + 8 * i as i16, 0);
        }
        self.push(opcode::ST | 0x18, FP, 0, -24, len);
    }

    /// Raises a string's length in r0 to at least 1 for the zero byte. Before Linux 6.15 the helper returns 0 for an
    /// empty string in user memory.
    pub(super) fn at_least_one(&mut self) {
        let fine = self.local();
        self.jump(opcode::JMP | opcode::JNE, 0, 0, 0, fine);
        self.mov_imm(0, 1);
        self.here(fine);
    }

    /// Limits the register to a record's capacity, in a form that the verifier recognises.
    pub(super) fn bound(&mut self, r: u8) {
        let fits = self.local();
        self.jump(opcode::JMP | opcode::JLE, r, 0, MAX_RECORD, fits);
        self.mov_imm(r, MAX_RECORD as u64);
        self.here(fits);
    }
}
