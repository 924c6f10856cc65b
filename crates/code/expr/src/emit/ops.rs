// SPDX-License-Identifier: MIT OR Apache-2.0
//! One operation → instructions: inputs, arithmetic, extensions. Those that call helpers are in `memory`.

use kprism_ebpf::insn::Helper;
use kprism_ebpf::opcode;

use crate::ir::{BinOp, Fault, Input, Op, Val, Width};

use super::alloc::Place;
use super::emitter::{A, B, Emitter, FP, Label};
use super::{Cpu, MEASURED, Map, Reloc, VARS};

impl Emitter<'_> {
    /// Generates an operation.
    pub(super) fn inst(&mut self, v: Val) {
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
                self.place_result(v, d);
            }
            Op::Bin(op, a, b) => self.bin(v, *op, width, *a, *b),
            Op::Ext { bits, signed, of } => self.ext(v, *bits, *signed, *of, width),
            Op::Cmp(cond, a, b) => {
                let yes = self.local();
                self.compare(*cond, *a, *b, yes);
                self.truth(v, yes);
            }
            Op::GetVar(n) => {
                let d = self.dst(v);
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(opcode::LDX | 0x18, d, B, 0, 0);
                self.place_result(v, d);
            }
            Op::SetVar(n, of) => {
                let r = self.reg(*of, A);
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                self.push(opcode::STX | 0x18, B, r, 0, 0);
                self.place_result(v, r);
            }
            Op::AddVar(n, of) => {
                self.into(A, *of);
                self.relocated(B, Reloc::MapValue(Map::State, VARS + 8 * i32::from(*n)));
                let used = self.alloc.is_used(v);
                self.push(opcode::ATOMIC_DW, B, A, 0, i32::from(used));
                if used {
                    let r = self.reg(*of, B);
                    self.push(opcode::ALU64 | opcode::ADD | opcode::X, A, r, 0, 0);
                    self.place_result(v, A);
                }
            }
            Op::Load { space, size, signed, addr } => self.load(v, *space, *size, *signed, *addr),
            Op::TextEq(text, wanted) => self.text_eq(v, *text, wanted),
            Op::CalledBy(asked) => self.called_by(v, asked),
            Op::InContainer(id) => self.in_container(v, id),
            Op::Entry(what, frame) => self.kept(v, *what, *frame),
            Op::Record(record) if self.frame.is_some() => self.framed(record),
            Op::Record(record) => self.record(record),
        }
    }

    /// Ends a test: the value is 1 at the label `yes`, and 0 where the code before goes on.
    pub(super) fn truth(&mut self, v: Val, yes: Label) {
        let end = self.local();
        let d = self.dst(v);
        self.mov_imm(d, 0);
        self.jump(opcode::JMP | opcode::JA, 0, 0, 0, end);
        self.here(yes);
        self.mov_imm(d, 1);
        self.here(end);
        self.place_result(v, d);
    }

    /// A value that a helper without arguments returns.
    fn call_for(&mut self, v: Val, helper: Helper) {
        self.push(opcode::CALL, 0, 0, 0, helper as i32);
        self.place_result(v, A)
    }

    fn input(&mut self, v: Val, input: Input) {
        let off = match input {
            Input::Reg(reg) => Some(reg.pt_regs_offset()),
            Input::Arg(n) => Some(i16::from(n) * 8),
            Input::Context => None,
            Input::PidTgid => return self.call_for(v, Helper::CurrentPidTgid),
            Input::Cpu => return self.call_for(v, Helper::SmpProcessorId),
            Input::Time => return self.call_for(v, Helper::KtimeGetNs),
            Input::Cgroup => return self.call_for(v, Helper::CurrentCgroupId),
            Input::Measured => {
                let d = self.dst(v);
                self.push(opcode::LDX | 0x18, d, FP, MEASURED, 0);
                return self.place_result(v, d);
            }
        };
        let d = self.dst(v);
        let ctx = self.context();
        match off {
            Some(off) => self.push(opcode::LDX | 0x18, d, ctx, off, 0),
            None => self.push(opcode::ALU64 | opcode::MOV | opcode::X, d, ctx, 0, 0),
        }
        self.place_result(v, d);
    }

    /// Returns a register that holds the context's address.
    pub(super) fn context(&mut self) -> u8 {
        match self.alloc.ctx {
            Some(Place::Reg(r)) => r,
            Some(Place::Slot(s)) => {
                let at = self.slot(s);
                self.push(opcode::LDX | 0x18, B, FP, at, 0);
                B
            }
            None => 1,
        }
    }

    /// Returns the value as an immediate operand, if it is a constant that fits.
    pub(super) fn imm(&self, v: Val, width: Width) -> Option<i32> {
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
            return self.place_result(v, d);
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
                return self.place_result(v, d);
            }
            self.mov(B, rb);
            rb = B;
        }
        self.into(d, a);
        self.push(class | code | opcode::X, d, rb, off, 0);
        self.place_result(v, d);
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
        self.place_result(v, d);
    }
}
