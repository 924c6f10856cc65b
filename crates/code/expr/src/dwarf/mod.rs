// SPDX-License-Identifier: MIT OR Apache-2.0
//! DWARF 4 and 5 of a kernel or a program, read on demand.
//!
//! There is no index. Units are found by address in `.debug_aranges`. By name, they are found by a search for the name
//! in the string table, then for its offset in the bytes of `.debug_info`. That is faster than building a table first.
//! Only units that are needed are parsed.
//!
//! Input: an [`Image`] of `kprism-debuginfo`, which maps the file and its .dwo files. Output: places in the code with the
//! variables in scope, types, and the expressions of their locations.

mod copies;
mod find;
mod frame;
mod line;
mod location;
mod module;
mod pattern;
mod place;
mod saved;
mod symbol;
mod tracepoint;
mod types;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::ast::Tag;
use crate::ctype::{Def, Ty, TypeRef};

pub use kprism_debuginfo::{Error, Image};
pub use line::Line;
pub use module::InModule;
pub use place::{Place, Places};
pub use saved::Saved;
pub use symbol::Bare;
pub use tracepoint::{Event, JumpLabel, Site, jump_labels};

pub(crate) type R<'d> = kprism_debuginfo::Slice<'d>;
pub(crate) type Unit<'d> = gimli::Unit<R<'d>>;
pub(crate) type Entry<'d> = gimli::DebuggingInformationEntry<R<'d>>;

/// Position of a DIE: the part (0 is the main file; then the .dwo files, then `.debug_types`) and the offset in its
/// section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    pub file: usize,
    pub offset: usize,
}

impl Node {
    pub fn type_ref(self) -> TypeRef {
        TypeRef((self.file as u64) << 48 | self.offset as u64)
    }

    pub fn of(r: TypeRef) -> Self {
        Self { file: (r.0 >> 48) as usize, offset: (r.0 & 0xffff_ffff_ffff) as usize }
    }
}

/// Range of a unit in its section.
#[derive(Debug, Clone)]
pub(crate) struct UnitAt<'d> {
    pub start: usize,
    pub end: usize,
    pub header: gimli::UnitHeader<R<'d>>,
    /// For a unit of a .dwo file, the offset of its skeleton in the main file.
    pub skeleton: Option<usize>,
}

/// DWARF of one file or section.
pub(crate) struct Part<'d> {
    pub dwarf: gimli::Dwarf<R<'d>>,
    pub units: Vec<UnitAt<'d>>,
}

/// Key of a type lookup: the unit it starts from, tag and name.
type TypeKey = (Option<(usize, usize)>, Tag, String);

/// The debug information of a file.
pub struct Debug<'d> {
    pub(crate) image: &'d Image,
    pub(crate) parts: Vec<Part<'d>>,
    /// Parsed units, by their start.
    units: RefCell<HashMap<Node, Rc<Unit<'d>>>>,
    defs: RefCell<HashMap<TypeRef, Def>>,
    found: RefCell<HashMap<TypeKey, Option<Ty>>>,
    /// Global variables and functions, by the unit that asks and the name.
    globals: RefCell<HashMap<(usize, usize, String), Option<Node>>>,
    /// Instructions that the kernel patches at run time: address and length.
    patched: OnceCell<Vec<(u64, u64)>>,
}

impl<'d> Debug<'d> {
    /// Opens the debug information and lists its units.
    pub fn new(image: &'d Image) -> Result<Self, Error> {
        let main = Part { dwarf: image.dwarf(), units: Vec::new() };
        let mut debug = Self {
            image,
            parts: vec![main],
            units: RefCell::default(),
            defs: RefCell::default(),
            found: RefCell::default(),
            globals: RefCell::default(),
            patched: OnceCell::new(),
        };
        debug.parts[0].units = debug.list(0)?;
        debug.open_split()?;
        debug.open_types()?;
        Ok(debug)
    }

    pub(crate) fn bad(&self, section: &'static str) -> impl Fn(gimli::Error) -> Error + use<'_, 'd> {
        move |e| Error::Dwarf(self.image.name().to_owned(), section, e)
    }

    fn list(&self, part: usize) -> Result<Vec<UnitAt<'d>>, Error> {
        let mut units = Vec::new();
        let mut headers = self.parts[part].dwarf.units();
        while let Some(header) = headers.next().map_err(self.bad(".debug_info"))? {
            let Some(start) = header.debug_info_offset() else { continue };
            let end = start.0.saturating_add(header.length_including_self());
            units.push(UnitAt { start: start.0, end, header, skeleton: None });
        }
        Ok(units)
    }

    /// Opens the .dwo files that skeleton units name.
    fn open_split(&mut self) -> Result<(), Error> {
        for index in 0..self.image.split().len() {
            let (skeleton, image) = &self.image.split()[index];
            let mut dwarf = image.dwarf_of(true);
            dwarf.make_dwo(&self.parts[0].dwarf);
            self.parts.push(Part { dwarf, units: Vec::new() });
            let part = self.parts.len() - 1;
            let mut units = self.list(part)?;
            for unit in &mut units {
                unit.skeleton = Some(*skeleton);
            }
            self.parts[part].units = units;
        }
        Ok(())
    }

    /// Opens the type units of DWARF 4, which are in a section of their own (-fdebug-types-section). They are the last
    /// part.
    fn open_types(&mut self) -> Result<(), Error> {
        let section = self.image.section(".debug_types");
        if section.is_empty() {
            return Ok(());
        }
        let dwarf = self.image.dwarf();
        let mut units = Vec::new();
        let mut headers = dwarf.type_units();
        while let Some(header) = headers.next().map_err(self.bad(".debug_types"))? {
            let start = header.offset().0;
            let end = start.saturating_add(header.length_including_self());
            units.push(UnitAt { start, end, header, skeleton: None });
        }
        self.parts.push(Part { dwarf, units });
        Ok(())
    }

    /// Returns the index of the unit that contains the DIE.
    pub(crate) fn unit_index(&self, node: Node) -> Option<usize> {
        let units = &self.parts.get(node.file)?.units;
        let after = units.partition_point(|u| u.start <= node.offset);
        let index = after.checked_sub(1)?;
        (node.offset < units[index].end).then_some(index)
    }

    pub(crate) fn unit(&self, file: usize, index: usize) -> Result<Rc<Unit<'d>>, Error> {
        let at = self.parts[file].units[index].clone();
        let key = Node { file, offset: at.start };
        if let Some(unit) = self.units.borrow().get(&key) {
            return Ok(unit.clone());
        }
        let mut unit = self.parts[file].dwarf.unit(at.header).map_err(self.bad(".debug_info"))?;
        if let Some(skeleton) = at.skeleton
            && let Some(index) = self.unit_index(Node { file: 0, offset: skeleton })
        {
            let skeleton = self.unit(0, index)?;
            unit.copy_relocated_attributes(&skeleton);
        }
        let unit = Rc::new(unit);
        self.units.borrow_mut().insert(key, unit.clone());
        Ok(unit)
    }

    /// Returns the full unit for a unit of the main file: the split unit if it is a skeleton, else itself.
    pub(crate) fn full(&self, index: usize) -> (usize, usize) {
        let start = self.parts[0].units[index].start;
        let split = self.parts.iter().enumerate().skip(1).find_map(|(file, part)| {
            let index = part.units.iter().position(|u| {
                u.skeleton == Some(start) && !matches!(u.header.type_(), gimli::UnitType::SplitType { .. })
            })?;
            Some((file, index))
        });
        split.unwrap_or((0, index))
    }

    pub(crate) fn entry(&self, node: Node) -> Result<(Rc<Unit<'d>>, Entry<'d>), Error> {
        let missing = || Error::Nothing(format!("{}: no die at {:#x}", self.image.name(), node.offset));
        let index = self.unit_index(node).ok_or_else(missing)?;
        let unit = self.unit(node.file, index)?;
        let at = gimli::UnitOffset(node.offset - self.parts[node.file].units[index].start);
        let entry = unit.entry(at).map_err(self.bad(".debug_info"))?;
        Ok((unit, entry))
    }

    /// Returns the DIE that an attribute refers to.
    pub(crate) fn refers(
        &self,
        file: usize,
        unit: &Unit<'d>,
        entry: &Entry<'d>,
        at: gimli::DwAt,
    ) -> Option<Node> {
        let start = unit.header.offset().0;
        match entry.attr_value(at)? {
            gimli::AttributeValue::UnitRef(o) => Some(Node { file, offset: start.checked_add(o.0)? }),
            gimli::AttributeValue::DebugInfoRef(o) => Some(Node { file, offset: o.0 }),
            gimli::AttributeValue::DebugTypesRef(signature) => self.by_signature(signature),
            _ => None,
        }
    }

    fn by_signature(&self, signature: gimli::DebugTypeSignature) -> Option<Node> {
        self.parts.iter().enumerate().find_map(|(file, part)| {
            part.units.iter().find_map(|u| match u.header.type_() {
                gimli::UnitType::Type { type_signature, type_offset }
                | gimli::UnitType::SplitType { type_signature, type_offset }
                    if type_signature == signature =>
                {
                    Some(Node { file, offset: u.start.checked_add(type_offset.0)? })
                }
                _ => None,
            })
        })
    }

    pub(crate) fn own_name(&self, file: usize, unit: &Unit<'d>, entry: &Entry<'d>) -> Option<String> {
        let value = entry.attr_value(gimli::DW_AT_name)?;
        let text = self.parts[file].dwarf.attr_string(unit, value).ok()?;
        Some(text.to_string_lossy().into_owned())
    }

    /// Looks an attribute up in the DIE, then in the DIEs that it is an instance of.
    pub(crate) fn inherited<T>(
        &self,
        node: Node,
        get: impl Fn(usize, &Unit<'d>, &Entry<'d>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut node = node;
        for _ in 0..8 {
            let (unit, entry) = self.entry(node)?;
            if let Some(found) = get(node.file, &unit, &entry) {
                return Ok(Some(found));
            }
            let next = self
                .refers(node.file, &unit, &entry, gimli::DW_AT_abstract_origin)
                .or_else(|| self.refers(node.file, &unit, &entry, gimli::DW_AT_specification));
            match next {
                Some(next) => node = next,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    pub(crate) fn name(&self, node: Node) -> Result<Option<String>, Error> {
        self.inherited(node, |file, unit, entry| self.own_name(file, unit, entry))
    }

    pub(crate) fn type_at(&self, node: Node) -> Result<Ty, Error> {
        let found =
            self.inherited(node, |file, unit, entry| self.refers(file, unit, entry, gimli::DW_AT_type))?;
        Ok(found.map_or(Ty::Void, |n| Ty::Ref(n.type_ref())))
    }
}
