// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps addresses to the source function to which they belong, and to the inlined calls around it.
//!
//! Input: the bytes of an ELF file with DWARF, and of the file with the code. Output: [`Scopes`], which is looked up by
//! address.

use std::path::{Path, PathBuf};

use gimli::{AttributeValue, DebuggingInformationEntry, Unit, UnitOffset};
use object::Object as _;

use crate::sections::{Slice, layout, sections, slice};
use crate::separate::of_file;

/// A function, or an inlined copy of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Its name as known to the linker.
    pub name: String,
    /// The line of its name.
    pub line: u32,
    /// Its entry address; 0 for a copy.
    pub entry: u64,
    /// For a copy: the scope that contains it, and the call that it replaces.
    pub within: Option<Call>,
}

/// An inlined call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Index of the calling scope.
    pub from: u32,
    /// The call's line.
    pub line: u32,
    /// Distinguishes calls of one line.
    pub discriminator: u32,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    start: u64,
    end: u64,
    scope: u32,
}

/// Functions and their inlined copies, by address.
#[derive(Debug, Clone, Default)]
pub struct Scopes {
    /// Outer scopes come before inner ones.
    pub all: Vec<Scope>,
    /// Ranges with their innermost scope; they do not overlap.
    parts: Vec<Range>,
}

impl Scopes {
    /// Like [`Lines::of_file`](crate::lines::Lines::of_file).
    ///
    /// # Errors
    /// A file cannot be read, or is not valid.
    pub fn of_file(file: &Path, folders: &[PathBuf]) -> Result<Option<Self>, String> {
        of_file(file, folders, &Self::read)
    }

    /// Reads the debug information in `debug` about the code in `code`. `None` if there is none.
    ///
    /// # Errors
    /// One of them is no ELF file, or its debug information is damaged.
    pub fn read(debug: &[u8], code: &[u8]) -> Result<Option<Self>, String> {
        let debug = object::File::parse(debug).map_err(|e| e.to_string())?;
        let code = object::File::parse(code).map_err(|e| e.to_string())?;
        if debug.section_by_name(".debug_info").is_none() {
            return Ok(None);
        }
        let (bases, _) = layout(&code);
        let read = || -> Result<Self, gimli::Error> {
            let data = sections(&debug, &bases)?;
            let dwarf = data.borrow(|data| slice(data));
            let (mut scopes, mut ranges) = (Scopes::default(), Vec::new());
            let mut units = dwarf.units();
            while let Some(header) = units.next()? {
                let unit = dwarf.unit(header)?;
                scopes.unit(&dwarf, &unit, &mut ranges)?;
            }
            scopes.parts = innermost(ranges);
            Ok(scopes)
        };
        read().map(Some).map_err(|e| format!("its debug information: {e}"))
    }

    /// The innermost scope at an address.
    pub fn at(&self, address: u64) -> Option<u32> {
        let next = self.parts.partition_point(|part| part.end <= address);
        self.parts.get(next).filter(|part| part.start <= address).map(|part| part.scope)
    }

    fn unit(
        &mut self,
        dwarf: &gimli::Dwarf<Slice<'_>>,
        unit: &Unit<Slice<'_>>,
        ranges: &mut Vec<Range>,
    ) -> Result<(), gimli::Error> {
        // Open scopes with their depth.
        let mut open: Vec<(isize, u32)> = Vec::new();
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            open.retain(|&(of, _)| of < depth);
            let within = match entry.tag() {
                gimli::DW_TAG_subprogram => None,
                gimli::DW_TAG_inlined_subroutine => {
                    let Some(&(_, from)) = open.last() else { continue };
                    let discriminator = number(entry, gimli::DW_AT_GNU_discriminator);
                    Some(Call { from, line: number(entry, gimli::DW_AT_call_line), discriminator })
                }
                _ => continue,
            };
            let scope = self.all.len() as u32;
            let mut entry_at = 0;
            let mut found = dwarf.die_ranges(unit, entry)?;
            let before = ranges.len();
            while let Some(range) = found.next()? {
                // Code that the linker discarded is at 0.
                if range.begin != 0 && range.begin < range.end {
                    entry_at = if entry_at == 0 { range.begin } else { entry_at };
                    ranges.push(Range { start: range.begin, end: range.end, scope });
                }
            }
            if ranges.len() == before {
                continue;
            }
            if let Some(AttributeValue::Addr(low)) =
                entry.attr_value(gimli::DW_AT_low_pc).filter(|_| within.is_none())
            {
                entry_at = if low == 0 { entry_at } else { low };
            }
            let (name, line) = named(dwarf, unit, entry.offset(), 0)?;
            let entry_at = if within.is_some() { 0 } else { entry_at };
            self.all.push(Scope { name, line, entry: entry_at, within });
            open.push((depth, scope));
        }
        Ok(())
    }
}

fn number(entry: &DebuggingInformationEntry<Slice<'_>>, name: gimli::DwAt) -> u32 {
    let value = entry.attr_value(name).and_then(|value| value.udata_value());
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
}

/// Maximum of references followed.
const HOPS: u32 = 8;

/// The name and line of a function, its own or those of its original.
pub(crate) fn named(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    at: UnitOffset,
    hops: u32,
) -> Result<(String, u32), gimli::Error> {
    let entry = unit.entry(at)?;
    let mut name = String::new();
    for attribute in [gimli::DW_AT_linkage_name, gimli::DW_AT_name] {
        if let Some(value) = entry.attr_value(attribute).filter(|_| name.is_empty()) {
            name = dwarf.attr_string(unit, value)?.to_string_lossy().into_owned();
        }
    }
    let mut line = number(&entry, gimli::DW_AT_decl_line);
    for origin in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
        if let Some(AttributeValue::UnitRef(origin)) = entry.attr_value(origin)
            && hops < HOPS
        {
            let of = named(dwarf, unit, origin, hops + 1)?;
            // The linker's name of a C++ function may be at its declaration.
            if name.is_empty() || entry.attr(gimli::DW_AT_linkage_name).is_none() {
                name = of.0;
            }
            line = if line == 0 { of.1 } else { line };
        }
    }
    Ok((name, line))
}

/// Splits nested ranges. Of ranges with the same extent, later ones are inside earlier ones.
fn innermost(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end), range.scope));
    let mut parts: Vec<Range> = Vec::new();
    let mut open: Vec<Range> = Vec::new();
    let mut at = 0;
    let mut close = |open: &mut Vec<Range>, at: &mut u64, until: u64| {
        while let Some(&last) = open.last() {
            let end = last.end.min(until);
            if *at < end {
                parts.push(Range { start: *at, end, scope: last.scope });
                *at = end;
            }
            if last.end > until {
                break;
            }
            open.pop();
        }
        *at = (*at).max(until);
    };
    for range in ranges {
        close(&mut open, &mut at, range.start);
        open.push(range);
    }
    close(&mut open, &mut at, u64::MAX);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_scope_has_the_address() {
        let range = |start, end, scope| Range { start, end, scope };
        let parts = innermost(vec![
            range(10, 50, 0),
            range(20, 30, 1),
            range(20, 25, 2),
            range(60, 70, 3),
            range(30, 31, 4),
        ]);
        let scopes = Scopes { all: Vec::new(), parts };
        let at = [9, 10, 20, 25, 30, 31, 49, 50, 60, 70].map(|address| scopes.at(address));
        assert_eq!(at, [None, Some(0), Some(2), Some(1), Some(4), Some(0), Some(0), None, Some(3), None]);
    }
}
