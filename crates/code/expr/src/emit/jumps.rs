// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a block → instructions: comparisons, jumps, and moves to block parameters.

use std::collections::BTreeMap;

use kprism_ebpf::opcode;

use crate::ir::{Block, Cond, Target, Term, Val, Width};

use super::alloc::Place;
use super::emitter::{A, B, Emitter, FP, Label};
use super::{Map, Output, RESULT, Reloc};

impl Emitter<'_> {
    /// Emits a jump that is taken if the comparison holds.
    pub(super) fn compare(&mut self, cond: Cond, a: Val, b: Val, to: Label) {
        let width = self.func.width(a);
        let class = if width == Width::W32 { opcode::JMP32 } else { opcode::JMP };
        let (plain, swapped) = match cond {
            Cond::Eq => (opcode::JEQ, opcode::JEQ),
            Cond::Ne => (opcode::JNE, opcode::JNE),
            Cond::Ult => (opcode::JLT, opcode::JGT),
            Cond::Ule => (opcode::JLE, opcode::JGE),
            Cond::Slt => (opcode::JSLT, opcode::JSGT),
            Cond::Sle => (opcode::JSLE, opcode::JSGE),
        };
        let swap = self.func.constant(a).is_some();
        let (a, b, code) = if swap { (b, a, swapped) } else { (a, b, plain) };
        let ra = self.reg(a, A);
        match self.imm(b, width) {
            Some(n) => self.jump(class | code, ra, 0, n, to),
            None => {
                let rb = self.reg(b, B);
                self.jump(class | code | opcode::X, ra, rb, 0, to);
            }
        }
    }

    /// Generates the end of a block; `next` is the block after it.
    pub(super) fn term(&mut self, term: &Term, next: Option<Block>) {
        match term {
            Term::Jump(target) => {
                self.moves(target);
                self.go(target.block, next);
            }
            Term::Branch(v, then, other) => {
                let (mut cond, mut a, mut b) = match self.alloc.fused.get(v) {
                    Some(f) => (Some(f.cond), f.a, f.b),
                    None => (None, *v, *v),
                };
                let (mut then, mut other) = (then.block, other.block);
                // A branch to the next block is inverted, so that it falls through.
                if next == Some(then) {
                    (cond, a, b) = match cond {
                        None => (Some(Cond::Eq), a, b),
                        Some(Cond::Eq) => (Some(Cond::Ne), a, b),
                        Some(Cond::Ne) => (Some(Cond::Eq), a, b),
                        Some(Cond::Ult) => (Some(Cond::Ule), b, a),
                        Some(Cond::Ule) => (Some(Cond::Ult), b, a),
                        Some(Cond::Slt) => (Some(Cond::Sle), b, a),
                        Some(Cond::Sle) => (Some(Cond::Slt), b, a),
                    };
                    (then, other) = (other, then);
                }
                if self.alloc.fused.contains_key(v) {
                    self.compare(cond.unwrap_or(Cond::Ne), a, b, Label::Block(then));
                } else {
                    let class = if self.func.width(a) == Width::W32 { opcode::JMP32 } else { opcode::JMP };
                    let code = if cond == Some(Cond::Eq) { opcode::JEQ } else { opcode::JNE };
                    let r = self.reg(a, A);
                    self.jump(class | code, r, 0, 0, Label::Block(then));
                }
                self.go(other, next);
            }
            Term::Return(v) => {
                if self.output == Output::State {
                    let r = self.reg(*v, A);
                    self.relocated(B, Reloc::MapValue(Map::State, RESULT));
                    self.push(opcode::STX | 0x18, B, r, 0, 0);
                    self.mov_imm(0, 1);
                } else {
                    self.into(0, *v);
                }
                self.push(opcode::EXIT, 0, 0, 0, 0);
            }
            Term::Fault(fault) => self.jump(opcode::JMP | opcode::JA, 0, 0, 0, Label::Fault(*fault)),
        }
    }

    fn go(&mut self, to: Block, next: Option<Block>) {
        if next != Some(to) {
            self.jump(opcode::JMP | opcode::JA, 0, 0, 0, Label::Block(to));
        }
    }

    /// Emits a parallel move of the arguments to the target's parameters.
    fn moves(&mut self, target: &Target) {
        let params = &self.func.body(target.block).params;
        let mut constants = Vec::new();
        let mut todo: BTreeMap<u32, (Place, Place)> = BTreeMap::new();
        for (i, (param, arg)) in params.iter().zip(&target.args).enumerate() {
            let Some(to) = self.alloc.place(*param) else { continue };
            match (self.func.constant(*arg), self.alloc.place(*arg)) {
                (Some(n), _) => constants.push((to, n)),
                (None, Some(from)) if from != to => {
                    todo.insert(i as u32, (to, from));
                }
                _ => {}
            }
        }
        while let Some((&first, &(to, from))) = todo.iter().next() {
            let ready = todo.iter().find(|(_, m)| todo.values().all(|o| o.1 != m.0)).map(|(i, m)| (*i, *m));
            if let Some((i, (to, from))) = ready {
                self.copy(to, from, B);
                todo.remove(&i);
                continue;
            }
            // The moves form a cycle: save the value that the first move overwrites in r0.
            let mut rest: Vec<_> = vec![(to, from)];
            let mut at = from;
            while at != to {
                let Some((i, m)) = todo.iter().find(|(i, m)| m.0 == at && **i != first) else { break };
                rest.push(*m);
                at = m.1;
                let i = *i;
                todo.remove(&i);
            }
            todo.remove(&first);
            self.copy(Place::Reg(A), to, B);
            let last = rest.len() - 1;
            for (n, (to, from)) in rest.into_iter().enumerate() {
                self.copy(to, if n == last { Place::Reg(A) } else { from }, B);
            }
        }
        for (to, n) in constants {
            match to {
                Place::Reg(r) => self.mov_imm(r, n),
                Place::Slot(s) => {
                    let at = self.slot(s);
                    self.mov_imm(B, n);
                    self.push(opcode::STX | 0x18, FP, B, at, 0);
                }
            }
        }
    }

    fn copy(&mut self, to: Place, from: Place, scratch: u8) {
        let r = match (from, to) {
            (Place::Reg(r), _) => r,
            (Place::Slot(s), to) => {
                let r = if let Place::Reg(r) = to { r } else { scratch };
                let at = self.slot(s);
                self.push(opcode::LDX | 0x18, r, FP, at, 0);
                r
            }
        };
        match to {
            Place::Reg(to) => self.mov(to, r),
            Place::Slot(s) => {
                let at = self.slot(s);
                self.push(opcode::STX | 0x18, FP, r, at, 0);
            }
        }
    }
}
