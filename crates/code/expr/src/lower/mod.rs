// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers expressions to IR: checks types, makes conversions explicit, and turns places into loads.
//!
//! This is a single pass. An operand is an `Operand`: a value or the place of one. A place is loaded only when its
//! value is needed, so `&a->b` and `sizeof a->b` read no memory.

mod arith;
mod callers;
mod collect;
mod elements;
mod name;
mod place;

pub use collect::{Collected, Part, What, collect};
pub use elements::Elements;
pub use name::is_built_in;

use std::rc::Rc;

use crate::ast::{After, Base, Binary, Expr, Kind, TypeName, Unary};
use crate::ctype::{self, Def, Int, Ty, Types};
use crate::error::{Error, Result, Span};
use crate::ir::{BinOp, Block, Builder, Cond, Func, Input, Op, Target, Term, Text, Val, Width};
use crate::parse::parse;
use crate::regs::Reg;
use crate::scope::{Location, Scope, Sym};

/// Limit of a string's length in a comparison, in bytes.
pub const LONGEST_TEXT: usize = 128;

/// Environment in which an expression is compiled.
#[derive(Clone, Copy)]
pub struct Env<'e> {
    /// Scope at the place.
    pub scope: &'e dyn Scope,
    /// Trace state variables, by number.
    pub vars: &'e [String],
}

/// A name that the expression uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Name as written.
    pub name: String,
    /// Kind of name: parameter, local, …
    pub role: &'static str,
    /// Type in C syntax.
    pub ty: String,
    /// Location, in words.
    pub place: String,
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// The function, not optimised.
    pub func: Func,
    /// The type in C syntax.
    pub ty: String,
    /// True if the value is signed.
    pub signed: bool,
    /// Names that the expression uses, in order.
    pub uses: Vec<Use>,
}

/// Returns true if the name is a type's. The parser needs this to recognise casts.
fn is_type(env: Env<'_>, name: &str) -> bool {
    !matches!(env.scope.object_of(name), Ok(Some(_)))
        && !matches!(env.scope.variable(name), Ok(Some(_)))
        && matches!(ctype::by_name(env.scope, name), Ok(Some(_)))
}

/// Compiles a condition. The function returns 1 or 0.
pub fn condition(source: &str, env: Env<'_>) -> Result<Lowered> {
    let expr = parse(source, &|n| is_type(env, n))?;
    let mut lower = Lower::new(env);
    let (yes, no) = (lower.b.block(), lower.b.block());
    lower.branch(&expr, yes, no)?;
    for (block, value) in [(yes, 1), (no, 0)] {
        lower.b.place(block);
        let v = lower.b.constant(value, Width::W32);
        lower.b.end(Term::Return(v));
    }
    Ok(Lowered { func: lower.b.finish(), ty: "int".to_owned(), signed: true, uses: lower.uses })
}

/// Compiles a value. The function returns it in 64 bits, extended according to its type.
pub fn value(source: &str, env: Env<'_>) -> Result<Lowered> {
    let expr = parse(source, &|n| is_type(env, n))?;
    let mut lower = Lower::new(env);
    let operand = lower.expr(&expr)?;
    let shown = lower.type_name(&operand);
    let (v, scalar) = lower.rvalue(operand, expr.span)?;
    let v = lower.widen(v, &scalar);
    lower.b.end(Term::Return(v));
    let signed = matches!(scalar, Scalar::Int(i) if i.signed);
    Ok(Lowered { func: lower.b.finish(), ty: shown, signed, uses: lower.uses })
}

/// Compiles a value that debug information describes, without an expression.
pub fn described(sym: &Rc<Sym>, scope: &dyn Scope) -> Result<Func> {
    let mut lower = Lower::new(Env { scope, vars: &[] });
    let v = lower.sym(sym, Span { start: 0, end: 0 })?;
    lower.b.end(Term::Return(v));
    Ok(lower.b.finish())
}

/// Makes addresses of the file relative to the instruction at `pc`, where the probe is. A position-independent program
/// or library then needs no relocation, in any process.
pub fn by_instruction(func: &mut Func, pc: u64) {
    for block in func.layout.clone() {
        for v in std::mem::take(&mut func.body_mut(block).insts) {
            if let Op::Address(link) = *func.op(v) {
                let here = func.value(Op::Input(Input::Reg(Reg::Rip)), Width::W64);
                let distance = func.value(Op::Const(link.wrapping_sub(pc)), Width::W64);
                func.body_mut(block).insts.extend([here, distance]);
                func.vals[v.0 as usize].op = Op::Bin(BinOp::Add, here, distance);
            }
            func.body_mut(block).insts.push(v);
        }
    }
}

/// Type of a value in a register: an integer or a pointer.
#[derive(Debug, Clone)]
pub(crate) enum Scalar {
    Int(Int),
    Ptr(Rc<Ty>),
}

impl Scalar {
    fn width(&self) -> Width {
        match self {
            Scalar::Int(int) if int.size <= 4 => Width::W32,
            _ => Width::W64,
        }
    }
}

/// Result of lowering an expression.
#[derive(Debug, Clone)]
pub(crate) enum Operand {
    /// A value and the type to display.
    Value(Val, Scalar, Ty),
    /// A place in memory. For a bitfield, the first bit counted from the address, and the width.
    Memory { addr: Val, ty: Ty, bits: Option<(u64, u8)> },
    /// A place in registers or pieces: first bit, and the width of a bitfield.
    Parts { location: Location, ty: Ty, from: u64, bits: Option<u8>, name: String },
    /// A string literal.
    Text(Vec<u8>),
    /// `$comm`.
    Comm,
    /// `$container`.
    Container,
    /// `(void)x`.
    Nothing,
}

pub(crate) struct Lower<'e> {
    env: Env<'e>,
    b: Builder,
    uses: Vec<Use>,
}

impl<'e> Lower<'e> {
    fn new(env: Env<'e>) -> Self {
        Self { env, b: Builder::new(), uses: Vec::new() }
    }

    fn types(&self) -> &'e dyn Types {
        self.env.scope
    }

    fn resolve(&self, ty: &Ty, span: Span) -> Result<Def> {
        ctype::resolve(self.types(), ty).map_err(|e| Error::new(span, e))
    }

    fn show(&self, ty: &Ty) -> String {
        ctype::name(self.types(), ty)
    }

    fn type_name(&self, operand: &Operand) -> String {
        match operand {
            Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => {
                self.show(ty)
            }
            Operand::Text(text) => format!("char [{}]", text.len() + 1),
            Operand::Comm => "char [16]".to_owned(),
            Operand::Container => "container".to_owned(),
            Operand::Nothing => "void".to_owned(),
        }
    }

    fn int(&self, v: Val, int: Int) -> Operand {
        Operand::Value(v, Scalar::Int(int), Ty::Int(int))
    }

    fn expr(&mut self, e: &Expr) -> Result<Operand> {
        match &e.kind {
            Kind::Number(n) => {
                let fits_int = n.value <= i32::MAX as u64;
                let fits_uint = n.value <= u64::from(u32::MAX);
                let fits_long = n.value <= i64::MAX as u64;
                let size = |big| if big { 8 } else { 4 };
                let int = match (n.unsigned, n.decimal) {
                    (true, _) => Int::of(size(n.long > 0 || !fits_uint), false),
                    (false, _) if n.long == 0 && fits_int => Int::INT,
                    (false, false) if n.long == 0 && fits_uint => Int::of(4, false),
                    (false, _) if fits_long => Int::LONG,
                    // GCC has no wider type for a decimal constant either, and uses `unsigned long`.
                    (false, _) => Int::ULONG,
                };
                let int = if n.long == 2 { Int { rank: 6, ..int } } else { int };
                let v = self.b.constant(n.value, Scalar::Int(int).width());
                Ok(self.int(v, int))
            }
            // A character constant has type `int` in C, but `char` in GDB. The value is the same.
            Kind::Char(c) => {
                let v = self.b.constant(*c as u64, Width::W32);
                Ok(self.int(v, Int::INT))
            }
            Kind::Text(text) => Ok(Operand::Text(text.clone())),
            Kind::Name(name) => self.name(name, e.span),
            Kind::Dollar(name) => self.dollar(name, e.span),
            Kind::Unary(op, of) => self.unary(*op, of, e.span),
            Kind::Binary(op, a, b) => self.binary(*op, a, b, e.span),
            Kind::Logic(..) => {
                let (yes, no, end) = (self.b.block(), self.b.block(), self.b.block());
                self.branch(e, yes, no)?;
                let param = self.b.param(end, Width::W32);
                for (block, n) in [(yes, 1), (no, 0)] {
                    self.b.place(block);
                    let v = self.b.constant(n, Width::W32);
                    self.b.end(Term::Jump(Target { block: end, args: vec![v] }));
                }
                self.b.place(end);
                Ok(self.int(param, Int::INT))
            }
            Kind::Choice(cond, a, b) => self.choice(cond, a, b, e.span),
            Kind::Comma(a, b) => {
                let left = self.expr(a)?;
                if matches!(left, Operand::Memory { .. }) && self.is_scalar(&left, a.span)? {
                    self.rvalue(left, a.span)?;
                }
                self.expr(b)
            }
            Kind::Member(of, arrow, name, at) => self.member(of, *arrow, name, *at),
            Kind::Index(a, i) => self.index(a, i, e.span),
            Kind::Cast(ty, of) => {
                let to = self.named_type(ty)?;
                let from = self.expr(of)?;
                self.cast(from, &to, of.span, ty.span)
            }
            Kind::SizeOf(of) => {
                let uses = self.uses.len();
                let saved = std::mem::take(&mut self.b);
                let operand = self.expr(of);
                let size = operand.and_then(|o| self.size_of_operand(&o, of.span));
                self.b = saved;
                self.uses.truncate(uses);
                let v = self.b.constant(size?, Width::W64);
                Ok(self.int(v, Int::ULONG))
            }
            Kind::SizeOfType(ty) => {
                let named = self.named_type(ty)?;
                let size = self.size_of(&named, ty.span)?;
                let v = self.b.constant(size, Width::W64);
                Ok(self.int(v, Int::ULONG))
            }
            Kind::Assign(to, op, of, after) => self.assign(to, *op, of, *after, e.span),
            Kind::CalledBy(function, most) => self.called_by(function, *most, e.span),
            Kind::Call(of) => Err(Error::new(of.span, "functions cannot be called in a probe")),
        }
    }

    fn size_of_operand(&self, operand: &Operand, span: Span) -> Result<u64> {
        match operand {
            Operand::Memory { bits: Some(_), .. } | Operand::Parts { bits: Some(_), .. } => {
                Err(Error::new(span, "a bitfield has no size in bytes"))
            }
            Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => {
                self.size_of(ty, span)
            }
            Operand::Text(text) => Ok(text.len() as u64 + 1),
            Operand::Comm => Ok(16),
            Operand::Container => Err(Error::new(span, "`$container` has no size")),
            Operand::Nothing => Ok(1),
        }
    }

    /// Size in bytes, as in GNU C: 1 for `void` and functions.
    fn size_of(&self, ty: &Ty, span: Span) -> Result<u64> {
        if matches!(self.resolve(ty, span)?, Def::Plain(Ty::Void) | Def::Function) {
            return Ok(1);
        }
        let size = ctype::size_of(self.types(), ty).map_err(|e| Error::new(span, e))?;
        size.ok_or_else(|| {
            Error::new(span, format!("`{}` is incomplete: its size is unknown", self.show(ty)))
        })
    }

    fn named_type(&self, name: &TypeName) -> Result<Ty> {
        let fail = |e: String| Error::new(name.span, e);
        let mut ty = match &name.base {
            Base::Int(int) => Ty::Int(*int),
            Base::Void => Ty::Void,
            Base::Float => {
                return Err(Error::new(name.span, "floating-point numbers cannot be computed in a probe"));
            }
            Base::Tagged(tag, n) => self
                .types()
                .find(*tag, n)
                .map_err(fail)?
                .ok_or_else(|| fail(format!("there is no `{} {n}`", tag.word())))?,
            Base::Named(n) => ctype::by_name(self.types(), n)
                .map_err(fail)?
                .ok_or_else(|| fail(format!("there is no type `{n}`")))?,
        };
        for _ in 0..name.pointers {
            ty = Ty::Ptr(Rc::new(ty));
        }
        for n in name.arrays.iter().rev() {
            ty = Ty::Array(Rc::new(ty), Some(*n));
        }
        for _ in 0..name.to_arrays {
            ty = Ty::Ptr(Rc::new(ty));
        }
        Ok(ty)
    }

    fn unary(&mut self, op: Unary, of: &Expr, span: Span) -> Result<Operand> {
        match op {
            Unary::Not => {
                let v = self.truth(of)?;
                let zero = self.b.constant(0, self.b.func.width(v));
                let v = self.b.cmp(Cond::Eq, v, zero);
                Ok(self.int(v, Int::INT))
            }
            Unary::Deref => {
                let operand = self.expr(of)?;
                self.deref(operand, of.span)
            }
            Unary::Address => {
                let operand = self.expr(of)?;
                self.address(operand, of.span)
            }
            Unary::Plus | Unary::Minus | Unary::Invert => {
                let (v, scalar) = self.value_of(of)?;
                let Scalar::Int(int) = scalar else {
                    return Err(Error::new(span, "a pointer has no such operator"));
                };
                let to = int.promoted();
                let v = self.convert(v, int, to);
                let v = match op {
                    Unary::Plus => v,
                    Unary::Minus => {
                        let zero = self.b.constant(0, self.b.func.width(v));
                        self.b.bin(BinOp::Sub, zero, v)
                    }
                    _ => {
                        let ones = self.b.constant(u64::MAX, self.b.func.width(v));
                        self.b.bin(BinOp::Xor, v, ones)
                    }
                };
                Ok(self.int(v, to))
            }
        }
    }

    /// Returns the expression's value and type.
    fn value_of(&mut self, e: &Expr) -> Result<(Val, Scalar)> {
        let operand = self.expr(e)?;
        self.rvalue(operand, e.span)
    }

    /// Returns a value that is 0 exactly if the expression is false.
    fn truth(&mut self, e: &Expr) -> Result<Val> {
        Ok(self.value_of(e)?.0)
    }

    /// Emits branches to `yes` or `no`, with short-circuit evaluation.
    fn branch(&mut self, e: &Expr, yes: Block, no: Block) -> Result<()> {
        match &e.kind {
            Kind::Logic(and, a, b) => {
                let second = self.b.block();
                if *and {
                    self.branch(a, second, no)?;
                } else {
                    self.branch(a, yes, second)?;
                }
                self.b.place(second);
                self.branch(b, yes, no)
            }
            Kind::Unary(Unary::Not, of) => self.branch(of, no, yes),
            _ => {
                let v = self.truth(e)?;
                self.b.end(Term::Branch(v, Target::plain(yes), Target::plain(no)));
                Ok(())
            }
        }
    }

    /// Lowers a comparison with a string literal. The result is 1 or 0.
    fn text_eq(&mut self, operand: Operand, text: &[u8], span: Span) -> Result<Val> {
        if text.len() > LONGEST_TEXT {
            return Err(Error::new(span, format!("strings are compared up to {LONGEST_TEXT} bytes")));
        }
        if let Some(of) = self.elements_of(&operand, span)?.filter(|of| of.size == 1) {
            return self.same_bytes(&operand, &of, text, span);
        }
        if text.contains(&0) {
            return Err(Error::new(span, "the string has a zero byte, which ends strings in memory"));
        }
        let space = self.env.scope.space();
        let from = match operand {
            Operand::Text(other) => {
                let same = u64::from(other == text);
                return Ok(self.b.constant(same, Width::W32));
            }
            Operand::Container => {
                let id = std::str::from_utf8(text).ok().filter(|id| !id.is_empty());
                let id = id.ok_or_else(|| {
                    Error::new(span, "a container's id is not empty")
                        .help("the id as `docker ps` shows it, or its beginning: `$container == \"3f2a\"`")
                })?;
                return Ok(self.b.push(Op::InContainer(id.into()), Width::W32));
            }
            Operand::Comm if text.len() >= 16 => return Ok(self.b.constant(0, Width::W32)),
            Operand::Comm => Text::Comm,
            operand => {
                let ty = match &operand {
                    Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => {
                        ty.clone()
                    }
                    _ => Ty::Void,
                };
                let limit = match self.resolve(&ty, span)? {
                    Def::Plain(Ty::Array(_, count)) => count,
                    _ => None,
                };
                if matches!(self.resolve(&ty, span)?, Def::Record(_)) {
                    return Err(Error::new(span, format!("`{}` is no string", self.show(&ty)))
                        .help("strings are compared with `char *`, arrays of `char`, `$comm`, and Rust's `&str`, `String`, and bytes"));
                }
                let (addr, scalar) = self.rvalue(operand, span)?;
                let chars = match &scalar {
                    Scalar::Ptr(to) => {
                        matches!(self.resolve(to, span)?, Def::Plain(Ty::Int(i)) if i.size == 1)
                    }
                    Scalar::Int(_) => false,
                };
                if !chars {
                    let shown = self.show(&ty);
                    return Err(Error::new(span, format!("`{shown}` is no string"))
                        .help("strings are compared with `char *`, arrays of `char`, and `$comm`"));
                }
                if limit.is_some_and(|n| n < text.len() as u64) {
                    return Ok(self.b.constant(0, Width::W32));
                }
                Text::Memory { space, addr, limit: limit.and_then(|n| u32::try_from(n).ok()) }
            }
        };
        Ok(self.b.push(Op::TextEq(from, text.into()), Width::W32))
    }

    fn assign(
        &mut self,
        to: &Expr,
        op: Option<Binary>,
        of: &Expr,
        after: After,
        span: Span,
    ) -> Result<Operand> {
        let Kind::Dollar(name) = &to.kind else {
            return Err(Error::new(to.span, "a probe changes nothing but trace state variables")
                .help("`==` compares; `$name = …` sets a trace state variable"));
        };
        let Some(number) = self.env.vars.iter().position(|v| v == name) else {
            return Err(self.unknown_dollar(name, to.span));
        };
        let number = number as u16;
        let (v, scalar) = self.value_of(of)?;
        let v = self.widen(v, &scalar);
        let v = match op {
            None => self.b.push(Op::SetVar(number, v), Width::W64),
            Some(Binary::Add | Binary::Sub) => {
                let by = if op == Some(Binary::Sub) {
                    let zero = self.b.constant(0, Width::W64);
                    self.b.bin(BinOp::Sub, zero, v)
                } else {
                    v
                };
                let new = self.b.push(Op::AddVar(number, by), Width::W64);
                if after == After::Old { self.b.bin(BinOp::Sub, new, by) } else { new }
            }
            Some(op) => {
                let old = self.b.push(Op::GetVar(number), Width::W64);
                let (sum, _) = self.arithmetic(op, (old, Int::LONG), (v, Int::LONG), span)?;
                self.b.push(Op::SetVar(number, sum), Width::W64)
            }
        };
        Ok(self.int(v, Int::LONG))
    }
}
