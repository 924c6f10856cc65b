// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds all places in the code where a function begins: the function itself, copies that a compiler made, and inlined
//! instances.
//!
//! The name of a function is in one DIE. Other DIEs refer to it (DW_AT_specification, DW_AT_abstract_origin), from the
//! same unit or, after link-time optimisation, from others.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use memchr::memmem;

use super::pattern::{Pattern, demangled};
use super::{Debug, Entry, Error, Node, Unit};
use crate::error::suggestion;

/// Marks a function in a list of scopes.
const FUNCTION: &str = "(function)";

/// Limit of DIEs whose references are searched one by one. For more of them, one pass over the bytes finds all.
const FEW: usize = 4;

/// Limit of the parts of one function's code that are looked for among callers.
const MOST_PARTS: usize = 8;

/// An address at which a function begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub pc: u64,
    /// For an inlined instance, its DIE.
    pub inlined: Option<Node>,
}

/// Result of the search for a function.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Sorted by address, at most one for each address.
    pub all: Vec<Copy>,
    /// DIEs without an address: declarations, and abstract instances of inlined functions.
    pub named: Vec<Node>,
}

impl<'d> Debug<'d> {
    /// Returns the DIEs with these tags whose name and scopes match the pattern.
    pub(crate) fn matching(&self, pattern: &Pattern, tags: &[gimli::DwTag]) -> Result<Vec<Node>, Error> {
        let mut found = Vec::new();
        for file in 0..self.parts.len() {
            for index in self.candidates_of_base(file, pattern.base()) {
                self.walk_scopes(file, index, |node, unit, entry, scopes| {
                    let local = entry.tag() == gimli::DW_TAG_variable
                        && scopes.iter().any(|(name, _)| name == FUNCTION);
                    if !tags.contains(&entry.tag()) || local {
                        return;
                    }
                    let Some(name) = self.own_name(file, unit, entry) else { return };
                    if pattern.is_name(&name) && pattern.is_within(scopes) {
                        found.push(node);
                    }
                })?;
            }
        }
        Ok(found)
    }

    /// Visits each DIE of a unit with the names of its enclosing scopes.
    pub(crate) fn walk_scopes(
        &self,
        file: usize,
        index: usize,
        mut each: impl FnMut(Node, &Unit<'d>, &Entry<'d>, &[(String, bool)]),
    ) -> Result<(), Error> {
        let unit = self.unit(file, index)?;
        let start = self.parts[file].units[index].start;
        let mut entries = unit.entries_raw(None).map_err(self.bad(".debug_info"))?;
        let mut entry = Entry::null();
        let mut depths: Vec<isize> = Vec::new();
        let mut scopes: Vec<(String, bool)> = Vec::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            if !entries.read_entry(&mut entry).map_err(self.bad(".debug_info"))? {
                continue;
            }
            while depths.last().is_some_and(|d| *d >= depth) {
                depths.pop();
                scopes.pop();
            }
            each(Node { file, offset: start + entry.offset().0 }, &unit, &entry, &scopes);
            let scope = matches!(
                entry.tag(),
                gimli::DW_TAG_namespace
                    | gimli::DW_TAG_module
                    | gimli::DW_TAG_structure_type
                    | gimli::DW_TAG_class_type
                    | gimli::DW_TAG_union_type
                    | gimli::DW_TAG_enumeration_type
            );
            if scope && entry.has_children() {
                let name = self.own_name(file, &unit, &entry);
                // The constants of an unscoped enumeration are visible outside of it.
                let open =
                    entry.tag() == gimli::DW_TAG_enumeration_type && !entry.has_attr(gimli::DW_AT_enum_class);
                let needed = name.is_some() && !open && !entry.has_attr(gimli::DW_AT_export_symbols);
                depths.push(depth);
                scopes.push((name.unwrap_or_else(|| "(anonymousnamespace)".to_owned()), needed));
            } else if entry.tag() == gimli::DW_TAG_subprogram && entry.has_children() {
                depths.push(depth);
                scopes.push((FUNCTION.to_owned(), false));
            }
        }
        Ok(())
    }

    /// Returns the scopes in which a DIE is declared.
    pub(crate) fn scopes_of(&self, node: Node) -> Result<Vec<(String, bool)>, Error> {
        let mut node = node;
        for _ in 0..8 {
            let (unit, entry) = self.entry(node)?;
            let of = self
                .refers(node.file, &unit, &entry, gimli::DW_AT_abstract_origin)
                .or_else(|| self.refers(node.file, &unit, &entry, gimli::DW_AT_specification));
            match of {
                Some(of) => node = of,
                None => break,
            }
        }
        let Some(index) = self.unit_index(node) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        self.walk_scopes(node.file, index, |at, _, _, scopes| {
            if at == node {
                found = scopes.to_vec();
            }
        })?;
        found.retain(|(name, _)| name != FUNCTION);
        Ok(found)
    }

    /// Visits these DIEs and all that refer to one of them, directly or indirectly.
    pub(crate) fn instances(
        &self,
        named: &[Node],
        mut each: impl FnMut(Node, &Unit<'d>, &Entry<'d>),
    ) -> Result<(), Error> {
        let mut known: HashSet<Node> = named.iter().copied().collect();
        let mut new: Vec<Node> = named.to_vec();
        let mut first = true;
        while !new.is_empty() {
            let units = self.referring(&new);
            let mut next = Vec::new();
            for (file, index) in units {
                let unit = self.unit(file, index)?;
                let start = self.parts[file].units[index].start;
                let mut entries = unit.entries_raw(None).map_err(self.bad(".debug_info"))?;
                let mut entry = Entry::null();
                while !entries.is_empty() {
                    if !entries.read_entry(&mut entry).map_err(self.bad(".debug_info"))? {
                        continue;
                    }
                    let node = Node { file, offset: start + entry.offset().0 };
                    if first && named.contains(&node) {
                        each(node, &unit, &entry);
                        continue;
                    }
                    let of = self
                        .refers(file, &unit, &entry, gimli::DW_AT_abstract_origin)
                        .or_else(|| self.refers(file, &unit, &entry, gimli::DW_AT_specification));
                    if of.is_some_and(|of| known.contains(&of)) && known.insert(node) {
                        each(node, &unit, &entry);
                        next.push(node);
                    }
                }
            }
            // No DIE refers to an inlined instance, so the chain ends there.
            new = next;
            first = false;
        }
        Ok(())
    }

    /// Returns the units that may refer to these DIEs: their own, and those that contain the offset in their bytes.
    fn referring(&self, nodes: &[Node]) -> BTreeSet<(usize, usize)> {
        let mut units = BTreeSet::new();
        let mut offsets: BTreeMap<usize, HashSet<u32>> = BTreeMap::new();
        for node in nodes {
            units.extend(self.unit_index(*node).map(|index| (node.file, index)));
            if let Ok(offset) = u32::try_from(node.offset) {
                offsets.entry(node.file).or_default().insert(offset);
            }
        }
        for (file, wanted) in offsets {
            let info = self.info_bytes(file);
            let mut add = |at: usize| {
                units.extend(self.unit_index(Node { file, offset: at }).map(|index| (file, index)));
            };
            if wanted.len() <= FEW {
                for offset in wanted {
                    memmem::find_iter(info, &offset.to_le_bytes()).for_each(&mut add);
                }
                continue;
            }
            let mut perhaps = vec![false; 1 << 16];
            wanted.iter().for_each(|offset| perhaps[*offset as usize & 0xffff] = true);
            for (at, bytes) in info.windows(4).enumerate() {
                if perhaps[usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))]
                    && wanted.contains(&u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                {
                    add(at);
                }
            }
        }
        units
    }

    /// Finds all addresses at which a function begins.
    pub(crate) fn copies(&self, name: &str) -> Result<Copies, Error> {
        let pattern = Pattern::new(name);
        let mut found = Copies::default();
        let mut own: BTreeSet<u64> = BTreeSet::new();
        let mut inlined: Vec<(u64, Node)> = Vec::new();
        let mut named = self.matching(&pattern, &[gimli::DW_TAG_subprogram])?;
        if pattern.has_params() {
            let mut of_types = Vec::new();
            for node in named {
                let linked = self.linkage_name(node)?;
                let linked = linked.as_deref().and_then(demangled);
                if linked.is_some_and(|linked| pattern.is_demangled(&linked)) {
                    of_types.push(node);
                }
            }
            named = of_types;
        }
        self.instances(&named, |node, unit, entry| {
            let pc = self.first_pc(node.file, unit, entry);
            match (entry.tag(), pc) {
                (gimli::DW_TAG_inlined_subroutine, Some(pc)) => inlined.push((pc, node)),
                (gimli::DW_TAG_subprogram, Some(pc)) => drop(own.insert(pc)),
                _ => {}
            }
        })?;
        let wanted = |symbol: &str| {
            let bare = symbol.split('.').next().unwrap_or(symbol);
            if pattern.is_plain() && (bare == name) {
                return true;
            }
            memmem::find(symbol.as_bytes(), pattern.base().as_bytes()).is_some()
                && demangled(symbol).is_some_and(|known| pattern.is_demangled(&known))
        };
        let symbols = self.image.symbols(wanted);
        // A part that the compiler split off (`.part.`, `.cold`) is not the beginning of a function.
        let is_part = |name: &str| name.contains(".part.") || name.contains(".cold");
        let moved: BTreeSet<u64> = symbols.iter().filter(|s| is_part(&s.name)).map(|s| s.address).collect();
        own.extend(symbols.iter().filter(|s| s.code && !is_part(&s.name)).map(|s| s.address));
        own.retain(|pc| !moved.contains(pc));
        // Assembler needs no type for a function's symbol; the debug information of its callers declares it only.
        if own.is_empty() && inlined.is_empty() && pattern.is_plain() {
            own.extend(self.image.labels(|symbol, _| symbol == name).iter().map(|symbol| symbol.address));
        }
        found.all = own.iter().map(|pc| Copy { pc: *pc, inlined: None }).collect();
        inlined.sort_by_key(|(pc, node)| (*pc, node.offset));
        inlined.dedup_by_key(|(pc, _)| *pc);
        inlined.retain(|(pc, _)| !own.contains(pc));
        found.all.extend(inlined.into_iter().map(|(pc, node)| Copy { pc, inlined: Some(node) }));
        found.named = named;
        Ok(found)
    }

    /// Returns the code of a function of this file, by its symbols: address and length of each part.
    pub(super) fn code_of(&self, function: &str) -> Result<Vec<(u64, u32)>, String> {
        let pattern = Pattern::new(function);
        let named = |symbol: &str| {
            let bare = symbol.split('.').next().unwrap_or(symbol);
            symbol == function
                || (pattern.is_plain() && bare == function)
                || (symbol.starts_with('_')
                    && memmem::find(symbol.as_bytes(), pattern.base().as_bytes()).is_some()
                    && demangled(symbol).is_some_and(|known| pattern.is_demangled(&known)))
        };
        let symbols = self.image.symbols(named);
        let mut parts: Vec<(u64, u32)> = symbols
            .iter()
            .filter(|symbol| symbol.code && symbol.size > 0)
            .map(|symbol| (symbol.address, u32::try_from(symbol.size).unwrap_or(u32::MAX)))
            .collect();
        parts.dedup();
        if parts.len() > MOST_PARTS {
            return Err(format!(
                "`{function}` are {} functions and parts, {MOST_PARTS} can be looked for: name one with its scope",
                parts.len()
            ));
        }
        if parts.is_empty() {
            let all = self.image.symbols(|_| true);
            let functions = all.iter().filter(|symbol| symbol.code).map(|symbol| symbol.name.as_str());
            let near = suggestion(function, functions).map_or_else(String::new, |near| format!("; {near}"));
            let file = self.image.name();
            return Err(format!(
                "{file} has no function `{function}`{near}: callers are known in the file of the place alone, and inlined ones not at all"
            ));
        }
        Ok(parts)
    }

    pub(crate) fn linkage_name(&self, node: Node) -> Result<Option<String>, Error> {
        self.inherited(node, |file, unit, entry| {
            let value = entry
                .attr_value(gimli::DW_AT_linkage_name)
                .or_else(|| entry.attr_value(gimli::DW_AT_MIPS_linkage_name))?;
            Some(self.parts[file].dwarf.attr_string(unit, value).ok()?.to_string_lossy().into_owned())
        })
    }

    /// Returns the address at which a DIE's code is entered.
    fn first_pc(&self, file: usize, unit: &Unit<'d>, entry: &Entry<'d>) -> Option<u64> {
        let dwarf = &self.parts[file].dwarf;
        let begin = || {
            let mut ranges = dwarf.die_ranges(unit, entry).ok()?;
            loop {
                let range = ranges.next().ok()??;
                if range.begin < range.end {
                    return Some(range.begin);
                }
            }
        };
        let low = entry.attr_value(gimli::DW_AT_low_pc).and_then(|v| dwarf.attr_address(unit, v).ok()?);
        let begin = begin().or(low)?;
        let value = entry.attr_value(gimli::DW_AT_entry_pc);
        let said = value.and_then(|value| match dwarf.attr_address(unit, value) {
            Ok(Some(address)) => Some(address),
            // In DWARF 5, DW_AT_entry_pc may be an offset from the DIE's base address.
            _ => value.udata_value().map(|n| low.unwrap_or(begin).wrapping_add(n)),
        });
        // Functions that the linker discarded have address 0.
        Some(said.unwrap_or(begin)).filter(|pc| *pc != 0 && self.image.holds(*pc))
    }
}
