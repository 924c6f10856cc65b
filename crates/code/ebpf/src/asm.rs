// SPDX-License-Identifier: MIT OR Apache-2.0
//! The assembler: turns instructions, labels, maps and notes into [`Code`].
//!
//! There is no compiler. The instructions written with this module are exactly those that run at each call of a traced
//! function.

use std::collections::BTreeMap;

use crate::insn::{self, Alu, Cond, Helper, Insn, Reg, Width};
use crate::opcode::{CALL, EXIT, JA, JMP, LDDW};

/// A program that cannot be assembled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A label was never placed.
    #[error("label {0} is nowhere")]
    Nowhere(usize),
    /// A jump is too long.
    #[error("the jump at {at} is {distance} instructions long, more than 32767")]
    TooFar {
        /// Index of the jump.
        at: usize,
        /// Instructions from the next one to its target.
        distance: i64,
    },
}

/// A program that is ready to load, except for the maps' file descriptors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Code {
    /// The instructions.
    pub insns: Vec<Insn>,
    /// Instructions that reference maps.
    pub relocs: Vec<Reloc>,
    /// Notes on the purpose of instructions, by index. Listings and the verifier's log show them.
    pub notes: BTreeMap<usize, String>,
}

/// A pair of instructions (`ld_imm64`) that references a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reloc {
    /// Index of the first of the two.
    pub at: usize,
    /// Index into the maps that are passed when the program is loaded.
    pub map: usize,
    /// `None`: the map itself, as helpers expect it. An offset: the address of this byte of an array's first value.
    pub value: Option<u32>,
}

impl Code {
    /// Wraps instructions from another code generator, with their references to maps.
    pub fn new(insns: &[Insn], relocs: &[Reloc]) -> Self {
        Self { insns: insns.to_vec(), relocs: relocs.to_vec(), notes: BTreeMap::new() }
    }
}

/// A jump target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub struct Asm {
    code: Code,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Asm {
    /// Returns an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of instructions (a `ld_imm64` counts as two).
    pub fn len(&self) -> usize {
        self.code.insns.len()
    }

    /// Returns true if there are no instructions.
    pub fn is_empty(&self) -> bool {
        self.code.insns.is_empty()
    }

    /// Adds a note on the purpose of the next instruction.
    pub fn note(&mut self, text: impl Into<String>) -> &mut Self {
        self.code.notes.insert(self.code.insns.len(), text.into());
        self
    }

    /// Appends an instruction.
    pub fn put(&mut self, insn: Insn) -> &mut Self {
        self.code.insns.push(insn);
        self
    }

    /// Appends instructions of another code generator, whose jumps must stay inside. Their map indices are increased by
    /// `first_map`.
    pub fn splice(&mut self, other: &Code, first_map: usize) -> &mut Self {
        let base = self.code.insns.len();
        self.code.insns.extend(&other.insns);
        let moved = other.relocs.iter().map(|r| Reloc { at: r.at + base, map: r.map + first_map, ..*r });
        self.code.relocs.extend(moved);
        self.code.notes.extend(other.notes.iter().map(|(at, text)| (at + base, text.clone())));
        self
    }

    /// `dst = src`.
    pub fn mov(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.put(insn::alu(Alu::Mov, dst, src))
    }

    /// `dst = imm`.
    pub fn mov_imm(&mut self, dst: Reg, imm: i32) -> &mut Self {
        self.put(insn::alu_imm(Alu::Mov, dst, imm))
    }

    /// `dst op= src`.
    pub fn alu(&mut self, op: Alu, dst: Reg, src: Reg) -> &mut Self {
        self.put(insn::alu(op, dst, src))
    }

    /// `dst op= imm`.
    pub fn alu_imm(&mut self, op: Alu, dst: Reg, imm: i32) -> &mut Self {
        self.put(insn::alu_imm(op, dst, imm))
    }

    /// `dst = value`, any 64 bits, in one or two instructions.
    pub fn mov_u64(&mut self, dst: Reg, value: u64) -> &mut Self {
        match i32::try_from(value.cast_signed()) {
            Ok(small) => self.mov_imm(dst, small),
            Err(_) => self.mov_wide(dst, value),
        }
    }

    /// `dst = value`, always in two instructions, so that it can replace such a pair of another code generator.
    pub fn mov_wide(&mut self, dst: Reg, value: u64) -> &mut Self {
        let [first, second] = insn::load_imm64(dst, 0, value);
        self.put(first).put(second)
    }

    /// `dst = map`, for helpers.
    pub fn map(&mut self, dst: Reg, map: usize) -> &mut Self {
        let at = self.len();
        self.code.relocs.push(Reloc { at, map, value: None });
        self.mov_wide(dst, 0)
    }

    /// `dst = address of byte `offset` of the only value of array `map`.
    pub fn map_value(&mut self, dst: Reg, map: usize, offset: u32) -> &mut Self {
        let at = self.len();
        self.code.relocs.push(Reloc { at, map, value: Some(offset) });
        self.mov_wide(dst, 0)
    }

    /// `dst = *(base + offset)`.
    pub fn load(&mut self, width: Width, dst: Reg, base: Reg, offset: i16) -> &mut Self {
        self.put(insn::load(width, dst, base, offset))
    }

    /// `*(base + offset) = src`.
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, src: Reg) -> &mut Self {
        self.put(insn::store(width, base, offset, src))
    }

    /// `*(base + offset) = imm`.
    pub fn store_imm(&mut self, width: Width, base: Reg, offset: i16, imm: i32) -> &mut Self {
        self.put(insn::store_imm(width, base, offset, imm))
    }

    /// Appends a call of a helper.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.put(insn::call(helper))
    }

    /// Appends a call of a kernel function by its BTF ID. `btf` is 0 for vmlinux, or the index of a module's BTF in the
    /// descriptors passed at load time.
    pub fn kfunc(&mut self, id: u32, btf: i16) -> &mut Self {
        self.put(insn::kfunc(id, btf))
    }

    /// Ends the program with return value 0.
    pub fn end(&mut self) -> &mut Self {
        self.mov_imm(Reg::R0, 0).put(insn::exit())
    }

    /// Creates a label, which [`Self::bind`] places.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label at the next instruction.
    pub fn bind(&mut self, label: Label) -> &mut Self {
        self.labels[label.0] = Some(self.code.insns.len());
        self
    }

    /// Appends an unconditional jump.
    pub fn goto(&mut self, to: Label) -> &mut Self {
        self.jump(insn::goto(), to)
    }

    /// Appends a jump that is taken if `dst cond src`.
    pub fn branch(&mut self, cond: Cond, dst: Reg, src: Reg, to: Label) -> &mut Self {
        self.jump(insn::branch(cond, dst, src), to)
    }

    /// Appends a jump that is taken if `dst cond imm`.
    pub fn branch_imm(&mut self, cond: Cond, dst: Reg, imm: i32, to: Label) -> &mut Self {
        self.jump(insn::branch_imm(cond, dst, imm), to)
    }

    fn jump(&mut self, insn: Insn, to: Label) -> &mut Self {
        self.jumps.push((self.code.insns.len(), to));
        self.put(insn)
    }

    /// Resolves jumps and removes unreachable instructions, which the verifier rejects. They occur after an expression
    /// that always fails.
    ///
    /// # Errors
    /// A label was never placed, or a jump is too long.
    pub fn finish(self) -> Result<Code, Error> {
        let mut code = self.code;
        for (at, label) in self.jumps {
            let target = self.labels[label.0];
            let target = target.ok_or(Error::Nowhere(label.0))?;
            let distance = target as i64 - at as i64 - 1;
            code.insns[at].off = i16::try_from(distance).map_err(|_| Error::TooFar { at, distance })?;
        }
        Ok(reachable(code))
    }
}

const GOTO: u8 = JMP | JA;

/// Returns the jump target of an instruction, if it is a jump.
fn target(insns: &[Insn], at: usize) -> Option<usize> {
    let Insn { code, off, .. } = insns[at];
    let jumps = matches!(code & 7, 5 | 6) && !matches!(code, CALL | EXIT);
    jumps.then(|| usize::try_from(at as i64 + 1 + i64::from(off)).ok()).flatten()
}

/// Removes unreachable instructions.
fn reachable(code: Code) -> Code {
    let Code { insns, relocs, notes } = code;
    let mut kept = vec![false; insns.len()];
    let mut todo = vec![0];
    while let Some(at) = todo.pop() {
        if kept.get(at).is_none_or(|kept| *kept) {
            continue;
        }
        kept[at] = true;
        todo.extend(target(&insns, at));
        match insns[at].code {
            EXIT | GOTO => {}
            LDDW => {
                if let Some(second) = kept.get_mut(at + 1) {
                    *second = true;
                }
                todo.push(at + 2);
            }
            _ => todo.push(at + 1),
        }
    }
    // New index of each instruction: the number of kept instructions before it.
    let places: Vec<usize> = std::iter::once(0)
        .chain(kept.iter().scan(0, |count, kept| {
            *count += usize::from(*kept);
            Some(*count)
        }))
        .collect();
    let mut second = false;
    let mut moved = Vec::new();
    for at in (0..insns.len()).filter(|at| kept[*at]) {
        let mut insn = insns[at];
        let is_second = std::mem::take(&mut second);
        second = insn.code == LDDW && !is_second;
        // Distances can only become smaller.
        if let Some(to) = target(&insns, at).filter(|_| !is_second).and_then(|to| places.get(to)) {
            insn.off = (*to as i64 - places[at] as i64 - 1) as i16;
        }
        moved.push(insn);
    }
    let relocs = relocs.into_iter().filter(|r| kept[r.at]).map(|r| Reloc { at: places[r.at], ..r }).collect();
    let notes = notes.into_iter().filter(|(at, _)| kept.get(*at) == Some(&true));
    Code { insns: moved, relocs, notes: notes.map(|(at, text)| (places[at], text)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_reached_is_left_out() {
        let mut asm = Asm::new();
        let (out, fine) = (asm.label(), asm.label());
        asm.mov_imm(Reg::R1, 1).branch_imm(Cond::Eq, Reg::R1, 2, fine).goto(out);
        // Unreachable.
        asm.note("dead").map(Reg::R2, 3).goto(fine);
        asm.bind(fine).note("alive").map(Reg::R3, 4).bind(out).end();
        let code = asm.finish().unwrap();
        let mut expected = Asm::new();
        let (out, fine) = (expected.label(), expected.label());
        expected.mov_imm(Reg::R1, 1).branch_imm(Cond::Eq, Reg::R1, 2, fine).goto(out);
        expected.bind(fine).note("alive").map(Reg::R3, 4).bind(out).end();
        assert_eq!(code, expected.finish().unwrap());
        assert_eq!((code.insns.len(), code.relocs[0].at), (7, 3));
    }
}
