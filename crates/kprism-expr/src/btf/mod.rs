// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF: the types that a kernel carries with it (Documentation/bpf/btf.rst).
//!
//! Without other debug information they tell a function's parameters and result, so that conditions at entry and
//! return need nothing but the running kernel.

mod place;

use std::rc::Rc;

use object::{Object as _, ObjectSection as _};

use crate::ast::Tag;
use crate::ctype::{Def, Enum, Int, Member, Record, Ty, TypeRef, Types};

pub use place::Place;

/// What is wrong with BTF.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: BTF, offset {at:#x}: {what}")]
pub struct Error {
    /// File.
    pub file: String,
    /// Where in it.
    pub at: usize,
    /// What.
    pub what: String,
}

/// Kinds of types (include/uapi/linux/btf.h).
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// The types of a kernel.
#[derive(Debug)]
pub struct Btf<'d> {
    types: &'d [u8],
    strings: &'d [u8],
    /// Where each type begins; number 0 is void.
    at: Vec<u32>,
    file: String,
}

/// A type's fixed part.
#[derive(Clone, Copy)]
struct Head {
    name: u32,
    kind: u32,
    count: u32,
    flag: bool,
    /// Size in bytes, or another type.
    value: u32,
    /// Where the rest begins.
    rest: usize,
}

/// A module's BTF goes on where the kernel's ends, in numbers of types and in offsets of strings: both as one.
pub fn joined(kernel: &[u8], module: &[u8], file: &str) -> Result<Vec<u8>, Error> {
    let parts = |data: &[u8]| -> Option<(Vec<u8>, Vec<u8>)> {
        let header = word(data, 4)? as usize;
        let part = |offset: usize, len: usize| {
            let start = header.checked_add(word(data, offset)? as usize)?;
            data.get(start..start.checked_add(word(data, len)? as usize)?).map(<[u8]>::to_vec)
        };
        Some((part(8, 12)?, part(16, 20)?))
    };
    let cut =
        || Error { file: file.to_owned(), at: 0, what: "types or strings lie outside of the data".into() };
    let (mut types, mut strings) = parts(kernel).ok_or_else(cut)?;
    let (own_types, own_strings) = parts(module).ok_or_else(cut)?;
    types.extend(own_types);
    strings.extend(own_strings);
    let [types_len, strings_len] = [types.len(), strings.len()].map(|n| u32::try_from(n).map_err(|_| cut()));
    let mut out = vec![0x9f, 0xeb, 1, 0];
    for number in [24, 0, types_len.clone()?, types_len?, strings_len?] {
        out.extend(number.to_le_bytes());
    }
    out.extend(types);
    out.extend(strings);
    Ok(out)
}

impl<'d> Btf<'d> {
    /// Reads BTF: raw, as in /sys/kernel/btf, or the section of an ELF file.
    pub fn parse(data: &'d [u8], file: &str) -> Result<Self, Error> {
        let fail = |at: usize, what: &str| Error { file: file.to_owned(), at, what: what.to_owned() };
        let data = if data.starts_with(b"\x7fELF") {
            let object = object::File::parse(data).map_err(|e| fail(0, &e.to_string()))?;
            let section =
                object.section_by_name(".BTF").ok_or_else(|| fail(0, "the file has no section .BTF"))?;
            section.data().map_err(|e| fail(0, &e.to_string()))?
        } else {
            data
        };
        if data.get(..2) != Some(&[0x9f, 0xeb]) {
            return Err(fail(0, "the magic number 0xeb9f is missing (little-endian BTF is expected)"));
        }
        let word = |at| word(data, at).ok_or_else(|| fail(at, "the header is cut short"));
        let header = word(4)? as usize;
        let part = |offset: u32, len: u32| {
            let start = header.checked_add(offset as usize)?;
            data.get(start..start.checked_add(len as usize)?)
        };
        let types = part(word(8)?, word(12)?).ok_or_else(|| fail(8, "the types lie outside of the data"))?;
        let strings =
            part(word(16)?, word(20)?).ok_or_else(|| fail(16, "the strings lie outside of the data"))?;
        let mut btf = Self { types, strings, at: vec![u32::MAX], file: file.to_owned() };
        let mut at = 0;
        while at < types.len() {
            btf.at.push(at as u32);
            let head = btf.head_at(at).ok_or_else(|| fail(at, "a type is cut short"))?;
            let count = head.count as usize;
            let extra = match head.kind {
                kind::INT | kind::VAR | kind::DECL_TAG => 4,
                kind::ARRAY => 12,
                kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
                kind::ENUM | kind::FUNC_PROTO => 8 * count,
                1..=19 => 0,
                other => return Err(fail(at, &format!("kind {other} is unknown"))),
            };
            at = head.rest + extra;
        }
        if at > types.len() {
            return Err(fail(at, "the last type is cut short"));
        }
        Ok(btf)
    }

    fn head_at(&self, at: usize) -> Option<Head> {
        let info = word(self.types, at + 4)?;
        Some(Head {
            name: word(self.types, at)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            flag: info >> 31 == 1,
            value: word(self.types, at + 8)?,
            rest: at + 12,
        })
    }

    fn head(&self, id: u32) -> Option<Head> {
        let at = *self.at.get(id as usize).filter(|_| id > 0)?;
        self.head_at(at as usize)
    }

    fn word(&self, at: usize) -> u32 {
        word(self.types, at).unwrap_or(0)
    }

    fn text(&self, offset: u32) -> &'d [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or(&[]);
        let end = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
        &rest[..end]
    }

    fn name(&self, offset: u32) -> Option<String> {
        let text = self.text(offset);
        (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    fn ty(id: u32) -> Ty {
        if id == 0 { Ty::Void } else { Ty::Ref(TypeRef(u64::from(id))) }
    }

    /// The first type of this name for which `wanted` holds.
    fn search(&self, name: &str, wanted: impl Fn(&Head) -> bool) -> Option<u32> {
        (1..self.at.len() as u32)
            .find(|id| self.head(*id).is_some_and(|h| wanted(&h) && self.text(h.name) == name.as_bytes()))
    }

    /// Names of all functions.
    pub fn functions(&self) -> impl Iterator<Item = String> {
        (1..self.at.len() as u32).filter_map(|id| {
            let head = self.head(id).filter(|h| h.kind == kind::FUNC)?;
            self.name(head.name)
        })
    }

    /// A function's result and parameters.
    fn prototype(&self, name: &str) -> Option<(Ty, Vec<(String, Ty)>)> {
        let func = self.head(self.search(name, |h| h.kind == kind::FUNC)?)?;
        let proto = self.head(func.value).filter(|h| h.kind == kind::FUNC_PROTO)?;
        let each = (0..proto.count as usize).map(|i| {
            let at = proto.rest + 8 * i;
            (self.name(self.word(at)).unwrap_or_default(), Self::ty(self.word(at + 4)))
        });
        Some((Self::ty(proto.value), each.collect()))
    }

    fn record(&self, head: Head, tag: Tag) -> Record {
        let members = (0..head.count as usize).map(|i| {
            let at = head.rest + 12 * i;
            let offset = self.word(at + 8);
            let ty = self.word(at + 4);
            let (bits, offset) =
                if head.flag { (offset >> 24, offset & 0xff_ffff) } else { (self.old_bits(ty), offset) };
            let bits = u8::try_from(bits).ok().filter(|b| (1..=64).contains(b));
            Member { name: self.name(self.word(at)), ty: Self::ty(ty), offset: u64::from(offset), bits }
        });
        Record {
            tag,
            name: self.name(head.name),
            size: u64::from(head.value),
            members: members.collect(),
            declared: false,
        }
    }

    /// Bitfields of old BTF have an integer type of their own.
    fn old_bits(&self, id: u32) -> u32 {
        match self.head(id) {
            Some(h) if h.kind == kind::INT => {
                let bits = self.word(h.rest) & 0xff;
                if bits == h.value.saturating_mul(8) { 0 } else { bits }
            }
            _ => 0,
        }
    }

    fn enumeration(&self, head: Head) -> Enum {
        let wide = head.kind == kind::ENUM64;
        let each = (0..head.count as usize).map(|i| {
            let at = head.rest + if wide { 12 * i } else { 8 * i };
            let low = self.word(at + 4);
            let value = match (wide, head.flag) {
                (true, _) => (u64::from(self.word(at + 8)) << 32 | u64::from(low)) as i64,
                (false, true) => i64::from(low as i32),
                (false, false) => i64::from(low),
            };
            (self.name(self.word(at)).unwrap_or_default(), value)
        });
        let size = if matches!(head.value, 1 | 2 | 4 | 8) { head.value as u8 } else { 4 };
        Enum { name: self.name(head.name), int: Int::of(size, head.flag), variants: each.collect() }
    }

    fn variant(&self, name: &str) -> Option<(Ty, i64)> {
        (1..self.at.len() as u32).find_map(|id| {
            let head = self.head(id).filter(|h| matches!(h.kind, kind::ENUM | kind::ENUM64))?;
            let step = if head.kind == kind::ENUM64 { 12 } else { 8 };
            let i = (0..head.count as usize)
                .find(|i| self.text(self.word(head.rest + step * i)) == name.as_bytes())?;
            Some((Self::ty(id), self.enumeration(head).variants.get(i)?.1))
        })
    }
}

impl Types for Btf<'_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        let id = ty.0 as u32;
        let head = self.head(id).ok_or_else(|| format!("{}: there is no type {id}", self.file))?;
        let name = self.name(head.name);
        Ok(match head.kind {
            kind::INT => {
                let encoding = self.word(head.rest) >> 24;
                let name = name.unwrap_or_default();
                if !matches!(head.value, 1 | 2 | 4 | 8) {
                    return Ok(Def::Wide(name, u64::from(head.value)));
                }
                if encoding & 4 != 0 && head.value == 1 {
                    return Ok(Def::Plain(Ty::Int(Int::BOOL)));
                }
                let int = Int::of(head.value as u8, encoding & 1 != 0);
                let rank = if name.matches("long").count() == 2 { 6 } else { int.rank };
                Def::Plain(Ty::Int(Int { rank, plain_char: name == "char", ..int }))
            }
            kind::PTR => Def::Plain(Ty::Ptr(Rc::new(Self::ty(head.value)))),
            kind::ARRAY => {
                let count = self.word(head.rest + 8);
                Def::Plain(Ty::Array(Rc::new(Self::ty(self.word(head.rest))), Some(u64::from(count))))
            }
            kind::STRUCT => Def::Record(self.record(head, Tag::Struct)),
            kind::UNION => Def::Record(self.record(head, Tag::Union)),
            kind::ENUM | kind::ENUM64 => Def::Enum(self.enumeration(head)),
            kind::FWD => {
                let tag = if head.flag { Tag::Union } else { Tag::Struct };
                Def::Record(Record { tag, name, size: 0, members: Vec::new(), declared: true })
            }
            kind::TYPEDEF => Def::Alias(name, Self::ty(head.value)),
            kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                Def::Alias(None, Self::ty(head.value))
            }
            kind::FUNC | kind::FUNC_PROTO => Def::Function,
            kind::FLOAT => Def::Float(name.unwrap_or_default(), u64::from(head.value)),
            other => return Err(format!("{}: type {id} is of kind {other}, no type of C", self.file)),
        })
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        let found = self.search(name, |h| match tag {
            Tag::Struct => h.kind == kind::STRUCT,
            Tag::Union => h.kind == kind::UNION,
            Tag::Enum => matches!(h.kind, kind::ENUM | kind::ENUM64),
            Tag::Typedef => h.kind == kind::TYPEDEF,
        });
        Ok(found.map(Self::ty))
    }
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
