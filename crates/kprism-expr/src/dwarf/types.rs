// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dies → C types.

use std::rc::Rc;

use gimli::AttributeValue;

use crate::ast::Tag;
use crate::ctype::{Def, Enum, Int, Member, Record, Ty, TypeRef, Types};

use super::find::Take;
use super::{Debug, Entry, Error, Node, Unit};

fn number(entry: &Entry<'_>, at: gimli::DwAt) -> Option<u64> {
    entry.attr(at)?.udata_value()
}

/// The DWARF tag of a C tag.
fn dwarf_tag(tag: Tag) -> gimli::DwTag {
    match tag {
        Tag::Struct => gimli::DW_TAG_structure_type,
        Tag::Union => gimli::DW_TAG_union_type,
        Tag::Enum => gimli::DW_TAG_enumeration_type,
        Tag::Typedef => gimli::DW_TAG_typedef,
    }
}

impl<'d> Debug<'d> {
    fn link(&self, file: usize, unit: &Unit<'d>, entry: &Entry<'d>) -> Ty {
        self.refers(file, unit, entry, gimli::DW_AT_type).map_or(Ty::Void, |n| Ty::Ref(n.type_ref()))
    }

    /// A type by name, first in this unit.
    pub(crate) fn find_from(
        &self,
        first: Option<(usize, usize)>,
        tag: Tag,
        name: &str,
    ) -> Result<Option<Ty>, String> {
        let key = (tag, name.to_owned());
        if let Some(found) = self.found.borrow().get(&key) {
            return Ok(found.clone());
        }
        let wanted = dwarf_tag(tag);
        let found = self
            .named(name, first, |e| {
                if e.tag() != wanted {
                    Take::No
                } else if e.has_attr(gimli::DW_AT_declaration) {
                    Take::Perhaps
                } else {
                    Take::This
                }
            })
            .map_err(|e| e.to_string())?;
        let found = found.map(|(node, _)| Ty::Ref(node.type_ref()));
        self.found.borrow_mut().insert(key, found.clone());
        Ok(found)
    }

    fn def(&self, r: TypeRef) -> Result<Def, Error> {
        let node = Node::of(r);
        let (unit, entry) = self.entry(node)?;
        let name = self.own_name(node.file, &unit, &entry);
        let size = number(&entry, gimli::DW_AT_byte_size).unwrap_or(0);
        let to = || self.link(node.file, &unit, &entry);
        Ok(match entry.tag() {
            gimli::DW_TAG_base_type => base(&entry, name.unwrap_or_default(), size),
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => Def::Plain(Ty::Ptr(Rc::new(to()))),
            gimli::DW_TAG_typedef => Def::Alias(name, to()),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => {
                Def::Record(self.record(Tag::Struct, node, &unit, &entry, name, size)?)
            }
            gimli::DW_TAG_union_type => {
                Def::Record(self.record(Tag::Union, node, &unit, &entry, name, size)?)
            }
            gimli::DW_TAG_enumeration_type => Def::Enum(self.enumeration(node, &unit, &entry, name, size)?),
            gimli::DW_TAG_array_type => self.array(&unit, &entry, to())?,
            gimli::DW_TAG_subroutine_type | gimli::DW_TAG_subprogram => Def::Function,
            gimli::DW_TAG_unspecified_type => Def::Plain(Ty::Void),
            gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type => Def::Alias(None, to()),
            tag => {
                let what = format!("{}: {tag} at {:#x} is no type", self.image.name(), node.offset);
                return Err(Error::Nothing(what));
            }
        })
    }

    fn record(
        &self,
        tag: Tag,
        node: Node,
        unit: &Unit<'d>,
        entry: &Entry<'d>,
        name: Option<String>,
        size: u64,
    ) -> Result<Record, Error> {
        let mut members = Vec::new();
        let bad = self.bad(".debug_info");
        let mut tree = unit.entries_tree(Some(entry.offset())).map_err(&bad)?;
        let mut children = tree.root().map_err(&bad)?.children();
        while let Some(child) = children.next().map_err(&bad)? {
            let member = child.entry();
            // A static member of C++ has no place in the structure.
            if member.tag() != gimli::DW_TAG_member || member.has_attr(gimli::DW_AT_external) {
                continue;
            }
            let bytes = number(member, gimli::DW_AT_data_member_location).unwrap_or(0);
            let bits = number(member, gimli::DW_AT_bit_size)
                .and_then(|n| u8::try_from(n).ok())
                .filter(|n| (1..=64).contains(n));
            let mut offset = bytes.saturating_mul(8);
            if let Some(at) = number(member, gimli::DW_AT_data_bit_offset) {
                offset = at;
            } else if let (Some(from_top), Some(bits)) = (number(member, gimli::DW_AT_bit_offset), bits) {
                // DWARF 3 counts from the most significant bit of the storage unit.
                let unit_bits = number(member, gimli::DW_AT_byte_size).unwrap_or(4).saturating_mul(8);
                offset =
                    offset.saturating_add(unit_bits.saturating_sub(from_top.saturating_add(u64::from(bits))));
            }
            members.push(Member {
                name: self.own_name(node.file, unit, member),
                ty: self.link(node.file, unit, member),
                offset,
                bits,
            });
        }
        let declared = entry.has_attr(gimli::DW_AT_declaration);
        Ok(Record { tag, name, size, members, declared })
    }

    fn enumeration(
        &self,
        node: Node,
        unit: &Unit<'d>,
        entry: &Entry<'d>,
        name: Option<String>,
        size: u64,
    ) -> Result<Enum, Error> {
        let mut variants = Vec::new();
        let bad = self.bad(".debug_info");
        let mut tree = unit.entries_tree(Some(entry.offset())).map_err(&bad)?;
        let mut children = tree.root().map_err(&bad)?.children();
        while let Some(child) = children.next().map_err(&bad)? {
            let variant = child.entry();
            if let (Some(name), Some(value)) = (self.own_name(node.file, unit, variant), constant(variant)) {
                variants.push((name, value));
            }
        }
        let behind = match self.refers(node.file, unit, entry, gimli::DW_AT_type) {
            Some(ty) => match crate::ctype::resolve(self, &Ty::Ref(ty.type_ref())) {
                Ok(Def::Plain(Ty::Int(int))) => Some(int),
                _ => None,
            },
            None => None,
        };
        let negative = variants.iter().any(|v| v.1 < 0);
        let size = if matches!(size, 1 | 2 | 4 | 8) { size as u8 } else { 4 };
        Ok(Enum { name, int: behind.unwrap_or_else(|| Int::of(size, negative)), variants })
    }

    fn array(&self, unit: &Unit<'d>, entry: &Entry<'d>, of: Ty) -> Result<Def, Error> {
        let mut dimensions = Vec::new();
        let bad = self.bad(".debug_info");
        let mut tree = unit.entries_tree(Some(entry.offset())).map_err(&bad)?;
        let mut children = tree.root().map_err(&bad)?.children();
        while let Some(child) = children.next().map_err(&bad)? {
            let range = child.entry();
            if range.tag() == gimli::DW_TAG_subrange_type {
                let upper = number(range, gimli::DW_AT_upper_bound);
                let count = number(range, gimli::DW_AT_count);
                dimensions.push(count.or_else(|| upper.map(|u| u.wrapping_add(1))));
            }
        }
        if dimensions.is_empty() {
            dimensions.push(None);
        }
        let array = dimensions.into_iter().rev().fold(of, |of, n| Ty::Array(Rc::new(of), n));
        Ok(Def::Plain(array))
    }

    /// An enumeration's constant.
    pub(crate) fn variant(
        &self,
        first: Option<(usize, usize)>,
        name: &str,
    ) -> Result<Option<(Ty, i64)>, Error> {
        let found =
            self.named(
                name,
                first,
                |e| {
                    if e.tag() == gimli::DW_TAG_enumerator { Take::This } else { Take::No }
                },
            )?;
        let Some((node, Some(parent))) = found else { return Ok(None) };
        let (_, entry) = self.entry(node)?;
        Ok(constant(&entry).map(|value| (Ty::Ref(parent.type_ref()), value)))
    }
}

impl Types for Debug<'_> {
    fn get(&self, ty: TypeRef) -> Result<Def, String> {
        if let Some(def) = self.defs.borrow().get(&ty) {
            return Ok(def.clone());
        }
        let def = self.def(ty).map_err(|e| e.to_string())?;
        self.defs.borrow_mut().insert(ty, def.clone());
        Ok(def)
    }

    fn find(&self, tag: Tag, name: &str) -> Result<Option<Ty>, String> {
        self.find_from(None, tag, name)
    }
}

/// DW_AT_const_value as a number; what has no sign by its form is taken as unsigned.
fn constant(entry: &Entry<'_>) -> Option<i64> {
    let attr = entry.attr(gimli::DW_AT_const_value)?;
    match attr.value() {
        AttributeValue::Sdata(n) => Some(n),
        _ => attr.udata_value().map(|n| n as i64).or_else(|| attr.sdata_value()),
    }
}

fn base(entry: &Entry<'_>, name: String, size: u64) -> Def {
    let encoding = match entry.attr_value(gimli::DW_AT_encoding) {
        Some(AttributeValue::Encoding(e)) => e,
        _ => gimli::DW_ATE_unsigned,
    };
    let signed = matches!(encoding, gimli::DW_ATE_signed | gimli::DW_ATE_signed_char);
    match (encoding, size) {
        (gimli::DW_ATE_float | gimli::DW_ATE_complex_float | gimli::DW_ATE_decimal_float, _) => {
            Def::Float(name, size)
        }
        (gimli::DW_ATE_boolean, 1) => Def::Plain(Ty::Int(Int::BOOL)),
        (_, 1 | 2 | 4 | 8) => {
            let plain_char = name == "char";
            let long_long = name.matches("long").count() == 2;
            let int = Int::of(size as u8, signed);
            let rank = if long_long { 6 } else { int.rank };
            Def::Plain(Ty::Int(Int { rank, plain_char, ..int }))
        }
        _ => Def::Wide(name, size),
    }
}
