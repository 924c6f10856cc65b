// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expressions whose values are collected: numbers as they are, strings by content, structures and arrays as bytes.

use crate::ctype::{self, Def, Int, Ty};
use crate::error::{Error, Result};
use crate::ir::{Func, Term};
use crate::parse::parse;

use super::{Env, Lower, Operand, Scalar, Use, is_type};

/// What the function of a collected expression returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The value, extended to 64 bits.
    Value,
    /// The address of so many bytes.
    Memory(u64),
    /// The address of a string: up to its zero byte, or the end of its array.
    Text(Option<u64>),
    /// Nothing that matters: it is the task's name.
    Comm,
}

/// An expression to collect.
#[derive(Debug, Clone)]
pub struct Collected {
    /// What it does, not optimised yet.
    pub func: Func,
    /// What that returns.
    pub what: What,
    /// The expression's type.
    pub ty: Ty,
    /// The same in C.
    pub shown: String,
    /// What it names, in order.
    pub uses: Vec<Use>,
}

/// Compiles it.
pub fn collect(source: &str, env: Env<'_>) -> Result<Collected> {
    let expr = parse(source, &|n| is_type(env, n))?;
    let mut lower = Lower::new(env);
    let operand = lower.expr(&expr)?;
    let shown = lower.type_name(&operand);
    let ty = match &operand {
        Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => ty.clone(),
        Operand::Text(_) | Operand::Comm => Ty::Array(std::rc::Rc::new(Ty::Int(Int::CHAR)), Some(16)),
        Operand::Nothing => return Err(Error::new(expr.span, "`void` has no value to collect")),
    };
    let (v, what) = match lower.resolve(&ty, expr.span)? {
        _ if matches!(operand, Operand::Comm) => (lower.b.constant(0, crate::ir::Width::W64), What::Comm),
        Def::Plain(Ty::Array(of, count)) if is_char(&lower, &of) => {
            (lower.place_of(operand, expr.span)?, What::Text(count))
        }
        Def::Plain(Ty::Array(_, Some(_))) | Def::Record(_) | Def::Float(..) | Def::Wide(..) => {
            let size = lower.size_of(&ty, expr.span)?;
            (lower.place_of(operand, expr.span)?, What::Memory(size))
        }
        _ => {
            let (v, scalar) = lower.rvalue(operand, expr.span)?;
            let what = match &scalar {
                Scalar::Ptr(to) if is_char(&lower, to) => What::Text(None),
                _ => What::Value,
            };
            (lower.widen(v, &scalar), what)
        }
    };
    lower.b.end(Term::Return(v));
    Ok(Collected { func: lower.b.finish(), what, ty, shown, uses: lower.uses })
}

fn is_char(lower: &Lower<'_>, ty: &Ty) -> bool {
    let def = ctype::resolve(lower.types(), ty);
    matches!(def, Ok(Def::Plain(Ty::Int(int))) if int.size == 1 && !int.is_bool() && named_char(lower, ty))
}

/// `char`, `unsigned char` and their typedefs, but not `u8`, `uint8_t`: those are numbers, and their arrays data.
fn named_char(lower: &Lower<'_>, ty: &Ty) -> bool {
    let shown = lower.show(ty);
    shown.contains("char") && !shown.contains("_t")
}
