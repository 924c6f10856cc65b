// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF, the kernel's description of its types (`Documentation/bpf/btf.rst`).
//!
//! **Input:** any bytes. **Output:** types by number and by name, members with their offsets, functions with their
//! parameters. Every offset and number in the bytes is checked before or at its use. Memory use is proportional to the
//! length of the input, never to a number in it.
//!
//! A module's BTF is *split*: its type numbers and string offsets continue those of the kernel.

mod error;
mod lookup;
mod names;
mod raw;

use std::sync::{Arc, OnceLock};

use object::{Object as _, ObjectSection as _};

pub use error::Error;
pub use lookup::{Function, Integer, Member, Parameter};
use names::Names;
use raw::{Header, u32_at};

/// A type's number. 0 is `void`.
pub type TypeId = u32;

/// Kind of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Void,
    Int,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Func,
    FuncProto,
    Var,
    DataSec,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

impl Kind {
    const ALL: [Kind; 20] = [
        Kind::Void,
        Kind::Int,
        Kind::Ptr,
        Kind::Array,
        Kind::Struct,
        Kind::Union,
        Kind::Enum,
        Kind::Fwd,
        Kind::Typedef,
        Kind::Volatile,
        Kind::Const,
        Kind::Restrict,
        Kind::Func,
        Kind::FuncProto,
        Kind::Var,
        Kind::DataSec,
        Kind::Float,
        Kind::DeclTag,
        Kind::TypeTag,
        Kind::Enum64,
    ];

    /// Size in bytes of the data after the common 12 bytes, for `vlen` elements.
    fn extra(self, vlen: usize) -> usize {
        match self {
            Kind::Int | Kind::Var | Kind::DeclTag => 4,
            Kind::Array => 12,
            Kind::Struct | Kind::Union | Kind::DataSec | Kind::Enum64 => 12 * vlen,
            Kind::Enum | Kind::FuncProto => 8 * vlen,
            _ => 0,
        }
    }
}

/// Limit of a name's length in bytes: eight times the kernel's limit for symbols.
const LONGEST_NAME: usize = 4096;

/// A type as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// Type number.
    pub id: TypeId,
    /// Kind, which determines the meaning of the other fields.
    pub kind: Kind,
    /// Name; empty if the type has none.
    pub name: &'a str,
    /// Flag whose meaning depends on the kind: a struct with bitfields, a forward-declared union, a signed enum.
    pub flag: bool,
    /// Depending on the kind, the size in bytes or the number of the type referred to.
    pub size_or_type: u32,
    vlen: usize,
    extra: &'a [u8],
}

/// The types of the kernel or of one module.
#[derive(Debug)]
pub struct Btf {
    origin: String,
    bytes: Vec<u8>,
    types: std::ops::Range<usize>,
    strings: std::ops::Range<usize>,
    /// Offset of each type in `bytes`.
    offsets: Vec<u32>,
    /// Types by name. Made at the first lookup: most readers follow numbers only.
    names: OnceLock<Names>,
    /// The strings are plain: see [`raw::plain`].
    plain: bool,
    base: Option<Arc<Btf>>,
    first_id: u32,
    first_string: u32,
}

impl Btf {
    /// Parses BTF: raw, as in /sys/kernel/btf, or from a section of an ELF file. A module's BTF needs the kernel's as
    /// `base`.
    pub fn parse(origin: &str, bytes: Vec<u8>, base: Option<Arc<Btf>>) -> Result<Self, Error> {
        let bytes = if bytes.starts_with(b"\x7fELF") { section(origin, &bytes)? } else { bytes };
        let header = Header::read(origin, &bytes)?;
        let (first_id, first_string) = match &base {
            None => (1, 0),
            Some(base) => (base.end_id(), base.first_string + base.strings.len() as u32),
        };
        let mut btf = Self {
            origin: origin.into(),
            types: header.types,
            plain: raw::plain(&bytes[header.strings.clone()]),
            strings: header.strings,
            offsets: Vec::new(),
            names: OnceLock::new(),
            bytes,
            base,
            first_id,
            first_string,
        };
        btf.index()?;
        Ok(btf)
    }

    fn wrong(&self, offset: usize, expected: impl Into<String>) -> Error {
        Error::Malformed { origin: self.origin.clone(), offset, expected: expected.into() }
    }

    /// Lists the types' offsets, and checks each type's extent and name.
    fn index(&mut self) -> Result<(), Error> {
        let mut at = self.types.start;
        let mut offsets = Vec::new();
        while at < self.types.end {
            if self.types.end - at < 12 {
                return Err(self.wrong(at, "a type of 12 bytes and more"));
            }
            let info = u32_at(&self.bytes, at + 4);
            let number = (info >> 24 & 31) as usize;
            let Some(&kind) = Kind::ALL.get(number).filter(|&&kind| kind != Kind::Void) else {
                return Err(self.wrong(at + 4, format!("a kind from 1 to 19, not {number}")));
            };
            let size = 12 + kind.extra((info & 0xffff) as usize);
            if self.types.end - at < size {
                return Err(self.wrong(at, format!("{size} bytes of {kind:?}, not {}", self.types.end - at)));
            }
            let name = u32_at(&self.bytes, at);
            if !self.has_string(name) {
                return Err(self.wrong(
                    at,
                    format!("a name within the strings, in UTF-8, of at most 4096 bytes, not {name:#x}"),
                ));
            }
            offsets.push(at as u32);
            at += size;
        }
        self.offsets = offsets;
        Ok(())
    }

    /// Source of the BTF, such as a file name.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Number after the last type's.
    pub fn end_id(&self) -> TypeId {
        self.first_id + self.offsets.len() as u32
    }

    /// Number of the first type in this BTF. It is 1, except for modules.
    pub fn first_id(&self) -> TypeId {
        self.first_id
    }

    /// True if there is a string at this offset. Plain strings are not read for it.
    fn has_string(&self, offset: u32) -> bool {
        match offset.checked_sub(self.first_string) {
            Some(own) if self.plain => (own as usize) < self.strings.len(),
            Some(_) => self.string(offset).is_some(),
            None => self.base.as_ref().is_some_and(|base| base.has_string(offset)),
        }
    }

    /// Bytes of the string at this offset, without its final NUL.
    fn string_bytes(&self, offset: u32) -> Option<&[u8]> {
        let Some(own) = offset.checked_sub(self.first_string) else {
            return self.base.as_ref()?.string_bytes(offset);
        };
        let rest = self.bytes.get(self.strings.clone())?.get(own as usize..)?;
        // Many types may refer to the same string; the limit keeps a long one from being read over and over.
        let rest = &rest[..rest.len().min(LONGEST_NAME)];
        memchr::memchr(0, rest).map(|end| &rest[..end])
    }

    fn string(&self, offset: u32) -> Option<&str> {
        std::str::from_utf8(self.string_bytes(offset)?).ok()
    }

    /// Kind and name of a type of this BTF, without a check of the name's encoding.
    fn own_key(&self, id: TypeId) -> Option<(Kind, &[u8])> {
        let at = *self.offsets.get(id.checked_sub(self.first_id)? as usize)? as usize;
        let kind = *Kind::ALL.get((u32_at(&self.bytes, at + 4) >> 24 & 31) as usize)?;
        Some((kind, self.string_bytes(u32_at(&self.bytes, at))?))
    }

    fn own(&self, id: TypeId) -> Option<Type<'_>> {
        let at = *self.offsets.get(id.checked_sub(self.first_id)? as usize)? as usize;
        let info = u32_at(&self.bytes, at + 4);
        let kind = *Kind::ALL.get((info >> 24 & 31) as usize)?;
        let vlen = (info & 0xffff) as usize;
        Some(Type {
            id,
            kind,
            name: self.string(u32_at(&self.bytes, at))?,
            flag: info >> 31 == 1,
            size_or_type: u32_at(&self.bytes, at + 8),
            vlen,
            extra: self.bytes.get(at + 12..at + 12 + kind.extra(vlen))?,
        })
    }

    /// Returns a type by its number, including the base's types.
    pub fn get(&self, id: TypeId) -> Option<Type<'_>> {
        if id == 0 {
            let nothing = &[];
            return Some(Type {
                id,
                kind: Kind::Void,
                name: "void",
                flag: false,
                size_or_type: 0,
                vlen: 0,
                extra: nothing,
            });
        }
        match &self.base {
            Some(base) if id < self.first_id => base.get(id),
            _ => self.own(id),
        }
    }

    /// Returns all types, the base's first.
    pub fn all(&self) -> impl Iterator<Item = Type<'_>> {
        (1..self.end_id()).filter_map(|id| self.get(id))
    }

    /// Returns the types of this BTF without the base's, in order.
    pub fn types(&self) -> impl Iterator<Item = Type<'_>> {
        (self.first_id..self.end_id()).filter_map(|id| self.own(id))
    }
}

/// Returns the `.BTF` section of an ELF file.
fn section(origin: &str, file: &[u8]) -> Result<Vec<u8>, Error> {
    let wrong = |expected: String| Error::Malformed { origin: origin.into(), offset: 0, expected };
    let object = object::File::parse(file).map_err(|e| wrong(format!("an ELF file: {e}")))?;
    let section = object.section_by_name(".BTF").ok_or_else(|| wrong("a section .BTF".into()))?;
    let data = section.uncompressed_data().map_err(|e| wrong(format!("a section .BTF: {e}")))?;
    Ok(data.into_owned())
}
