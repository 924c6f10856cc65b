// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's types, whoever describes them.
//!
//! A [`Ty`] is small; what is behind a [`TypeRef`] is asked of its source ([`Types`]) when it is needed, so that a
//! kernel's types are never read as a whole.

use std::rc::Rc;

use crate::ast::Tag;

/// A type in a source: its own number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeRef(pub u64);

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ty {
    /// `void`.
    Void,
    /// An integer of C.
    Int(Int),
    /// A pointer.
    Ptr(Rc<Ty>),
    /// An array, and of how many.
    Array(Rc<Ty>, Option<u64>),
    /// Described by the source.
    Ref(TypeRef),
}

/// An integer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int {
    /// In bytes.
    pub size: u8,
    /// Whether it has a sign.
    pub signed: bool,
    /// Conversion rank: bool 1, char 2, short 3, int 4, long 5, long long 6.
    pub rank: u8,
    /// Plain `char`.
    pub plain_char: bool,
}

impl Int {
    /// `_Bool`.
    pub const BOOL: Int = Int { size: 1, signed: false, rank: 1, plain_char: false };
    /// `char`.
    pub const CHAR: Int = Int { size: 1, signed: true, rank: 2, plain_char: true };
    /// `signed char`.
    pub const SCHAR: Int = Int { size: 1, signed: true, rank: 2, plain_char: false };
    /// `unsigned char`.
    pub const UCHAR: Int = Int { size: 1, signed: false, rank: 2, plain_char: false };
    /// `int`.
    pub const INT: Int = Int { size: 4, signed: true, rank: 4, plain_char: false };
    /// `long`.
    pub const LONG: Int = Int { size: 8, signed: true, rank: 5, plain_char: false };
    /// `unsigned long`.
    pub const ULONG: Int = Int { size: 8, signed: false, rank: 5, plain_char: false };

    /// The usual type of this size.
    pub fn of(size: u8, signed: bool) -> Int {
        let rank = match size {
            1 => 2,
            2 => 3,
            4 => 4,
            _ => 5,
        };
        Int { size, signed, rank, plain_char: false }
    }

    /// In bits.
    pub fn bits(self) -> u8 {
        self.size * 8
    }

    /// Whether it is `_Bool`.
    pub fn is_bool(self) -> bool {
        self.rank == 1
    }

    /// After the integer promotions (C11 6.3.1.1).
    pub fn promoted(self) -> Int {
        if self.rank < Int::INT.rank { Int::INT } else { self }
    }

    /// The common type of the usual arithmetic conversions (C11 6.3.1.8).
    pub fn common(self, other: Int) -> Int {
        let (a, b) = (self.promoted(), other.promoted());
        if a.signed == b.signed {
            return if a.rank >= b.rank { a } else { b };
        }
        let (s, u) = if a.signed { (a, b) } else { (b, a) };
        if u.rank >= s.rank {
            u
        } else if s.size > u.size {
            s
        } else {
            Int { signed: false, ..s }
        }
    }

    /// Its name in C.
    pub fn name(self) -> &'static str {
        match (self.rank, self.signed) {
            (1, _) => "_Bool",
            (2, _) if self.plain_char => "char",
            (2, true) => "signed char",
            (2, false) => "unsigned char",
            (3, true) => "short",
            (3, false) => "unsigned short",
            (4, true) => "int",
            (4, false) => "unsigned int",
            (5, true) => "long",
            (5, false) => "unsigned long",
            (_, true) => "long long",
            (_, false) => "unsigned long long",
        }
    }
}

/// What a source says of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Def {
    /// The same as another: a typedef (with its name), `const`, `volatile`.
    Alias(Option<String>, Ty),
    /// Any of the plain types.
    Plain(Ty),
    /// A floating-point number.
    Float(String, u64),
    /// An integer that no register holds.
    Wide(String, u64),
    /// A structure or union.
    Record(Record),
    /// An enumeration.
    Enum(Enum),
    /// A reference of C++: an address that stands for what is there.
    Reference(Ty),
    /// A function.
    Function,
}

/// A structure or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which.
    pub tag: Tag,
    /// Its tag, if it has one.
    pub name: Option<String>,
    /// In bytes.
    pub size: u64,
    /// Members.
    pub members: Vec<Member>,
    /// Whether it is only declared.
    pub declared: bool,
    /// Of C++ or Rust: its name needs no word before it.
    pub bare: bool,
    /// Whether functions are given its address instead of itself.
    pub by_reference: bool,
    /// The first type that it was made for: the `T` of `Vec<T>`.
    pub of: Option<Ty>,
    /// Of an enumeration with data (Rust): which of its variants is there.
    pub choice: Option<Rc<Choice>>,
}

/// A record of which one of several variants is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The member that says which; none if there is only one.
    pub by: Option<Member>,
    /// The numbers that choose a variant, and the variant. One without numbers is there if no other is.
    pub variants: Vec<(Option<i128>, Member)>,
}

/// How a member is in its structure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kin {
    /// Its own, or an anonymous structure.
    #[default]
    Own,
    /// A base class.
    Base,
    /// A virtual base class: only an object's table of functions tells where it is.
    Virtual,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// None for an anonymous structure.
    pub name: Option<String>,
    /// Type.
    pub ty: Ty,
    /// Where it begins, in bits.
    pub offset: u64,
    /// Of a bitfield: its width.
    pub bits: Option<u8>,
    /// What it is to the structure.
    pub kin: Kin,
}

/// An enumeration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enum {
    /// Its tag.
    pub name: Option<String>,
    /// The integer type behind it.
    pub int: Int,
    /// Constants.
    pub variants: Vec<(String, i64)>,
}

/// Who knows types.
pub trait Types {
    /// What is behind the number.
    fn get(&self, ty: TypeRef) -> Result<Def, String>;

    /// A type by its tag or typedef's name.
    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String>;

    /// Whether the language calls a type by its tag alone.
    fn is_bare(&self) -> bool {
        false
    }
}

/// A type by the name that stands alone for it.
pub fn by_name(types: &dyn Types, name: &str) -> Result<Option<Ty>, String> {
    let tags: &[Tag] = match types.is_bare() {
        true => &[Tag::Typedef, Tag::Struct, Tag::Union, Tag::Enum],
        false => &[Tag::Typedef],
    };
    for tag in tags {
        if let Some(found) = types.find(*tag, name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The type behind typedefs and qualifiers.
pub fn resolve(types: &dyn Types, ty: &Ty) -> Result<Def, String> {
    let mut ty = ty.clone();
    // A chain of typedefs is short; a ring of them comes from bad input.
    for _ in 0..64 {
        let Ty::Ref(r) = ty else { return Ok(Def::Plain(ty)) };
        match types.get(r)? {
            Def::Alias(_, to) => ty = to,
            Def::Plain(to @ Ty::Ref(_)) => ty = to,
            Def::Record(record) if record.declared => {
                let Some(name) = record.name.clone() else { return Ok(Def::Record(record)) };
                return match types.find(record.tag, &name)? {
                    Some(Ty::Ref(full)) if full != r => types.get(full),
                    _ => Ok(Def::Record(record)),
                };
            }
            def => return Ok(def),
        }
    }
    Err("the type's description never ends".to_owned())
}

/// Size in bytes; None if it has none.
pub fn size_of(types: &dyn Types, ty: &Ty) -> Result<Option<u64>, String> {
    size(types, ty, 0)
}

fn size(types: &dyn Types, ty: &Ty, depth: usize) -> Result<Option<u64>, String> {
    if depth > 32 {
        return Err("the type's description never ends".to_owned());
    }
    Ok(match resolve(types, ty)? {
        Def::Plain(Ty::Int(int)) => Some(u64::from(int.size)),
        Def::Plain(Ty::Ptr(_)) | Def::Reference(_) => Some(8),
        Def::Plain(Ty::Array(of, count)) => {
            let each = size(types, &of, depth + 1)?;
            match (each, count) {
                (Some(each), Some(count)) => each.checked_mul(count),
                _ => None,
            }
        }
        Def::Float(_, size) | Def::Wide(_, size) => Some(size),
        Def::Record(record) if !record.declared => Some(record.size),
        Def::Enum(e) => Some(u64::from(e.int.size)),
        _ => None,
    })
}

/// The type as C writes it.
pub fn name(types: &dyn Types, ty: &Ty) -> String {
    name_at(types, ty, 0)
}

fn name_at(types: &dyn Types, ty: &Ty, depth: usize) -> String {
    if depth > 32 {
        return "…".to_owned();
    }
    match ty {
        Ty::Void => "void".to_owned(),
        Ty::Int(int) => int.name().to_owned(),
        Ty::Ptr(to) => {
            let to = name_at(types, to, depth + 1);
            if to.ends_with('*') { format!("{to}*") } else { format!("{to} *") }
        }
        Ty::Array(of, count) => {
            let count = count.map_or_else(String::new, |n| n.to_string());
            let inner = name_at(types, of, depth + 1);
            // Dimensions are written from the outside in.
            match inner.find(" [") {
                Some(at) => format!("{} [{count}]{}", &inner[..at], &inner[at + 1..]),
                None => format!("{inner} [{count}]"),
            }
        }
        Ty::Ref(r) => match types.get(*r) {
            Ok(Def::Alias(Some(name), _)) => name,
            Ok(Def::Alias(None, to) | Def::Plain(to)) => name_at(types, &to, depth + 1),
            Ok(Def::Float(name, _) | Def::Wide(name, _)) => name,
            Ok(Def::Reference(to)) => format!("{} &", name_at(types, &to, depth + 1)),
            Ok(Def::Record(Record { bare: true, name: Some(name), .. })) => name,
            Ok(Def::Record(record)) => {
                format!("{} {}", record.tag.word(), record.name.as_deref().unwrap_or("{...}"))
            }
            Ok(Def::Enum(e)) => format!("enum {}", e.name.as_deref().unwrap_or("{...}")),
            Ok(Def::Function) => "function".to_owned(),
            Err(_) => "?".to_owned(),
        },
    }
}
