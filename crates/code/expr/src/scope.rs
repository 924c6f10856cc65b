// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names visible at a place in the code, and their locations. Implementations exist for DWARF, for BTF and for
//! places without debug information.

use std::fmt::{self, Display, Formatter};
use std::rc::Rc;

use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef, Types};
use crate::ir::{BinOp, Cond, Space};
use crate::regs::Reg;

/// An expression that computes a value at the probe, as debug information describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sym {
    /// A constant.
    Const(u64),
    /// The value of a register.
    Reg(Reg),
    /// A slot of the context's array: an argument at entry, or the return value.
    Arg(u8),
    /// The value of a register at the function's entry. It needs a paired probe there.
    Entry(Reg),
    /// An address of the file, before relocation.
    Address(u64),
    /// The address of the program's context: a tracepoint's record or arguments.
    Context,
    /// The number of the current CPU.
    Cpu,
    /// A number of this many bytes in memory.
    Deref(Rc<Sym>, u8),
    /// 64-bit arithmetic.
    Bin(BinOp, Rc<Sym>, Rc<Sym>),
    /// The low bits, with (true) or without sign extension.
    Ext(Rc<Sym>, u8, bool),
    /// 1 if the comparison holds, else 0.
    Cmp(Cond, Rc<Sym>, Rc<Sym>),
}

impl Sym {
    /// Returns the sum with a constant, folded if possible.
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

/// Location of a variable or of a piece of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// In memory, at this address.
    Memory(Rc<Sym>),
    /// Not in memory; this is its value.
    Value(Rc<Sym>),
    /// Not in memory; these are its bytes.
    Bytes(Vec<u8>),
    /// Not available: the reason, and a remedy if there is one.
    Missing(String, Option<String>),
}

/// A piece of a variable that is split over several locations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Length in bits.
    pub bits: u64,
    /// Offset within `at`, in bits.
    pub offset: u64,
    /// Location of the piece.
    pub at: Storage,
}

/// Location of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// The whole variable is in one place.
    Whole(Storage),
    /// The variable is split into pieces.
    Pieces(Vec<Piece>),
}

/// Kind of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A function's parameter.
    Parameter,
    /// A local variable.
    Local,
    /// A global variable.
    Global,
    /// A function.
    Function,
}

impl Role {
    /// The kind in one word, for messages.
    pub fn word(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::Local => "local",
            Role::Global => "global",
            Role::Function => "function",
        }
    }
}

/// A variable that is visible at the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Name in the source.
    pub name: String,
    /// Type in the source.
    pub ty: Ty,
    /// Location at the place.
    pub location: Location,
    /// Parameter, local, global or function.
    pub role: Role,
}

/// Position of the probe in its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbePoint {
    /// Before the first instruction.
    Entry,
    /// At another instruction.
    Inside,
    /// After the function returned.
    Return,
}

/// The names visible at a place, and their types. Errors are messages for the user.
pub trait Scope: Types {
    /// Finds a variable. None: the name is unknown, as every name is where nothing describes variables.
    fn variable(&self, _name: &str) -> Result<Option<Variable>, String> {
        Ok(None)
    }

    /// Returns the variable through which a method can name this member without an object (`this`).
    fn object_of(&self, _name: &str) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// Finds an enumeration's constant, with its type and value.
    fn enumerator(&self, _name: &str) -> Result<Option<(Ty, i64)>, String> {
        Ok(None)
    }

    /// Returns the names of parameters and locals, for suggestions.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the type and location of the return value. An error unless the place is a function's return.
    fn returned(&self) -> Result<(Ty, Location), String>;

    /// Returns the canonical frame address. It tells calls of the same function apart.
    fn frame(&self) -> Result<Rc<Sym>, String>;

    /// Address space of the variables.
    fn space(&self) -> Space;

    /// Returns true if registers can be read.
    fn has_registers(&self) -> bool {
        true
    }

    /// Returns true if the program measures the call itself, so that `$duration` is at hand
    /// ([`crate::ir::Input::Measured`]).
    fn measures(&self) -> bool {
        false
    }

    /// Returns true before the first instruction of a function: none of its time has passed, and `$duration` has no meaning.
    fn at_entry(&self) -> bool {
        false
    }

    /// Returns the address behind the function's prologue, and the names there, if the place is the function's entry and a
    /// name was asked for whose location holds behind the prologue only.
    #[allow(clippy::type_complexity)]
    fn in_body(&self) -> Result<Option<(u64, Box<dyn Scope + '_>)>, String> {
        Ok(None)
    }

    /// Tells where the callers of the place are. The error is the reason why they are not known.
    fn callers(&self) -> Result<Callers, String> {
        Err("who called is not known here".to_owned())
    }

    /// Finds a function's code in the file of the place: address and length of each part. `None`: where the program is
    /// loaded, the kernel's own symbols tell.
    fn code_of(&self, _function: &str) -> Result<Option<Vec<(u64, u32)>>, String> {
        Ok(None)
    }

    /// The place in words, for messages.
    fn describe(&self) -> String;
}

/// The way to the callers of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers {
    /// Number of innermost entries of the kernel's list of return addresses that are not callers.
    pub skip: u8,
    /// The direct caller's return address, if the kernel's list may lack it.
    pub direct: Option<Rc<Sym>>,
    /// True if the list begins with the direct caller, so that callers can be counted.
    pub counted: bool,
}

impl Callers {
    /// Those of a place whose registers the kernel knows: its list begins with the place itself, or with the direct caller
    /// where the function has returned.
    pub fn of_registers(moment: ProbePoint) -> Self {
        let skip = u8::from(moment != ProbePoint::Return);
        Self { skip, direct: None, counted: true }
    }

    /// Those of a place in a program, with this frame address. The kernel goes from one frame pointer to the next, and so
    /// misses the direct caller where the function has no frame yet, or none at all.
    pub fn in_program(moment: ProbePoint, frame: Option<Rc<Sym>>) -> Self {
        let of_frame = |frame: Rc<Sym>| Rc::new(Sym::Deref(frame.plus(-8_i64 as u64), 8));
        let direct = frame.filter(|_| moment != ProbePoint::Return).map(of_frame);
        Self { direct, ..Self::of_registers(moment) }
    }
}

/// A place without debug information: only registers can be named.
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

impl Display for Storage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Memory(at) => write!(f, "[{at}]"),
            Storage::Value(value) => match &**value {
                Sym::Reg(_) | Sym::Arg(_) | Sym::Const(_) | Sym::Entry(_) => write!(f, "{value}"),
                _ => write!(f, "computed: {value}"),
            },
            Storage::Bytes(bytes) => write!(f, "constant, {} bytes", bytes.len()),
            Storage::Missing(why, _) => f.write_str(why),
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
