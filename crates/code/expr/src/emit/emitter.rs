// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of code generation: instructions so far, labels, jumps to them, where each value is.

use std::collections::{BTreeSet, HashMap};

use kprism_ebpf::opcode;

use crate::ir::{Block, Fault, Func, Val};

use super::alloc::{Allocation, Place};
use super::frame::Frame;
use super::{Cpu, Error, Insn, LOST, Map, Output, Program, Reloc};

pub(super) const FP: u8 = 10;
/// Scratch registers, for values without a register of their own.
pub(super) const A: u8 = 0;
pub(super) const B: u8 = 5;

/// A jump's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Label {
    Block(Block),
    Fault(Fault),
    Local(u32),
}

pub(super) struct Emitter<'f> {
    pub func: &'f Func,
    pub alloc: Allocation,
    pub cpu: Cpu,
    pub out: Program,
    pub output: Output,
    pub labels: HashMap<Label, usize>,
    pub jumps: Vec<(usize, Label)>,
    pub faults: BTreeSet<Fault>,
    pub locals: u32,
    /// Bytes below the frame pointer that operations use as temporary memory.
    pub buffer: i16,
    /// Destination of records; None: the ring buffer.
    pub frame: Option<Frame>,
    /// First error found while records were placed in the frame.
    pub refused: Option<Error>,
}

impl Emitter<'_> {
    pub fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.out.insns.push(Insn { code, dst, src, off, imm });
    }

    pub fn mov(&mut self, dst: u8, src: u8) {
        if dst != src {
            self.push(opcode::ALU64 | opcode::MOV | opcode::X, dst, src, 0, 0);
        }
    }

    pub fn mov_imm(&mut self, dst: u8, value: u64) {
        if value as i64 == i64::from(value as i32) {
            self.push(opcode::ALU64 | opcode::MOV, dst, 0, 0, value as i32);
        } else if value >> 32 == 0 {
            self.push(opcode::ALU | opcode::MOV, dst, 0, 0, value as i32);
        } else {
            self.push(opcode::LDDW, dst, 0, 0, value as i32);
            self.push(0, 0, 0, 0, (value >> 32) as i32);
        }
    }

    pub fn relocated(&mut self, dst: u8, reloc: Reloc) {
        let (src, low, high) = match reloc {
            Reloc::Map(_) => (1, 0, 0),
            Reloc::MapValue(_, at) => (2, 0, at),
            Reloc::Bound(..) => (0, 0, 0),
            Reloc::Address(link) => (0, link as i32, (link >> 32) as i32),
        };
        self.out.relocs.push((self.out.insns.len(), reloc));
        self.push(opcode::LDDW, dst, src, 0, low);
        self.push(0, 0, 0, 0, high);
    }

    pub fn jump(&mut self, code: u8, dst: u8, src: u8, imm: i32, to: Label) {
        if let Label::Fault(fault) = to {
            self.faults.insert(fault);
        }
        self.jumps.push((self.out.insns.len(), to));
        self.push(code, dst, src, 0, imm);
    }

    pub fn local(&mut self) -> Label {
        self.locals += 1;
        Label::Local(self.locals)
    }

    pub fn here(&mut self, label: Label) {
        self.labels.insert(label, self.out.insns.len());
    }

    pub fn slot(&self, slot: u16) -> i16 {
        -self.buffer - 8 * (slot as i16 + 1)
    }

    /// Returns a register that holds the value: its own, or `scratch` after loading it there.
    pub fn reg(&mut self, v: Val, scratch: u8) -> u8 {
        if let Some(n) = self.func.constant(v) {
            self.mov_imm(scratch, n);
            return scratch;
        }
        match self.alloc.place(v) {
            Some(Place::Reg(r)) => r,
            Some(Place::Slot(s)) => {
                let at = self.slot(s);
                self.push(opcode::LDX | 0x18, scratch, FP, at, 0);
                scratch
            }
            None => scratch,
        }
    }

    /// Loads the value into this register.
    pub fn into(&mut self, dst: u8, v: Val) {
        let r = self.reg(v, dst);
        self.mov(dst, r);
    }

    /// Returns the register to compute the value in. [`Self::made`] then stores it to its location.
    pub fn dst(&self, v: Val) -> u8 {
        match self.alloc.place(v) {
            Some(Place::Reg(r)) => r,
            _ => A,
        }
    }

    pub fn place_result(&mut self, v: Val, r: u8) {
        match self.alloc.place(v) {
            Some(Place::Reg(own)) => self.mov(own, r),
            Some(Place::Slot(s)) => {
                let at = self.slot(s);
                self.push(opcode::STX | 0x18, FP, r, at, 0);
            }
            None => {}
        }
    }

    /// Adds one to a counter of the state map. Clobbers r0 and r5.
    pub fn count(&mut self, at: i32) {
        debug_assert!(at <= LOST);
        self.relocated(B, Reloc::MapValue(Map::State, at));
        self.mov_imm(A, 1);
        self.push(opcode::ATOMIC_DW, B, A, 0, 0);
    }

    /// Fills in the distances of jumps.
    pub fn resolve(&mut self) -> Result<(), Error> {
        for (from, label) in &self.jumps {
            let to = self.labels.get(label).copied().unwrap_or(self.out.insns.len());
            let distance = to as i64 - *from as i64 - 1;
            self.out.insns[*from].off =
                i16::try_from(distance).map_err(|_| Error::TooLong(self.out.insns.len()))?;
        }
        Ok(())
    }
}
