// SPDX-License-Identifier: MIT OR Apache-2.0
//! C types, independent of the debug information that describes them.
//!
//! A [`Ty`] is small. The definition behind a [`TypeRef`] is requested from its source ([`Types`]) when it is needed,
//! so that a kernel's types are never read as a whole.

use std::rc::Rc;

use crate::ast::Tag;

/// A type's number in its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeRef(pub u64);

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ty {
    /// `void`.
    Void,
    /// An integer type.
    Int(Int),
    /// A pointer.
    Ptr(Rc<Ty>),
    /// An array and its number of elements, if known.
    Array(Rc<Ty>, Option<u64>),
    /// A type that the source defines.
    Ref(TypeRef),
}

/// An integer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int {
    /// Size in bytes.
    pub size: u8,
    /// True for signed types.
    pub signed: bool,
    /// Conversion rank: bool 1, char 2, short 3, int 4, long 5, long long 6.
    pub rank: u8,
    /// True for `char` without `signed` or `unsigned`.
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

    /// The standard type of this size in bytes: `char`, `short`, `int` or `long`.
    pub fn of(size: u8, signed: bool) -> Int {
        let rank = match size {
            1 => 2,
            2 => 3,
            4 => 4,
            _ => 5,
        };
        Int { size, signed, rank, plain_char: false }
    }

    /// Size in bits.
    pub fn bits(self) -> u8 {
        self.size * 8
    }

    /// Returns true for `_Bool`.
    pub fn is_bool(self) -> bool {
        self.rank == 1
    }

    /// The type after the integer promotions (C11 6.3.1.1).
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

    /// The type's name in C.
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

/// A type's definition, as the source gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Def {
    /// Another name for a type: a typedef (with its name), `const`, `volatile`.
    Alias(Option<String>, Ty),
    /// A type that is not a reference into the source.
    Plain(Ty),
    /// A floating-point type: name, and size in bytes.
    Float(String, u64),
    /// A scalar that a probe cannot compute with: a wide integer, a complex or decimal float, a pointer to a member.
    /// Name, and size in bytes.
    Wide(String, u64),
    /// A structure or union.
    Record(Record),
    /// An enumeration.
    Enum(Enum),
    /// A C++ reference: an address that is dereferenced implicitly.
    Reference(Ty),
    /// A function type.
    Function,
}

/// A structure or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `Struct` or `Union`.
    pub tag: Tag,
    /// Tag; None if it is anonymous.
    pub name: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// Members, in the source's order.
    pub members: Vec<Member>,
    /// True for a declaration without a definition.
    pub declared: bool,
    /// True for C++ and Rust, whose types are named without `struct` or `union`.
    pub bare: bool,
    /// True if it is passed to functions by address.
    pub by_reference: bool,
    /// Alignment in bytes that the source asks for; `None` if it follows from the members.
    pub align: Option<u64>,
    /// First template or generic argument: the `T` of `Vec<T>`.
    pub of: Option<Ty>,
    /// Variants of a Rust enumeration with data.
    pub choice: Option<Rc<Choice>>,
}

/// The variants of a Rust enumeration with data, and the member that selects one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The discriminant; None if there is only one variant.
    pub by: Option<Member>,
    /// Discriminant values and their variants. The variant without a value is present if no other matches.
    pub variants: Vec<(Option<i128>, Member)>,
}

/// A member's relation to its structure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kin {
    /// A member of the structure itself, or an anonymous structure.
    #[default]
    Own,
    /// A base class.
    Base,
    /// A virtual base class: its offset is known only from the object's virtual table.
    Virtual,
}

/// A member of a structure or union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// None for an anonymous structure.
    pub name: Option<String>,
    /// The member's type.
    pub ty: Ty,
    /// Offset in bits.
    pub offset: u64,
    /// Width of a bitfield in bits; None for other members.
    pub bits: Option<u8>,
    /// Relation to the structure.
    pub kin: Kin,
}

/// An enumeration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enum {
    /// Tag; None if it is anonymous.
    pub name: Option<String>,
    /// The underlying integer type.
    pub int: Int,
    /// Constants and their values.
    pub variants: Vec<(String, i64)>,
}

/// A source of type definitions.
pub trait Types {
    /// Returns the definition of a type.
    fn get(&self, ty: TypeRef) -> Result<Def, String>;

    /// Finds a type by its tag, or by its name for a typedef.
    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String>;

    /// Returns true for a vector of SIMD numbers, which is defined as an array.
    fn is_vector(&self, _ty: TypeRef) -> bool {
        false
    }

    /// Returns true if the language names types without `struct` or `union` (C++, Rust).
    fn is_bare(&self) -> bool {
        false
    }
}

/// Finds a type by a name without a keyword before it.
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

/// Follows typedefs and qualifiers to the definition. A declaration is replaced by the definition of that name, if the
/// source has one.
pub fn resolve(types: &dyn Types, ty: &Ty) -> Result<Def, String> {
    let mut ty = ty.clone();
    // Chains of typedefs are short. The limit ends cycles in damaged debug information.
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

/// Size in bytes; None for types without a size, such as functions and incomplete types.
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

/// Formats the type as C spells it.
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
