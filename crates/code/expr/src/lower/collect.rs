// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles expressions whose values are collected: numbers as values, strings by content, structures and arrays as
//! bytes.

use crate::ast::{Expr, Tag};
use crate::ctype::{self, Def, Int, Ty};
use crate::error::{Error, Result};
use crate::ir::{Func, Input, Op, Term, Width};
use crate::parse::parse;
use crate::scope::{Location, Storage};

use super::elements::Elements;
use super::{Env, Lower, Operand, Scalar, Use, is_type};

/// Meaning of a collected expression's return value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The value, extended to 64 bits.
    Value,
    /// The address of this many bytes.
    Memory(u64),
    /// The value has this many bytes, computed in parts.
    Parts(u64),
    /// The address of a string that ends at its zero byte or at the end of its array.
    Text(Option<u64>),
    /// The address of the first element. The function of the first part returns the number of elements.
    Elements(Elements),
    /// Unused: the value is the task's name.
    Comm,
}

/// A part of a value that is not in memory as a whole.
#[derive(Debug, Clone)]
pub struct Part {
    /// Offset in the value, in bytes.
    pub at: u64,
    /// Size in bytes, at most 8.
    pub size: u64,
    /// Computes the part; None if its bytes are not available.
    pub func: Option<Func>,
}

/// Limit of parts of one value.
const MOST_PARTS: usize = 64;

/// An expression to collect.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The function, not optimised.
    pub func: Func,
    /// Meaning of the function's return value.
    pub what: What,
    /// For a value in parts, these in order. For elements, one part: their number.
    pub parts: Vec<Part>,
    /// The expression's type.
    pub ty: Ty,
    /// The type in C syntax.
    pub shown: String,
    /// Names that the expression uses, in order.
    pub uses: Vec<Use>,
}

/// Compiles an expression for collection.
pub fn collect(source: &str, env: Env<'_>) -> Result<Collected> {
    let expr = parse(source, &|n| is_type(env, n))?;
    let mut lower = Lower::new(env);
    let operand = lower.expr(&expr)?;
    let shown = lower.type_name(&operand);
    let ty = match &operand {
        Operand::Value(_, _, ty) | Operand::Memory { ty, .. } | Operand::Parts { ty, .. } => ty.clone(),
        Operand::Text(_) | Operand::Comm => Ty::Array(std::rc::Rc::new(Ty::Int(Int::CHAR)), Some(16)),
        Operand::Container => {
            // Views turn the cgroup's number into the container's id.
            let v = lower.b.push(Op::Input(Input::Cgroup), Width::W64);
            lower.b.end(Term::Return(v));
            let (func, ty) = (lower.b.finish(), Ty::Int(Int::ULONG));
            return Ok(Collected { func, what: What::Value, parts: Vec::new(), ty, shown, uses: lower.uses });
        }
        Operand::Nothing => return Err(Error::new(expr.span, "`void` has no value to collect")),
    };
    if let Some(of) = lower.elements_of(&operand, expr.span)? {
        return counted(&expr, env, (ty, shown), of);
    }
    let (v, what) = match lower.resolve(&ty, expr.span)? {
        _ if matches!(operand, Operand::Comm) => (lower.b.constant(0, crate::ir::Width::W64), What::Comm),
        Def::Plain(Ty::Array(of, count)) if is_char(&lower, &of) && !is_scattered(&operand) => {
            (lower.place_of(operand, expr.span)?, What::Text(count))
        }
        Def::Plain(Ty::Array(_, None)) => {
            let what = format!("the length of `{}` is known only when it runs", source.trim());
            return Err(Error::new(expr.span, what).help(format!(
                "collect its elements (`{0}[0]`), or give it a length: `*(int (*)[4]){0}`",
                source.trim()
            )));
        }
        Def::Plain(Ty::Array(_, Some(_))) | Def::Record(_) | Def::Float(..) | Def::Wide(..)
            if is_scattered(&operand) =>
        {
            let size = lower.size_of(&ty, expr.span)?;
            return scattered(source, &expr, env, (ty, shown, size));
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
    Ok(Collected { func: lower.b.finish(), what, parts: Vec::new(), ty, shown, uses: lower.uses })
}

/// Compiles elements behind an address: one function for the address, one for the number.
fn counted(expr: &Expr, env: Env<'_>, of: (Ty, String), elements: Elements) -> Result<Collected> {
    let (ty, shown) = of;
    let mut uses = Vec::new();
    let mut word = |is_count: bool| {
        let mut lower = Lower::new(env);
        let operand = lower.expr(expr)?;
        let v = match is_count {
            true => lower.count_of(&operand, &elements, expr.span)?,
            false => lower.address_of(&operand, &elements, expr.span)?,
        };
        lower.b.end(Term::Return(v));
        uses = lower.uses;
        Ok::<_, Error>(lower.b.finish())
    };
    let (func, count) = (word(false)?, word(true)?);
    let parts = vec![Part { at: 0, size: 8, func: Some(count) }];
    Ok(Collected { func, what: What::Elements(elements), parts, ty, shown, uses })
}

/// Returns true if the operand is not in memory as a whole and so has no address.
fn is_scattered(operand: &Operand) -> bool {
    match operand {
        Operand::Parts { location: Location::Whole(Storage::Memory(_) | Storage::Missing(..)), .. } => false,
        Operand::Parts { .. } => true,
        _ => false,
    }
}

/// Compiles a structure or array that is in registers or in several places: the parts that are available.
fn scattered(source: &str, expr: &Expr, env: Env<'_>, of: (Ty, String, u64)) -> Result<Collected> {
    let (ty, shown, size) = of;
    let mut leaves = Vec::new();
    flatten(&Lower::new(env), &ty, 0, 0, &mut leaves);
    leaves.sort_unstable();
    leaves.dedup();
    if leaves.len() > MOST_PARTS {
        let what = format!("`{}` is scattered over more than {MOST_PARTS} places", source.trim());
        return Err(Error::new(expr.span, what).help("collect members of it"));
    }
    let (mut parts, mut why, mut uses) = (Vec::new(), None, Vec::new());
    for (at, bytes) in leaves {
        let mut lower = Lower::new(env);
        let operand = lower.expr(expr)?;
        let Operand::Parts { location, from, name, .. } = operand else { continue };
        let func = match lower.part(&location, from + 8 * at, 8 * bytes, &name, expr.span) {
            Ok(v) => {
                let v = match bytes {
                    8 => v,
                    n => lower.b.ext(v, 8 * n as u8, false, crate::ir::Width::W64),
                };
                lower.b.end(Term::Return(v));
                uses = lower.uses;
                Some(lower.b.finish())
            }
            Err(error) => {
                why.get_or_insert(error);
                None
            }
        };
        parts.push(Part { at, size: bytes, func });
    }
    let Some(func) = parts.iter().find_map(|part| part.func.clone()) else {
        let none = || Error::new(expr.span, format!("`{}` has no bytes", source.trim()));
        return Err(why.unwrap_or_else(none));
    };
    Ok(Collected { func, what: What::Parts(size), parts, ty, shown, uses })
}

/// Lists the scalar leaves of a type: offset and size in bytes.
fn flatten(lower: &Lower<'_>, ty: &Ty, at: u64, depth: usize, leaves: &mut Vec<(u64, u64)>) {
    if depth > 16 || leaves.len() > MOST_PARTS {
        return;
    }
    let size = ctype::size_of(lower.types(), ty).ok().flatten().unwrap_or(0);
    let whole = |leaves: &mut Vec<(u64, u64)>| {
        let mut from = 0;
        while from < size && leaves.len() <= MOST_PARTS {
            let bytes = (size - from).min(8);
            leaves.push((at + from, bytes));
            from += bytes;
        }
    };
    match ctype::resolve(lower.types(), ty) {
        Ok(Def::Record(record)) if record.tag == Tag::Struct && record.choice.is_none() => {
            for member in &record.members {
                let first = at + member.offset / 8;
                match member.bits {
                    Some(bits) => {
                        let bytes = (member.offset % 8 + u64::from(bits)).div_ceil(8);
                        leaves.push((first, bytes.min(8)));
                    }
                    None => flatten(lower, &member.ty, first, depth + 1, leaves),
                }
            }
        }
        Ok(Def::Plain(Ty::Array(of, Some(count)))) => {
            let each = ctype::size_of(lower.types(), &of).ok().flatten().unwrap_or(0);
            if each == 1 {
                return whole(leaves);
            }
            for n in 0..count.min(MOST_PARTS as u64 + 1) {
                flatten(lower, &of, at + n * each, depth + 1, leaves);
            }
        }
        _ => whole(leaves),
    }
}

fn is_char(lower: &Lower<'_>, ty: &Ty) -> bool {
    let def = ctype::resolve(lower.types(), ty);
    matches!(def, Ok(Def::Plain(Ty::Int(int))) if int.size == 1 && !int.is_bool() && named_char(lower, ty))
}

/// Returns true for `char`, `unsigned char` and their typedefs, but not for `u8` or `uint8_t`: those are numbers.
fn named_char(lower: &Lower<'_>, ty: &Ty) -> bool {
    let shown = lower.show(ty);
    shown.contains("char") && !shown.contains("_t")
}
