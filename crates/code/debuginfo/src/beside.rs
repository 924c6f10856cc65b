// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places in inlined helpers: an address beside each at which a debugger sees the locals of the function around.
//!
//! A debugger resolves names in the innermost inlined function at an address. The no-op of a static tracepoint lies in
//! one that has no locals of interest, and so may all instructions behind it. `beside` looks for code of the function
//! around in which all its locals are described to be in the same registers and memory as at the place. There a
//! debugger compiles expressions that are right at the place.
//!
//! Input: the bytes of an ELF file with DWARF, and of the file with the code; the places. Output: for each place, such
//! addresses, the nearest first.

use std::path::{Path, PathBuf};

use gimli::{
    AttributeValue, BaseAddresses, CfaRule, CieOrFde, DebugFrame, DebuggingInformationEntry, LittleEndian,
    Unit, UnwindContext, UnwindSection as _,
};
use object::{Object as _, ObjectSection as _};

use crate::scopes::named;
use crate::sections::{Slice, layout, section, slice};
use crate::separate;

/// Addresses beside a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// The function around the place. It may be inlined itself.
    pub function: String,
    /// Code of that function in which its locals are where they are at the place: start and end, the best first.
    pub pieces: Vec<(u64, u64)>,
    /// Locals of the place that are not known in the first piece.
    pub missing: Vec<String>,
}

/// The reason why nothing was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No debug information describes the place.
    Undescribed,
    /// Nowhere in the function the locals are where they are at the place.
    Nowhere,
}

/// A place, and the names of the helpers that are inlined there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its address, as [`code_sections`] has it.
    pub address: u64,
    /// Names of inlined functions that are passed over.
    pub helpers: Vec<String>,
}

/// A section with code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeSection {
    /// Its name.
    pub name: String,
    /// The address that it has here; sections of an unlinked file are placed one behind the other.
    pub start: u64,
    /// Its size, bytes.
    pub size: u64,
}

/// Sections with code of a file.
///
/// # Errors
/// It cannot be read, or is no ELF file.
pub fn code_sections(file: &Path) -> Result<Vec<CodeSection>, String> {
    let code = std::fs::read(file).map_err(|e| e.to_string())?;
    let code = object::File::parse(&*code).map_err(|e| e.to_string())?;
    let (bases, _) = layout(&code);
    let named = code.sections().filter_map(|section| {
        let start = bases.get(&section.index())?.wrapping_add(section.address());
        Some(CodeSection { name: section.name().ok()?.to_owned(), start, size: section.size() })
    });
    Ok(named.collect())
}

/// The addresses beside each place.
pub type Found = Vec<Result<Beside, Why>>;

/// Looks beside the places, with the debug information in the file itself or under one of the folders by its build id.
/// `None` if there is none.
///
/// # Errors
/// A file cannot be read, or is not valid.
pub fn of_file(file: &Path, folders: &[PathBuf], wanted: &[Wanted]) -> Result<Option<Found>, String> {
    separate::of_file(file, folders, &|debug, code| read(debug, code, wanted))
}

/// Like [`of_file`], with the debug information in `debug` about the code in `code`.
///
/// # Errors
/// One of them is no ELF file, or its debug information is damaged.
pub fn read(debug: &[u8], code: &[u8], wanted: &[Wanted]) -> Result<Option<Found>, String> {
    let debug = object::File::parse(debug).map_err(|e| e.to_string())?;
    let code = object::File::parse(code).map_err(|e| e.to_string())?;
    if debug.section_by_name(".debug_info").is_none() {
        return Ok(None);
    }
    let (bases, _) = layout(&code);
    let all = || -> Result<Found, gimli::Error> {
        let data =
            gimli::DwarfSections::load(|id| Ok::<_, gimli::Error>(section(&debug, id.name(), &bases)))?;
        let dwarf = data.borrow(|data| slice(data));
        let frames = section(&debug, ".debug_frame", &bases);
        let frames = Frames::new(&frames)?;
        let mut found: Found = vec![Err(Why::Undescribed); wanted.len()];
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            let unit = dwarf.unit(header)?;
            let mut ranges = dwarf.unit_ranges(&unit)?;
            let mut parts = Vec::new();
            while let Some(range) = ranges.next()? {
                parts.push((range.begin, range.end));
            }
            if !wanted.iter().any(|place| is_in(&parts, place.address)) {
                continue;
            }
            let rows = rows(&unit)?;
            for function in functions(&dwarf, &unit, wanted)? {
                for (place, found) in wanted.iter().zip(&mut found) {
                    if is_in(&function.blocks[0].ranges, place.address) {
                        *found = function.beside(place, &rows, &frames);
                    }
                }
            }
        }
        Ok(found)
    };
    all().map(Some).map_err(|e| format!("its debug information: {e}"))
}

fn is_in(ranges: &[(u64, u64)], address: u64) -> bool {
    ranges.iter().any(|(start, end)| (*start..*end).contains(&address))
}

/// Addresses at which statements begin, sorted.
fn rows(unit: &Unit<Slice<'_>>) -> Result<Vec<u64>, gimli::Error> {
    let mut all = Vec::new();
    let Some(program) = unit.line_program.clone() else { return Ok(all) };
    let mut rows = program.rows();
    while let Some((_, row)) = rows.next_row()? {
        if row.is_stmt() && !row.end_sequence() {
            all.push(row.address());
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A function, a function inlined into it, or a block.
struct Block {
    /// Index of the block around it.
    within: usize,
    /// Name of a function; none for a lexical block.
    name: Option<String>,
    ranges: Vec<(u64, u64)>,
    locals: Vec<Local>,
}

/// A parameter or a variable, with its locations: start, end, and the expression's bytes.
struct Local {
    name: String,
    locations: Vec<(u64, u64, Vec<u8>)>,
}

impl Local {
    fn at(&self, address: u64) -> Option<&[u8]> {
        let found = self.locations.iter().find(|(start, end, _)| (*start..*end).contains(&address));
        found.map(|(_, _, expression)| expression.as_slice())
    }
}

/// The blocks of a function. The first is the function itself; outer ones come before inner ones.
struct Function {
    blocks: Vec<Block>,
}

/// The functions of a unit that contain a place.
fn functions<'d>(
    dwarf: &gimli::Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    wanted: &[Wanted],
) -> Result<Vec<Function>, gimli::Error> {
    let mut all: Vec<Function> = Vec::new();
    // Open blocks of the last function, with their depth.
    let mut open: Vec<(isize, usize)> = Vec::new();
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        let depth = entry.depth();
        open.retain(|&(of, _)| of < depth);
        let tag = entry.tag();
        match tag {
            gimli::DW_TAG_subprogram => {
                open.clear();
                let ranges = ranges(dwarf, unit, entry)?;
                if wanted.iter().any(|place| is_in(&ranges, place.address)) {
                    let name = Some(named(dwarf, unit, entry.offset(), 0)?.0);
                    all.push(Function {
                        blocks: vec![Block { within: 0, name, ranges, locals: Vec::new() }],
                    });
                    open.push((depth, 0));
                }
            }
            gimli::DW_TAG_inlined_subroutine | gimli::DW_TAG_lexical_block => {
                let (Some(&(_, within)), Some(function)) = (open.last(), all.last_mut()) else { continue };
                let inlined = tag == gimli::DW_TAG_inlined_subroutine;
                let name = inlined.then(|| named(dwarf, unit, entry.offset(), 0)).transpose()?;
                let ranges = ranges(dwarf, unit, entry)?;
                open.push((depth, function.blocks.len()));
                let name = name.map(|(name, _)| name);
                function.blocks.push(Block { within, name, ranges, locals: Vec::new() });
            }
            gimli::DW_TAG_formal_parameter | gimli::DW_TAG_variable => {
                let (Some(&(of, block)), Some(function)) = (open.last(), all.last_mut()) else { continue };
                if of + 1 == depth {
                    let name = named(dwarf, unit, entry.offset(), 0)?.0;
                    let locations = locations(dwarf, unit, entry)?;
                    function.blocks[block].locals.push(Local { name, locations });
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

fn ranges<'d>(
    dwarf: &gimli::Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    entry: &DebuggingInformationEntry<Slice<'d>>,
) -> Result<Vec<(u64, u64)>, gimli::Error> {
    let mut all = Vec::new();
    let mut ranges = dwarf.die_ranges(unit, entry)?;
    while let Some(range) = ranges.next()? {
        // Code that the linker discarded is at 0.
        if range.begin != 0 && range.begin < range.end {
            all.push((range.begin, range.end));
        }
    }
    Ok(all)
}

fn locations<'d>(
    dwarf: &gimli::Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    entry: &DebuggingInformationEntry<Slice<'d>>,
) -> Result<Vec<(u64, u64, Vec<u8>)>, gimli::Error> {
    if entry.attr(gimli::DW_AT_const_value).is_some() {
        return Ok(vec![(0, u64::MAX, Vec::new())]);
    }
    match entry.attr_value(gimli::DW_AT_location) {
        None => Ok(Vec::new()),
        Some(AttributeValue::Exprloc(expression)) => Ok(vec![(0, u64::MAX, expression.0.slice().to_vec())]),
        Some(value) => {
            let mut all = Vec::new();
            let Some(mut entries) = dwarf.attr_locations(unit, value)? else { return Ok(all) };
            while let Some(entry) = entries.next()? {
                if entry.range.begin < entry.range.end {
                    all.push((entry.range.begin, entry.range.end, entry.data.0.slice().to_vec()));
                }
            }
            Ok(all)
        }
    }
}

impl Function {
    /// The blocks at an address: the function, then those inside, innermost last.
    fn chain(&self, address: u64) -> Vec<usize> {
        let mut chain = vec![0];
        // Inner blocks follow outer ones.
        for (n, block) in self.blocks.iter().enumerate().skip(1) {
            if chain.last() == Some(&block.within) && is_in(&block.ranges, address) {
                chain.push(n);
            }
        }
        chain
    }

    fn locals<'f>(&'f self, blocks: &'f [usize]) -> impl Iterator<Item = &'f Local> {
        blocks.iter().flat_map(|n| &self.blocks[*n].locals)
    }

    /// The innermost function of a chain that is no helper, and the blocks from there on that belong to it.
    fn scope<'c>(&self, chain: &'c [usize], helpers: &[String]) -> &'c [usize] {
        let name = |at: usize| self.blocks[chain[at]].name.as_deref();
        let mut end = chain.len();
        loop {
            let start = (0..end).rev().find(|at| name(*at).is_some()).unwrap_or(0);
            let is_helper = name(start).is_some_and(|name| helpers.iter().any(|helper| helper == name));
            if !is_helper || start == 0 {
                return &chain[start..end];
            }
            end = start;
        }
    }

    fn beside(&self, place: &Wanted, rows: &[u64], frames: &Frames<'_>) -> Result<Beside, Why> {
        let chain = self.chain(place.address);
        let here = self.scope(&chain, &place.helpers);
        let own = here[0];
        let frame = frames.rows_in(&self.blocks[0].ranges);
        let rule = |address: u64| {
            let row = frame.get(frame.partition_point(|(_, end, _)| *end <= address));
            row.filter(|(start, _, _)| *start <= address).map(|(_, _, rule)| rule)
        };
        let cfa = rule(place.address);
        let of_function = |address: &u64| is_in(&self.blocks[0].ranges, *address);
        let blocks =
            self.blocks.iter().flat_map(|block| &block.ranges).flat_map(|(start, end)| [*start, *end]);
        let places =
            self.locals(here).flat_map(|local| &local.locations).flat_map(|(start, end, _)| [*start, *end]);
        let frames = frame.iter().map(|(start, _, _)| *start);
        let mut bounds: Vec<u64> = blocks.chain(places).chain(frames).filter(of_function).collect();
        for (start, end) in &self.blocks[0].ranges {
            let from = rows.partition_point(|row| row < start);
            bounds.extend(rows[from..].iter().take_while(|row| *row < end));
            bounds.push(*end);
        }
        bounds.sort_unstable();
        bounds.dedup();
        let mut pieces: Vec<(u64, u64)> = bounds.windows(2).map(|pair| (pair[0], pair[1])).collect();
        pieces.retain(|(start, _)| of_function(start));
        pieces.sort_by_key(|(start, _)| start.abs_diff(place.address));
        let mut found: Vec<Ranked> = Vec::new();
        for (start, end) in pieces {
            if found.iter().filter(|(lacks, ..)| *lacks == 0).count() >= ENOUGH {
                break;
            }
            let there = self.chain(start);
            let there = self.scope(&there, &[]).to_vec();
            // Names of blocks that are not around the place would be wrong there.
            if there[0] != own || there.iter().any(|block| !here.contains(block)) || rule(start) != cfa {
                continue;
            }
            let moved = |local: &Local| match (local.at(start), local.at(place.address)) {
                (None, _) => false,
                (there, here) => there != here,
            };
            if self.locals(&there).any(moved) {
                continue;
            }
            let known = |block: &usize| there.contains(block);
            let missing = here
                .iter()
                .flat_map(|block| self.blocks[*block].locals.iter().map(move |local| (block, local)));
            let missing = missing.filter(|(block, local)| {
                local.at(place.address).is_some() && !(known(block) && local.at(start).is_some())
            });
            let missing: Vec<String> = missing.map(|(_, local)| local.name.clone()).collect();
            found.push((missing.len(), start.abs_diff(place.address), (start, end), missing));
        }
        found.sort();
        let Some((_, _, _, missing)) = found.first().cloned() else { return Err(Why::Nowhere) };
        let function = self.blocks[own].name.clone().unwrap_or_default();
        let pieces =
            found.iter().filter(|(lacks, ..)| *lacks == missing.len()).map(|(_, _, piece, _)| *piece);
        Ok(Beside { function, pieces: pieces.collect(), missing })
    }
}

/// A piece of code: how many locals are missing there, its distance, its bounds, the missing locals.
type Ranked = (usize, u64, (u64, u64), Vec<String>);

/// Number of pieces of code that are enough.
const ENOUGH: usize = 4;

/// Frame addresses by code.
struct Frames<'d> {
    section: DebugFrame<Slice<'d>>,
    /// Functions: start, end, and their entry.
    all: Vec<(u64, u64, gimli::FrameDescriptionEntry<Slice<'d>>)>,
}

impl<'d> Frames<'d> {
    fn new(data: &'d [u8]) -> Result<Self, gimli::Error> {
        let mut section = DebugFrame::new(data, LittleEndian);
        section.set_address_size(8);
        let mut all = Vec::new();
        let bases = BaseAddresses::default();
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next()? {
            if let CieOrFde::Fde(part) = entry {
                let fde = part.parse(DebugFrame::cie_from_offset)?;
                if fde.initial_address() != 0 {
                    all.push((fde.initial_address(), fde.end_address(), fde));
                }
            }
        }
        all.sort_by_key(|(start, _, _)| *start);
        Ok(Self { section, all })
    }

    fn rows(&self, address: u64) -> Vec<(u64, u64, CfaRule<usize>)> {
        let after = self.all.partition_point(|(start, _, _)| *start <= address);
        let mut found = Vec::new();
        let Some((_, end, fde)) = after.checked_sub(1).and_then(|n| self.all.get(n)) else { return found };
        if address >= *end {
            return found;
        }
        let bases = BaseAddresses::default();
        let mut context = UnwindContext::new();
        let Ok(mut rows) = fde.rows(&self.section, &bases, &mut context) else { return found };
        while let Ok(Some(row)) = rows.next_row() {
            found.push((row.start_address(), row.end_address(), row.cfa().clone()));
        }
        found
    }

    /// Rules of this code: start, end, rule; sorted.
    fn rows_in(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64, CfaRule<usize>)> {
        let mut all: Vec<_> = ranges.iter().flat_map(|(start, _)| self.rows(*start)).collect();
        all.sort_by_key(|(start, _, _)| *start);
        all
    }
}
