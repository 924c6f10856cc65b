// SPDX-License-Identifier: MIT OR Apache-2.0
//! A condition in the compiler's IR → x86-64 machine code in a trampoline, or the reason why it is left to the uprobe.
//!
//! Every value has a slot on the stack, and three registers compute: a condition has a few operations, and a compiler's
//! registers would save less than the trampoline's entry takes. Memory is read only where the read cannot fault: a window of the
//! stack from the red zone on, and the mapped segments of the program. Addresses that are known only at the hit are compared with
//! these bounds; outside of them, and for a divisor of zero, control goes to `slow`, the uprobe.

use std::ops::Range;

use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, byte_ptr, cl, dword_ptr, eax, ecx, edx, gpr64, qword_ptr,
    rax, rcx, rdx, rsp, word_ptr,
};
use kprism_expr::interp;
use kprism_expr::ir::{BinOp, Cond, Func, Input, Op, Space, Target, Term, Val, Width};
use kprism_expr::regs::Reg;

/// Bytes below the stack pointer that belong to the function (System V ABI for AMD64, 3.2.2).
pub const RED_ZONE: i64 = 128;
/// Bytes above the stack pointer that are always mapped: at the bottom of the first thread's stack are the arguments, the
/// environment and the auxiliary vector, at that of others the thread's control block.
const ABOVE: i64 = 1024;
/// Most values of a condition: they are on the program's stack.
const MOST_VALUES: usize = 200;

/// Facts on the process that the condition needs.
#[derive(Debug, Clone, Copy)]
pub struct Where<'a> {
    /// Address of the place.
    pub place: u64,
    /// Distance from an address of the file to that in the process.
    pub slide: u64,
    /// Readable memory of the object: its mapped segments.
    pub readable: &'a [Range<u64>],
}

/// A condition that can be compiled: its bytes of stack are known.
#[derive(Debug)]
pub struct Native<'a> {
    func: &'a Func,
    at: Where<'a>,
    /// The slot of each value of the function; unused ones have none.
    slots: Vec<Option<u32>>,
    used: u32,
}

/// Distances from the stack pointer in the code of a condition to what the trampoline saved, bytes.
#[derive(Debug, Clone, Copy)]
pub struct Saved {
    /// rdx, rcx, rax and the flags, in this order upwards, a word each.
    pub registers: i32,
    /// The stack pointer at the place.
    pub rsp: i32,
}

/// Labels at which the code goes on.
#[derive(Debug, Clone, Copy)]
pub struct Exits {
    /// The condition is false.
    pub no: CodeLabel,
    /// It is true, or it cannot be told here.
    pub slow: CodeLabel,
}

/// Kinds of addresses that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Inside of this readable range.
    Static,
    /// At a distance from the stack pointer that is always mapped.
    NearRsp,
    /// On the stack, if at all.
    Stack,
    /// In this range, if at all.
    Object(usize),
}

impl<'a> Native<'a> {
    /// Checks that the condition can be compiled.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn new(func: &'a Func, at: Where<'a>) -> Result<Self, String> {
        let mut this = Self { func, at, slots: vec![None; func.vals.len()], used: 0 };
        for block in &func.layout {
            let body = func.body(*block);
            for v in body.params.iter().chain(&body.insts) {
                this.slots[v.0 as usize] = Some(this.used);
                this.used += 1;
            }
            body.insts.iter().try_for_each(|v| this.check(*v))?;
        }
        match this.used as usize {
            0..=MOST_VALUES => Ok(this),
            n => Err(format!("the condition has {n} values, {MOST_VALUES} can be computed in the program")),
        }
    }

    /// Bytes of stack for its values.
    pub fn stack(&self) -> i32 {
        8 * self.used.cast_signed()
    }

    fn check(&self, v: Val) -> Result<(), String> {
        let what = match self.func.op(v) {
            Op::Const(_) | Op::Param | Op::Address(_) | Op::Bin(..) | Op::Ext { .. } | Op::Cmp(..) => {
                return Ok(());
            }
            Op::Input(Input::Reg(Reg::Cs | Reg::Ss | Reg::OrigRax)) => {
                "a register that only the kernel reads"
            }
            Op::Input(Input::Reg(_)) => return Ok(()),
            Op::Input(_) => "the time, the CPU, a task's number or container, which the kernel knows",
            Op::Load { space: Space::Kernel, .. } => "kernel memory",
            Op::Load { addr, size, .. } => return self.known(*addr, *size).map(drop),
            Op::TextEq(..) => "text",
            Op::CalledBy(_) => "the callers",
            Op::InContainer(_) => "the container",
            Op::Entry(..) => "values at the function's entry",
            Op::GetVar(_) | Op::SetVar(..) | Op::AddVar(..) => "variables of the probes",
            Op::Record(_) => "a record",
        };
        Err(format!("the condition reads {what}"))
    }

    /// The value, if it is the same at every hit.
    fn fixed(&self, v: Val) -> Option<u64> {
        match self.func.op(v) {
            Op::Const(n) => Some(*n),
            Op::Input(Input::Reg(Reg::Rip)) => Some(self.at.place),
            Op::Address(link) => Some(link.wrapping_add(self.at.slide)),
            Op::Bin(op, a, b) => interp::bin(*op, self.func.width(v), self.fixed(*a)?, self.fixed(*b)?),
            _ => None,
        }
    }

    /// The distance from the stack pointer, if it is fixed.
    fn rsp_distance(&self, v: Val) -> Option<i64> {
        match self.func.op(v) {
            Op::Input(Input::Reg(Reg::Rsp)) => Some(0),
            Op::Bin(BinOp::Add, a, b) => match (self.rsp_distance(*a), self.rsp_distance(*b)) {
                (Some(from), None) => from.checked_add(self.fixed(*b)?.cast_signed()),
                (None, Some(from)) => from.checked_add(self.fixed(*a)?.cast_signed()),
                _ => None,
            },
            Op::Bin(BinOp::Sub, a, b) => self.rsp_distance(*a)?.checked_sub(self.fixed(*b)?.cast_signed()),
            _ => None,
        }
    }

    /// The base of a sum: a register of the stack, or a fixed address.
    fn base(&self, v: Val) -> Option<Known> {
        let object = |address: u64| {
            self.at.readable.iter().position(|range| range.contains(&address)).map(Known::Object)
        };
        if let Some(address) = self.fixed(v) {
            return object(address);
        }
        match self.func.op(v) {
            Op::Input(Input::Reg(Reg::Rsp | Reg::Rbp)) => Some(Known::Stack),
            Op::Bin(BinOp::Add, a, b) => self.base(*a).or_else(|| self.base(*b)),
            Op::Bin(BinOp::Sub, a, _) => self.base(*a),
            _ => None,
        }
    }

    fn known(&self, addr: Val, size: u8) -> Result<Known, String> {
        let size = u64::from(size);
        if let Some(address) = self.fixed(addr) {
            let fits = |range: &Range<u64>| range.contains(&address) && range.end - address >= size;
            return match self.at.readable.iter().any(fits) {
                true => Ok(Known::Static),
                false => Err(format!(
                    "the condition reads memory at {address:#x}, which is not of the program's file"
                )),
            };
        }
        if let Some(distance) = self.rsp_distance(addr) {
            return match distance >= -RED_ZONE && distance + size.cast_signed() <= ABOVE {
                true => Ok(Known::NearRsp),
                false => Err(format!(
                    "the condition reads the stack at {distance} bytes from its pointer, which may not be mapped"
                )),
            };
        }
        self.base(addr)
            .ok_or_else(|| "the condition reads memory through a pointer, which may be invalid".to_owned())
    }

    /// Appends the code. It leaves the stack pointer as it was, and changes rax, rcx, rdx and the flags.
    pub fn emit(&self, asm: &mut CodeAssembler, saved: Saved, exits: Exits) -> Result<(), IcedError> {
        let mut blocks: Vec<CodeLabel> = self.func.blocks.iter().map(|_| asm.create_label()).collect();
        for (number, block) in self.func.layout.iter().enumerate() {
            asm.set_label(&mut blocks[block.0 as usize])?;
            let body = self.func.body(*block);
            for v in &body.insts {
                self.value(asm, *v, saved, exits)?;
                if self.func.width(*v) == Width::W32 {
                    asm.mov(eax, eax)?;
                }
                self.store(asm, *v)?;
            }
            // A label stands before an instruction, and the next block has its own.
            let next = self.func.layout.get(number + 1).copied();
            match &body.term {
                Some(Term::Jump(target)) => self.jump(asm, target, &blocks, next)?,
                Some(Term::Branch(v, then, other)) => {
                    let mut otherwise = asm.create_label();
                    self.load(asm, *v)?;
                    asm.test(rax, rax)?;
                    asm.je(otherwise)?;
                    self.jump(asm, then, &blocks, None)?;
                    asm.set_label(&mut otherwise)?;
                    self.jump(asm, other, &blocks, None)?;
                }
                Some(Term::Return(v)) => {
                    self.load(asm, *v)?;
                    asm.test(rax, rax)?;
                    asm.je(exits.no)?;
                    asm.jmp(exits.slow)?;
                }
                Some(Term::Fault(_)) | None => asm.jmp(exits.slow)?,
            }
        }
        Ok(())
    }

    /// Jumps run forward only, so no argument is a parameter of the target.
    fn jump(
        &self,
        asm: &mut CodeAssembler,
        target: &Target,
        blocks: &[CodeLabel],
        next: Option<kprism_expr::ir::Block>,
    ) -> Result<(), IcedError> {
        for (param, arg) in self.func.body(target.block).params.iter().zip(&target.args) {
            self.load(asm, *arg)?;
            self.store(asm, *param)?;
        }
        match next == Some(target.block) {
            true => asm.nop(),
            false => asm.jmp(blocks[target.block.0 as usize]),
        }
    }

    fn slot(&self, v: Val) -> i32 {
        8 * self.slots[v.0 as usize].unwrap_or(0).cast_signed()
    }

    fn store(&self, asm: &mut CodeAssembler, v: Val) -> Result<(), IcedError> {
        asm.mov(qword_ptr(rsp + self.slot(v)), rax)
    }

    fn load(&self, asm: &mut CodeAssembler, v: Val) -> Result<(), IcedError> {
        asm.mov(rax, qword_ptr(rsp + self.slot(v)))
    }

    /// Computes the value into rax.
    fn value(&self, asm: &mut CodeAssembler, v: Val, saved: Saved, exits: Exits) -> Result<(), IcedError> {
        match self.func.op(v) {
            Op::Const(n) => asm.mov(rax, *n),
            Op::Address(link) => asm.mov(rax, link.wrapping_add(self.at.slide)),
            Op::Input(Input::Reg(reg)) => self.register(asm, *reg, saved),
            Op::Bin(op, a, b) => {
                asm.mov(rcx, qword_ptr(rsp + self.slot(*b)))?;
                self.load(asm, *a)?;
                binary(asm, *op, self.func.width(v), exits.slow)
            }
            Op::Ext { bits, signed, of } => {
                let unused = 64 - u32::from((*bits).clamp(1, 64));
                self.load(asm, *of)?;
                asm.shl(rax, unused)?;
                if *signed { asm.sar(rax, unused) } else { asm.shr(rax, unused) }
            }
            Op::Cmp(cond, a, b) => {
                asm.mov(rcx, qword_ptr(rsp + self.slot(*b)))?;
                self.load(asm, *a)?;
                match self.func.width(*a) {
                    Width::W64 => asm.cmp(rax, rcx)?,
                    Width::W32 => asm.cmp(eax, ecx)?,
                }
                match cond {
                    Cond::Eq => asm.sete(al)?,
                    Cond::Ne => asm.setne(al)?,
                    Cond::Ult => asm.setb(al)?,
                    Cond::Ule => asm.setbe(al)?,
                    Cond::Slt => asm.setl(al)?,
                    Cond::Sle => asm.setle(al)?,
                }
                asm.movzx(eax, al)
            }
            Op::Load { size, signed, addr, .. } => {
                self.load(asm, *addr)?;
                self.bound(asm, *addr, *size, saved, exits.slow)?;
                match (size, signed) {
                    (1, false) => asm.movzx(eax, byte_ptr(rax)),
                    (1, true) => asm.movsx(rax, byte_ptr(rax)),
                    (2, false) => asm.movzx(eax, word_ptr(rax)),
                    (2, true) => asm.movsx(rax, word_ptr(rax)),
                    (4, false) => asm.mov(eax, dword_ptr(rax)),
                    (4, true) => asm.movsxd(rax, dword_ptr(rax)),
                    _ => asm.mov(rax, qword_ptr(rax)),
                }
            }
            // Refused by `check`.
            _ => asm.jmp(exits.slow),
        }
    }

    fn register(&self, asm: &mut CodeAssembler, reg: Reg, saved: Saved) -> Result<(), IcedError> {
        let from = |register: AsmRegister64, asm: &mut CodeAssembler| asm.mov(rax, register);
        let word = |number: i32, asm: &mut CodeAssembler| {
            asm.mov(rax, qword_ptr(rsp + saved.registers + 8 * number))
        };
        match reg {
            Reg::Rdx => word(0, asm),
            Reg::Rcx => word(1, asm),
            Reg::Rax => word(2, asm),
            Reg::Eflags => word(3, asm),
            Reg::Rsp => asm.lea(rax, qword_ptr(rsp + saved.rsp)),
            Reg::Rip => asm.mov(rax, self.at.place),
            Reg::R15 => from(gpr64::r15, asm),
            Reg::R14 => from(gpr64::r14, asm),
            Reg::R13 => from(gpr64::r13, asm),
            Reg::R12 => from(gpr64::r12, asm),
            Reg::Rbp => from(gpr64::rbp, asm),
            Reg::Rbx => from(gpr64::rbx, asm),
            Reg::R11 => from(gpr64::r11, asm),
            Reg::R10 => from(gpr64::r10, asm),
            Reg::R9 => from(gpr64::r9, asm),
            Reg::R8 => from(gpr64::r8, asm),
            Reg::Rsi => from(gpr64::rsi, asm),
            Reg::Rdi => from(gpr64::rdi, asm),
            // Refused by `check`.
            Reg::OrigRax | Reg::Cs | Reg::Ss => asm.mov(rax, 0_u64),
        }
    }

    /// Goes to `slow` unless the `size` bytes at rax are mapped. Keeps rax.
    fn bound(
        &self,
        asm: &mut CodeAssembler,
        addr: Val,
        size: u8,
        saved: Saved,
        slow: CodeLabel,
    ) -> Result<(), IcedError> {
        let most = match self.known(addr, size) {
            Ok(Known::Static | Known::NearRsp) => return Ok(()),
            Ok(Known::Stack) => {
                asm.lea(rcx, qword_ptr(rsp + (saved.rsp - RED_ZONE as i32)))?;
                (RED_ZONE + ABOVE).cast_unsigned() - u64::from(size)
            }
            Ok(Known::Object(number)) => {
                let range = &self.at.readable[number];
                asm.mov(rcx, range.start)?;
                (range.end - range.start).saturating_sub(size.into())
            }
            Err(_) => return asm.jmp(slow),
        };
        asm.mov(rdx, rax)?;
        asm.sub(rdx, rcx)?;
        asm.mov(rcx, most)?;
        asm.cmp(rdx, rcx)?;
        asm.ja(slow)
    }
}

/// rax = rax `op` rcx, of this width. The upper half of a 32-bit result is not used.
fn binary(asm: &mut CodeAssembler, op: BinOp, width: Width, slow: CodeLabel) -> Result<(), IcedError> {
    match (op, width) {
        (BinOp::Add, _) => asm.add(rax, rcx),
        (BinOp::Sub, _) => asm.sub(rax, rcx),
        (BinOp::Mul, _) => asm.imul_2(rax, rcx),
        (BinOp::And, _) => asm.and(rax, rcx),
        (BinOp::Or, _) => asm.or(rax, rcx),
        (BinOp::Xor, _) => asm.xor(rax, rcx),
        (BinOp::Shl, Width::W64) => asm.shl(rax, cl),
        (BinOp::Shl, Width::W32) => asm.shl(eax, cl),
        (BinOp::Shr, Width::W64) => asm.shr(rax, cl),
        (BinOp::Shr, Width::W32) => asm.shr(eax, cl),
        (BinOp::Sar, Width::W64) => asm.sar(rax, cl),
        (BinOp::Sar, Width::W32) => asm.sar(eax, cl),
        (BinOp::UDiv | BinOp::URem, _) => {
            if width == Width::W32 {
                asm.mov(ecx, ecx)?;
                asm.mov(eax, eax)?;
            }
            asm.test(rcx, rcx)?;
            asm.je(slow)?;
            asm.xor(edx, edx)?;
            asm.div(rcx)?;
            if op == BinOp::URem { asm.mov(rax, rdx) } else { asm.nop() }
        }
        (BinOp::SDiv | BinOp::SRem, _) => {
            if width == Width::W32 {
                asm.movsxd(rcx, ecx)?;
                asm.movsxd(rax, eax)?;
            }
            asm.test(rcx, rcx)?;
            asm.je(slow)?;
            // The processor faults on the smallest number divided by -1.
            let (mut usual, mut done) = (asm.create_label(), asm.create_label());
            asm.cmp(rcx, -1)?;
            asm.jne(usual)?;
            if op == BinOp::SDiv {
                asm.neg(rax)?
            } else {
                asm.xor(eax, eax)?
            }
            asm.jmp(done)?;
            asm.set_label(&mut usual)?;
            asm.cqo()?;
            asm.idiv(rcx)?;
            if op == BinOp::SRem {
                asm.mov(rax, rdx)?;
            }
            asm.set_label(&mut done)?;
            asm.nop()
        }
    }
}
