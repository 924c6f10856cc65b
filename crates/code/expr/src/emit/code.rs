// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code generation: arithmetic, comparisons, jumps, and moves to block parameters.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kprism_ebpf::insn::Helper;
use kprism_ebpf::opcode;

use crate::ir::{
    BinOp, Block, Cond, FAULTS, Fault, Func, Input, Kept, Op, Record, Target, Term, Text, Val, Width,
};

use super::alloc::{Allocation, Place, allocate};
use super::frame::Frame;
use super::legal::legalise;
use super::{Cpu, Insn, LOST, Map, Output, Program, RESULT, Reloc, VARS};

/// Reason why no program can be generated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The stack of a BPF program has 512 bytes.
    #[error(
        "the expression needs {0} bytes of stack, a BPF program has 512; split it into several conditions"
    )]
    Stack(u32),
    /// A jump offset has 16 bits.
    #[error("the expression becomes {0} instructions, more than a jump can span; split it")]
    TooLong(usize),
    /// The context holds either registers or arguments, not both.
    #[error("registers and arguments cannot both be read by one program: its context has only one of them")]
    Mixed,
    /// The frame would exceed its limit.
    #[error("{0} bytes would be collected at each hit, a frame holds {LONGEST}", LONGEST = super::frame::LONGEST)]
    Frame(u64),
    /// A frame has no room for printf output.
    #[error("printf has no place in a trace frame; collect the values")]
    Printf,
}

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
    output: Output,
    labels: HashMap<Label, usize>,
    jumps: Vec<(usize, Label)>,
    faults: BTreeSet<Fault>,
    locals: u32,
    /// Bytes below the frame pointer that operations use as temporary memory.
    pub buffer: i16,
    /// Destination of records; None: the ring buffer.
    pub frame: Option<Frame>,
    /// First error found while records were placed in the frame.
    pub refused: Option<Error>,
}

/// Generates a complete program.
pub fn program(func: &Func, cpu: Cpu, output: Output) -> Result<Program, Error> {
    let kept = func.kept().into_iter().collect();
    Ok(made(func, cpu, output, kept, None)?.0)
}

/// Generates a part of a larger program. r0 is the value at each `exit`; the caller, which joins the parts, replaces
/// each `exit` by a jump ([`Program::faulted`] lists those after a fault). `kept` lists the values that the entry
/// program saves for all parts.
pub fn segment(func: &Func, cpu: Cpu, kept: &[Kept]) -> Result<Program, Error> {
    Ok(made(func, cpu, Output::Verdict, kept.to_vec(), None)?.0)
}

/// Generates such a part with its records in `frame`. Each record has a fixed offset there, so the program computes no
/// offsets, and concurrent hits of several tasks cannot mix.
pub fn framed(func: &Func, cpu: Cpu, frame: &mut Frame) -> Result<Program, Error> {
    let (program, after) = made(func, cpu, Output::Verdict, Vec::new(), Some(frame.clone()))?;
    *frame = after.unwrap_or_default();
    Ok(program)
}

fn made(
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
    emitter.all();
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

    pub fn made(&mut self, v: Val, r: u8) {
        match self.alloc.place(v) {
            Some(Place::Reg(own)) => self.mov(own, r),
            Some(Place::Slot(s)) => {
                let at = self.slot(s);
                self.push(opcode::STX | 0x18, FP, r, at, 0);
            }
            None => {}
        }
    }

    fn all(&mut self) {
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

    /// Adds one to a counter of the state map. Clobbers r0 and r5.
    pub fn count(&mut self, at: i32) {
        debug_assert!(at <= LOST);
        self.relocated(B, Reloc::MapValue(Map::State, at));
        self.mov_imm(A, 1);
        self.push(opcode::ATOMIC_DW, B, A, 0, 0);
    }

    fn inst(&mut self, v: Val) {
        let func = self.func;
        let width = func.width(v);
        if !self.alloc.is_used(v) && !func.op(v).stays() {
            return;
        }
        match func.op(v) {
            Op::Const(_) | Op::Param => {}
            Op::Input(input) => self.input(v, *input),
            Op::Address(link) => {
                let d = self.dst(v);
                self.relocated(d, Reloc::Address(*link));
                self.made(v, d);
            }
            Op::Bin(op, a, b) => self.bin(v, *op, width, *a, *b),
            Op::Ext { bits, signed, of } => self.ext(v, *bits, *signed, *of, width),
            Op::Cmp(cond, a, b) => {
                let (yes, end) = (self.local(), self.local());
                self.compare(*cond, *a, *b, yes);
                let d = self.dst(v);
                self.mov_imm(d, 0);
                self.jump(opcode::JMP | opcode::JA, 0, 0, 0, end);
                self.here(yes);
                self.mov_imm(d, 1);
                self.here(end);
                self.made(v, d);
            }
            Op::GetVar(n) => {
                let d = self.dst(v);
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(opcode::LDX | 0x18, d, B, 0, 0);
                self.made(v, d);
            }
            Op::SetVar(n, of) => {
                let r = self.reg(*of, A);
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(opcode::STX | 0x18, B, r, 0, 0);
                self.made(v, r);
            }
            Op::AddVar(n, of) => {
                self.into(A, *of);
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                let used = self.alloc.is_used(v);
                self.push(opcode::ATOMIC_DW, B, A, 0, i32::from(used));
                if used {
                    let r = self.reg(*of, B);
                    self.push(opcode::ALU64 | opcode::ADD | opcode::X, A, r, 0, 0);
                    self.made(v, A);
                }
            }
            Op::Load { space, size, signed, addr } => self.load(v, *space, *size, *signed, *addr),
            Op::TextEq(text, wanted) => self.text_eq(v, *text, wanted),
            Op::Entry(what, frame) => self.kept(v, *what, *frame),
            Op::Record(record) if self.frame.is_some() => self.framed(record),
            Op::Record(record) => self.record(record),
        }
    }

    /// A value that a helper without arguments returns.
    fn call_for(&mut self, v: Val, helper: Helper) {
        self.push(opcode::CALL, 0, 0, 0, helper as i32);
        self.made(v, A)
    }

    fn input(&mut self, v: Val, input: Input) {
        let off = match input {
            Input::Reg(reg) => Some(reg.pt_regs_offset()),
            Input::Arg(n) => Some(i16::from(n) * 8),
            Input::Context => None,
            Input::PidTgid => return self.call_for(v, Helper::CurrentPidTgid),
            Input::Cpu => return self.call_for(v, Helper::SmpProcessorId),
            Input::Time => return self.call_for(v, Helper::KtimeGetNs),
        };
        let d = self.dst(v);
        let ctx = match self.alloc.ctx {
            Some(Place::Reg(r)) => r,
            Some(Place::Slot(s)) => {
                let at = self.slot(s);
                self.push(opcode::LDX | 0x18, B, FP, at, 0);
                B
            }
            None => 1,
        };
        match off {
            Some(off) => self.push(opcode::LDX | 0x18, d, ctx, off, 0),
            None => self.push(opcode::ALU64 | opcode::MOV | opcode::X, d, ctx, 0, 0),
        }
        self.made(v, d);
    }

    /// Returns the value as an immediate operand, if it is a constant that fits.
    fn imm(&self, v: Val, width: Width) -> Option<i32> {
        let n = self.func.constant(v)?;
        match width {
            Width::W32 => Some(n as i32),
            Width::W64 => i32::try_from(n as i64).ok(),
        }
    }

    fn bin(&mut self, v: Val, op: BinOp, width: Width, a: Val, b: Val) {
        let (a, b) = if op.commutes() && self.func.constant(a).is_some() { (b, a) } else { (a, b) };
        let class = if width == Width::W32 { opcode::ALU } else { opcode::ALU64 };
        let (code, off) = match op {
            BinOp::Add => (opcode::ADD, 0),
            BinOp::Sub => (opcode::SUB, 0),
            BinOp::Mul => (opcode::MUL, 0),
            BinOp::UDiv => (opcode::DIV, 0),
            BinOp::SDiv => (opcode::DIV, 1),
            BinOp::URem => (opcode::MOD, 0),
            BinOp::SRem => (opcode::MOD, 1),
            BinOp::And => (opcode::AND, 0),
            BinOp::Or => (opcode::OR, 0),
            BinOp::Xor => (opcode::XOR, 0),
            BinOp::Shl => (opcode::LSH, 0),
            BinOp::Shr => (opcode::RSH, 0),
            BinOp::Sar => (opcode::ARSH, 0),
        };
        let d = self.dst(v);
        let mut imm = self.imm(b, width);
        if matches!(op, BinOp::Shl | BinOp::Shr | BinOp::Sar) {
            imm = imm.map(|n| n & (width.bits() as i32 - 1));
        }
        // The verifier rejects division by an immediate zero. Division by a register is checked and becomes a fault.
        if let Some(n) = imm.filter(|n| !(op.divides() && *n == 0)) {
            self.into(d, a);
            self.push(class | code, d, 0, off, n);
            return self.made(v, d);
        }
        let mut rb = self.reg(b, B);
        if op.divides() {
            let jump = if width == Width::W32 { opcode::JMP32 } else { opcode::JMP };
            self.jump(jump | opcode::JEQ, rb, 0, 0, Label::Fault(Fault::Divide));
        }
        if rb == d && self.alloc.real(a) != self.alloc.real(b) {
            if op.commutes() {
                let ra = self.reg(a, A);
                self.push(class | code | opcode::X, d, ra, 0, 0);
                return self.made(v, d);
            }
            self.mov(B, rb);
            rb = B;
        }
        self.into(d, a);
        self.push(class | code | opcode::X, d, rb, off, 0);
        self.made(v, d);
    }

    fn ext(&mut self, v: Val, bits: u8, signed: bool, of: Val, width: Width) {
        let d = self.dst(v);
        let class = if width == Width::W32 { opcode::ALU } else { opcode::ALU64 };
        let shift = (width.bits() as i32 - i32::from(bits)).max(0);
        match (bits, signed) {
            (32, false) if width == Width::W64 => {
                let r = self.reg(of, A);
                self.push(opcode::ALU | opcode::MOV | opcode::X, d, r, 0, 0);
            }
            (1..32, false) => {
                self.into(d, of);
                self.push(class | opcode::AND, d, 0, 0, (1u32 << bits).wrapping_sub(1) as i32);
            }
            (8 | 16 | 32, true) if self.cpu == Cpu::V4 && shift > 0 => {
                let r = self.reg(of, A);
                self.push(class | opcode::MOV | opcode::X, d, r, i16::from(bits), 0);
            }
            _ => {
                self.into(d, of);
                if shift > 0 {
                    self.push(class | opcode::LSH, d, 0, 0, shift);
                    let right = if signed { opcode::ARSH } else { opcode::RSH };
                    self.push(class | right, d, 0, 0, shift);
                }
            }
        }
        self.made(v, d);
    }

    /// Emits a jump that is taken if the comparison holds.
    fn compare(&mut self, cond: Cond, a: Val, b: Val, to: Label) {
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

    fn term(&mut self, term: &Term, next: Option<Block>) {
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

    fn resolve(&mut self) -> Result<(), Error> {
        for (from, label) in &self.jumps {
            let to = self.labels.get(label).copied().unwrap_or(self.out.insns.len());
            let distance = to as i64 - *from as i64 - 1;
            self.out.insns[*from].off =
                i16::try_from(distance).map_err(|_| Error::TooLong(self.out.insns.len()))?;
        }
        Ok(())
    }
}
