// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles a tracepoint's definition to one program, and lays out its records.
//!
//! The program checks what is cheapest first: whether tracing runs, whether the tracepoint is enabled, whose hit it is,
//! the condition, the pass count, room in the ring. A record is written in one piece. Each collected value has its own
//! place in it ([`kprism_expr::emit::Frame`]), and is marked missing if it could not be read.

use std::collections::BTreeMap;

use kprism_bpf::segment::{self, CONTEXT, Operand};
use kprism_ebpf::asm::{Asm, Code, Label};
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};
use kprism_ebpf::opcode::EXIT;
use kprism_expr::emit::{self, Cpu, Frame, Program, Reloc, Slot};
use kprism_expr::ir::{BinOp, Builder, Func, Input, Op, Record, Space, Term, Val, Width as Bits};
use kprism_expr::regs::Reg as Reg64;
use kprism_expr::{agent, opt, regs};
use kprism_rsp::define::{Action, MOST_POINTS, Tracepoint};

use crate::{Error, registers};

use Reg::{R0, R1, R2, R3, R10};
use Width::B8;

/// Indices of the maps, the same for every program: the state.
pub const STATE: usize = 0;
/// The ring of records.
pub const RING: usize = 1;
/// By CPU and tracepoint: the hit that waits for the static tracepoint's own record.
pub const PENDING: usize = 2;

/// Offset in the state: nonzero while tracing runs.
pub const RUNNING: u32 = 0;
/// Offset in the state: index plus 1 of the tracepoint whose pass count ended the run.
pub const ENDED_BY: u32 = 8;
const POINTS: u32 = 64;
const POINT: u32 = 128;
/// Offset in a tracepoint's part of the state: nonzero if it is enabled.
pub const ENABLED: u32 = 0;
/// Number of times that its condition was true.
pub const HITS: u32 = 8;
/// Faults of its condition, by kind.
pub const CONDITION_FAULTS: u32 = 16;
/// Faults of its actions, by kind.
pub const ACTION_FAULTS: u32 = 56;
/// Records lost because the ring was full.
pub const LOST: u32 = 96;
const VARS: u32 = POINTS + POINT * MOST_POINTS as u32;
/// Size of the state, bytes.
pub const STATE_BYTES: u32 = VARS + 8 * MOST_POINTS as u32;

/// GDB's number of `$trace_timestamp`, which this server provides: microseconds.
pub const TIMESTAMP: u16 = 1;

/// Bytes of a record before the collected values: the tracepoint's index, and the hit's number.
pub const HEADER: u32 = 16;
/// Added to the index: the record is a static tracepoint's own.
pub const STATIC: u64 = 1 << 32;
const RECORD: i16 = -504;
const COUNT: i16 = -496;
const KEY: i16 = -488;
/// GDB's number of `rip`.
const RIP: u32 = 16;

/// Offset of a tracepoint's part in the state.
pub fn point_at(place: u32) -> u32 {
    POINTS + POINT * place
}

/// Offset of a variable in the state.
pub fn var_at(index: u16) -> u32 {
    VARS + 8 * u32::from(index)
}

/// Selects whose hits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Only this process's.
    Process(u32),
    /// Everyone's but this process's.
    AllBut(u32),
}

/// The input of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// `struct pt_regs`.
    Registers,
    /// This many arguments of a static tracepoint. GDB names them by the registers that hold them in the function that
    /// calls the probes. There the first argument is the function's own.
    Arguments(usize),
}

/// The registers that hold a static tracepoint's arguments.
const ARGUMENTS: [Reg64; 5] = [Reg64::Rsi, Reg64::Rdx, Reg64::Rcx, Reg64::R8, Reg64::R9];

/// Settings common to all programs of one run.
#[derive(Debug)]
pub struct Setting<'a> {
    /// The memory that expressions read.
    pub space: Space,
    /// Selects whose hits count.
    pub whose: Whose,
    /// Indices of trace state variables, by GDB's numbers.
    pub vars: &'a BTreeMap<u16, u16>,
    /// Offset from the monotonic clock to the time of day, ns.
    pub clock: u64,
}

/// A compiled program.
#[derive(Debug)]
pub struct Compiled {
    /// The program's instructions.
    pub code: Code,
    /// Offset of the registers in the record, in the order of `struct pt_regs`.
    pub registers: Option<u32>,
    /// One bit for each known register, by GDB's numbers.
    pub known: u32,
    /// The other collected values.
    pub slots: Vec<Slot>,
    /// True if the static tracepoint's own record is wanted.
    pub statics: bool,
}

/// Compiles the program of a tracepoint.
pub fn compile(
    point: &Tracepoint,
    place: u32,
    context: Context,
    setting: &Setting<'_>,
) -> Result<Compiled, Error> {
    let prepared = |func| prepared(func, context, point.key.address, setting);
    let mut frame = Frame { pointer: RECORD, ..Frame::default() };
    frame.take(u64::from(HEADER))?;
    let condition = match &point.condition {
        Some(code) => {
            let func = prepared(agent::translate(code, setting.space, u16::MAX)?)?;
            if func.ops().any(|op| matches!(op, Op::Record(_))) {
                return Err(Error::Cannot("a condition that collects".into()));
            }
            Some(emit::segment(&func, Cpu::V3, &[])?)
        }
        None => None,
    };
    let mask =
        point.actions.iter().filter_map(|a| if let Action::Registers(m) = a { Some(mask(m)) } else { None });
    let mask = mask.reduce(|a, b| a | b);
    let copied: Vec<(usize, i16)> = match context {
        Context::Registers => {
            regs::ALL.iter().enumerate().map(|(n, reg)| (n, reg.pt_regs_offset())).collect()
        }
        Context::Arguments(most) => {
            let all = ARGUMENTS.iter().take(most).enumerate();
            all.map(|(n, reg)| (*reg as usize, 8 * n as i16)).collect()
        }
    };
    let known = copied.iter().filter_map(|(n, _)| registers::number(regs::ALL[*n]));
    let known = known.fold(1 << RIP, |known, n| known | 1 << n);
    let registers = mask.is_some().then(|| frame.take(8 * regs::ALL.len() as u64)).transpose()?;
    let statics = point.actions.contains(&Action::Static);
    let mut segments = Vec::new();
    for action in &point.actions {
        let func = match action {
            Action::Registers(_) => continue,
            Action::Static if context == Context::Registers => {
                let what = "$_sdata: only a static tracepoint (strace) has it";
                return Err(Error::Cannot(what.into()));
            }
            Action::Static => continue,
            Action::Memory { base, offset, length } => memory(*base, *offset, *length, setting.space)?,
            Action::Expression(code) => agent::translate(code, setting.space, u16::MAX)?,
        };
        segments.push(emit::framed(&prepared(func)?, Cpu::V3, &mut frame)?);
    }

    let own = point_at(place);
    let mut asm = Asm::new();
    let (out, lost, recorded) = (asm.label(), asm.label(), asm.label());
    asm.store(B8, R10, CONTEXT, R1).note("does it run, is it enabled?");
    asm.map_value(R1, STATE, RUNNING).load(B8, R0, R1, 0).branch_imm(Cond::Eq, R0, 0, out);
    asm.load(B8, R0, R1, (own + ENABLED) as i16).branch_imm(Cond::Eq, R0, 0, out);
    asm.note("whose hit is it?").call(Helper::CurrentPidTgid).alu_imm(Alu::Rsh, R0, 32);
    match setting.whose {
        Whose::Process(pid) => asm.branch_imm(Cond::Ne, R0, pid.cast_signed(), out),
        Whose::AllBut(pid) => asm.branch_imm(Cond::Eq, R0, pid.cast_signed(), out),
    };
    if let Some(condition) = &condition {
        asm.note("condition");
        let value = insert(&mut asm, condition, own + CONDITION_FAULTS, out)?;
        if !has_value(condition) {
            // A segment that always fails (1/0): the verifier refuses code after it.
            asm.bind(value).bind(out).end();
            return Ok(Compiled {
                code: asm.finish().map_err(kprism_bpf::Error::from)?,
                registers: None,
                known: 0,
                slots: Vec::new(),
                statics: false,
            });
        }
        asm.bind(value).branch_imm(Cond::Eq, R0, 0, out);
    }
    asm.note("hits").map_value(R1, STATE, own + HITS).mov_imm(R0, 1);
    asm.put(insn::fetch_add(R1, 0, R0));
    if point.pass > 0 {
        asm.note("pass count").mov_u64(R1, point.pass).branch(Cond::Ge, R0, R1, out);
    }
    asm.alu_imm(Alu::Add, R0, 1).store(B8, R10, COUNT, R0);
    asm.note("record").map(R1, RING).mov_imm(R2, frame.used.cast_signed()).mov_imm(R3, 0);
    asm.call(Helper::RingbufReserve).branch_imm(Cond::Eq, R0, 0, lost).store(B8, R10, RECORD, R0);
    asm.store_imm(B8, R0, 0, place.cast_signed()).load(B8, R1, R10, COUNT).store(B8, R0, 8, R1);
    for slot in &frame.slots {
        asm.store_imm(B8, R0, slot.at as i16 + 8, 0);
    }
    if let Some(at) = registers {
        asm.note("registers").load(B8, R2, R10, CONTEXT);
        for (n, from) in &copied {
            asm.load(B8, R1, R2, *from).store(B8, R0, at as i16 + 8 * *n as i16, R1);
        }
    }
    for segment in &segments {
        asm.note("action");
        let fault = asm.label();
        let value = insert(&mut asm, segment, own + ACTION_FAULTS, fault)?;
        asm.bind(value).bind(fault);
    }
    const NO_WAKEUP: i32 = 1;
    asm.note("submit").load(B8, R1, R10, RECORD).mov_imm(R2, NO_WAKEUP).call(Helper::RingbufSubmit);
    if statics {
        asm.note("its own record is to come");
        pending(&mut asm, place, out);
        asm.load(B8, R1, R10, COUNT).store(B8, R0, 0, R1);
    }
    asm.goto(recorded).bind(lost).map_value(R1, STATE, own + LOST).mov_imm(R0, 1);
    asm.put(insn::atomic_add(R1, 0, R0)).bind(recorded);
    if point.pass > 0 {
        asm.note("the last one?").load(B8, R0, R10, COUNT).mov_u64(R1, point.pass);
        asm.branch(Cond::Ne, R0, R1, out).map_value(R1, STATE, RUNNING);
        asm.store_imm(B8, R1, 0, 0).store_imm(B8, R1, ENDED_BY as i16, place.cast_signed() + 1);
    }
    asm.bind(out).end();
    Ok(Compiled {
        code: asm.finish().map_err(kprism_bpf::Error::from)?,
        registers,
        known,
        slots: frame.slots,
        statics,
    })
}

/// Compiles the program that takes `bytes` bytes of a static tracepoint's own record, if the program of [`compile`] has
/// just let the hit pass. Both run in one call of the tracepoint, this one second.
pub fn own_record(place: u32, bytes: u32) -> Result<Code, Error> {
    let mut asm = Asm::new();
    let (out, lost) = (asm.label(), asm.label());
    asm.store(B8, R10, CONTEXT, R1).note("did the hit pass?");
    pending(&mut asm, place, out);
    asm.load(B8, R1, R0, 0).branch_imm(Cond::Eq, R1, 0, out).store(B8, R10, COUNT, R1);
    asm.store_imm(B8, R0, 0, 0);
    asm.note("record").map(R1, RING).mov_imm(R2, (HEADER + bytes).cast_signed()).mov_imm(R3, 0);
    asm.call(Helper::RingbufReserve).branch_imm(Cond::Eq, R0, 0, lost).store(B8, R10, RECORD, R0);
    asm.mov_u64(R1, STATIC | u64::from(place))
        .store(B8, R0, 0, R1)
        .load(B8, R1, R10, COUNT)
        .store(B8, R0, 8, R1);
    asm.mov(R1, R0).alu_imm(Alu::Add, R1, HEADER.cast_signed()).mov_imm(R2, bytes.cast_signed());
    asm.load(B8, R3, R10, CONTEXT).call(Helper::ProbeReadKernel);
    asm.load(B8, R1, R10, RECORD).mov_imm(R2, 1).call(Helper::RingbufSubmit).goto(out);
    asm.bind(lost)
        .map_value(R1, STATE, point_at(place) + LOST)
        .mov_imm(R0, 1)
        .put(insn::atomic_add(R1, 0, R0));
    asm.bind(out).end();
    Ok(asm.finish().map_err(kprism_bpf::Error::from)?)
}

/// Sets r0 to the place where this CPU keeps this tracepoint's hit that waits for its own record.
fn pending(asm: &mut Asm, place: u32, out: Label) {
    asm.store_imm(Width::B4, R10, KEY, place.cast_signed());
    asm.map(R1, PENDING).mov(R2, R10).alu_imm(Alu::Add, R2, i32::from(KEY)).call(Helper::MapLookup);
    asm.branch_imm(Cond::Eq, R0, 0, out);
}

/// The bits of a mask's first 32 registers.
fn mask(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).enumerate().fold(0, |mask, (n, byte)| mask | u32::from(*byte) << (8 * n))
}

/// Number of a static tracepoint's arguments that its definition reads as registers.
pub fn arguments_wanted(point: &Tracepoint) -> usize {
    let masks =
        point.actions.iter().filter_map(|a| if let Action::Registers(m) = a { Some(mask(m)) } else { None });
    let all = masks.fold(0, |a, b| a | b);
    let wanted = |reg: &Reg64| registers::number(*reg).is_some_and(|n| all >> n & 1 == 1);
    ARGUMENTS.iter().rposition(wanted).map_or(0, |n| n + 1)
}

/// A memory range that GDB gives without bytecode.
fn memory(base: Option<u16>, offset: u64, length: u64, space: Space) -> Result<Func, Error> {
    let mut b = Builder::new();
    let mut addr = b.constant(offset, Bits::W64);
    if let Some(number) = base {
        let what = || Error::Cannot(format!("register {number} of GDB's numbering is not in struct pt_regs"));
        let reg = regs::Reg::from_gdb(number).ok_or_else(what)?;
        let reg = b.push(Op::Input(Input::Reg(reg)), Bits::W64);
        addr = b.bin(BinOp::Add, reg, addr);
    }
    let len = b.constant(length, Bits::W64);
    b.push(Op::Record(Record::Memory { space, addr, len, text: false }), Bits::W64);
    let one = b.constant(1, Bits::W64);
    b.end(Term::Return(one));
    Ok(b.finish())
}

/// Resolves trace state variables, replaces `$trace_timestamp` by its value, and optimises.
fn prepared(mut func: Func, context: Context, address: u64, setting: &Setting<'_>) -> Result<Func, Error> {
    let index = |n: u16| {
        let unknown = || Error::Cannot(format!("trace state variable {n} was not defined"));
        setting.vars.get(&n).copied().ok_or_else(unknown)
    };
    let mut stamps = Vec::new();
    for (number, value) in func.vals.iter_mut().enumerate() {
        match &mut value.op {
            Op::GetVar(TIMESTAMP) | Op::Record(Record::Var(TIMESTAMP)) => stamps.push(Val(number as u32)),
            Op::GetVar(n) | Op::SetVar(n, _) | Op::AddVar(n, _) | Op::Record(Record::Var(n)) => {
                *n = index(*n)?
            }
            Op::Input(Input::Reg(Reg64::Rip)) => value.op = Op::Const(address),
            Op::Input(Input::Reg(reg)) if context != Context::Registers => {
                let missing = || {
                    let what = "is no argument of the static tracepoint";
                    Error::Cannot(format!(
                        "${} {what}: its arguments and $_sdata can be collected",
                        reg.name()
                    ))
                };
                let n = ARGUMENTS.iter().position(|r| r == reg).ok_or_else(missing)?;
                value.op = Op::Input(Input::Arg(n as u8));
            }
            _ => {}
        }
    }
    for v in stamps {
        stamp(&mut func, v, index(TIMESTAMP)?, setting.clock);
    }
    opt::optimise(&mut func);
    Ok(func)
}

/// Replaces a read of `$trace_timestamp` by the time in microseconds. Where it is collected, sets the variable first.
fn stamp(func: &mut Func, v: Val, index: u16, clock: u64) {
    let time = func.value(Op::Input(Input::Time), Bits::W64);
    let clock = func.value(Op::Const(clock), Bits::W64);
    let since = func.value(Op::Bin(BinOp::Add, time, clock), Bits::W64);
    let thousand = func.value(Op::Const(1000), Bits::W64);
    let mut before = vec![time, clock, since, thousand];
    let micros = Op::Bin(BinOp::UDiv, since, thousand);
    if matches!(func.op(v), Op::Record(_)) {
        let micros = func.value(micros, Bits::W64);
        let set = func.value(Op::SetVar(index, micros), Bits::W64);
        before.extend([micros, set]);
        func.vals[v.0 as usize].op = Op::Record(Record::Var(index));
    } else {
        func.vals[v.0 as usize].op = micros;
    }
    for block in func.layout.clone() {
        let body = func.body_mut(block);
        if let Some(at) = body.insts.iter().position(|i| *i == v) {
            body.insts.splice(at..at, before);
            return;
        }
    }
}

/// Returns true if a segment can end other than by a fault.
fn has_value(segment: &Program) -> bool {
    segment.insns.iter().enumerate().any(|(at, insn)| insn.code == EXIT && !segment.faulted.contains(&at))
}

/// Inserts a segment, with a tracepoint's state.
fn insert(asm: &mut Asm, segment: &Program, faults: u32, fault: Label) -> Result<Label, Error> {
    let find = |reloc| match reloc {
        Reloc::MapValue(_, offset) => Some(match offset.checked_sub(emit::VARS) {
            Some(var @ 0..) => Operand::Memory(STATE, VARS + var.cast_unsigned()),
            _ => Operand::Memory(STATE, faults + offset.cast_unsigned()),
        }),
        _ => None,
    };
    segment::insert(asm, segment, &find, fault, false).map_err(Error::Cannot)
}
