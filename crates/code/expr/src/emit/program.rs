// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the three kinds (whole, segment, framed) and the program at a function's entry: blocks in order, then the exits
//! after faults.

use std::collections::{BTreeSet, HashMap};

use kprism_ebpf::insn::Helper;
use kprism_ebpf::opcode;

use crate::ir::{FAULTS, Func, Input, Kept, Op, Record, Text};

use super::alloc::{Place, allocate};
use super::callers;
use super::emitter::{Emitter, FP, Label};
use super::frame::Frame;
use super::legal::legalise;
use super::{Cpu, Error, Insn, Map, Output, Program, Reloc};

/// Generates a complete program.
pub fn program(func: &Func, cpu: Cpu, output: Output) -> Result<Program, Error> {
    let kept = func.kept().into_iter().collect();
    Ok(generate(func, cpu, output, kept, None)?.0)
}

/// Generates a part of a larger program. r0 is the value at each `exit`; the caller, which joins the parts, replaces
/// each `exit` by a jump ([`Program::faulted`] lists those after a fault). `kept` lists the values that the entry
/// program saves for all parts.
pub fn segment(func: &Func, cpu: Cpu, kept: &[Kept]) -> Result<Program, Error> {
    Ok(generate(func, cpu, Output::Verdict, kept.to_vec(), None)?.0)
}

/// Generates such a part with its records in `frame`. Each record has a fixed offset there, so the program computes no
/// offsets, and concurrent hits of several tasks cannot mix.
pub fn framed(func: &Func, cpu: Cpu, frame: &mut Frame) -> Result<Program, Error> {
    let (program, after) = generate(func, cpu, Output::Verdict, Vec::new(), Some(frame.clone()))?;
    *frame = after.unwrap_or_default();
    Ok(program)
}

/// Makes the function legal for the instruction set, gives values their places, and generates all blocks.
fn generate(
    func: &Func,
    cpu: Cpu,
    output: Output,
    kept: Vec<Kept>,
    frame: Option<Frame>,
) -> Result<(Program, Option<Frame>), Error> {
    let inputs = func.inputs();
    let has = |f: fn(&Input) -> bool| inputs.iter().any(f);
    if has(|i| matches!(i, Input::Reg(_))) && has(|i| matches!(i, Input::Arg(_))) {
        return Err(Error::Mixed);
    }
    let func = &legalise(func, cpu);
    let alloc = allocate(func, cpu);
    let buffer = func.ops().map(buffer_of).max().unwrap_or(0);
    let stack = u32::from(buffer.unsigned_abs()) + 8 * u32::from(alloc.slots);
    if stack > 512 {
        return Err(Error::Stack(stack));
    }
    let formats = func.formats.clone();
    let vars = func.ops().filter_map(var_of).max().map_or(0, |n| usize::from(n) + 1);
    let mut emitter = Emitter {
        func,
        alloc,
        cpu,
        out: Program { stack, kept, formats, vars, ..Program::default() },
        output,
        labels: HashMap::new(),
        jumps: Vec::new(),
        faults: BTreeSet::new(),
        locals: 0,
        buffer,
        frame,
        refused: None,
    };
    emitter.blocks();
    if let Some(error) = emitter.refused {
        return Err(error);
    }
    emitter.resolve()?;
    Ok((emitter.out, emitter.frame))
}

/// Generates the program at a function's entry that saves these values for the main one. The frame is the address above
/// the return address, as in DWARF; without `registers` in the context it is 0, as in a scope by BTF.
pub fn entry(kept: &[Kept], registers: bool) -> Program {
    let mut out = Program { kept: kept.to_vec(), ..Program::default() };
    let words = kept.len() as i16;
    let value = -8 * words;
    let key = value - 16;
    out.stack = u32::from(key.unsigned_abs());
    let mut push = |code, dst, src, off, imm| out.insns.push(Insn { code, dst, src, off, imm });
    push(opcode::ALU64 | opcode::MOV | opcode::X, 6, 1, 0, 0);
    if registers {
        push(opcode::LDX | 0x18, 1, 6, crate::regs::Reg::Rsp.pt_regs_offset(), 0);
        push(opcode::ALU64 | opcode::ADD, 1, 0, 0, 8);
    } else {
        push(opcode::ALU64 | opcode::MOV, 1, 0, 0, 0);
    }
    push(opcode::STX | 0x18, FP, 1, key + 8, 0);
    for (i, what) in kept.iter().enumerate() {
        match what {
            Kept::Time => push(opcode::CALL, 0, 0, 0, Helper::KtimeGetNs as i32),
            Kept::Reg(reg) => push(opcode::LDX | 0x18, 0, 6, reg.pt_regs_offset(), 0),
        }
        push(opcode::STX | 0x18, FP, 0, value + 8 * i as i16, 0);
    }
    push(opcode::CALL, 0, 0, 0, Helper::CurrentPidTgid as i32);
    push(opcode::STX | 0x18, FP, 0, key, 0);
    let map = out.insns.len();
    let mut push = |code, dst, src, off, imm| out.insns.push(Insn { code, dst, src, off, imm });
    push(opcode::LDDW, 1, 1, 0, 0);
    push(0, 0, 0, 0, 0);
    push(opcode::ALU64 | opcode::MOV | opcode::X, 2, FP, 0, 0);
    push(opcode::ALU64 | opcode::ADD, 2, 0, 0, i32::from(key));
    push(opcode::ALU64 | opcode::MOV | opcode::X, 3, FP, 0, 0);
    push(opcode::ALU64 | opcode::ADD, 3, 0, 0, i32::from(value));
    push(opcode::ALU64 | opcode::MOV, 4, 0, 0, 0);
    push(opcode::CALL, 0, 0, 0, Helper::MapUpdate as i32);
    push(opcode::ALU64 | opcode::MOV, 0, 0, 0, 0);
    push(opcode::EXIT, 0, 0, 0, 0);
    out.relocs.push((map, Reloc::Map(Map::Entries)));
    out
}

/// Returns the temporary stack memory that the operation needs, in bytes.
fn buffer_of(op: &Op) -> i16 {
    match op {
        Op::Load { .. } => 8,
        Op::TextEq(Text::Comm, _) | Op::Entry(..) => 16,
        Op::TextEq(text, wanted) => {
            // A string in user memory may have to be read twice, so its address is saved too.
            let again = matches!(text, Text::Memory { space: crate::ir::Space::User, .. });
            ((wanted.len() + 2).div_ceil(8) * 8 + 8 * usize::from(again)).min(1 << 14) as i16
        }
        Op::Record(_) => 24,
        Op::CalledBy(asked) => callers::buffer(asked),
        _ => 0,
    }
}

fn var_of(op: &Op) -> Option<u16> {
    match op {
        Op::GetVar(n) | Op::SetVar(n, _) | Op::AddVar(n, _) | Op::Record(Record::Var(n)) => Some(*n),
        _ => None,
    }
}

impl Emitter<'_> {
    /// Generates all blocks, and an exit for each fault.
    fn blocks(&mut self) {
        if let Some(Place::Slot(s)) = self.alloc.ctx {
            let at = self.slot(s);
            self.push(opcode::STX | 0x18, FP, 1, at, 0);
        } else if let Some(Place::Reg(r)) = self.alloc.ctx {
            self.mov(r, 1);
        }
        let layout = &self.func.layout;
        for (i, &block) in layout.iter().enumerate() {
            self.here(Label::Block(block));
            let body = self.func.body(block);
            for &v in &body.insts {
                if !self.alloc.is_silent(v) {
                    self.inst(v);
                }
            }
            if let Some(term) = &body.term {
                self.term(term, layout.get(i + 1).copied());
            }
        }
        for fault in std::mem::take(&mut self.faults) {
            self.here(Label::Fault(fault));
            let number = FAULTS.iter().position(|f| *f == fault).unwrap_or(0) as i32;
            self.count(8 * number);
            self.mov_imm(0, 0);
            self.out.faulted.push(self.out.insns.len());
            self.push(opcode::EXIT, 0, 0, 0, 0);
        }
    }
}
