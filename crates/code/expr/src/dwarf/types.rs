// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts DIEs to C types.

use std::rc::Rc;

use gimli::AttributeValue;

use crate::ast::Tag;
use crate::ctype::{Choice, Def, Enum, Int, Kin, Member, Record, Ty, TypeRef, Types};

use super::find::Take;
use super::pattern::Pattern;
use super::{Debug, Entry, Error, Node, Unit};

fn number(entry: &Entry<'_>, at: gimli::DwAt) -> Option<u64> {
    entry.attr(at)?.udata_value()
}

/// Reads a signed number, in any form.
fn signed(entry: &Entry<'_>, at: gimli::DwAt) -> Option<i64> {
    match entry.attr(at)?.value() {
        AttributeValue::Sdata(n) => Some(n),
        // clang writes it as eight bytes.
        _ => entry.attr(at)?.udata_value().map(u64::cast_signed),
    }
}

/// The DWARF tags of a C tag.
fn dwarf_tags(tag: Tag) -> &'static [gimli::DwTag] {
    match tag {
        Tag::Struct => &[gimli::DW_TAG_structure_type, gimli::DW_TAG_class_type],
        Tag::Union => &[gimli::DW_TAG_union_type],
        Tag::Enum => &[gimli::DW_TAG_enumeration_type],
        Tag::Typedef => &[gimli::DW_TAG_typedef],
    }
}

/// Returns true if the unit's language names types without `struct` or `union`.
pub(crate) fn is_bare(unit: &Unit<'_>) -> bool {
    let Some(root) = unit.entry(unit.header.root_offset()).ok() else { return false };
    match root.attr_value(gimli::DW_AT_language) {
        Some(AttributeValue::Language(language)) => matches!(
            language,
            gimli::DW_LANG_C_plus_plus
                | gimli::DW_LANG_C_plus_plus_03
                | gimli::DW_LANG_C_plus_plus_11
                | gimli::DW_LANG_C_plus_plus_14
                | gimli::DW_LANG_C_plus_plus_17
                | gimli::DW_LANG_C_plus_plus_20
                | gimli::DW_LANG_Rust
        ),
        _ => false,
    }
}

/// Returns true for a unit in Rust.
pub(crate) fn is_rust(unit: &Unit<'_>) -> bool {
    language(unit) == Some(gimli::DW_LANG_Rust)
}

/// Returns a unit's language.
pub(crate) fn language(unit: &Unit<'_>) -> Option<gimli::DwLang> {
    match unit.entry(unit.header.root_offset()).ok()?.attr_value(gimli::DW_AT_language)? {
        AttributeValue::Language(language) => Some(language),
        _ => None,
    }
}

impl<'d> Debug<'d> {
    fn link(&self, file: usize, unit: &Unit<'d>, entry: &Entry<'d>) -> Ty {
        match self.refers(file, unit, entry, gimli::DW_AT_type) {
            Some(node) => Ty::Ref(node.type_ref()),
            // The type exists but was not found. A reference to no unit makes a later lookup fail with an error.
            None if entry.has_attr(gimli::DW_AT_type) => {
                Ty::Ref(Node { file: 0xffff, offset: entry.offset().0 }.type_ref())
            }
            None => Ty::Void,
        }
    }

    /// Finds a type by name, first in this unit.
    pub(crate) fn find_from(
        &self,
        first: Option<(usize, usize)>,
        tag: Tag,
        name: &str,
    ) -> Result<Option<Ty>, String> {
        let key = (first, tag, name.to_owned());
        if let Some(found) = self.found.borrow().get(&key) {
            return Ok(found.clone());
        }
        if name.contains("::") {
            let found = self.scoped_type(tag, name).map_err(|e| e.to_string())?;
            self.found.borrow_mut().insert(key, found.clone());
            return Ok(found);
        }
        let wanted = dwarf_tags(tag);
        let found = self
            .named(name, first, |e| {
                if !wanted.contains(&e.tag()) {
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

    /// Finds a type by its name and scopes. A definition is preferred to a declaration.
    fn scoped_type(&self, tag: Tag, name: &str) -> Result<Option<Ty>, Error> {
        let all = self.matching(&Pattern::new(name), dwarf_tags(tag))?;
        let mut declared = None;
        for node in all {
            let (_, entry) = self.entry(node)?;
            if !entry.has_attr(gimli::DW_AT_declaration) || entry.has_attr(gimli::DW_AT_signature) {
                return Ok(Some(Ty::Ref(node.type_ref())));
            }
            declared = Some(Ty::Ref(node.type_ref()));
        }
        Ok(declared)
    }

    fn def(&self, r: TypeRef) -> Result<Def, Error> {
        let mut node = Node::of(r);
        let (mut unit, mut entry) = self.entry(node)?;
        // The definition is in a type unit (-fdebug-types-section).
        if let Some(full) = self.refers(node.file, &unit, &entry, gimli::DW_AT_signature) {
            node = full;
            (unit, entry) = self.entry(node)?;
        }
        let name = self.own_name(node.file, &unit, &entry);
        let size = number(&entry, gimli::DW_AT_byte_size).unwrap_or(0);
        let to = || self.link(node.file, &unit, &entry);
        Ok(match entry.tag() {
            gimli::DW_TAG_base_type => base(&entry, name.unwrap_or_default(), size),
            gimli::DW_TAG_pointer_type => Def::Plain(Ty::Ptr(Rc::new(to()))),
            gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => Def::Reference(to()),
            gimli::DW_TAG_ptr_to_member_type => {
                let method = matches!(crate::ctype::resolve(self, &to()), Ok(Def::Function));
                Def::Wide("pointer to a member".to_owned(), if method { 16 } else { 8 })
            }
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
        let (mut choice, mut of) = (None, None);
        let mut align = number(entry, gimli::DW_AT_alignment);
        let bare = is_bare(unit);
        // True if the copy constructor or destructor is not trivial, so that functions receive the address (Itanium C++
        // ABI 3.1.2.3).
        let mut copied = false;
        let bad = self.bad(".debug_info");
        let mut tree = unit.entries_tree(Some(entry.offset())).map_err(&bad)?;
        let mut children = tree.root().map_err(&bad)?.children();
        while let Some(child) = children.next().map_err(&bad)? {
            if bare && child.entry().tag() == gimli::DW_TAG_subprogram {
                let method = child.entry();
                let method_name = self.own_name(node.file, unit, method);
                copied |= number(method, gimli::DW_AT_virtuality).is_some_and(|n| n != 0);
                let defaulted = number(method, gimli::DW_AT_defaulted) == Some(1);
                copied |= match method_name.as_deref() {
                    _ if defaulted => false,
                    Some(own) if own.starts_with('~') => true,
                    Some(own) if name.as_deref().is_some_and(|n| n.split('<').next() == Some(own)) => {
                        self.is_copying(node, unit, child)?
                    }
                    _ => false,
                };
                continue;
            }
            if bare && of.is_none() && child.entry().tag() == gimli::DW_TAG_template_type_parameter {
                of = Some(self.link(node.file, unit, child.entry()));
                continue;
            }
            if child.entry().tag() == gimli::DW_TAG_variant_part {
                choice = Some(Rc::new(self.choice(node.file, unit, child)?));
                continue;
            }
            // clang says it of the member alone.
            align = align.max(number(child.entry(), gimli::DW_AT_alignment));
            members.extend(self.member(node.file, unit, child.entry())?);
        }
        let declared = entry.has_attr(gimli::DW_AT_declaration);
        copied = copied
            || members.iter().filter(|m| bare && m.kin != Kin::Virtual).any(|m| {
                matches!(
                    crate::ctype::resolve(self, &element(self, &m.ty)),
                    Ok(Def::Record(Record { by_reference: true, .. }))
                )
            })
            || members.iter().any(|m| m.kin == Kin::Virtual);
        let by_reference = match entry.attr_value(gimli::DW_AT_calling_convention) {
            Some(AttributeValue::CallingConvention(said)) => said == gimli::DW_CC_pass_by_reference,
            // GCC does not write this attribute.
            _ => copied,
        };
        let name = match name {
            // The definition of a declared type has the same scopes.
            Some(name) if declared && bare => Some(self.scoped_name(node, name)?),
            name => name,
        };
        Ok(Record { tag, name, size, members, declared, bare, by_reference, align, of, choice })
    }

    /// Returns true for a constructor whose only parameter is an object of the class: a copy or move constructor.
    fn is_copying(
        &self,
        class: Node,
        unit: &Unit<'d>,
        method: gimli::EntriesTreeNode<'_, '_, super::R<'d>>,
    ) -> Result<bool, Error> {
        let bad = self.bad(".debug_info");
        let mut parameters = method.children();
        let mut types = Vec::new();
        while let Some(parameter) = parameters.next().map_err(&bad)? {
            let entry = parameter.entry();
            if entry.tag() == gimli::DW_TAG_formal_parameter && !entry.has_attr(gimli::DW_AT_artificial) {
                types.push(self.link(class.file, unit, entry));
            }
        }
        let [Ty::Ref(one)] = types[..] else { return Ok(false) };
        // The type is not resolved, because that would recurse into the class.
        let mut node = Node::of(one);
        for _ in 0..4 {
            let (unit, entry) = self.entry(node)?;
            match self.refers(node.file, &unit, &entry, gimli::DW_AT_type) {
                Some(to) => node = to,
                None => break,
            }
            if node == class {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the name with all its scopes.
    fn scoped_name(&self, node: Node, name: String) -> Result<String, Error> {
        let scopes = self.scopes_of(node)?;
        let named = scopes.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| name + "::");
        Ok(match named.collect::<String>() {
            none if none.is_empty() => name,
            scopes => format!("::{scopes}{name}"),
        })
    }

    /// Converts a member or base class; None if it has no offset in the structure.
    fn member(&self, file: usize, unit: &Unit<'d>, member: &Entry<'d>) -> Result<Option<Member>, Error> {
        let base = member.tag() == gimli::DW_TAG_inheritance;
        // A static member of C++ has no offset in the structure.
        if !base && (member.tag() != gimli::DW_TAG_member || member.has_attr(gimli::DW_AT_external)) {
            return Ok(None);
        }
        let ty = self.link(file, unit, member);
        let computed = |e: gimli::Expression<super::R<'d>>| {
            let mut operations = e.operations(unit.encoding());
            match (operations.next(), operations.next()) {
                // DWARF 2 describes the offset by an expression that is added to the structure's address.
                (Ok(Some(gimli::Operation::PlusConstant { value })), Ok(None)) => Some(value),
                (
                    Ok(Some(gimli::Operation::UnsignedConstant { value })),
                    Ok(Some(gimli::Operation::Plus)),
                ) => Some(value),
                _ => None,
            }
        };
        let (bytes, known) = match member.attr_value(gimli::DW_AT_data_member_location) {
            None => (0, true),
            Some(value) => {
                let said = value.udata_value().or_else(|| computed(value.exprloc_value()?));
                (said.unwrap_or(0), said.is_some())
            }
        };
        let is_virtual = !known || number(member, gimli::DW_AT_virtuality).is_some_and(|n| n != 0);
        if !base && !known {
            let what = format!("{}: a member's place is computed by an expression", self.image.name());
            return Err(Error::Nothing(what));
        }
        let bits = number(member, gimli::DW_AT_bit_size)
            .and_then(|n| u8::try_from(n).ok())
            .filter(|n| (1..=64).contains(n));
        let mut offset = bytes.saturating_mul(8);
        if let Some(at) = number(member, gimli::DW_AT_data_bit_offset) {
            offset = offset.saturating_add(at);
        } else if let (Some(from_top), Some(bits)) = (signed(member, gimli::DW_AT_bit_offset), bits) {
            // DWARF 3 counts from the most significant bit of the storage unit; the number is negative if the field
            // extends beyond it.
            let unit_bytes = match number(member, gimli::DW_AT_byte_size) {
                Some(bytes) => bytes,
                None => crate::ctype::size_of(self, &ty).ok().flatten().unwrap_or(4),
            };
            let from_bottom = i128::from(unit_bytes) * 8 - i128::from(from_top) - i128::from(bits);
            let bit = i128::from(offset) + from_bottom;
            offset = u64::try_from(bit).map_err(|_| {
                let name = self.own_name(file, unit, member).unwrap_or_default();
                Error::Nothing(format!("{}: bit-field `{name}` begins at bit {bit}", self.image.name()))
            })?;
        }
        let kin = match (base, is_virtual) {
            (false, _) => Kin::Own,
            (true, false) => Kin::Base,
            (true, true) => Kin::Virtual,
        };
        let name = if base { None } else { self.own_name(file, unit, member) };
        Ok(Some(Member { name, ty, offset, bits, kin }))
    }

    /// Reads the variants of a Rust enumeration with data.
    fn choice(
        &self,
        file: usize,
        unit: &Unit<'d>,
        part: gimli::EntriesTreeNode<'_, '_, super::R<'d>>,
    ) -> Result<Choice, Error> {
        let bad = self.bad(".debug_info");
        let mut by = None;
        if let Some(discr) = self.refers(file, unit, part.entry(), gimli::DW_AT_discr) {
            let (unit, entry) = self.entry(discr)?;
            by = self.member(discr.file, &unit, &entry)?;
        }
        let mut variants = Vec::new();
        let mut children = part.children();
        while let Some(child) = children.next().map_err(&bad)? {
            if child.entry().tag() != gimli::DW_TAG_variant {
                continue;
            }
            let value = child.entry().attr_value(gimli::DW_AT_discr_value).and_then(|value| match value {
                AttributeValue::Sdata(n) => Some(i128::from(n)),
                AttributeValue::Block(data) if data.len() == 16 => {
                    Some(u128::from_le_bytes(data.slice().try_into().ok()?) as i128)
                }
                other => other.udata_value().map(i128::from),
            });
            let mut members = child.children();
            while let Some(member) = members.next().map_err(&bad)? {
                if let Some(member) = self.member(file, unit, member.entry())? {
                    variants.push((value, member));
                }
            }
        }
        Ok(Choice { by, variants })
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

    /// Finds an enumerator by name, first in this unit.
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

    /// Returns the value of an enumerator's DIE, with its enumeration.
    pub(crate) fn enumerator_at(&self, node: Node) -> Result<Option<(Ty, i64)>, Error> {
        let Some(index) = self.unit_index(node) else { return Ok(None) };
        let mut around = None;
        let mut found = None;
        self.walk_scopes(node.file, index, |at, _, entry, _| {
            if entry.tag() == gimli::DW_TAG_enumeration_type {
                around = Some(at);
            }
            if at == node {
                found = around.zip(constant(entry));
            }
        })?;
        Ok(found.map(|(ty, value)| (Ty::Ref(ty.type_ref()), value)))
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

    fn is_vector(&self, ty: TypeRef) -> bool {
        self.entry(Node::of(ty)).is_ok_and(|(_, entry)| entry.has_attr(gimli::DW_AT_GNU_vector))
    }
}

/// Returns the element type of an array, or the type itself.
fn element(types: &dyn Types, ty: &Ty) -> Ty {
    match crate::ctype::resolve(types, ty) {
        Ok(Def::Plain(Ty::Array(of, _))) => (*of).clone(),
        _ => ty.clone(),
    }
}

/// Reads DW_AT_const_value as a number. Forms without a sign are read as unsigned.
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
        (gimli::DW_ATE_float, _) => Def::Float(name, size),
        (gimli::DW_ATE_complex_float | gimli::DW_ATE_decimal_float, _) => Def::Wide(name, size),
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
