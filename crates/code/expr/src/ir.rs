// SPDX-License-Identifier: MIT OR Apache-2.0
//! The intermediate representation: both front ends make it, the optimiser improves it, the interpreter runs it,
//! eBPF is made from it.
//!
//! A [`Func`] is a list of basic blocks in SSA form; a value is made once, by an [`Op`], and blocks take parameters
//! instead of phi nodes. **Jumps go forward only**: a block jumps to blocks that stand after it. So every program
//! ends, and the kernel's verifier has no loop to follow. Values are 32 or 64 bits wide; narrower types exist only
//! in loads and extensions. Bits above a 32-bit value are unspecified.
//!
//! Some operations can fail (a read of bad memory, a division by zero): they end the program with a [`Fault`]. They
//! are never moved or dropped, so that an optimised program fails exactly where the plain one does.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::regs::Reg;

/// A value of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Val(pub u32);

/// A block of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Block(pub u32);

/// Width of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Width {
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// In bits.
    pub fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }

    /// The bits of `value` that a value of this width has.
    pub fn wrap(self, value: u64) -> u64 {
        match self {
            Width::W32 => value & 0xffff_ffff,
            Width::W64 => value,
        }
    }

    /// As a signed number.
    pub fn signed(self, value: u64) -> i64 {
        match self {
            Width::W32 => i64::from(value as u32 as i32),
            Width::W64 => value as i64,
        }
    }
}

/// Arithmetic. Everything wraps; shift counts are taken modulo the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    /// Division by zero is a fault. The smallest number divided by -1 is itself.
    UDiv,
    SDiv,
    URem,
    /// Has the sign of the dividend; by -1 it is 0.
    SRem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Sar,
}

impl BinOp {
    /// Whether it can fail.
    pub fn divides(self) -> bool {
        matches!(self, BinOp::UDiv | BinOp::SDiv | BinOp::URem | BinOp::SRem)
    }

    /// Whether operands can be exchanged.
    pub fn commutes(self) -> bool {
        matches!(self, BinOp::Add | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor)
    }
}

/// A comparison. The others are these with operands exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Cond {
    Eq,
    Ne,
    Ult,
    Ule,
    Slt,
    Sle,
}

/// Whose memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// The kernel's.
    Kernel,
    /// The current process's.
    User,
}

/// What a program is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Input {
    /// A register at the probe: the context is `struct pt_regs`.
    Reg(Reg),
    /// A 64-bit slot of the context: an argument at function entry, the value returned after the last of them.
    Arg(u8),
    /// The context's own address: a tracepoint's record begins there, or its arguments.
    Context,
    /// Process id in the upper, thread id in the lower half.
    PidTgid,
    /// Number of the CPU.
    Cpu,
    /// Nanoseconds of the monotonic clock.
    Time,
}

/// What a paired probe at the function's entry kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kept {
    /// The time.
    Time,
    /// A register.
    Reg(Reg),
}

/// Where text that is compared comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Text {
    /// Memory: up to a zero byte, or `limit` bytes.
    Memory {
        /// Whose.
        space: Space,
        /// Where.
        addr: Val,
        /// Size of the array, if it is one.
        limit: Option<u32>,
    },
    /// The name of the current task.
    Comm,
}

/// Something that is put out, besides the verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// `len` bytes at `addr`; as far as the zero byte if `text`.
    Memory {
        /// Whose.
        space: Space,
        /// Where.
        addr: Val,
        /// How many; cut at [`crate::emit::MAX_RECORD`].
        len: Val,
        /// Ends at a zero byte.
        text: bool,
    },
    /// The value of a trace state variable.
    Var(u16),
    /// Arguments of the format of this number.
    Format(u16, Vec<Val>),
}

/// How a value is made.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// A number; above its width it is zero.
    Const(u64),
    /// The block's parameter.
    Param,
    /// Given from outside.
    Input(Input),
    /// Kept by a paired probe at the entry of the function whose canonical frame address this is.
    Entry(Kept, Val),
    /// An address of the file, moved to where the file is loaded.
    Address(u64),
    /// Arithmetic; both operands have the result's width.
    Bin(BinOp, Val, Val),
    /// The lowest `bits` bits, extended. From 64 to 32 bits it is how a value is cut.
    Ext {
        /// 8, 16 or 32; 1 to 63 for bitfields.
        bits: u8,
        /// By the sign.
        signed: bool,
        /// Of what.
        of: Val,
    },
    /// 1 or 0; operands have one width.
    Cmp(Cond, Val, Val),
    /// A number of `size` bytes in memory, extended to the value's width.
    Load {
        /// Whose memory.
        space: Space,
        /// 1, 2, 4 or 8.
        size: u8,
        /// By the sign.
        signed: bool,
        /// Where.
        addr: Val,
    },
    /// 1 if the text is this one.
    TextEq(Text, Box<[u8]>),
    /// A trace state variable.
    GetVar(u16),
    /// Sets one; the value is what was set.
    SetVar(u16, Val),
    /// Adds to one, atomically; the value is the sum.
    AddVar(u16, Val),
    /// Puts something out.
    Record(Record),
}

impl Op {
    /// Whether it must stay although nobody uses its value: it can fail, or does something.
    pub fn stays(&self) -> bool {
        match self {
            Op::Load { .. } | Op::TextEq(..) | Op::Entry(..) => true,
            Op::SetVar(..) | Op::AddVar(..) | Op::Record(_) => true,
            Op::Bin(op, ..) => op.divides(),
            _ => false,
        }
    }

    /// Whether a second one with the same operands has the same value.
    pub fn repeats(&self) -> bool {
        !matches!(self, Op::Param | Op::GetVar(_) | Op::SetVar(..) | Op::AddVar(..) | Op::Record(_))
    }

    /// The values that it uses.
    pub fn uses(&self) -> Vec<Val> {
        match self {
            Op::Bin(_, a, b) | Op::Cmp(_, a, b) => vec![*a, *b],
            Op::Ext { of, .. } => vec![*of],
            Op::Load { addr, .. } | Op::TextEq(Text::Memory { addr, .. }, _) => vec![*addr],
            Op::Entry(_, v) | Op::SetVar(_, v) | Op::AddVar(_, v) => vec![*v],
            Op::Record(Record::Memory { addr, len, .. }) => vec![*addr, *len],
            Op::Record(Record::Format(_, args)) => args.clone(),
            _ => Vec::new(),
        }
    }

    /// Replaces the values that it uses.
    pub fn map(&mut self, mut f: impl FnMut(Val) -> Val) {
        match self {
            Op::Bin(_, a, b) | Op::Cmp(_, a, b) => {
                *a = f(*a);
                *b = f(*b);
            }
            Op::Ext { of, .. } => *of = f(*of),
            Op::Load { addr, .. } | Op::TextEq(Text::Memory { addr, .. }, _) => *addr = f(*addr),
            Op::Entry(_, v) | Op::SetVar(_, v) | Op::AddVar(_, v) => *v = f(*v),
            Op::Record(Record::Memory { addr, len, .. }) => {
                *addr = f(*addr);
                *len = f(*len);
            }
            Op::Record(Record::Format(_, args)) => args.iter_mut().for_each(|a| *a = f(*a)),
            _ => {}
        }
    }
}

/// Why a program gave up. The condition is then false, and the fault is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    /// Memory that cannot be read.
    Read,
    /// Division by zero.
    Divide,
    /// The function's entry was not seen.
    NoEntry,
    /// A loop of agent bytecode ran too often.
    Loop,
    /// The scratch memory is not there.
    Scratch,
}

/// All of them, in the order of their counters.
pub const FAULTS: [Fault; 5] = [Fault::Read, Fault::Divide, Fault::NoEntry, Fault::Loop, Fault::Scratch];

impl Fault {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Read => "bad read",
            Fault::Divide => "division by zero",
            Fault::NoEntry => "entry not seen",
            Fault::Loop => "loop too long",
            Fault::Scratch => "no scratch memory",
        }
    }
}

/// A jump's target and the values of its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Where to.
    pub block: Block,
    /// One for each parameter.
    pub args: Vec<Val>,
}

impl Target {
    /// A target without parameters.
    pub fn plain(block: Block) -> Self {
        Self { block, args: Vec::new() }
    }
}

/// How a block ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Term {
    /// Goes on there.
    Jump(Target),
    /// There if the value is not 0, else here.
    Branch(Val, Target, Target),
    /// Ends with this value.
    Return(Val),
    /// Ends without one.
    Fault(Fault),
}

impl Term {
    /// Where it can go.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let (a, b) = match self {
            Term::Jump(t) => (Some(t), None),
            Term::Branch(_, t, e) => (Some(t), Some(e)),
            _ => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// The same, to change.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (a, b) = match self {
            Term::Jump(t) => (Some(t), None),
            Term::Branch(_, t, e) => (Some(t), Some(e)),
            _ => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// The values that it uses.
    pub fn uses(&self) -> Vec<Val> {
        let mut all: Vec<Val> = self.targets().flat_map(|t| t.args.iter().copied()).collect();
        match self {
            Term::Branch(v, ..) | Term::Return(v) => all.push(*v),
            _ => {}
        }
        all
    }

    /// Replaces the values that it uses.
    pub fn map(&mut self, mut f: impl FnMut(Val) -> Val) {
        for target in self.targets_mut() {
            target.args.iter_mut().for_each(|a| *a = f(*a));
        }
        match self {
            Term::Branch(v, ..) | Term::Return(v) => *v = f(*v),
            _ => {}
        }
    }
}

/// A value's making.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Def {
    /// How.
    pub op: Op,
    /// How wide.
    pub width: Width,
}

/// A block's content.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Body {
    /// Parameters.
    pub params: Vec<Val>,
    /// What is done, in order.
    pub insts: Vec<Val>,
    /// How it ends. None only while it is built.
    pub term: Option<Term>,
}

/// A function: what a probe computes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Func {
    /// By number.
    pub vals: Vec<Def>,
    /// By number.
    pub blocks: Vec<Body>,
    /// The blocks in their order; the first is the entry.
    pub layout: Vec<Block>,
    /// Formats of [`Record::Format`].
    pub formats: Vec<String>,
}

impl Func {
    /// How the value is made.
    pub fn op(&self, v: Val) -> &Op {
        &self.vals[v.0 as usize].op
    }

    /// How wide it is.
    pub fn width(&self, v: Val) -> Width {
        self.vals[v.0 as usize].width
    }

    /// Its number, if it is constant.
    pub fn constant(&self, v: Val) -> Option<u64> {
        match self.op(v) {
            Op::Const(n) => Some(*n),
            _ => None,
        }
    }

    /// The block.
    pub fn body(&self, b: Block) -> &Body {
        &self.blocks[b.0 as usize]
    }

    /// The block, to change.
    pub fn body_mut(&mut self, b: Block) -> &mut Body {
        &mut self.blocks[b.0 as usize]
    }

    /// Adds a value that belongs to no block yet.
    pub fn value(&mut self, op: Op, width: Width) -> Val {
        self.vals.push(Def { op, width });
        Val(self.vals.len() as u32 - 1)
    }

    /// What it takes from outside.
    pub fn inputs(&self) -> BTreeSet<Input> {
        self.ops().filter_map(|op| if let Op::Input(i) = op { Some(*i) } else { None }).collect()
    }

    /// What a paired probe at the function's entry must keep for it.
    pub fn kept(&self) -> BTreeSet<Kept> {
        self.ops().filter_map(|op| if let Op::Entry(k, _) = op { Some(*k) } else { None }).collect()
    }

    /// All that is done.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.layout.iter().flat_map(|b| &self.body(*b).insts).map(|v| self.op(*v))
    }
}

/// Builds a function block by block.
#[derive(Debug)]
pub struct Builder {
    /// What is built.
    pub func: Func,
    at: Block,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A function with an empty entry.
    pub fn new() -> Self {
        let mut builder = Self { func: Func::default(), at: Block(0) };
        let entry = builder.block();
        builder.place(entry);
        builder
    }

    /// A new block, not placed yet.
    pub fn block(&mut self) -> Block {
        self.func.blocks.push(Body { params: Vec::new(), insts: Vec::new(), term: None });
        Block(self.func.blocks.len() as u32 - 1)
    }

    /// Places the block after those that were placed, and goes on in it.
    pub fn place(&mut self, block: Block) {
        self.func.layout.push(block);
        self.at = block;
    }

    /// The block at hand.
    pub fn here(&self) -> Block {
        self.at
    }

    /// Goes on in a block that was placed before.
    pub fn resume(&mut self, block: Block) {
        self.at = block;
    }

    /// A parameter of the block.
    pub fn param(&mut self, block: Block, width: Width) -> Val {
        let v = self.func.value(Op::Param, width);
        self.func.body_mut(block).params.push(v);
        v
    }

    /// Does something.
    pub fn push(&mut self, op: Op, width: Width) -> Val {
        let v = self.func.value(op, width);
        self.func.body_mut(self.at).insts.push(v);
        v
    }

    /// A number.
    pub fn constant(&mut self, value: u64, width: Width) -> Val {
        self.push(Op::Const(width.wrap(value)), width)
    }

    /// Arithmetic.
    pub fn bin(&mut self, op: BinOp, a: Val, b: Val) -> Val {
        let width = self.func.width(a);
        debug_assert_eq!(width, self.func.width(b));
        self.push(Op::Bin(op, a, b), width)
    }

    /// Compares.
    pub fn cmp(&mut self, cond: Cond, a: Val, b: Val) -> Val {
        debug_assert_eq!(self.func.width(a), self.func.width(b));
        self.push(Op::Cmp(cond, a, b), Width::W32)
    }

    /// Extends or cuts.
    pub fn ext(&mut self, of: Val, bits: u8, signed: bool, width: Width) -> Val {
        self.push(Op::Ext { bits, signed, of }, width)
    }

    /// Whether the block at hand has ended.
    pub fn ended(&self) -> bool {
        self.func.body(self.at).term.is_some()
    }

    /// Ends the block at hand.
    pub fn end(&mut self, term: Term) {
        let body = self.func.body_mut(self.at);
        debug_assert!(body.term.is_none());
        body.term = Some(term);
    }

    /// The function. Blocks that were never placed must not be used.
    pub fn finish(self) -> Func {
        debug_assert!(self.func.layout.iter().all(|b| self.func.body(*b).term.is_some()));
        self.func
    }
}
