// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interprets the intermediate representation over a [`Machine`]. Used where no BPF runs, and by tests that compare the
//! eBPF with it.

use crate::ir::{BinOp, Cond, Fault, Func, Input, Kept, Op, Record, Space, Target, Term, Text, Val, Width};

/// The environment of a program: its inputs, memory and variables.
pub trait Machine {
    /// Returns an input's value.
    fn input(&mut self, input: Input) -> u64;
    /// Fills `into` from memory. Returns false if the memory cannot be read.
    fn read(&mut self, space: Space, addr: u64, into: &mut [u8]) -> bool;
    /// Relocates an address of the file to its address in memory.
    fn address(&mut self, link: u64) -> u64 {
        link
    }
    /// Returns the value that the paired probe at the function's entry saved, if it saw the entry.
    fn kept(&mut self, _what: Kept, _frame: u64) -> Option<u64> {
        None
    }
    /// Name of the current task, padded with zeros.
    fn comm(&mut self) -> [u8; 16] {
        [0; 16]
    }
    /// Returns a trace state variable.
    fn var(&mut self, number: u16) -> &mut u64;
    /// Receives the program's output.
    fn record(&mut self, _what: Output<'_>) {}
}

/// Data that a program outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<'a> {
    /// Bytes of memory, and their address.
    Memory(u64, &'a [u8]),
    /// Number and value of a trace state variable.
    Var(u16, u64),
    /// Number of a format, and its arguments.
    Format(u16, &'a [u64]),
}

/// Runs the program. Returns its value or its fault.
pub fn run(func: &Func, machine: &mut dyn Machine) -> Result<u64, Fault> {
    let mut vals = vec![0; func.vals.len()];
    let Some(&entry) = func.layout.first() else { return Ok(0) };
    let mut at = entry;
    loop {
        let body = func.body(at);
        for &v in &body.insts {
            let width = func.width(v);
            let value = step(func, v, &vals, machine)?;
            vals[v.0 as usize] = width.wrap(value);
        }
        let get = |v: &Val| vals[v.0 as usize];
        let target: &Target = match &body.term {
            Some(Term::Jump(target)) => target,
            Some(Term::Branch(v, then, other)) => {
                if get(v) != 0 {
                    then
                } else {
                    other
                }
            }
            Some(Term::Return(v)) => return Ok(get(v)),
            Some(Term::Fault(fault)) => return Err(*fault),
            None => return Ok(0),
        };
        let args: Vec<u64> = target.args.iter().map(get).collect();
        for (param, value) in func.body(target.block).params.iter().zip(args) {
            vals[param.0 as usize] = value;
        }
        at = target.block;
    }
}

fn step(func: &Func, v: Val, vals: &[u64], machine: &mut dyn Machine) -> Result<u64, Fault> {
    let width = func.width(v);
    let get = |v: &Val| vals[v.0 as usize];
    Ok(match func.op(v) {
        Op::Const(n) => *n,
        Op::Param => 0,
        Op::Input(input) => machine.input(*input),
        Op::Entry(what, frame) => machine.kept(*what, get(frame)).ok_or(Fault::NoEntry)?,
        Op::Address(link) => machine.address(*link),
        Op::Bin(op, a, b) => bin(*op, width, get(a), get(b)).ok_or(Fault::Divide)?,
        Op::Ext { bits, signed, of } => extend(get(of), *bits, *signed),
        Op::Cmp(cond, a, b) => u64::from(compare(*cond, func.width(*a), get(a), get(b))),
        Op::Load { space, size, signed, addr } => {
            let mut bytes = [0; 8];
            let size = usize::from(*size).min(8);
            if !machine.read(*space, get(addr), &mut bytes[..size]) {
                return Err(Fault::Read);
            }
            extend(u64::from_le_bytes(bytes), size as u8 * 8, *signed)
        }
        Op::TextEq(Text::Comm, text) => {
            let comm = machine.comm();
            let len = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
            u64::from(comm[..len] == **text)
        }
        Op::TextEq(Text::Memory { space, addr, limit }, text) => {
            let limit = limit.map_or(text.len() + 1, |n| (n as usize).min(text.len() + 1));
            let found = read_text(machine, *space, get(addr), limit).ok_or(Fault::Read)?;
            u64::from(found == **text)
        }
        // Both are compiled only for programs in the kernel.
        Op::CalledBy(_) => return Err(Fault::NoStack),
        Op::InContainer(_) => 0,
        Op::GetVar(n) => *machine.var(*n),
        Op::SetVar(n, v) => {
            *machine.var(*n) = get(v);
            get(v)
        }
        Op::AddVar(n, v) => {
            let var = machine.var(*n);
            *var = var.wrapping_add(get(v));
            *var
        }
        Op::Record(record) => {
            self::record(record, get, machine)?;
            0
        }
    })
}

fn record(record: &Record, get: impl Fn(&Val) -> u64, machine: &mut dyn Machine) -> Result<(), Fault> {
    match record {
        Record::Memory { space, addr, len, text } => {
            let len = get(len).min(crate::emit::MAX_RECORD as u64) as usize;
            let addr = get(addr);
            let bytes = if *text {
                read_text(machine, *space, addr, len.saturating_sub(1)).ok_or(Fault::Read)?
            } else {
                let mut bytes = vec![0; len];
                if !machine.read(*space, addr, &mut bytes) {
                    return Err(Fault::Read);
                }
                bytes
            };
            machine.record(Output::Memory(addr, &bytes));
        }
        Record::Var(n) => {
            let value = *machine.var(*n);
            machine.record(Output::Var(*n, value));
        }
        Record::Format(n, args) => {
            let args: Vec<u64> = args.iter().map(get).collect();
            machine.record(Output::Format(*n, &args));
        }
    }
    Ok(())
}

/// Reads text up to a zero byte, at most `limit` bytes. None if the memory cannot be read.
fn read_text(machine: &mut dyn Machine, space: Space, addr: u64, limit: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for i in 0..limit {
        let mut byte = [0];
        if !machine.read(space, addr.wrapping_add(i as u64), &mut byte) {
            return None;
        }
        if byte[0] == 0 {
            break;
        }
        text.push(byte[0]);
    }
    Some(text)
}

/// Extends the lowest `bits` bits of `value` to 64 bits.
pub fn extend(value: u64, bits: u8, signed: bool) -> u64 {
    let unused = 64 - u32::from(bits.clamp(1, 64));
    if signed { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
}

/// Computes a binary operation. None on division by zero.
pub fn bin(op: BinOp, width: Width, a: u64, b: u64) -> Option<u64> {
    let (a, b) = (width.wrap(a), width.wrap(b));
    let (sa, sb) = (width.signed(a), width.signed(b));
    let count = (b & u64::from(width.bits() - 1)) as u32;
    if op.divides() && b == 0 {
        return None;
    }
    Some(width.wrap(match op {
        BinOp::Add => a.wrapping_add(b),
        BinOp::Sub => a.wrapping_sub(b),
        BinOp::Mul => a.wrapping_mul(b),
        BinOp::UDiv => a / b,
        BinOp::URem => a % b,
        BinOp::SDiv => sa.wrapping_div(sb) as u64,
        BinOp::SRem => sa.wrapping_rem(sb) as u64,
        BinOp::And => a & b,
        BinOp::Or => a | b,
        BinOp::Xor => a ^ b,
        BinOp::Shl => a << count,
        BinOp::Shr => a >> count,
        BinOp::Sar => (sa >> count) as u64,
    }))
}

/// Returns true if the comparison holds.
pub fn compare(cond: Cond, width: Width, a: u64, b: u64) -> bool {
    let (a, b) = (width.wrap(a), width.wrap(b));
    let (sa, sb) = (width.signed(a), width.signed(b));
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Ult => a < b,
        Cond::Ule => a <= b,
        Cond::Slt => sa < sb,
        Cond::Sle => sa <= sb,
    }
}
