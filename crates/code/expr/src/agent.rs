// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates GDB's agent expressions to IR.
//!
//! The bytecode (GDB manual, appendix F) is for a stack machine. The translator simulates it with IR values on the
//! stack. Each jump target becomes a block whose parameters are the stack. A block is identified by its offset, the
//! depth of the stack and its *round*: a backward jump goes to the next round. This unrolls loops, at most [`ROUNDS`]
//! times; after that the program fails with [`Fault::Loop`].

pub mod listing;

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{
    BinOp, Block, Builder, Cond, Fault, Func, Input, Op, Record, Space, Target, Term, Val, Width,
};
use crate::regs::Reg;

/// Limit of a loop's backward jumps.
pub const ROUNDS: u16 = 32;

/// Limit of blocks in a translated expression.
const BLOCKS: usize = 4096;

/// Limit of values in a translated expression.
const VALUES: usize = 50_000;

/// Limit of the stack's depth. GDB's own limit is lower.
const DEPTH: usize = 100;

/// An error in the bytecode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent bytecode, offset {at:#x}: {what}")]
pub struct Error {
    /// Offset of the opcode or operand, in bytes.
    pub at: usize,
    /// The message.
    pub what: String,
}

type Result<T> = std::result::Result<T, Error>;

/// Identifies a block: round, offset, depth of the stack.
type Key = (u16, usize, usize);

struct Agent<'c> {
    code: &'c [u8],
    space: Space,
    vars: u16,
    b: Builder,
    /// Blocks that are jump targets, with the parameters that form their stack.
    blocks: BTreeMap<Key, (Block, Vec<Val>)>,
    /// Blocks that are not translated yet, in layout order.
    todo: BTreeSet<Key>,
}

/// Translates an expression. The program returns the top of the stack at the end, or 1 if the stack is empty, as after
/// GDB's actions. `vars` is the number of trace state variables.
pub fn translate(code: &[u8], space: Space, vars: u16) -> Result<Func> {
    let mut agent =
        Agent { code, space, vars, b: Builder::new(), blocks: BTreeMap::new(), todo: BTreeSet::new() };
    agent.straight(0, 0, Vec::new())?;
    while let Some(key) = agent.todo.pop_first() {
        let (block, stack) = agent.blocks[&key].clone();
        agent.b.place(block);
        agent.straight(key.0, key.1, stack)?;
    }
    let mut func = agent.b.finish();
    adding(&mut func);
    Ok(func)
}

/// Replaces read, add, write back (`teval $hits = $hits + 1`) by one atomic addition, so that concurrent hits on other
/// CPUs are not lost.
fn adding(func: &mut Func) {
    let mut uses = BTreeMap::new();
    let ends = func.layout.iter().filter_map(|b| func.body(*b).term.as_ref()).flat_map(Term::uses);
    for v in func.ops().flat_map(Op::uses).chain(ends) {
        *uses.entry(v).or_insert(0) += 1;
    }
    let once = |v: &Val| uses.get(v) == Some(&1);
    let mut changes = Vec::new();
    for block in &func.layout {
        let insts = &func.body(*block).insts;
        for (at, &v) in insts.iter().enumerate() {
            let Op::SetVar(n, sum) = *func.op(v) else { continue };
            let Op::Bin(BinOp::Add, a, b) = *func.op(sum) else { continue };
            let is_read = |v: Val| *func.op(v) == Op::GetVar(n) && once(&v);
            let (read, by) = if is_read(a) { (a, b) } else { (b, a) };
            let Some(from) = insts[..at].iter().position(|v| *v == read) else { continue };
            let changed = |v: &Val| matches!(func.op(*v), Op::SetVar(m, _) | Op::AddVar(m, _) if *m == n);
            if is_read(read) && once(&sum) && !insts[from..at].iter().any(changed) {
                changes.push((v, Op::AddVar(n, by)));
            }
        }
    }
    for (v, op) in changes {
        func.vals[v.0 as usize].op = op;
    }
}

impl Agent<'_> {
    fn number(&self, at: usize, size: usize) -> Result<u64> {
        let bytes = self.code.get(at..at + size).ok_or_else(|| Error {
            at,
            what: format!("{size} bytes of operand expected, the expression ends at {:#x}", self.code.len()),
        })?;
        Ok(big_endian(bytes))
    }

    /// Returns the target of a jump in this round, or None if the loop exceeded [`ROUNDS`].
    fn target(&mut self, round: u16, from: usize, to: usize, stack: &[Val]) -> Result<Option<Target>> {
        if to >= self.code.len() {
            return Err(Error { at: from, what: format!("a jump to {to:#x}, past the end") });
        }
        let round = if to <= from { round + 1 } else { round };
        if round > ROUNDS {
            return Ok(None);
        }
        let key = (round, to, stack.len());
        if !self.blocks.contains_key(&key) {
            if self.blocks.len() >= BLOCKS {
                return Err(Error {
                    at: from,
                    what: format!("more than {BLOCKS} blocks once loops are unrolled"),
                });
            }
            let block = self.b.block();
            let params = stack.iter().map(|_| self.b.param(block, Width::W64)).collect();
            self.blocks.insert(key, (block, params));
            self.todo.insert(key);
        }
        Ok(Some(Target { block: self.blocks[&key].0, args: stack.to_vec() }))
    }

    fn goto(&mut self, target: Option<Target>) {
        self.b.end(match target {
            Some(target) => Term::Jump(target),
            None => Term::Fault(Fault::Loop),
        });
    }

    /// Translates up to the next jump or the end.
    fn straight(&mut self, round: u16, from: usize, mut stack: Vec<Val>) -> Result<()> {
        let mut at = from;
        loop {
            // If a jump has this instruction as its target, the block continues there.
            if at != from && self.blocks.contains_key(&(round, at, stack.len())) {
                let target = self.target(round, from, at, &stack)?;
                self.goto(target);
                return Ok(());
            }
            let here = at;
            let fail = |what: String| Error { at: here, what };
            let op = *self.code.get(at).ok_or_else(|| fail("the end (0x27) is missing".to_owned()))?;
            at += 1;
            if self.b.func.vals.len() > VALUES {
                return Err(fail(format!("more than {VALUES} steps once loops are unrolled")));
            }
            if stack.len() > DEPTH {
                return Err(fail(format!("the stack grows beyond {DEPTH}")));
            }
            let needs = needs(op)
                .ok_or_else(|| fail(format!("{op:#04x} is no opcode that can be translated{}", why(op))))?;
            if stack.len() < needs {
                return Err(fail(format!(
                    "opcode {op:#04x} takes {needs} values, the stack has {}",
                    stack.len()
                )));
            }
            match op {
                0x20 | 0x21 => {
                    let to = self.number(at, 2)? as usize;
                    at += 2;
                    if op == 0x21 {
                        let target = self.target(round, here, to, &stack)?;
                        self.goto(target);
                        return Ok(());
                    }
                    let cond = stack.pop().unwrap_or(Val(0));
                    let then = self.target(round, here, to, &stack)?;
                    let other = self.target(round, here, at, &stack)?;
                    let then = then.unwrap_or_else(|| self.spent());
                    let other = other.unwrap_or_else(|| self.spent());
                    self.b.end(Term::Branch(cond, then, other));
                    self.place_spent();
                    return Ok(());
                }
                0x27 => {
                    let v = match stack.pop() {
                        Some(v) => v,
                        None => self.b.constant(1, Width::W64),
                    };
                    self.b.end(Term::Return(v));
                    return Ok(());
                }
                _ => at = self.stack_op(op, here, at, &mut stack)?,
            }
        }
    }

    /// Translates an opcode that neither jumps nor ends. `at` is the offset of its operands; returns that after them.
    fn stack_op(&mut self, op: u8, here: usize, mut at: usize, stack: &mut Vec<Val>) -> Result<usize> {
        let w = Width::W64;
        let fail = |what: String| Error { at: here, what };
        let mut pop = || stack.pop().unwrap_or(Val(0));
        match op {
            0x02..=0x0b | 0x0f..=0x11 | 0x13..=0x15 => {
                let (b, a) = (pop(), pop());
                let v = self.binary(op, a, b);
                stack.push(v);
            }
            0x0c => {
                let (len, addr) = (pop(), pop());
                self.memory(addr, len, false);
            }
            0x0d | 0x30 => {
                let size = if op == 0x0d { 1 } else { 2 };
                let n = self.number(at, size)?;
                at += size;
                let addr = pop();
                stack.push(addr);
                let len = self.b.constant(n, w);
                self.memory(addr, len, false);
            }
            0x0e => {
                let a = pop();
                let zero = self.b.constant(0, w);
                let v = self.b.cmp(Cond::Eq, a, zero);
                stack.push(self.b.ext(v, 32, false, w));
            }
            0x12 => {
                let a = pop();
                let ones = self.b.constant(u64::MAX, w);
                stack.push(self.b.bin(BinOp::Xor, a, ones));
            }
            0x16 | 0x2a => {
                let n = self.number(at, 1)?;
                at += 1;
                if n == 0 || n > 64 {
                    return Err(fail(format!("an extension of {n} bits")));
                }
                if n < 64 {
                    let a = pop();
                    stack.push(self.b.ext(a, n as u8, op == 0x16, w));
                }
            }
            0x17..=0x1a => {
                let addr = pop();
                let size = 1 << (op - 0x17);
                stack.push(self.b.push(Op::Load { space: self.space, size, signed: false, addr }, w));
            }
            0x22..=0x25 => {
                let size = 1 << (op - 0x22);
                let n = self.number(at, size)?;
                at += size;
                stack.push(self.b.constant(n, w));
            }
            0x26 => {
                let n = self.number(at, 2)? as u16;
                at += 2;
                let reg = Reg::from_gdb(n).ok_or_else(|| {
                    fail(format!("register {n} of GDB's numbering is not in struct pt_regs"))
                })?;
                stack.push(self.b.push(Op::Input(Input::Reg(reg)), w));
            }
            0x28 => {
                let a = pop();
                stack.extend([a, a]);
            }
            0x29 => {
                pop();
            }
            0x2b => {
                let (b, a) = (pop(), pop());
                stack.extend([b, a]);
            }
            0x2c..=0x2e => {
                let n = self.number(at, 2)? as u16;
                at += 2;
                if n >= self.vars {
                    return Err(fail(format!("trace state variable {n}; there are {}", self.vars)));
                }
                match op {
                    0x2c => stack.push(self.b.push(Op::GetVar(n), w)),
                    0x2d => {
                        // GDB defines that the value stays on the stack.
                        let v = pop();
                        stack.push(self.b.push(Op::SetVar(n, v), w));
                    }
                    _ => {
                        self.b.push(Op::Record(Record::Var(n)), w);
                    }
                }
            }
            0x2f => {
                let (len, addr) = (pop(), pop());
                self.memory(addr, len, true);
            }
            0x32 => {
                let n = self.number(at, 1)? as usize;
                at += 1;
                let from = stack.len().checked_sub(n + 1);
                let v = from.and_then(|i| stack.get(i)).copied();
                stack.push(v.ok_or_else(|| fail(format!("picks value {n} of a stack of {}", stack.len())))?);
            }
            0x33 => {
                // a b c => c a b
                let (c, b, a) = (pop(), pop(), pop());
                stack.extend([c, a, b]);
            }
            _ => {
                at = self.printf(at, stack, here)?;
            }
        }
        Ok(at)
    }

    /// Creates a target for a jump that exceeds [`ROUNDS`].
    fn spent(&mut self) -> Target {
        Target::plain(self.b.block())
    }

    /// Places the blocks that [`Self::spent`] created: they have no terminator and no key.
    fn place_spent(&mut self) {
        let here = self.b.here();
        let Some(Term::Branch(_, then, other)) = self.b.func.body(here).term.clone() else { return };
        for block in [then.block, other.block] {
            let known = self.blocks.values().any(|(b, _)| *b == block);
            if !known && self.b.func.body(block).term.is_none() {
                self.b.place(block);
                self.b.end(Term::Fault(Fault::Loop));
            }
        }
    }

    fn binary(&mut self, op: u8, a: Val, b: Val) -> Val {
        let bin = match op {
            0x02 => BinOp::Add,
            0x03 => BinOp::Sub,
            0x04 => BinOp::Mul,
            0x05 => BinOp::SDiv,
            0x06 => BinOp::UDiv,
            0x07 => BinOp::SRem,
            0x08 => BinOp::URem,
            0x09 => BinOp::Shl,
            0x0a => BinOp::Sar,
            0x0b => BinOp::Shr,
            0x0f => BinOp::And,
            0x10 => BinOp::Or,
            0x11 => BinOp::Xor,
            _ => {
                let cond = match op {
                    0x13 => Cond::Eq,
                    0x14 => Cond::Slt,
                    _ => Cond::Ult,
                };
                let v = self.b.cmp(cond, a, b);
                return self.b.ext(v, 32, false, Width::W64);
            }
        };
        self.b.bin(bin, a, b)
    }

    fn memory(&mut self, addr: Val, len: Val, text: bool) {
        let record = Record::Memory { space: self.space, addr, len, text };
        self.b.push(Op::Record(record), Width::W64);
    }

    /// Translates `printf nargs, len, format`. The stack holds a function and a channel above the arguments; GDB leaves
    /// both 0.
    fn printf(&mut self, at: usize, stack: &mut Vec<Val>, here: usize) -> Result<usize> {
        let count = self.number(at, 1)? as usize;
        let len = self.number(at + 1, 2)? as usize;
        let text = self
            .code
            .get(at + 3..at + 3 + len)
            .ok_or_else(|| Error { at: here, what: format!("a format of {len} bytes, past the end") })?;
        let text = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
        if stack.len() < count + 2 || count > 32 {
            let what = format!("printf of {count} arguments, the stack has {}", stack.len());
            return Err(Error { at: here, what });
        }
        // The function and the channel are pushed last. The first argument is on top of the others.
        stack.truncate(stack.len() - 2);
        let mut args = stack.split_off(stack.len() - count);
        args.reverse();
        let formats = &mut self.b.func.formats;
        let number = match formats.iter().position(|f| *f == text) {
            Some(n) => n,
            None => {
                formats.push(text);
                formats.len() - 1
            }
        };
        self.b.push(Op::Record(Record::Format(number as u16, args)), Width::W64);
        Ok(at + 3 + len)
    }
}

/// The number that an operand's bytes are.
fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Number of values that the opcode pops; None for opcodes that cannot be translated.
fn needs(op: u8) -> Option<usize> {
    Some(match op {
        0x02..=0x0b | 0x0c | 0x0f..=0x11 | 0x13..=0x15 | 0x2b | 0x2f => 2,
        0x0d | 0x0e | 0x12 | 0x16..=0x1a | 0x20 | 0x28..=0x2a | 0x2d | 0x30 => 1,
        0x21..=0x27 | 0x2c | 0x2e | 0x32 => 0,
        0x33 => 3,
        0x34 => 2,
        _ => return None,
    })
}

/// Explanation for opcodes that are rejected.
fn why(op: u8) -> &'static str {
    match op {
        0x01 | 0x1b..=0x1f => ": floating-point numbers cannot be computed in a probe",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `teval $x = $x + 1` becomes an atomic addition. A sum that reads another variable, or uses the value twice, does
    /// not.
    #[test]
    fn what_adds_is_atomic() {
        let adds = |code: &[u8]| {
            let func = translate(code, Space::User, 8).unwrap();
            func.ops().any(|op| matches!(op, Op::AddVar(3, _)))
        };
        assert!(adds(&[0x2c, 0, 3, 0x22, 1, 0x02, 0x2d, 0, 3, 0x27]));
        assert!(adds(&[0x22, 1, 0x2c, 0, 3, 0x02, 0x2d, 0, 3, 0x29, 0x27]));
        assert!(!adds(&[0x2c, 0, 4, 0x22, 1, 0x02, 0x2d, 0, 3, 0x27]));
        assert!(!adds(&[0x2c, 0, 3, 0x28, 0x02, 0x2d, 0, 3, 0x27]));
        assert!(!adds(&[0x2c, 0, 3, 0x22, 1, 0x03, 0x2d, 0, 3, 0x27]));
        // The variable is set in between.
        assert!(!adds(&[0x2c, 0, 3, 0x22, 7, 0x2d, 0, 3, 0x02, 0x2d, 0, 3, 0x27]));
    }
}
