// SPDX-License-Identifier: MIT OR Apache-2.0
//! The intermediate representation (IR). Both front ends build it, the optimiser transforms it, the interpreter runs
//! it, and the code generator translates it to eBPF.
//!
//! A [`Func`] is a list of basic blocks in SSA form. Each value is defined once, by an [`Op`]; blocks take parameters
//! instead of phi nodes. **Jumps go forward only**: a block jumps to blocks later in the layout. So every program ends,
//! and the kernel's verifier has no loop to follow. Values are 32 or 64 bits wide; narrower types exist only in loads
//! and extensions. The upper bits of a 32-bit value are unspecified.
//!
//! Some operations can fail (a read of bad memory, a division by zero). They end the program with a [`Fault`]. The
//! optimiser never moves or removes them, so an optimised program fails exactly where the unoptimised one does.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::regs::Reg;

/// Number of a value in its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Val(pub u32);

/// Number of a block in its function.
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
    /// The width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }

    /// Truncates `value` to this width.
    pub fn wrap(self, value: u64) -> u64 {
        match self {
            Width::W32 => value & 0xffff_ffff,
            Width::W64 => value,
        }
    }

    /// Interprets `value` as a signed number of this width.
    pub fn signed(self, value: u64) -> i64 {
        match self {
            Width::W32 => i64::from(value as u32 as i32),
            Width::W64 => value as i64,
        }
    }
}

/// Binary arithmetic. Results wrap; shift counts are taken modulo the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    /// Division by zero is a fault. The smallest signed number divided by -1 is itself.
    UDiv,
    SDiv,
    URem,
    /// The result has the sign of the dividend; any number modulo -1 is 0.
    SRem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    Sar,
}

impl BinOp {
    /// Returns true for divisions and remainders: they fail if the divisor is 0.
    pub fn divides(self) -> bool {
        matches!(self, BinOp::UDiv | BinOp::SDiv | BinOp::URem | BinOp::SRem)
    }

    /// Returns true if the operands can be exchanged.
    pub fn commutes(self) -> bool {
        matches!(self, BinOp::Add | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor)
    }
}

/// A comparison. `>` and `>=` are written as `<` and `<=` with exchanged operands.
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

/// Address space of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// Kernel memory.
    Kernel,
    /// Memory of the current process.
    User,
}

/// A value that the program takes from its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Input {
    /// A register at the probe. The program's context is `struct pt_regs`.
    Reg(Reg),
    /// A 64-bit slot of the context: the arguments at function entry, followed by the return value.
    Arg(u8),
    /// The address of the context: a tracepoint's record or array of arguments.
    Context,
    /// Process id in the upper, thread id in the lower half.
    PidTgid,
    /// Number of the current CPU.
    Cpu,
    /// Monotonic clock in ns.
    Time,
    /// Id of the current task's cgroup (version 2): the number of its folder's inode.
    Cgroup,
    /// Duration of the call in ns, which the program that contains this one measured: at [`crate::emit::MEASURED`] on its
    /// stack.
    Measured,
}

/// A value that a paired probe at the function's entry saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kept {
    /// Time of the entry.
    Time,
    /// The register's value at entry.
    Reg(Reg),
}

/// Source of text for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Text {
    /// Memory, up to a zero byte or `limit` bytes.
    Memory {
        /// Address space.
        space: Space,
        /// Address of the first byte.
        addr: Val,
        /// Size of the array in bytes, if it is an array.
        limit: Option<u32>,
    },
    /// Name of the current task.
    Comm,
}

/// Data that the program outputs in addition to its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Record {
    /// `len` bytes at `addr`. If `text`, only up to the first zero byte.
    Memory {
        /// Address space.
        space: Space,
        /// Address of the first byte.
        addr: Val,
        /// Length in bytes; truncated to [`crate::emit::MAX_RECORD`].
        len: Val,
        /// True if the data ends at a zero byte.
        text: bool,
    },
    /// The value of a trace state variable.
    Var(u16),
    /// Arguments of the format with this number in [`Func::formats`].
    Format(u16, Vec<Val>),
}

/// The operation that defines a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// A constant. Bits above the value's width are zero.
    Const(u64),
    /// A parameter of a block.
    Param,
    /// A value from the program's environment.
    Input(Input),
    /// A value that the paired probe at entry saved. The operand is the function's canonical frame address.
    Entry(Kept, Val),
    /// An address of the file, relocated to its load address.
    Address(u64),
    /// Arithmetic; both operands have the result's width.
    Bin(BinOp, Val, Val),
    /// The lowest `bits` bits of an operand, extended. From 64 to 32 bits it truncates.
    Ext {
        /// Number of bits: 8, 16 or 32; 1 to 63 for bitfields.
        bits: u8,
        /// True for sign extension.
        signed: bool,
        /// Operand.
        of: Val,
    },
    /// 1 if the comparison holds, else 0. The operands have the same width.
    Cmp(Cond, Val, Val),
    /// A number of `size` bytes in memory, extended to the value's width.
    Load {
        /// Address space.
        space: Space,
        /// Size in bytes: 1, 2, 4 or 8.
        size: u8,
        /// True for sign extension.
        signed: bool,
        /// Address.
        addr: Val,
    },
    /// 1 if the text equals this one, else 0.
    TextEq(Text, Box<[u8]>),
    /// 1 if the function is among the callers of the place, else 0.
    CalledBy(Box<CalledBy>),
    /// 1 if the current task is in the container whose id begins so, or in one inside it; else 0.
    InContainer(Box<str>),
    /// Value of a trace state variable.
    GetVar(u16),
    /// Sets a trace state variable; the result is the new value.
    SetVar(u16, Val),
    /// Adds to a trace state variable atomically; the result is the sum.
    AddVar(u16, Val),
    /// Outputs data.
    Record(Record),
}

impl Op {
    /// Returns true if the operation can fail or has a side effect: it must stay even if its result is unused.
    pub fn stays(&self) -> bool {
        match self {
            Op::Load { .. } | Op::TextEq(..) | Op::Entry(..) | Op::CalledBy(_) => true,
            Op::SetVar(..) | Op::AddVar(..) | Op::Record(_) => true,
            Op::Bin(op, ..) => op.divides(),
            _ => false,
        }
    }

    /// Returns true if a second operation with the same operands gives the same value.
    pub fn repeats(&self) -> bool {
        !matches!(self, Op::Param | Op::GetVar(_) | Op::SetVar(..) | Op::AddVar(..) | Op::Record(_))
    }

    /// Returns the operands.
    pub fn uses(&self) -> Vec<Val> {
        match self {
            Op::Bin(_, a, b) | Op::Cmp(_, a, b) => vec![*a, *b],
            Op::Ext { of, .. } => vec![*of],
            Op::Load { addr, .. } | Op::TextEq(Text::Memory { addr, .. }, _) => vec![*addr],
            Op::Entry(_, v) | Op::SetVar(_, v) | Op::AddVar(_, v) => vec![*v],
            Op::Record(Record::Memory { addr, len, .. }) => vec![*addr, *len],
            Op::Record(Record::Format(_, args)) => args.clone(),
            Op::CalledBy(asked) => {
                let code = asked.code.iter().flatten().map(|(start, _)| *start);
                code.chain(asked.direct).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Replaces each operand `v` by `f(v)`.
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
            Op::CalledBy(asked) => {
                let code = asked.code.iter_mut().flatten().map(|(start, _)| start);
                code.chain(&mut asked.direct).for_each(|v| *v = f(*v));
            }
            _ => {}
        }
    }
}

/// A search for a function among the callers of a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CalledBy {
    /// The function.
    pub function: Box<str>,
    /// Address and length of each part of its code; `None` for a function of the kernel, whose address is known where the
    /// program is loaded.
    pub code: Option<Vec<(Val, u32)>>,
    /// The stack that is searched.
    pub space: Space,
    /// Number of innermost entries of the kernel's list that are not callers: the place itself, the program.
    pub skip: u8,
    /// The direct caller's return address, where debug information gives it: the kernel's list may lack it.
    pub direct: Option<Val>,
    /// Number of callers that are looked at, 1 to [`MOST_CALLERS`].
    pub most: u8,
    /// All callers are meant: more than [`CalledBy::most`] of them are a fault, unless the function was found.
    pub all: bool,
}

/// Maximum of callers that one search looks at: their addresses are on the program's stack.
pub const MOST_CALLERS: u8 = 32;

/// Reason why a program ended early. Its condition counts as false, and the fault is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    /// Memory could not be read.
    Read,
    /// Division by zero.
    Divide,
    /// The paired probe did not see the function's entry.
    NoEntry,
    /// A loop of agent bytecode exceeded its limit of rounds.
    Loop,
    /// The scratch memory is not available.
    Scratch,
    /// The memory of the thread's variables is not available.
    NoThread,
    /// The kernel gave no call stack.
    NoStack,
    /// There are more callers than are looked at, and the function is not among those.
    Deep,
}

/// All faults, in the order of their counters.
pub const FAULTS: [Fault; 8] = [
    Fault::Read,
    Fault::Divide,
    Fault::NoEntry,
    Fault::Loop,
    Fault::Scratch,
    Fault::NoThread,
    Fault::NoStack,
    Fault::Deep,
];

impl Fault {
    /// The fault in words, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Read => "bad read",
            Fault::Divide => "division by zero",
            Fault::NoEntry => "entry not seen",
            Fault::Loop => "loop too long",
            Fault::Scratch => "no scratch memory",
            Fault::NoThread => "no memory for the thread's variables",
            Fault::NoStack => "no call stack",
            Fault::Deep => "more callers than are looked at",
        }
    }
}

/// A jump's target block and the arguments for its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// Target block.
    pub block: Block,
    /// One argument for each parameter.
    pub args: Vec<Val>,
}

impl Target {
    /// Returns a target without arguments.
    pub fn plain(block: Block) -> Self {
        Self { block, args: Vec::new() }
    }
}

/// Terminator of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Term {
    /// Unconditional jump.
    Jump(Target),
    /// Jumps to the first target if the value is not 0, else to the second.
    Branch(Val, Target, Target),
    /// Ends the program with this value.
    Return(Val),
    /// Ends the program with a fault.
    Fault(Fault),
}

impl Term {
    /// Returns the jump targets.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let (a, b) = match self {
            Term::Jump(t) => (Some(t), None),
            Term::Branch(_, t, e) => (Some(t), Some(e)),
            _ => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// Returns the jump targets, mutable.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (a, b) = match self {
            Term::Jump(t) => (Some(t), None),
            Term::Branch(_, t, e) => (Some(t), Some(e)),
            _ => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// Returns the operands, including the arguments of targets.
    pub fn uses(&self) -> Vec<Val> {
        let mut all: Vec<Val> = self.targets().flat_map(|t| t.args.iter().copied()).collect();
        match self {
            Term::Branch(v, ..) | Term::Return(v) => all.push(*v),
            _ => {}
        }
        all
    }

    /// Replaces each operand `v` by `f(v)`.
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

/// Definition of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Def {
    /// The operation.
    pub op: Op,
    /// Width of the result.
    pub width: Width,
}

/// Contents of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// Parameters; a jump to the block supplies their values.
    pub params: Vec<Val>,
    /// Values that are computed, in order.
    pub insts: Vec<Val>,
    /// Terminator. None only while the block is built.
    pub term: Option<Term>,
}

/// A program in the IR.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Func {
    /// Definitions, by number of the value.
    pub vals: Vec<Def>,
    /// Blocks, by their number.
    pub blocks: Vec<Body>,
    /// Order of the blocks; the first is the entry.
    pub layout: Vec<Block>,
    /// Formats of [`Record::Format`].
    pub formats: Vec<String>,
}

impl Func {
    /// Returns the operation that defines the value.
    pub fn op(&self, v: Val) -> &Op {
        &self.vals[v.0 as usize].op
    }

    /// Returns the value's width.
    pub fn width(&self, v: Val) -> Width {
        self.vals[v.0 as usize].width
    }

    /// Returns the value's number if it is a constant.
    pub fn constant(&self, v: Val) -> Option<u64> {
        match self.op(v) {
            Op::Const(n) => Some(*n),
            _ => None,
        }
    }

    /// Returns the contents of a block.
    pub fn body(&self, b: Block) -> &Body {
        &self.blocks[b.0 as usize]
    }

    /// Returns the contents of a block, mutable.
    pub fn body_mut(&mut self, b: Block) -> &mut Body {
        &mut self.blocks[b.0 as usize]
    }

    /// Adds a value that is in no block yet.
    pub fn value(&mut self, op: Op, width: Width) -> Val {
        self.vals.push(Def { op, width });
        Val(self.vals.len() as u32 - 1)
    }

    /// Returns the inputs that the function uses.
    pub fn inputs(&self) -> BTreeSet<Input> {
        self.ops().filter_map(|op| if let Op::Input(i) = op { Some(*i) } else { None }).collect()
    }

    /// Returns the values that the paired probe at the function's entry must save.
    pub fn kept(&self) -> BTreeSet<Kept> {
        self.ops().filter_map(|op| if let Op::Entry(k, _) = op { Some(*k) } else { None }).collect()
    }

    /// Returns the operations of all placed blocks, in order.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.layout.iter().flat_map(|b| &self.body(*b).insts).map(|v| self.op(*v))
    }
}

/// Builds a function block by block.
#[derive(Debug)]
pub struct Builder {
    /// The function under construction.
    pub func: Func,
    at: Block,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// Returns a builder whose function has an empty entry block.
    pub fn new() -> Self {
        let mut builder = Self { func: Func::default(), at: Block(0) };
        let entry = builder.block();
        builder.place(entry);
        builder
    }

    /// Creates a block that is not in the layout yet.
    pub fn block(&mut self) -> Block {
        self.func.blocks.push(Body { params: Vec::new(), insts: Vec::new(), term: None });
        Block(self.func.blocks.len() as u32 - 1)
    }

    /// Appends the block to the layout and makes it the current one.
    pub fn place(&mut self, block: Block) {
        self.func.layout.push(block);
        self.at = block;
    }

    /// Returns the current block.
    pub fn here(&self) -> Block {
        self.at
    }

    /// Makes a placed block the current one again.
    pub fn resume(&mut self, block: Block) {
        self.at = block;
    }

    /// Adds a parameter to the block.
    pub fn param(&mut self, block: Block, width: Width) -> Val {
        let v = self.func.value(Op::Param, width);
        self.func.body_mut(block).params.push(v);
        v
    }

    /// Appends an operation to the current block and returns its value.
    pub fn push(&mut self, op: Op, width: Width) -> Val {
        let v = self.func.value(op, width);
        self.func.body_mut(self.at).insts.push(v);
        v
    }

    /// Appends a constant, truncated to the width.
    pub fn constant(&mut self, value: u64, width: Width) -> Val {
        self.push(Op::Const(width.wrap(value)), width)
    }

    /// Appends arithmetic on two values of the same width.
    pub fn bin(&mut self, op: BinOp, a: Val, b: Val) -> Val {
        let width = self.func.width(a);
        debug_assert_eq!(width, self.func.width(b));
        self.push(Op::Bin(op, a, b), width)
    }

    /// Appends a comparison of two values of the same width.
    pub fn cmp(&mut self, cond: Cond, a: Val, b: Val) -> Val {
        debug_assert_eq!(self.func.width(a), self.func.width(b));
        self.push(Op::Cmp(cond, a, b), Width::W32)
    }

    /// Appends an extension or truncation.
    pub fn ext(&mut self, of: Val, bits: u8, signed: bool, width: Width) -> Val {
        self.push(Op::Ext { bits, signed, of }, width)
    }

    /// Returns true if the current block has a terminator.
    pub fn ended(&self) -> bool {
        self.func.body(self.at).term.is_some()
    }

    /// Sets the terminator of the current block.
    pub fn end(&mut self, term: Term) {
        let body = self.func.body_mut(self.at);
        debug_assert!(body.term.is_none());
        body.term = Some(term);
    }

    /// Returns the function. Blocks that were never placed must not be used.
    pub fn finish(self) -> Func {
        debug_assert!(self.func.layout.iter().all(|b| self.func.body(*b).term.is_some()));
        self.func
    }
}
