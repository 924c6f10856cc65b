// SPDX-License-Identifier: MIT OR Apache-2.0
//! The line table of a whole program, kernel or module, with its functions and their code.
//!
//! Input: the bytes of an ELF file with DWARF, and of the file with the code if that is a different one. Output:
//! [`Lines`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use object::{
    Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, SectionIndex, SectionKind, SymbolKind,
};

pub use crate::sections::Section;
use crate::sections::{Bases, Slice, layout, sections, slice};
use crate::separate::of_file;

/// Code of a source line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Index into [`Lines::files`].
    pub file: u32,
    /// The line; 0 if the compiler names none.
    pub line: u32,
    /// A statement begins here, not a moved part of one.
    pub statement: bool,
    /// The source position is in the first column: in C, the brace that ends a function.
    pub first_column: bool,
    /// Distinguishes pieces of code of one line.
    pub discriminator: u32,
}

/// A statement without instructions of its own. It is executed when its address is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bare {
    /// Its address.
    pub address: u64,
    /// Index into [`Lines::files`].
    pub file: u32,
    /// The line.
    pub line: u32,
}

/// A function's declaration in the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Declared {
    /// The line of its name; 0 if unknown.
    pub line: u32,
    /// It returns a value.
    pub has_value: bool,
}

/// A function with code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name as known to the linker.
    pub name: String,
    /// Its entry address.
    pub start: u64,
    /// Its code, up to the next function at most.
    pub code: Vec<u8>,
    /// Its declaration.
    pub declared: Declared,
}

/// A file's debug information about its code.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// Paths of source files; absolute if the compiler recorded its folder.
    pub files: Vec<String>,
    /// The folder in which most units were compiled.
    pub folder: Option<String>,
    /// Sorted by address; they do not overlap.
    pub rows: Vec<Row>,
    /// Sorted by address; at one address in the compiler's order.
    pub bare: Vec<Bare>,
    /// Files and lines at which functions begin in the source, those without code too. Sorted.
    pub begins: Vec<(u32, u32)>,
    /// Sorted by address; they do not overlap.
    pub functions: Vec<Function>,
    /// Sorted by address.
    pub sections: Vec<Section>,
    /// Constants by address, for a linked file.
    pub constants: Vec<(u64, Vec<u8>)>,
}

impl Lines {
    /// Reads the debug information about a file's code: in the file itself, or under one of the folders by its build
    /// id. `None` if there is none.
    ///
    /// # Errors
    /// A file cannot be read, or is not valid.
    pub fn of_file(file: &Path, folders: &[PathBuf]) -> Result<Option<Self>, String> {
        of_file(file, folders, &Self::read)
    }

    /// Reads the debug information in `debug` on the code in `code`, which may be the same file. `None` if there is no
    /// line table.
    ///
    /// # Errors
    /// One of them is no ELF file, or its debug information is damaged.
    pub fn read(debug: &[u8], code: &[u8]) -> Result<Option<Self>, String> {
        let size = code.len();
        let debug = object::File::parse(debug).map_err(|e| e.to_string())?;
        let code = object::File::parse(code).map_err(|e| e.to_string())?;
        if debug.section_by_name(".debug_line").is_none_or(|s| s.size() == 0) {
            return Ok(None);
        }
        let (bases, sections) = layout(&code);
        let mut lines = Lines { sections, ..Lines::default() };
        lines.functions = functions(&debug, &code, &bases);
        if code.kind() != ObjectKind::Relocatable {
            // Sections of a damaged file may overlap. Together they are limited to the size of the file.
            let mut room = size;
            for section in code.sections().filter(|s| s.kind() == SectionKind::ReadOnlyData) {
                let Ok(data) = section.data() else { continue };
                let Some(left) = room.checked_sub(data.len()) else { break };
                room = left;
                lines.constants.push((section.address(), data.to_vec()));
            }
        }
        lines.read_rows(&debug, &bases).map_err(|e| format!("its line table: {e}"))?;
        Ok(Some(lines))
    }

    fn read_rows(&mut self, debug: &object::File<'_>, bases: &Bases) -> Result<(), gimli::Error> {
        let data = sections(debug, bases)?;
        let dwarf = data.borrow(|data| slice(data));
        let mut known: HashMap<String, u32> = HashMap::new();
        let mut folders: BTreeMap<String, u32> = BTreeMap::new();
        let mut declared: HashMap<u64, Declared> = HashMap::new();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            let unit = dwarf.unit(header)?;
            let (labels, begins) = declarations(&dwarf, &unit, &mut declared)?;
            let folder = unit.comp_dir.map(|d| d.to_string_lossy().into_owned()).unwrap_or_default();
            let Some(program) = unit.line_program.clone() else { continue };
            *folders.entry(folder.clone()).or_default() += 1;
            // The files of this unit that appear.
            let mut met: HashMap<u64, u32> = HashMap::new();
            let mut open: Option<Row> = None;
            let mut number = |files: &mut Vec<String>, header: &_, index: u64| match met.get(&index) {
                Some(&file) => file,
                None => {
                    let path = path_of(&dwarf, &unit, header, index, &folder);
                    let next = files.len() as u32;
                    let file = *known.entry(path.clone()).or_insert(next);
                    if file == next {
                        files.push(path);
                    }
                    met.insert(index, file);
                    file
                }
            };
            for (file, line) in begins {
                let file = number(&mut self.files, program.header(), file);
                self.begins.push((file, line));
            }
            let mut rows = program.clone().rows();
            while let Some((header, row)) = rows.next_row()? {
                let row = *row;
                if let Some(mut last) = open.take() {
                    last.end = row.address();
                    // Code that the linker discarded is at 0.
                    if last.start < last.end && last.start != 0 {
                        self.rows.push(last);
                    } else if last.start == last.end && last.start != 0 && last.statement && last.line != 0 {
                        self.bare.push(Bare { address: last.start, file: last.file, line: last.line });
                    }
                }
                if row.end_sequence() {
                    continue;
                }
                let file = number(&mut self.files, header, row.file_index());
                let line = row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0);
                let first_column =
                    matches!(row.column(), gimli::ColumnType::Column(column) if column.get() == 1);
                let first_column = first_column && !labels.contains(&(row.file_index(), line));
                let (start, statement) = (row.address(), row.is_stmt());
                let discriminator = u32::try_from(row.discriminator()).unwrap_or(0);
                open = Some(Row { start, end: start, file, line, statement, first_column, discriminator });
            }
        }
        self.begins.sort_unstable();
        self.begins.dedup();
        self.rows.sort_by_key(|row| (row.start, row.end));
        // Of sequences at the same address, the first stays.
        let mut end = 0;
        self.rows.retain(|row| {
            let keep = row.start >= end;
            end = end.max(row.end);
            keep
        });
        self.bare.sort_by_key(|bare| bare.address);
        for function in &mut self.functions {
            function.declared = declared.get(&function.start).copied().unwrap_or_default();
        }
        self.folder = folders.into_iter().rev().max_by_key(|(_, n)| *n).map(|(f, _)| f);
        self.folder = self.folder.take().filter(|folder| !folder.is_empty());
        Ok(())
    }
}

fn functions(debug: &object::File<'_>, code: &object::File<'_>, bases: &Bases) -> Vec<Function> {
    let mut found: Vec<(u64, u64, String, SectionIndex)> = Vec::new();
    // A stripped program's symbols are with its debug information.
    let stripped = code.symbols().next().is_none();
    for symbol in if stripped { debug.symbols() } else { code.symbols() } {
        let Some(index) = symbol.section_index() else { continue };
        let (SymbolKind::Text, Some(&base)) = (symbol.kind(), bases.get(&index)) else { continue };
        let Ok(name) = symbol.name() else { continue };
        // A part moved away from a function belongs to it, and is entered only from there.
        if symbol.size() > 0 && !name.starts_with("__pfx_") {
            let start = base.wrapping_add(symbol.address());
            found.push((start, symbol.size(), name.to_owned(), index));
        }
    }
    // Of aliases, the first by name stays.
    found.sort_by(|a, b| (a.0, &a.2).cmp(&(b.0, &b.2)));
    found.dedup_by_key(|f| f.0);
    let ends: Vec<u64> = found.iter().skip(1).map(|f| f.0).chain([u64::MAX]).collect();
    let mut functions = Vec::new();
    for ((start, size, name, index), limit) in found.into_iter().zip(ends) {
        let Ok(section) = code.section_by_index(index) else { continue };
        let Ok(data) = section.data() else { continue };
        let at = start.wrapping_sub(bases[&index]).wrapping_sub(section.address());
        let length = size.min(limit - start);
        let bytes = usize::try_from(at).ok().zip(usize::try_from(at.saturating_add(length)).ok());
        if let Some(code) = bytes.and_then(|(from, to)| data.get(from..to)) {
            let declared = Declared::default();
            functions.push(Function { name, start, code: code.to_vec(), declared });
        }
    }
    functions
}

/// A file of a unit by its number there, and a line.
type Marks = HashSet<(u64, u32)>;

/// Reads the declarations of a unit's functions, by entry address. Returns where its labels are, which are in the first column
/// too, and where its functions begin.
fn declarations(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &gimli::Unit<Slice<'_>>,
    declared: &mut HashMap<u64, Declared>,
) -> Result<(Marks, Marks), gimli::Error> {
    let (mut labels, mut begins) = (Marks::new(), Marks::new());
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        let marks = match entry.tag() {
            gimli::DW_TAG_label => Some(&mut labels),
            gimli::DW_TAG_subprogram if entry.attr(gimli::DW_AT_declaration).is_none() => Some(&mut begins),
            _ => None,
        };
        if let Some(marks) = marks
            && let Some(gimli::AttributeValue::FileIndex(file)) = entry.attr_value(gimli::DW_AT_decl_file)
        {
            let line = declared_by(entry).line;
            marks.extend((line != 0).then_some((file, line)));
        }
        if entry.tag() != gimli::DW_TAG_subprogram {
            continue;
        }
        let Some(low) = entry.attr_value(gimli::DW_AT_low_pc) else { continue };
        let Some(start) = dwarf.attr_address(unit, low)? else { continue };
        let mut found = declared_by(entry);
        // A copy refers to its original.
        for origin in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
            if let Some(gimli::AttributeValue::UnitRef(origin)) = entry.attr_value(origin) {
                let of = declared_by(&unit.entry(origin)?);
                let line = if found.line == 0 { of.line } else { found.line };
                found = Declared { line, has_value: found.has_value | of.has_value };
            }
        }
        declared.insert(start, found);
    }
    Ok((labels, begins))
}

fn declared_by(entry: &gimli::DebuggingInformationEntry<Slice<'_>>) -> Declared {
    let line = entry.attr_value(gimli::DW_AT_decl_line).and_then(|value| value.udata_value());
    Declared {
        line: line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0),
        has_value: entry.attr(gimli::DW_AT_type).is_some(),
    }
}

/// A source file's path.
fn path_of(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &gimli::Unit<Slice<'_>>,
    header: &gimli::LineProgramHeader<Slice<'_>>,
    file: u64,
    folder: &str,
) -> String {
    let Some(listed) = listed(dwarf, unit, header, file) else { return "?".to_owned() };
    let folder = kprism_gcov::absolute(Some(folder), &listed.folder.unwrap_or_default());
    kprism_gcov::absolute(Some(&folder), &listed.name.unwrap_or_default())
}

/// A file of a unit's line table, as the compiler named it. `None` stands for a name that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its folder, relative to that of the compilation.
    pub folder: Option<String>,
    /// Its name or path.
    pub name: Option<String>,
}

/// Finds a file in a unit's line table by its number. The header that comes with a row knows also the files that rows
/// before it define.
pub fn listed(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &gimli::Unit<Slice<'_>>,
    header: &gimli::LineProgramHeader<Slice<'_>>,
    file: u64,
) -> Option<Listed> {
    let file = header.file(file)?;
    let text = |value| Some(dwarf.attr_string(unit, value).ok()?.to_string_lossy().into_owned());
    Some(Listed { folder: file.directory(header).and_then(text), name: text(file.path_name()) })
}
