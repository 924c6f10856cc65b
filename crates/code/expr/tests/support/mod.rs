// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared by tests and fuzz targets: programs generated from bytes, a small machine for them, and rbpf to run the eBPF.
#![allow(dead_code)]

pub mod text;

use std::cell::RefCell;

use kprism_ebpf::insn::Helper;
use kprism_expr::emit::{self, Cpu, LOST, Map, Output, Program, RESULT, Reloc, VARS};
use kprism_expr::interp::Machine;
use kprism_expr::ir::{
    BinOp, Block, Builder, Cond, FAULTS, Fault, Func, Input, Op, Space, Target, Term, Text, Val, Width,
};

/// Start address of the programs' memory. There is no memory around it.
pub const BASE: u64 = 0x1000_0000;
/// Size of the memory in bytes. The kernel's tests map it as one page.
pub const SIZE: usize = 4096;
/// Number of trace state variables in generated programs.
pub const VARIABLES: usize = 2;

/// A source of random choices.
pub struct Bytes<'b>(pub &'b [u8]);

impl Bytes<'_> {
    /// Returns the next byte; zero after the end.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// Returns a number. Boundary values are more likely than others.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => 0,
            1 => u64::from(self.byte()),
            2 => u64::MAX,
            3 => 1 << 63,
            4 => 0x8000_0000,
            5 => BASE + u64::from(self.byte()),
            6 => i64::from(self.byte() as i8) as u64,
            _ => (0..8).fold(0, |n, _| n << 8 | u64::from(self.byte())),
        }
    }
}

const BINS: [BinOp; 13] = [
    BinOp::Add,
    BinOp::Sub,
    BinOp::Mul,
    BinOp::UDiv,
    BinOp::SDiv,
    BinOp::URem,
    BinOp::SRem,
    BinOp::And,
    BinOp::Or,
    BinOp::Xor,
    BinOp::Shl,
    BinOp::Shr,
    BinOp::Sar,
];
const CONDS: [Cond; 6] = [Cond::Eq, Cond::Ne, Cond::Ult, Cond::Ule, Cond::Slt, Cond::Sle];

/// Generates a program. `atomics` allows atomic additions, which rbpf lacks. The optimiser can create one from a read
/// and a write of a variable.
pub fn program(bytes: &mut Bytes<'_>, atomics: bool) -> Func {
    let mut b = Builder::new();
    let count = 1 + bytes.below(6);
    let mut blocks = vec![b.here()];
    let mut params: Vec<Vec<Val>> = vec![Vec::new()];
    for _ in 1..count {
        let block = b.block();
        let widths = (0..bytes.below(3)).map(|_| if bytes.byte() & 1 == 0 { Width::W32 } else { Width::W64 });
        params.push(widths.collect::<Vec<_>>().into_iter().map(|w| b.param(block, w)).collect());
        blocks.push(block);
    }
    let mut entry: Vec<Val> = Vec::new();
    for i in 0..count {
        if i > 0 {
            b.place(blocks[i]);
        }
        let mut pool: Vec<Val> = entry.iter().chain(&params[i]).copied().collect();
        for _ in 0..1 + bytes.below(if i == 0 { 24 } else { 10 }) {
            let v = inst(&mut b, bytes, &pool, atomics);
            pool.push(v);
        }
        if i == 0 {
            entry.clone_from(&pool);
        }
        end(&mut b, bytes, &pool, &blocks[i + 1..], &params[i + 1..]);
    }
    b.finish()
}

fn pick(b: &mut Builder, bytes: &mut Bytes<'_>, pool: &[Val], width: Width) -> Val {
    let fit: Vec<Val> = pool.iter().copied().filter(|v| b.func.width(*v) == width).collect();
    if fit.is_empty() || bytes.byte().is_multiple_of(5) {
        let n = bytes.number();
        return b.constant(n, width);
    }
    // Prefer recent values, so that chains grow.
    let back = bytes.below(fit.len());
    fit[fit.len() - 1 - back]
}

fn inst(b: &mut Builder, bytes: &mut Bytes<'_>, pool: &[Val], atomics: bool) -> Val {
    let width = if bytes.byte() & 1 == 0 { Width::W32 } else { Width::W64 };
    match bytes.byte() % 16 {
        0 | 1 => b.push(Op::Input(Input::Arg(bytes.byte() % 12)), Width::W64),
        2 => {
            let n = bytes.number();
            b.constant(n, width)
        }
        3..=7 => {
            let op = BINS[bytes.below(BINS.len())];
            let (x, y) = (pick(b, bytes, pool, width), pick(b, bytes, pool, width));
            b.bin(op, x, y)
        }
        8 | 9 => {
            let from = if bytes.byte() & 1 == 0 { Width::W32 } else { Width::W64 };
            let of = pick(b, bytes, pool, from);
            let most = from.bits().min(width.bits()).min(63) as usize;
            let bits = match bytes.byte() % 4 {
                0 => 8,
                1 => 16,
                2 => 32.min(most),
                _ => 1 + bytes.below(most),
            };
            b.ext(of, bits as u8, bytes.byte() & 1 == 0, width)
        }
        10 | 11 => {
            let cond = CONDS[bytes.below(CONDS.len())];
            let (x, y) = (pick(b, bytes, pool, width), pick(b, bytes, pool, width));
            b.cmp(cond, x, y)
        }
        12 | 13 => {
            let mut addr = pick(b, bytes, pool, Width::W64);
            // Most loads are redirected to existing memory.
            if !bytes.byte().is_multiple_of(8) {
                let mask = b.constant(0xff, Width::W64);
                let low = b.bin(BinOp::And, addr, mask);
                let base = b.constant(BASE, Width::W64);
                addr = b.bin(BinOp::Add, low, base);
            }
            let size = 1 << bytes.below(if width == Width::W32 { 3 } else { 4 });
            b.push(Op::Load { space: Space::User, size, signed: bytes.byte() & 1 == 0, addr }, width)
        }
        14 => {
            let text: Vec<u8> = (0..bytes.below(12)).map(|_| b'a' + bytes.byte() % 2).collect();
            let low = u64::from(bytes.byte());
            let addr = b.constant(BASE + low, Width::W64);
            let limit = (bytes.byte() & 1 == 0).then(|| text.len() as u32 + u32::from(bytes.byte() % 3));
            b.push(Op::TextEq(Text::Memory { space: Space::User, addr, limit }, text.into()), Width::W32)
        }
        _ => {
            let n = u16::from(bytes.byte()) % VARIABLES as u16;
            match bytes.byte() % 3 {
                0 if atomics => b.push(Op::GetVar(n), Width::W64),
                1 if atomics => {
                    let v = pick(b, bytes, pool, Width::W64);
                    b.push(Op::AddVar(n, v), Width::W64)
                }
                _ => {
                    let v = pick(b, bytes, pool, Width::W64);
                    b.push(Op::SetVar(n, v), Width::W64)
                }
            }
        }
    }
}

fn end(b: &mut Builder, bytes: &mut Bytes<'_>, pool: &[Val], later: &[Block], params: &[Vec<Val>]) {
    let to = |b: &mut Builder, bytes: &mut Bytes<'_>| {
        let i = bytes.below(later.len());
        let widths: Vec<Width> = params[i].iter().map(|p| b.func.width(*p)).collect();
        let args = widths.into_iter().map(|w| pick(b, bytes, pool, w)).collect();
        Target { block: later[i], args }
    };
    let choice = bytes.byte() % 8;
    let term = match choice {
        _ if later.is_empty() || choice == 0 => Term::Return(pick(b, bytes, pool, Width::W64)),
        1 | 2 => Term::Jump(to(b, bytes)),
        3 => Term::Fault(FAULTS[3]),
        _ => {
            let width = if bytes.byte() & 1 == 0 { Width::W32 } else { Width::W64 };
            let v = pick(b, bytes, pool, width);
            let then = to(b, bytes);
            Term::Branch(v, then, to(b, bytes))
        }
    };
    b.end(term);
}

/// Inputs of a generated program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// Arguments.
    pub args: [u64; 12],
    /// Contents of the memory from [`BASE`] on.
    pub memory: Vec<u8>,
    /// Trace state variables.
    pub vars: [u64; VARIABLES],
}

impl World {
    /// Generates a world from bytes.
    pub fn new(bytes: &mut Bytes<'_>) -> Self {
        let mut args = [0; 12];
        args.iter_mut().for_each(|a| *a = bytes.number());
        let seed = bytes.byte();
        // Text of two letters with zero bytes in between, so that comparisons often hold.
        let memory = (0..SIZE).map(|i| {
            let n = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(u32::from(seed) << 20) >> 24;
            match n % 9 {
                0 | 1 => 0,
                2 => n as u8,
                n => b'a' + (n % 2) as u8,
            }
        });
        Self { args, memory: memory.collect(), vars: [7, u64::MAX] }
    }
}

/// Outcome of a program: its value or fault, and the variables.
pub type Ended = (Result<u64, Fault>, [u64; VARIABLES]);

impl Machine for World {
    fn input(&mut self, input: Input) -> u64 {
        match input {
            Input::Arg(n) => self.args[usize::from(n)],
            _ => 0,
        }
    }

    fn read(&mut self, _: Space, addr: u64, into: &mut [u8]) -> bool {
        read(&self.memory, addr, into)
    }

    fn var(&mut self, number: u16) -> &mut u64 {
        &mut self.vars[usize::from(number)]
    }
}

/// Runs a program in the interpreter.
pub fn interpret(func: &Func, world: &World) -> Ended {
    let mut world = world.clone();
    let result = kprism_expr::interp::run(func, &mut world);
    (result, world.vars)
}

fn read(memory: &[u8], addr: u64, into: &mut [u8]) -> bool {
    let from = addr.checked_sub(BASE).and_then(|a| usize::try_from(a).ok());
    match from.and_then(|a| memory.get(a..a.checked_add(into.len())?)) {
        Some(bytes) => {
            into.copy_from_slice(bytes);
            true
        }
        None => false,
    }
}

thread_local! {
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn read_helper(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let mut bytes = vec![0; size as usize];
    if !MEMORY.with_borrow(|m| read(m, from, &mut bytes)) {
        return -14_i64 as u64;
    }
    // SAFETY: the program passes its own stack, as much as it said: rbpf gives it 512 bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    0
}

fn text_helper(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let mut text = Vec::new();
    while text.len() + 1 < size as usize {
        let mut byte = [0];
        if !MEMORY.with_borrow(|m| read(m, from.wrapping_add(text.len() as u64), &mut byte)) {
            return -14_i64 as u64;
        }
        if byte[0] == 0 {
            break;
        }
        text.push(byte[0]);
    }
    text.push(0);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to as *mut u8, text.len()) };
    text.len() as u64
}

/// Replaces `lock *(u64 *)r5 += 1`, which rbpf lacks.
fn count_helper(_: u64, _: u64, _: u64, _: u64, at: u64) -> u64 {
    // SAFETY: the emitter counts in the state only, whose address is in r5.
    unsafe { *(at as *mut u64) += 1 };
    0
}

const COUNT: i32 = 900;

/// Encodes the program for rbpf, with the state at an address of this process.
fn for_rbpf(program: &Program, state: u64) -> Vec<u8> {
    let mut insns = program.insns.clone();
    for (at, reloc) in &program.relocs {
        if let Reloc::MapValue(Map::State, offset) = reloc {
            let address = state + *offset as u64;
            insns[*at].src = 0;
            insns[*at].imm = address as i32;
            insns[*at + 1].imm = (address >> 32) as i32;
        }
    }
    for insn in &mut insns {
        if insn.code == 0xdb && insn.imm == 0 {
            *insn = emit::Insn { code: 0x85, imm: COUNT, ..emit::Insn::default() };
        }
    }
    compare_by_register(&insns).into_iter().flat_map(|i| i.bytes()).collect()
}

/// Works around rbpf 0.4.1: it zero-extends the immediate of a 64-bit unsigned comparison, but RFC 9669 (4.3) and the
/// kernel sign-extend it. Such a comparison is made with r5, which the emitter leaves free there.
fn compare_by_register(insns: &[emit::Insn]) -> Vec<emit::Insn> {
    let wrong = |i: &emit::Insn| matches!(i.code, 0x15 | 0x25 | 0x35 | 0x55 | 0xa5 | 0xb5) && i.imm < 0;
    let mut moved = vec![0];
    for insn in insns {
        moved.push(moved[moved.len() - 1] + 1 + i64::from(wrong(insn)));
    }
    let mut out = Vec::new();
    for (at, insn) in insns.iter().enumerate() {
        let mut insn = *insn;
        let jumps = matches!(insn.code & 7, 5 | 6) && !matches!(insn.code, 0x85 | 0x95);
        if wrong(&insn) {
            assert_ne!(insn.dst, 5);
            out.push(emit::Insn { code: 0xb7, dst: 5, imm: insn.imm, ..emit::Insn::default() });
            insn = emit::Insn { code: insn.code | 8, src: 5, imm: 0, ..insn };
        }
        if jumps {
            let to = (at as i64 + 1 + i64::from(insn.off)) as usize;
            insn.off = (moved[to] - out.len() as i64 - 1) as i16;
        }
        out.push(insn);
    }
    out
}

/// Runs a program in rbpf.
pub fn in_rbpf(func: &Func, world: &World) -> Ended {
    let program = emit::program(func, Cpu::V3, Output::State).expect("a small program can be emitted");
    let mut state = vec![0u64; emit::state_size(VARIABLES) / 8];
    state[VARS as usize / 8..].copy_from_slice(&world.vars);
    let start = state.as_mut_ptr() as u64;
    let code = for_rbpf(&program, start);
    let mut vm = rbpf::EbpfVmRaw::new(Some(&code)).expect("rbpf takes the program");
    vm.register_allowed_memory(start..start + 8 * state.len() as u64);
    let helpers: [(i32, rbpf::ebpf::Helper); 3] = [
        (Helper::ProbeReadUser as i32, read_helper),
        (Helper::ProbeReadUserStr as i32, text_helper),
        (COUNT, count_helper),
    ];
    for (number, f) in helpers {
        vm.register_helper(number as u32, f).expect("rbpf takes helpers");
    }
    MEMORY.with_borrow_mut(|m| m.clone_from(&world.memory));
    let mut context: Vec<u8> = world.args.iter().flat_map(|a| a.to_le_bytes()).collect();
    let done =
        vm.execute_program(&mut context).unwrap_or_else(|e| panic!("rbpf: {e}\n{}", program.listing()));
    ended(done, &state)
}

/// Decodes the outcome from the state.
pub fn ended(done: u64, state: &[u64]) -> Ended {
    let mut vars = [0; VARIABLES];
    vars.copy_from_slice(&state[VARS as usize / 8..][..VARIABLES]);
    assert_eq!(state[LOST as usize / 8], 0);
    let faults: Vec<Fault> = FAULTS.iter().zip(state).filter(|(_, n)| **n > 0).map(|(f, _)| *f).collect();
    match (done, &faults[..]) {
        (1, []) => (Ok(state[RESULT as usize / 8]), vars),
        (0, [one]) => (Err(*one), vars),
        other => panic!("the program returned {other:?}"),
    }
}
