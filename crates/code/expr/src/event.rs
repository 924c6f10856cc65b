// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two scopes at a static tracepoint. [`EventScope`] names what the tracepoint passes on: the fields of its record, or
//! its arguments. [`CallerScope`] names the variables of the function that contains it, as far as saved registers give them.
//!
//! Each is a [`Scope`] around another one, which supplies types and globals.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::ast::Tag;
use crate::ctype::{Def, Int, Ty, TypeRef, Types, resolve, size_of};
use crate::ir::{BinOp, Space};
use crate::regs::Reg;
use crate::scope::{Callers, Location, Role, Scope, Storage, Sym, Variable};

/// A field of a tracepoint's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Field name, as in the event's format file.
    pub name: String,
    /// Type as the kernel spells it; for an array, the type of its elements.
    pub kind: String,
    /// Offset in the record, in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Whether the kernel calls the number signed, if it says so.
    pub signed: Option<bool>,
    /// True if it is declared with a length in brackets.
    pub is_array: bool,
}

/// Encoding of a field's location (`__data_loc`, `__rel_loc`). The low 16 bits of the field's word are a distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dynamic {
    /// The field holds the data itself.
    No,
    /// `__data_loc`: the distance counts from the beginning of the record.
    Record,
    /// `__rel_loc`: the distance counts from the end of the word.
    Behind,
}

/// Parses a type as C spells it: words and stars.
fn spelled(types: &dyn Types, text: &str) -> Option<Ty> {
    let stars = text.matches('*').count();
    let words: Vec<&str> = text
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|w| !w.is_empty() && !matches!(*w, "const" | "volatile" | "__user" | "__rcu" | "__iomem"))
        .collect();
    let tagged = |tag, name: &str| types.find(tag, name).ok().flatten();
    let plain = |word: &&str| matches!(*word, "unsigned" | "signed" | "int" | "long" | "short" | "char");
    let base = match words[..] {
        ["struct", name] => tagged(Tag::Struct, name),
        ["union", name] => tagged(Tag::Union, name),
        ["enum", name] => tagged(Tag::Enum, name),
        ["void"] => Some(Ty::Void),
        ["bool" | "_Bool"] => Some(Ty::Int(Int::BOOL)),
        ["char"] => Some(Ty::Int(Int::CHAR)),
        [] => None,
        _ if words.iter().all(plain) => {
            let has = |word| words.contains(&word);
            let size = match () {
                () if has("char") => 1,
                () if has("short") => 2,
                () if has("long") => 8,
                () => 4,
            };
            Some(Ty::Int(Int::of(size, !has("unsigned"))))
        }
        [name] => tagged(Tag::Typedef, name),
        _ => None,
    };
    match (base, stars) {
        (base, 0) => base,
        (base, _) => Some((0..stars).fold(base.unwrap_or(Ty::Void), |ty, _| Ty::Ptr(Rc::new(ty)))),
    }
}

fn typed(types: &dyn Types, field: &Field) -> (Ty, Dynamic) {
    let (kind, dynamic) = match field.kind.split_once(' ') {
        Some(("__data_loc", kind)) => (kind, Dynamic::Record),
        Some(("__rel_loc", kind)) => (kind, Dynamic::Behind),
        _ => (field.kind.as_str(), Dynamic::No),
    };
    let kind = kind.trim_end_matches("[]").trim();
    let unsigned = kind.contains("unsigned") || kind.starts_with('u') || kind.starts_with("__u");
    let signed = field.signed.unwrap_or(!unsigned);
    let found = spelled(types, kind);
    if dynamic != Dynamic::No {
        return (Ty::Array(Rc::new(found.unwrap_or(Ty::Int(Int::UCHAR))), None), dynamic);
    }
    let size = u64::from(field.size);
    let each = found.as_ref().and_then(|ty| size_of(types, ty).ok().flatten());
    let bytes = || Ty::Array(Rc::new(Ty::Int(Int::UCHAR)), Some(size));
    let ty = match (found, each, field.is_array) {
        // A system call's argument has a word of its own, whatever its type, of which the kernel takes the lower bytes.
        (Some(ty), Some(1..), false) if each <= Some(size) => ty,
        (Some(ty), Some(each @ 1..), true) if size.is_multiple_of(each) => {
            Ty::Array(Rc::new(ty), Some(size / each))
        }
        (_, _, false) if matches!(size, 1 | 2 | 4 | 8) => Ty::Int(Int::of(size as u8, signed)),
        _ => bytes(),
    };
    (ty, dynamic)
}

/// The context that a tracepoint passes to a program.
#[derive(Debug, Clone, Copy)]
pub enum Context<'s> {
    /// The record, with these fields.
    Record(&'s [Field]),
    /// The array of the tracepoint's arguments.
    Arguments,
}

/// Scope of a program attached to a tracepoint.
pub struct EventScope<'s> {
    /// Supplies types and globals. For [`Context::Arguments`], the entry of `__traceiter_NAME`: its parameters after the
    /// first are the tracepoint's arguments.
    pub inner: &'s dyn Scope,
    /// `SYSTEM:NAME`.
    pub event: &'s str,
    /// Contents of the program's context.
    pub context: Context<'s>,
}

/// Scope of the function that contains a tracepoint, as far as saved registers give its variables. The program's
/// context is the array of the tracepoint's arguments.
pub struct CallerScope<'s> {
    /// Scope at the tracepoint's call.
    pub inner: &'s dyn Scope,
    /// Expressions for the registers' values there.
    pub registers: &'s BTreeMap<Reg, Rc<Sym>>,
}

/// The callers of a tracepoint. The function around it is one of them, and how many functions of the kernel lie between it and
/// the program differs from kernel to kernel.
const OF_TRACEPOINT: Callers = Callers { skip: 0, direct: None, counted: false };

impl EventScope<'_> {
    fn field(&self, field: &Field) -> Variable {
        let (ty, dynamic) = typed(self.inner, field);
        let own = Rc::new(Sym::Context).plus(u64::from(field.offset));
        let low = |from: &Rc<Sym>| {
            let word = Rc::new(Sym::Deref(own.clone(), 4));
            let distance = Rc::new(Sym::Bin(BinOp::And, word, Rc::new(Sym::Const(0xffff))));
            Rc::new(Sym::Bin(BinOp::Add, from.clone(), distance))
        };
        let at = match dynamic {
            Dynamic::No => own,
            Dynamic::Record => low(&Rc::new(Sym::Context)),
            Dynamic::Behind => low(&own.plus(4)),
        };
        let location = Location::Whole(Storage::Memory(at));
        Variable { name: field.name.clone(), ty, location, role: Role::Parameter }
    }

    fn parameters(&self) -> Vec<Variable> {
        let parameter = |name: String| self.inner.variable(&name).ok()?.filter(|v| v.role == Role::Parameter);
        self.inner.names().into_iter().filter_map(parameter).collect()
    }

    fn argument(&self, name: &str) -> Option<Variable> {
        let all = self.parameters();
        // The first parameter is the iterator's own.
        let at = all.iter().position(|v| v.name == name).filter(|at| (1..=12).contains(at))?;
        let location = match resolve(self.inner, &all[at].ty) {
            Ok(Def::Record(_)) => {
                let why = "a structure passed by value, which a probe here cannot read".to_owned();
                Location::Whole(Storage::Missing(why, None))
            }
            _ => Location::Whole(Storage::Value(Rc::new(Sym::Arg(at as u8 - 1)))),
        };
        Some(Variable { location, ..all[at].clone() })
    }
}

impl Scope for EventScope<'_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let own = match self.context {
            Context::Record(fields) => fields.iter().find(|f| f.name == name).map(|f| self.field(f)),
            Context::Arguments => self.argument(name),
        };
        let outside = |v: &Variable| matches!(v.role, Role::Global | Role::Function);
        match own {
            Some(own) => Ok(Some(own)),
            None => Ok(self.inner.variable(name)?.filter(outside)),
        }
    }

    fn names(&self) -> Vec<String> {
        match self.context {
            Context::Record(fields) => fields.iter().map(|f| f.name.clone()).collect(),
            Context::Arguments => self.parameters().into_iter().skip(1).map(|v| v.name).collect(),
        }
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        self.inner.enumerator(name)
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        Err("a tracepoint returns nothing".to_owned())
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        Err("a tracepoint has no frame".to_owned())
    }

    fn space(&self) -> Space {
        Space::Kernel
    }

    fn has_registers(&self) -> bool {
        false
    }

    fn callers(&self) -> Result<Callers, String> {
        Ok(OF_TRACEPOINT)
    }

    fn describe(&self) -> String {
        let what = match self.context {
            Context::Record(_) => "record",
            Context::Arguments => "arguments",
        };
        format!("{}, its {what}", self.event)
    }
}

impl CallerScope<'_> {
    fn moved(&self, sym: &Sym) -> Result<Rc<Sym>, String> {
        Ok(match sym {
            Sym::Reg(reg) => {
                let lost = || format!("in {} here, which nothing kept", reg.name());
                self.registers.get(reg).cloned().ok_or_else(lost)?
            }
            Sym::Entry(reg) => return Err(format!("what {} was at entry, which nothing kept", reg.name())),
            Sym::Deref(at, size) => Rc::new(Sym::Deref(self.moved(at)?, *size)),
            Sym::Bin(op, a, b) => Rc::new(Sym::Bin(*op, self.moved(a)?, self.moved(b)?)),
            Sym::Ext(a, bits, signed) => Rc::new(Sym::Ext(self.moved(a)?, *bits, *signed)),
            Sym::Cmp(cond, a, b) => Rc::new(Sym::Cmp(*cond, self.moved(a)?, self.moved(b)?)),
            Sym::Const(_) | Sym::Address(_) | Sym::Cpu | Sym::Arg(_) | Sym::Context => Rc::new(sym.clone()),
        })
    }

    fn spot(&self, spot: &Storage) -> Storage {
        let found = match spot {
            Storage::Memory(sym) => self.moved(sym).map(Storage::Memory),
            Storage::Value(sym) => self.moved(sym).map(Storage::Value),
            other => Ok(other.clone()),
        };
        found.unwrap_or_else(|why| Storage::Missing(why, None))
    }
}

impl Scope for CallerScope<'_> {
    fn variable(&self, name: &str) -> Result<Option<Variable>, String> {
        let Some(mut variable) = self.inner.variable(name)? else { return Ok(None) };
        match &mut variable.location {
            Location::Whole(spot) => *spot = self.spot(spot),
            Location::Pieces(pieces) => {
                for piece in pieces {
                    piece.at = self.spot(&piece.at);
                }
            }
        }
        Ok(Some(variable))
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn enumerator(&self, name: &str) -> Result<Option<(Ty, i64)>, String> {
        self.inner.enumerator(name)
    }

    fn returned(&self) -> Result<(Ty, Location), String> {
        self.inner.returned()
    }

    fn frame(&self) -> Result<Rc<Sym>, String> {
        let frame = self.inner.frame()?;
        self.moved(&frame)
    }

    fn space(&self) -> Space {
        Space::Kernel
    }

    fn has_registers(&self) -> bool {
        false
    }

    fn callers(&self) -> Result<Callers, String> {
        Ok(OF_TRACEPOINT)
    }

    fn describe(&self) -> String {
        format!("{}, by saved registers", self.inner.describe())
    }
}

macro_rules! types_of_inner {
    ($($scope:ident),*) => {$(
        impl Types for $scope<'_> {
            fn get(&self, ty: TypeRef) -> Result<Def, String> {
                self.inner.get(ty)
            }

            fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
                self.inner.find(tag, name)
            }
        }
    )*};
}
types_of_inner!(EventScope, CallerScope);

#[cfg(test)]
mod tests {
    use super::*;

    /// No types but C's own.
    struct Plain;

    impl Types for Plain {
        fn get(&self, _: TypeRef) -> Result<Def, String> {
            Err("none".to_owned())
        }

        fn find(&self, _: Tag, _: &str) -> Result<Option<Ty>, String> {
            Ok(None)
        }
    }

    #[test]
    fn the_kernels_sizes_signs_and_brackets_are_believed() {
        let of = |kind: &str, size, signed, is_array| {
            let field = Field { name: "f".into(), kind: kind.into(), offset: 16, size, signed, is_array };
            typed(&Plain, &field)
        };
        let plain = |kind: &str, size, signed| of(kind, size, signed, false);
        let int = |size, signed| (Ty::Int(Int::of(size, signed)), Dynamic::No);
        let array = |ty, count| (Ty::Array(Rc::new(ty), Some(count)), Dynamic::No);
        // Arguments of system calls: the type's bytes of a word.
        assert_eq!(plain("int", 8, Some(false)), int(4, true));
        assert_eq!(plain("unsigned int", 8, Some(false)), int(4, false));
        assert_eq!(plain("long", 8, Some(true)), int(8, true));
        assert_eq!(
            plain("const char *", 8, Some(false)),
            (Ty::Ptr(Rc::new(Ty::Int(Int::CHAR))), Dynamic::No)
        );
        // Types that nobody describes, by what the kernel says of them, or by their names.
        assert_eq!(plain("pid_t", 4, Some(true)), int(4, true));
        assert_eq!(plain("gfp_t", 4, Some(false)), int(4, false));
        assert_eq!(plain("u32", 4, None), int(4, false));
        assert_eq!(plain("dev_t", 3, None), array(Ty::Int(Int::UCHAR), 3));
        // A number of which the record has less.
        assert_eq!(plain("long", 4, Some(true)), int(4, true));
        assert_eq!(of("char", 16, Some(false), true), array(Ty::Int(Int::CHAR), 16));
        assert_eq!(of("char", 1, Some(false), true), array(Ty::Int(Int::CHAR), 1));
        assert_eq!(of("int", 8, Some(true), true), array(Ty::Int(Int::INT), 2));
        assert_eq!(of("__u8", 8, Some(false), true), array(Ty::Int(Int::UCHAR), 8));
        assert_eq!(of("__data_loc char[]", 4, Some(true), false).1, Dynamic::Record);
    }
}
