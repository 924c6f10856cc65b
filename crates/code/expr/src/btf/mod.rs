// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF, the type information that a kernel carries, as C types.
//!
//! BTF describes each function's parameters and result. So conditions at entry and return need nothing but the running
//! kernel.

mod place;

use std::rc::Rc;

use kprism_btf::{Btf, Kind, Type};

use crate::ast::Tag;
use crate::ctype::{Def, Enum, Int, Kin, Member, Record, Ty, TypeRef, Types};

pub use place::{Error, Place};

fn ty(id: u32) -> Ty {
    if id == 0 { Ty::Void } else { Ty::Ref(TypeRef(u64::from(id))) }
}

fn named(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}

fn record(btf: &Btf, found: Type<'_>, tag: Tag) -> Record {
    let members = btf.members(found).map(|m| {
        let bits = m.bits.or_else(|| old_bits(btf, m.ty)).and_then(|bits| u8::try_from(bits).ok());
        let bits = bits.filter(|b| (1..=64).contains(b));
        Member { name: named(m.name), ty: ty(m.ty), offset: u64::from(m.bit_offset), bits, kin: Kin::Own }
    });
    let size = u64::from(found.size_or_type);
    Record {
        tag,
        name: named(found.name),
        size,
        members: members.collect(),
        declared: false,
        bare: false,
        by_reference: false,
        align: None,
        of: None,
        choice: None,
    }
}

/// Bitfields in old BTF have an integer type of their own, which gives the width.
fn old_bits(btf: &Btf, id: u32) -> Option<u32> {
    let found = btf.get(id)?;
    let bits = btf.integer(found)?.bits;
    (bits != found.size_or_type.saturating_mul(8)).then_some(bits)
}

fn enumeration(btf: &Btf, found: Type<'_>) -> Enum {
    let size = if matches!(found.size_or_type, 1 | 2 | 4 | 8) { found.size_or_type as u8 } else { 4 };
    let variants = btf.enumerators(found).map(|(name, value)| (name.to_owned(), value)).collect();
    Enum { name: named(found.name), int: Int::of(size, found.flag), variants }
}

/// Finds an enumerator by its name in any enumeration.
fn variant(btf: &Btf, name: &str) -> Option<(Ty, i64)> {
    let value =
        |e: Type<'_>| btf.enumerators(e).find(|(n, _)| *n == name).map(|(_, value)| (ty(e.id), value));
    btf.all().find_map(value)
}

impl Types for Btf {
    fn get(&self, wanted: TypeRef) -> Result<Def, String> {
        let missing = || format!("{}: there is no type {}", self.origin(), wanted.0);
        let found = u32::try_from(wanted.0).ok().filter(|id| *id > 0).and_then(|id| Btf::get(self, id));
        let found = found.ok_or_else(missing)?;
        let name = named(found.name);
        let value = found.size_or_type;
        Ok(match found.kind {
            Kind::Int => {
                let name = name.unwrap_or_default();
                let encoded = self.integer(found).ok_or_else(missing)?;
                if !matches!(value, 1 | 2 | 4 | 8) {
                    return Ok(Def::Wide(name, u64::from(value)));
                }
                if encoded.boolean && value == 1 {
                    return Ok(Def::Plain(Ty::Int(Int::BOOL)));
                }
                let int = Int::of(value as u8, encoded.signed);
                let rank = if name.matches("long").count() == 2 { 6 } else { int.rank };
                Def::Plain(Ty::Int(Int { rank, plain_char: name == "char", ..int }))
            }
            Kind::Ptr => Def::Plain(Ty::Ptr(Rc::new(ty(value)))),
            Kind::Array => {
                let (element, count) = self.array(found).ok_or_else(missing)?;
                Def::Plain(Ty::Array(Rc::new(ty(element)), Some(u64::from(count))))
            }
            Kind::Struct => Def::Record(record(self, found, Tag::Struct)),
            Kind::Union => Def::Record(record(self, found, Tag::Union)),
            Kind::Enum | Kind::Enum64 => Def::Enum(enumeration(self, found)),
            Kind::Fwd => {
                let tag = if found.flag { Tag::Union } else { Tag::Struct };
                Def::Record(Record {
                    tag,
                    name,
                    size: 0,
                    members: Vec::new(),
                    declared: true,
                    bare: false,
                    by_reference: false,
                    align: None,
                    of: None,
                    choice: None,
                })
            }
            Kind::Typedef => Def::Alias(name, ty(value)),
            Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag => Def::Alias(None, ty(value)),
            Kind::Func | Kind::FuncProto => Def::Function,
            Kind::Float => Def::Float(name.unwrap_or_default(), u64::from(value)),
            other => return Err(format!("{}: type {} is {other:?}, no type of C", self.origin(), wanted.0)),
        })
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        let kinds: &[Kind] = match tag {
            Tag::Struct => &[Kind::Struct],
            Tag::Union => &[Kind::Union],
            Tag::Enum => &[Kind::Enum, Kind::Enum64],
            Tag::Typedef => &[Kind::Typedef],
        };
        Ok(kinds.iter().find_map(|kind| Btf::find(self, *kind, name)).map(|found| ty(found.id)))
    }
}
