// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookups in BTF: by name, member and function; sizes; and types in C syntax.

use crate::names::Names;
use crate::raw::u32_at;
use crate::{Btf, Error, Kind, Type, TypeId};

/// Limit of chains of typedefs and modifiers. Real chains are shorter; hostile BTF may contain cycles.
const DEEPEST: usize = 64;

/// A member of a struct or union.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// Name; empty for an anonymous struct or union.
    pub name: &'a str,
    /// Number of the type.
    pub ty: TypeId,
    /// Offset from the start of the struct or union, in bits.
    pub bit_offset: u32,
    /// Width of a bitfield in bits; None for other members.
    pub bits: Option<u32>,
}

/// A parameter of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Name; empty if it has none.
    pub name: &'a str,
    /// Number of the type.
    pub ty: TypeId,
}

/// Encoding of an integer type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    /// True for a signed type.
    pub signed: bool,
    /// True for `_Bool`.
    pub boolean: bool,
    /// Width in bits.
    pub bits: u32,
}

/// A function of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function<'a> {
    /// Type number; programs are attached by it.
    pub id: TypeId,
    /// Name of the function, as in the kernel's symbol table.
    pub name: &'a str,
    /// Parameters in order, without a final `...`.
    pub parameters: Vec<Parameter<'a>>,
    /// True if the parameter list ends with `...`.
    pub variadic: bool,
    /// Number of the result's type; 0 is `void`.
    pub result: TypeId,
}

impl Btf {
    /// Finds a type by kind and name: in this BTF first, then in the base. Of several the one with the lowest number.
    pub fn find(&self, kind: Kind, name: &str) -> Option<Type<'_>> {
        let names = self.names.get_or_init(|| Names::of(self));
        match names.find(self, kind, name).and_then(|id| self.own(id)) {
            Some(ty) => Some(ty),
            None => self.base.as_ref()?.find(kind, name),
        }
    }

    /// Finds a struct by name.
    pub fn structure(&self, name: &str) -> Result<Type<'_>, Error> {
        self.find(Kind::Struct, name).ok_or_else(|| self.unknown(format!("struct {name}")))
    }

    fn unknown(&self, what: String) -> Error {
        Error::Unknown { origin: self.origin.clone(), what }
    }

    /// Finds a function by name.
    pub fn function(&self, name: &str) -> Result<Function<'_>, Error> {
        let ty = self.find(Kind::Func, name);
        ty.and_then(|ty| self.as_function(ty)).ok_or_else(|| self.unknown(format!("function {name}")))
    }

    /// Returns the parameters and result of a function type; None for other kinds.
    pub fn as_function<'a>(&'a self, ty: Type<'a>) -> Option<Function<'a>> {
        let proto = self.get(ty.size_or_type).filter(|_| ty.kind == Kind::Func)?;
        if proto.kind != Kind::FuncProto {
            return None;
        }
        let mut parameters = Vec::with_capacity(proto.vlen);
        for at in (0..proto.extra.len()).step_by(8) {
            let name = self.string_of(proto.id, u32_at(proto.extra, at))?;
            parameters.push(Parameter { name, ty: u32_at(proto.extra, at + 4) });
        }
        // `...` is stored as a last parameter of type 0.
        let variadic = parameters.pop_if(|last| last.ty == 0 && last.name.is_empty()).is_some();
        Some(Function { id: ty.id, name: ty.name, parameters, variadic, result: proto.size_or_type })
    }

    /// Returns a string that type `id` refers to. The offset is relative to the BTF that contains the type.
    fn string_of(&self, id: TypeId, offset: u32) -> Option<&str> {
        match &self.base {
            Some(base) if id < self.first_id => base.string_of(id, offset),
            _ => self.string(offset),
        }
    }

    /// Returns the members of a struct or union; empty for other types.
    pub fn members<'a>(&'a self, ty: Type<'a>) -> impl Iterator<Item = Member<'a>> {
        let extra = if matches!(ty.kind, Kind::Struct | Kind::Union) { ty.extra } else { &[] };
        (0..extra.len()).step_by(12).filter_map(move |at| {
            let name = self.string_of(ty.id, u32_at(extra, at))?;
            let place = u32_at(extra, at + 8);
            let (bit_offset, bits) = if ty.flag { (place & 0x00ff_ffff, place >> 24) } else { (place, 0) };
            Some(Member { name, ty: u32_at(extra, at + 4), bit_offset, bits: (bits > 0).then_some(bits) })
        })
    }

    /// Finds a member by name, also in anonymous members. Its offset counts from the outer type.
    pub fn member(&self, ty: TypeId, name: &str) -> Option<Member<'_>> {
        // In hostile BTF, an anonymous type may contain itself; the limit ends the search.
        const MOST: usize = 10_000;
        let mut found = None;
        let mut ahead = vec![(ty, 0u32)];
        let mut seen = 0;
        while let Some((ty, base)) = ahead.pop() {
            for member in self.members(self.get(self.resolve(ty)?)?) {
                seen += 1;
                let Some(bit_offset) = base.checked_add(member.bit_offset).filter(|_| seen < MOST) else {
                    return found;
                };
                if member.name == name {
                    // The outermost match is used, as in C.
                    found = found.or(Some(Member { bit_offset, ..member }));
                } else if member.name.is_empty() {
                    ahead.push((member.ty, bit_offset));
                }
            }
            if found.is_some() {
                break;
            }
        }
        found
    }

    /// Returns the offset in bytes of a member along a path like `se.exec_start`. Bitfields are rejected.
    pub fn offset(&self, structure: &str, path: &str) -> Result<i16, Error> {
        let unknown = || self.unknown(format!("member {path} in struct {structure}"));
        let mut ty = self.structure(structure)?.id;
        let mut bits = 0u32;
        for name in path.split('.') {
            let member = self.member(ty, name).filter(|member| member.bits.is_none()).ok_or_else(unknown)?;
            bits = bits.checked_add(member.bit_offset).ok_or_else(unknown)?;
            ty = member.ty;
        }
        i16::try_from(bits / 8).map_err(|_| unknown())
    }

    /// Follows typedefs and modifiers. `None` if the chain is longer than any real one.
    pub fn resolve(&self, mut id: TypeId) -> Option<TypeId> {
        for _ in 0..DEEPEST {
            let ty = self.get(id)?;
            match ty.kind {
                Kind::Typedef | Kind::Const | Kind::Volatile | Kind::Restrict | Kind::TypeTag => {
                    id = ty.size_or_type;
                }
                _ => return Some(id),
            }
        }
        None
    }

    /// Returns an array's element type and number of elements.
    pub fn array(&self, ty: Type<'_>) -> Option<(TypeId, u32)> {
        (ty.kind == Kind::Array).then(|| (u32_at(ty.extra, 0), u32_at(ty.extra, 8)))
    }

    /// Returns the encoding of an integer type.
    pub fn integer(&self, ty: Type<'_>) -> Option<Integer> {
        let word = (ty.kind == Kind::Int).then(|| u32_at(ty.extra, 0))?;
        let encoding = word >> 24;
        Some(Integer { signed: encoding & 1 != 0, boolean: encoding & 4 != 0, bits: word & 0xff })
    }

    /// Returns the names and values of an enum.
    pub fn enumerators<'a>(&'a self, ty: Type<'a>) -> impl Iterator<Item = (&'a str, i64)> {
        let (step, extra) = match ty.kind {
            Kind::Enum => (8, ty.extra),
            Kind::Enum64 => (12, ty.extra),
            _ => (8, &[] as &[u8]),
        };
        (0..extra.len()).step_by(step).filter_map(move |at| {
            let low = u32_at(extra, at + 4);
            let value = match (step, ty.flag) {
                (12, _) => (u64::from(low) | u64::from(u32_at(extra, at + 8)) << 32).cast_signed(),
                (_, true) => i64::from(low.cast_signed()),
                (_, false) => i64::from(low),
            };
            Some((self.string_of(ty.id, u32_at(extra, at))?, value))
        })
    }

    /// Returns the size of a type in bytes, if it has one.
    pub fn size_of(&self, id: TypeId) -> Option<u64> {
        let (mut id, mut times) = (id, 1u64);
        for _ in 0..DEEPEST {
            let ty = self.get(self.resolve(id)?)?;
            let size = match ty.kind {
                Kind::Ptr => 8,
                Kind::Array => {
                    let (element, count) = self.array(ty)?;
                    times = times.checked_mul(u64::from(count))?;
                    id = element;
                    continue;
                }
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float => {
                    u64::from(ty.size_or_type)
                }
                _ => return None,
            };
            return size.checked_mul(times);
        }
        None
    }

    /// Formats a type in C syntax, without a declarator.
    pub fn type_name(&self, id: TypeId) -> String {
        self.named_within(id, 16)
    }

    fn named_within(&self, id: TypeId, depth: usize) -> String {
        let Some(ty) = self.get(id).filter(|_| depth > 0) else { return "?".into() };
        let inner = || self.named_within(ty.size_or_type, depth - 1);
        let tagged = |word: &str| {
            let name = if ty.name.is_empty() { "{…}" } else { ty.name };
            format!("{word} {name}")
        };
        match ty.kind {
            Kind::Struct => tagged("struct"),
            Kind::Union => tagged("union"),
            Kind::Enum | Kind::Enum64 => tagged("enum"),
            Kind::Fwd => tagged(if ty.flag { "union" } else { "struct" }),
            Kind::Const => format!("const {}", inner()),
            Kind::Volatile => format!("volatile {}", inner()),
            Kind::Restrict => format!("{} restrict", inner()),
            Kind::TypeTag => inner(),
            Kind::Ptr => {
                let pointee = inner();
                let space = if pointee.ends_with('*') { "" } else { " " };
                format!("{pointee}{space}*")
            }
            Kind::Array => {
                let (element, count) = self.array(ty).unwrap_or_default();
                format!("{}[{count}]", self.named_within(element, depth - 1))
            }
            Kind::FuncProto => format!("{} (…)", inner()),
            _ => ty.name.to_owned(),
        }
    }
}
