// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an expression can name at a place, and where it is: the same for DWARF, BTF and a place without either.

use std::fmt::{self, Display, Formatter};
use std::rc::Rc;

use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef, Types};
use crate::ir::{BinOp, Cond, Space};
use crate::regs::Reg;

/// A value as debug information describes it: how to compute it at the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sym {
    /// A number.
    Const(u64),
    /// A register's value.
    Reg(Reg),
    /// A slot of the context's array: an argument at entry, or the value returned.
    Arg(u8),
    /// What the register was at the function's entry: needs a paired probe there.
    Entry(Reg),
    /// An address of the file.
    Address(u64),
    /// The address of what the program is given: a tracepoint's record or arguments.
    Context,
    /// The number of the CPU.
    Cpu,
    /// A number in memory, of so many bytes.
    Deref(Rc<Sym>, u8),
    /// Arithmetic in 64 bits.
    Bin(BinOp, Rc<Sym>, Rc<Sym>),
    /// The low bits, extended by their sign or not.
    Ext(Rc<Sym>, u8, bool),
    /// 1 or 0.
    Cmp(Cond, Rc<Sym>, Rc<Sym>),
}

impl Sym {
    /// The sum with a number.
    pub fn plus(self: &Rc<Sym>, n: u64) -> Rc<Sym> {
        match (&**self, n) {
            (_, 0) => self.clone(),
            (Sym::Bin(BinOp::Add, a, b), n) if matches!(**b, Sym::Const(_)) => match **b {
                Sym::Const(m) => a.plus(m.wrapping_add(n)),
                _ => self.clone(),
            },
            (Sym::Address(a), n) => Rc::new(Sym::Address(a.wrapping_add(n))),
            _ => Rc::new(Sym::Bin(BinOp::Add, self.clone(), Rc::new(Sym::Const(n)))),
        }
    }
}

/// Where something, or a piece of it, is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// In memory.
    Memory(Rc<Sym>),
    /// Nowhere, but this is its value.
    Value(Rc<Sym>),
    /// Nowhere, but these are its bytes.
    Bytes(Vec<u8>),
    /// It cannot be had: why, and what helps.
    Missing(String, Option<String>),
}

/// A piece of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// How long, in bits.
    pub bits: u64,
    /// Where in its spot it begins, in bits.
    pub offset: u64,
    /// Where it is.
    pub at: Spot,
}

/// Where a variable is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In one place.
    Whole(Spot),
    /// Scattered.
    Pieces(Vec<Piece>),
}

/// What kind of variable it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A parameter.
    Parameter,
    /// Within a function.
    Local,
    /// Outside of functions.
    Global,
    /// A function itself.
    Function,
}

impl Role {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::Local => "local",
            Role::Global => "global",
            Role::Function => "function",
        }
    }
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Ty,
    /// Where it is at the place.
    pub location: Location,
    /// Its kind.
    pub role: Role,
}

/// When in a function the probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before its first instruction.
    Entry,
    /// At some instruction.
    Inside,
    /// After it returned.
    Return,
}

/// What can be named at a place.
pub trait Scope: Types {
    /// The variable of that name.
    fn variable(&self, name: &str) -> Result<Option<Variable>, String>;

    /// The variable whose object has a member of that name, where a method may leave it out (`this`).
    fn object_of(&self, _name: &str) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// The enumeration's constant of that name, with its type.
    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String>;

    /// Names that are near: parameters and locals.
    fn names(&self) -> Vec<String>;

    /// What the function returns, and where it is; only where it has returned.
    fn returned(&self) -> Result<(Ty, Location), String>;

    /// The canonical frame address: it tells calls of a function apart.
    fn frame(&self) -> Result<Rc<Sym>, String>;

    /// Whose memory variables are in.
    fn space(&self) -> Space;

    /// Whether registers can be read.
    fn has_registers(&self) -> bool {
        true
    }

    /// The place in words.
    fn describe(&self) -> String;
}

/// A place of which nothing is known but registers.
#[derive(Debug, Clone, Copy)]
pub struct Bare(pub Space);

impl Types for Bare {
    fn get(&self, _: TypeRef) -> Result<Def, String> {
        Err("no debug information".to_owned())
    }

    fn find(&self, _: Tag, _: &str) -> Result<Option<Ty>, String> {
        Ok(None)
    }
}

impl Scope for Bare {
    fn variable(&self, _: &str) -> Result<Option<Variable>, String> {
        Ok(None)
    }

    fn enumerator(&self, _: &str) -> Result<Option<(Ty, i64)>, String> {
        Ok(None)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        Err("`$retval` is known only where a function returns".to_owned())
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        Err("the frame is unknown without debug information".to_owned())
    }

    fn space(&self) -> Space {
        self.0
    }

    fn describe(&self) -> String {
        "a place without debug information".to_owned()
    }
}

impl Display for Sym {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Sym::Const(n) if (*n as i64) < 0 && (*n as i64) > -100_000 => write!(f, "{}", *n as i64),
            Sym::Const(n) if *n < 100_000 => write!(f, "{n}"),
            Sym::Const(n) => write!(f, "{n:#x}"),
            Sym::Reg(reg) => f.write_str(reg.name()),
            Sym::Arg(n) => write!(f, "argument {n}"),
            Sym::Entry(reg) => write!(f, "{} at entry", reg.name()),
            Sym::Address(a) => write!(f, "{a:#x}"),
            Sym::Context => f.write_str("context"),
            Sym::Cpu => f.write_str("cpu"),
            Sym::Deref(a, 8) => write!(f, "[{a}]"),
            Sym::Deref(a, n) => write!(f, "u{}[{a}]", u16::from(*n) * 8),
            Sym::Bin(op, a, b) => {
                if let (BinOp::Add, Sym::Const(n)) = (op, &**b)
                    && (*n as i64) < 0
                {
                    return write!(f, "{a} - {}", (*n as i64).unsigned_abs());
                }
                let sign = match op {
                    BinOp::Add => "+",
                    BinOp::Sub => "-",
                    BinOp::Mul => "*",
                    BinOp::UDiv | BinOp::SDiv => "/",
                    BinOp::URem | BinOp::SRem => "%",
                    BinOp::And => "&",
                    BinOp::Or => "|",
                    BinOp::Xor => "^",
                    BinOp::Shl => "<<",
                    BinOp::Shr | BinOp::Sar => ">>",
                };
                let side = |s: &Sym| match s {
                    Sym::Bin(..) | Sym::Cmp(..) => format!("({s})"),
                    _ => s.to_string(),
                };
                match (op, &**a) {
                    (BinOp::Add, Sym::Bin(BinOp::Add, ..)) => write!(f, "{a} {sign} {}", side(b)),
                    _ => write!(f, "{} {sign} {}", side(a), side(b)),
                }
            }
            Sym::Ext(a, bits, signed) => write!(f, "({}{bits}){a}", if *signed { 's' } else { 'u' }),
            Sym::Cmp(cond, a, b) => write!(f, "{a} {cond:?} {b}"),
        }
    }
}

impl Display for Spot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Spot::Memory(at) => write!(f, "[{at}]"),
            Spot::Value(value) => match &**value {
                Sym::Reg(_) | Sym::Arg(_) | Sym::Const(_) | Sym::Entry(_) => write!(f, "{value}"),
                _ => write!(f, "computed: {value}"),
            },
            Spot::Bytes(bytes) => write!(f, "constant, {} bytes", bytes.len()),
            Spot::Missing(why, _) => f.write_str(why),
        }
    }
}

impl Display for Location {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Location::Whole(spot) => write!(f, "{spot}"),
            Location::Pieces(pieces) => {
                let all: Vec<String> = pieces.iter().map(|p| format!("{} bits {}", p.bits, p.at)).collect();
                f.write_str(&all.join(", "))
            }
        }
    }
}
