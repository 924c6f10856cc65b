// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowering of arithmetic, comparisons and casts, with C's implicit conversions.

use std::rc::Rc;

use crate::ast::{Binary, Expr};
use crate::ctype::{Def, Int, Ty};
use crate::error::{Error, Result, Span};
use crate::ir::{BinOp, Cond, Target, Term, Val, Width};

use super::{Lower, Operand, Scalar};

impl Lower<'_> {
    /// Converts an integer from one type to another (C11 6.3.1.3).
    pub(super) fn convert(&mut self, v: Val, from: Int, to: Int) -> Val {
        if to.is_bool() && !from.is_bool() {
            let zero = self.b.constant(0, self.b.func.width(v));
            return self.b.cmp(Cond::Ne, v, zero);
        }
        let width = Scalar::Int(to).width();
        if to.size < 4 && (to.size < from.size || (to.size == from.size && to.signed != from.signed)) {
            return self.b.ext(v, to.bits(), to.signed, Width::W32);
        }
        if to.size < 4 && from.size < to.size && from.signed && !to.signed {
            return self.b.ext(v, to.bits(), false, Width::W32);
        }
        match (self.b.func.width(v), width) {
            (Width::W64, Width::W32) => self.b.ext(v, 32, false, Width::W32),
            // A narrow value is kept in 32 bits, extended by its own sign.
            (Width::W32, Width::W64) => self.b.ext(v, 32, from.signed, Width::W64),
            _ => v,
        }
    }

    pub(super) fn widen(&mut self, v: Val, scalar: &Scalar) -> Val {
        match scalar {
            Scalar::Int(int) => {
                let to = Int::of(8, int.signed);
                self.convert(v, *int, to)
            }
            Scalar::Ptr(_) => v,
        }
    }

    pub(super) fn cast(&mut self, from: Operand, to: &Ty, span: Span, at: Span) -> Result<Operand> {
        let shown = self.show(to);
        match self.resolve(to, at)? {
            Def::Plain(Ty::Void) => {
                if let Operand::Memory { .. } | Operand::Parts { .. } = &from
                    && self.is_scalar(&from, span)?
                {
                    self.rvalue(from, span)?;
                }
                Ok(Operand::Nothing)
            }
            Def::Plain(Ty::Int(int)) => self.cast_int(from, int, to, span),
            Def::Enum(e) => self.cast_int(from, e.int, to, span),
            Def::Plain(Ty::Ptr(target)) => {
                let (v, scalar) = self.rvalue(from, span)?;
                let v = self.widen(v, &scalar);
                Ok(Operand::Value(v, Scalar::Ptr(target), to.clone()))
            }
            Def::Float(..) => Err(Error::new(at, "floating-point numbers cannot be computed in a probe")),
            _ => Err(Error::new(at, format!("nothing can be cast to `{shown}`"))
                .help(format!("cast a pointer: `*({shown} *)…`"))),
        }
    }

    fn cast_int(&mut self, from: Operand, int: Int, to: &Ty, span: Span) -> Result<Operand> {
        let (v, scalar) = self.rvalue(from, span)?;
        let v = match scalar {
            Scalar::Int(old) => self.convert(v, old, int),
            Scalar::Ptr(_) => self.convert(v, Int::ULONG, int),
        };
        Ok(Operand::Value(v, Scalar::Int(int), to.clone()))
    }

    pub(super) fn choice(&mut self, cond: &Expr, a: &Expr, b: &Expr, span: Span) -> Result<Operand> {
        let (yes, no, end) = (self.b.block(), self.b.block(), self.b.block());
        self.branch(cond, yes, no)?;
        // The result type depends on both sides. So both are lowered first, and converted at the ends of their blocks.
        let mut sides = Vec::new();
        for (block, e) in [(yes, a), (no, b)] {
            self.b.place(block);
            let operand = self.expr(e)?;
            let ty = match &operand {
                Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => {
                    ty.clone()
                }
                _ => Ty::Void,
            };
            let (v, scalar) = self.rvalue(operand, e.span)?;
            let ty = if let Scalar::Ptr(to) = &scalar { Ty::Ptr(to.clone()) } else { ty };
            sides.push((self.b.here(), v, scalar, ty));
        }
        let [(_, _, sa, ta), (_, _, sb, tb)] = &sides[..] else {
            return Err(Error::new(span, "this has no value"));
        };
        let null = |e: &Expr| matches!(&e.kind, crate::ast::Kind::Number(n) if n.value == 0);
        let (scalar, ty) = match (sa, sb) {
            (Scalar::Int(x), Scalar::Int(y)) => {
                let int = x.common(*y);
                let same = if ta == tb && int == *x { ta.clone() } else { Ty::Int(int) };
                (Scalar::Int(int), same)
            }
            (Scalar::Ptr(_), Scalar::Ptr(to)) if matches!(self.resolve(to, span)?, Def::Plain(Ty::Void)) => {
                (sb.clone(), tb.clone())
            }
            (Scalar::Ptr(_), Scalar::Ptr(_)) => (sa.clone(), ta.clone()),
            (Scalar::Ptr(_), Scalar::Int(_)) if null(b) => (sa.clone(), ta.clone()),
            (Scalar::Int(_), Scalar::Ptr(_)) if null(a) => (sb.clone(), tb.clone()),
            _ => {
                return Err(Error::new(span, "one side is a pointer, the other is not")
                    .help("cast one of them, so that both sides of `:` have one type"));
            }
        };
        let param = self.b.param(end, scalar.width());
        for (block, v, from, _) in sides {
            self.b.resume(block);
            let v = match (&from, &scalar) {
                (Scalar::Int(from), Scalar::Int(to)) => self.convert(v, *from, *to),
                (from, _) => self.widen(v, from),
            };
            self.b.end(Term::Jump(Target { block: end, args: vec![v] }));
        }
        self.b.place(end);
        Ok(Operand::Value(param, scalar, ty))
    }

    pub(super) fn binary(&mut self, op: Binary, a: &Expr, b: &Expr, span: Span) -> Result<Operand> {
        let left = self.expr(a)?;
        if matches!(op, Binary::Eq | Binary::Ne) {
            // A comparison with a string literal compares contents.
            let right_text =
                if let crate::ast::Kind::Text(text) = &b.kind { Some(text.clone()) } else { None };
            let found = match (left.clone(), right_text) {
                (operand, Some(text)) => Some(self.text_eq(operand, &text, a.span)?),
                (Operand::Text(text), None) => {
                    let right = self.expr(b)?;
                    Some(self.text_eq(right, &text, b.span)?)
                }
                _ => None,
            };
            if let Some(v) = found {
                let want = self.b.constant(0, Width::W32);
                let v = if op == Binary::Ne { self.b.cmp(Cond::Eq, v, want) } else { v };
                return Ok(self.int(v, Int::INT));
            }
        }
        let compares =
            matches!(op, Binary::Eq | Binary::Ne | Binary::Lt | Binary::Gt | Binary::Le | Binary::Ge);
        let is_left = self.is_array(&left, a.span)?;
        let (va, ta) = self.rvalue(left, a.span)?;
        let right = self.expr(b)?;
        let arrays = [is_left, self.is_array(&right, b.span)?];
        let (vb, tb) = self.rvalue(right, b.span)?;
        // In C its address would be compared, which is never what is asked.
        let of_number = match (arrays, &ta, &tb) {
            ([true, false], _, Scalar::Int(_)) => Some(a.span),
            ([false, true], Scalar::Int(_), _) => Some(b.span),
            _ => None,
        };
        if let Some(array) = of_number.filter(|_| compares) {
            return Err(Error::new(array, "an array is no number").help("compare an element of it: `…[0]`"));
        }
        match (ta, tb) {
            (Scalar::Int(x), Scalar::Int(y)) => {
                let (v, int) = self.arithmetic(op, (va, x), (vb, y), span)?;
                Ok(self.int(v, int))
            }
            (Scalar::Ptr(x), Scalar::Int(y)) if matches!(op, Binary::Add | Binary::Sub) => {
                let by = self.scaled(vb, y, &x, span)?;
                let op = if op == Binary::Add { BinOp::Add } else { BinOp::Sub };
                let v = self.b.bin(op, va, by);
                Ok(Operand::Value(v, Scalar::Ptr(x.clone()), Ty::Ptr(x)))
            }
            (Scalar::Int(x), Scalar::Ptr(y)) if op == Binary::Add => {
                let by = self.scaled(va, x, &y, span)?;
                let v = self.b.bin(BinOp::Add, by, vb);
                Ok(Operand::Value(v, Scalar::Ptr(y.clone()), Ty::Ptr(y)))
            }
            (Scalar::Ptr(x), Scalar::Ptr(_)) if op == Binary::Sub => {
                let size = self.size_of(&x, span)?.max(1);
                let v = self.b.bin(BinOp::Sub, va, vb);
                let size = self.b.constant(size, Width::W64);
                let v = self.b.bin(BinOp::SDiv, v, size);
                Ok(self.int(v, Int::LONG))
            }
            (ta, tb) if compares => {
                let va = self.widen(va, &ta);
                let vb = self.widen(vb, &tb);
                let v = self.compare(op, va, vb, false);
                Ok(self.int(v, Int::INT))
            }
            _ => Err(Error::new(span, "a pointer cannot be computed with like this")
                .help("cast it: `(unsigned long)…`")),
        }
    }

    /// True if an operand is an array.
    fn is_array(&mut self, operand: &Operand, span: Span) -> Result<bool> {
        match operand {
            Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => {
                Ok(matches!(self.resolve(ty, span)?, Def::Plain(Ty::Array(..))))
            }
            _ => Ok(false),
        }
    }

    /// Converts a number of elements to bytes.
    pub(super) fn scaled(&mut self, v: Val, int: Int, to: &Rc<Ty>, span: Span) -> Result<Val> {
        let size = self.size_of(to, span)?;
        let v = self.widen(v, &Scalar::Int(int));
        let size = self.b.constant(size, Width::W64);
        Ok(self.b.bin(BinOp::Mul, v, size))
    }

    fn compare(&mut self, op: Binary, a: Val, b: Val, signed: bool) -> Val {
        let (less, at_most) = if signed { (Cond::Slt, Cond::Sle) } else { (Cond::Ult, Cond::Ule) };
        match op {
            Binary::Eq => self.b.cmp(Cond::Eq, a, b),
            Binary::Ne => self.b.cmp(Cond::Ne, a, b),
            Binary::Lt => self.b.cmp(less, a, b),
            Binary::Gt => self.b.cmp(less, b, a),
            Binary::Le => self.b.cmp(at_most, a, b),
            _ => self.b.cmp(at_most, b, a),
        }
    }

    /// Lowers a binary operator on two integers.
    pub(super) fn arithmetic(
        &mut self,
        op: Binary,
        (a, x): (Val, Int),
        (b, y): (Val, Int),
        span: Span,
    ) -> Result<(Val, Int)> {
        if matches!(op, Binary::Shl | Binary::Shr) {
            let int = x.promoted();
            let v = self.convert(a, x, int);
            let count = self.convert(b, y, Int::of(int.size, y.promoted().signed));
            if let Some(n) = self.b.func.constant(count)
                && n >= u64::from(int.bits())
            {
                return Err(Error::new(
                    span,
                    format!("a shift of `{}` by {n} has no meaning in C", int.name()),
                ));
            }
            let op = match (op, int.signed) {
                (Binary::Shl, _) => BinOp::Shl,
                (_, true) => BinOp::Sar,
                (_, false) => BinOp::Shr,
            };
            return Ok((self.b.bin(op, v, count), int));
        }
        let int = x.common(y);
        let a = self.convert(a, x, int);
        let b = self.convert(b, y, int);
        let bin = match (op, int.signed) {
            (Binary::Mul, _) => BinOp::Mul,
            (Binary::Div, true) => BinOp::SDiv,
            (Binary::Div, false) => BinOp::UDiv,
            (Binary::Rem, true) => BinOp::SRem,
            (Binary::Rem, false) => BinOp::URem,
            (Binary::Add, _) => BinOp::Add,
            (Binary::Sub, _) => BinOp::Sub,
            (Binary::And, _) => BinOp::And,
            (Binary::Or, _) => BinOp::Or,
            (Binary::Xor, _) => BinOp::Xor,
            _ => return Ok((self.compare(op, a, b, int.signed), Int::INT)),
        };
        Ok((self.b.bin(bin, a, b), int))
    }
}
