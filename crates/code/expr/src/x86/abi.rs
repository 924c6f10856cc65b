// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameter and result passing in the System V calling convention of AMD64 (3.2.3).

use std::rc::Rc;

use crate::ctype::{Def, Ty, Types, resolve, size_of};
use crate::scope::{Location, Piece, Storage, Sym};
use crate::x86::regs::{ARGUMENTS, Reg};

/// Class of a type in the calling convention.
enum Class {
    /// In this many general registers.
    Integer(usize),
    /// In vector registers.
    Float,
    /// By its address, in a general register.
    Reference,
    /// In memory, with this size in bytes.
    Memory(u64),
}

fn class(types: &dyn Types, ty: &Ty) -> Class {
    match resolve(types, ty) {
        Ok(Def::Plain(Ty::Int(_) | Ty::Ptr(_)) | Def::Enum(_) | Def::Reference(_)) => Class::Integer(1),
        Ok(Def::Record(record)) if record.by_reference => Class::Reference,
        Ok(Def::Wide(_, 16)) => Class::Integer(2),
        Ok(Def::Float(_, size)) if size <= 8 => Class::Float,
        Ok(Def::Record(record)) if record.size <= 16 && record.size > 0 => {
            if floats(types, ty, &mut Vec::new()) {
                Class::Float
            } else {
                Class::Integer(record.size.div_ceil(8) as usize)
            }
        }
        _ => Class::Memory(size_of(types, ty).ok().flatten().unwrap_or(8)),
    }
}

/// Returns true if the type contains a floating-point number: then part of it is in a vector register. `seen` holds the
/// types already visited; a type of sixteen bytes contains few.
fn floats(types: &dyn Types, ty: &Ty, seen: &mut Vec<Ty>) -> bool {
    if seen.contains(ty) || seen.len() > 64 {
        return false;
    }
    seen.push(ty.clone());
    match resolve(types, ty) {
        Ok(Def::Float(..)) => true,
        Ok(Def::Plain(Ty::Array(of, _))) => floats(types, &of, seen),
        Ok(Def::Record(record)) => record.members.iter().any(|m| floats(types, &m.ty, seen)),
        _ => false,
    }
}

fn registers(regs: &[Reg]) -> Location {
    let spot = |reg: &Reg| Storage::Value(Rc::new(Sym::Reg(*reg)));
    match regs {
        [one] => Location::Whole(spot(one)),
        _ => Location::Pieces(regs.iter().map(|r| Piece { bits: 64, offset: 0, at: spot(r) }).collect()),
    }
}

fn vector() -> Location {
    let why = "passed in a vector register, which a probe cannot read".to_owned();
    Location::Whole(Storage::Missing(why, None))
}

/// Returns the location of each parameter at the function's first instruction.
pub(crate) fn parameters(types: &dyn Types, returned: &Ty, all: &[Ty]) -> Vec<Location> {
    let mut next = 0;
    // A result returned in memory takes the first argument register for its address.
    if let Class::Memory(_) | Class::Reference = class(types, returned)
        && !matches!(resolve(types, returned), Ok(Def::Plain(Ty::Void)))
    {
        next = 1;
    }
    // The first stack argument is above the return address.
    let mut stack = 8;
    let mut out = Vec::new();
    for ty in all {
        out.push(match class(types, ty) {
            Class::Integer(n) if next + n <= ARGUMENTS.len() => {
                next += n;
                registers(&ARGUMENTS[next - n..next])
            }
            Class::Reference if next < ARGUMENTS.len() => {
                next += 1;
                Location::Whole(Storage::Memory(Rc::new(Sym::Reg(ARGUMENTS[next - 1]))))
            }
            Class::Reference => {
                let at = Rc::new(Sym::Reg(Reg::Rsp)).plus(stack);
                stack += 8;
                Location::Whole(Storage::Memory(Rc::new(Sym::Deref(at, 8))))
            }
            Class::Float => vector(),
            Class::Integer(n) => {
                let at = stack;
                stack += 8 * n as u64;
                Location::Whole(Storage::Memory(Rc::new(Sym::Reg(Reg::Rsp)).plus(at)))
            }
            Class::Memory(size) => {
                let at = stack;
                stack = stack.saturating_add(size.div_ceil(8).saturating_mul(8));
                Location::Whole(Storage::Memory(Rc::new(Sym::Reg(Reg::Rsp)).plus(at)))
            }
        });
    }
    out
}

/// Returns the location of the result after the function returned.
pub(crate) fn returned(types: &dyn Types, ty: &Ty) -> Location {
    match class(types, ty) {
        Class::Integer(1) => registers(&[Reg::Rax]),
        Class::Integer(_) => registers(&[Reg::Rax, Reg::Rdx]),
        Class::Float => vector(),
        Class::Memory(_) | Class::Reference => Location::Whole(Storage::Memory(Rc::new(Sym::Reg(Reg::Rax)))),
    }
}

/// Returns the location of the object whose address is at `location`.
pub(crate) fn behind(location: Location) -> Location {
    let spot = match location {
        Location::Whole(Storage::Value(address)) => Storage::Memory(address),
        Location::Whole(Storage::Memory(at)) => Storage::Memory(Rc::new(Sym::Deref(at, 8))),
        other => return other,
    };
    Location::Whole(spot)
}

/// Returns true for types that take at most one register. Languages with a calling convention of their own pass these
/// as C does.
pub(crate) fn is_single(types: &dyn Types, ty: &Ty) -> bool {
    matches!(
        resolve(types, ty),
        Ok(Def::Plain(Ty::Int(_) | Ty::Ptr(_) | Ty::Void) | Def::Enum(_) | Def::Reference(_))
    )
}

/// Converts a parameter's location at entry to its location after the return. Argument registers become the values that
/// a paired probe saved at entry.
pub(crate) fn after_return(location: Location) -> Location {
    let spot = |spot| match spot {
        Storage::Value(sym) => match *sym {
            Sym::Reg(reg) => Storage::Value(Rc::new(Sym::Entry(reg))),
            Sym::Const(_) => Storage::Value(sym),
            _ => Storage::Missing("known only where the function begins".to_owned(), None),
        },
        // An object passed by address exists for as long as the call.
        Storage::Memory(sym) if matches!(*sym, Sym::Reg(reg) if reg != Reg::Rsp) => match *sym {
            Sym::Reg(reg) => Storage::Memory(Rc::new(Sym::Entry(reg))),
            _ => Storage::Memory(sym),
        },
        Storage::Memory(_) => {
            Storage::Missing("passed in memory, which the function may have changed".to_owned(), None)
        }
        other => other,
    };
    match location {
        Location::Whole(at) => Location::Whole(spot(at)),
        Location::Pieces(mut pieces) => {
            for piece in &mut pieces {
                piece.at = spot(piece.at.clone());
            }
            Location::Pieces(pieces)
        }
    }
}
