// SPDX-License-Identifier: MIT OR Apache-2.0
//! An ELF file of nothing but function names, for debuggers.
//!
//! In: the text of kallsyms. Out: [`Module`]s with their functions, and an ELF file in which each module is a section without
//! contents. GDB names an address only if a section has it, so a table of absolute symbols would not do.

use std::collections::{BTreeMap, HashMap};

use kprism_image::symbols::kallsyms::{self, KallsymsError, Kernel};

/// Sections of an ELF file with 16-bit indices that are left for modules.
const MOST_SECTIONS: usize = 0xfe00;
/// Length of a symbol, of a section's header and of the file's header (gABI, `Elf64_Sym`, `Elf64_Shdr`, `Elf64_Ehdr`).
const SYMBOL: u64 = 24;
const HEADER: u64 = 64;

/// The functions of the kernel or of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Module {
    /// Name, address, size in bytes.
    pub functions: Vec<(String, u64, u64)>,
}

impl Module {
    /// The first address and the one past the last.
    fn range(&self) -> Option<(u64, u64)> {
        let start = self.functions.iter().map(|f| f.1).min()?;
        let end = self.functions.iter().map(|f| f.1.saturating_add(f.2)).max()?;
        Some((start, end))
    }
}

/// The modules of a kallsyms text, by their names as there (`[ext4]`); the kernel's own functions have the name `[kernel]`. A function
/// has each of its names.
///
/// # Errors
/// A line has another form, or all addresses are hidden.
pub(super) fn modules(text: &[u8]) -> Result<BTreeMap<String, Module>, KallsymsError> {
    let Kernel { table, module_of, modules } = kallsyms::parse(text)?;
    // A function begins a range, and has no other: kallsyms has no sizes, so nothing lies within it.
    let sizes: HashMap<u64, u64> =
        table.ranges().iter().map(|range| (range.start, range.end - range.start)).collect();
    let own = table.functions().iter().zip(0u32..).map(|(function, number)| (function.name.as_str(), number));
    let mut all: BTreeMap<String, Module> = BTreeMap::new();
    for (name, number) in own.chain(table.aliases()) {
        let index = number as usize;
        let module = module_of.get(index).and_then(|module| modules.get(*module as usize));
        if let (Some(module), Some(function)) = (module, table.functions().get(index)) {
            let size = sizes.get(&function.start).copied().unwrap_or_default();
            let functions = &mut all.entry(module.clone()).or_default().functions;
            functions.push((name.to_owned(), function.start, size));
        }
    }
    for module in all.values_mut() {
        module.functions.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    }
    Ok(all)
}

/// The ELF file. `None` if there is no function.
pub(super) fn file<'m>(modules: impl Iterator<Item = &'m Module>) -> Option<Vec<u8>> {
    let (mut symbols, mut texts, mut names) = (vec![0u8; SYMBOL as usize], vec![0u8], vec![0u8]);
    let mut headers = vec![Header::default()];
    for module in modules.take(MOST_SECTIONS) {
        let Some((start, end)) = module.range() else { continue };
        let index = headers.len();
        let name = add(&mut names, &format!(".text.{index}"));
        // SHT_NOBITS; SHF_ALLOC and SHF_EXECINSTR.
        let header =
            Header { name, kind: 8, flags: 6, address: start, size: end - start, ..Header::default() };
        headers.push(Header { offset: HEADER, align: 1, ..header });
        for (function, address, size) in &module.functions {
            symbols.extend(add(&mut texts, function).to_le_bytes());
            // STB_GLOBAL and STT_FUNC; default visibility.
            symbols.extend([0x12, 0]);
            symbols.extend(u16::try_from(index).ok()?.to_le_bytes());
            symbols.extend(address.to_le_bytes());
            symbols.extend(size.to_le_bytes());
        }
    }
    if headers.len() == 1 {
        return None;
    }
    let [of_symbols, of_texts, of_names] =
        [".symtab", ".strtab", ".shstrtab"].map(|name| add(&mut names, name));
    let count = headers.len() as u32;
    let mut offset = HEADER;
    let mut place = |header: Header, length: usize| {
        let placed = Header { offset, size: length as u64, align: 1, ..header };
        offset += length as u64;
        placed
    };
    // SHT_SYMTAB: its strings are in the next section, and the first global symbol is number 1. SHT_STRTAB is 3.
    let table =
        Header { name: of_symbols, kind: 2, link: count + 1, info: 1, entry: SYMBOL, ..Header::default() };
    headers.push(place(table, symbols.len()));
    headers.push(place(Header { name: of_texts, kind: 3, ..Header::default() }, texts.len()));
    headers.push(place(Header { name: of_names, kind: 3, ..Header::default() }, names.len()));
    let sections = u16::try_from(headers.len()).ok()?;
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    // ET_EXEC for x86-64, version 1, no entry, no program headers.
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    bytes.extend([0u64, 0, offset].map(u64::to_le_bytes).concat());
    bytes.extend([0u8; 4]);
    bytes.extend([64u16, 56, 0, 64, sections, sections - 1].map(u16::to_le_bytes).concat());
    bytes.extend([symbols, texts, names].concat());
    bytes.extend(headers.iter().flat_map(Header::bytes));
    Some(bytes)
}

/// Adds a text to a table of strings. Returns its offset there.
fn add(table: &mut Vec<u8>, text: &str) -> u32 {
    let offset = table.len() as u32;
    table.extend(text.bytes().filter(|byte| *byte != 0));
    table.push(0);
    offset
}

/// A section's header.
#[derive(Debug, Clone, Copy, Default)]
struct Header {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    entry: u64,
}

impl Header {
    fn bytes(&self) -> Vec<u8> {
        let mut all = [self.name, self.kind].map(u32::to_le_bytes).concat();
        all.extend([self.flags, self.address, self.offset, self.size].map(u64::to_le_bytes).concat());
        all.extend([self.link, self.info].map(u32::to_le_bytes).concat());
        all.extend([self.align, self.entry].map(u64::to_le_bytes).concat());
        all
    }
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    use super::*;

    const TEXT: &[u8] = b"ffffffff81000000 T _text\nffffffff81000000 t alias\nffffffff81000010 t vfs_open\n\
        ffffffff81000040 D data\n0000000000001000 A per_cpu\nffffffffc0000020 t modf\t[mod]\n";

    #[test]
    fn functions_end_where_the_next_symbol_begins() {
        let all = modules(TEXT).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["[kernel]", "[mod]"]);
        let sizes: Vec<(&str, u64)> = all["[kernel]"].functions.iter().map(|f| (f.0.as_str(), f.2)).collect();
        assert_eq!(sizes, [("_text", 0x10), ("alias", 0x10), ("vfs_open", 0x30)]);
        assert_eq!(all["[mod]"].functions, [("modf".to_owned(), 0xffff_ffff_c000_0020, 0xfe0)]);
    }

    /// As the names of a run's flow are read.
    #[test]
    fn a_module_in_the_place_of_another_has_its_addresses_and_other_text_is_refused() {
        let text =
            b"ffffffff81000000 T _stext\nffffffffc0000000 t old\t[old]\nffffffffc0000000 t new\t[new]\n";
        let all = modules(text).unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["[kernel]", "[new]"]);
        assert!(
            modules(b"ffffffff81000000 T _stext\nnonsense\n").unwrap_err().to_string().contains("line 2")
        );
        assert!(matches!(modules(b"0000000000000000 T _stext\n"), Err(KallsymsError::Hidden)));
        assert!(modules(b"").unwrap().is_empty());
    }

    #[test]
    fn another_reader_of_elf_has_each_function_in_its_section() {
        let all = modules(TEXT).unwrap();
        let bytes = file(all.values()).unwrap();
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        let mut seen = Vec::new();
        for symbol in elf.symbols().filter(|symbol| symbol.is_definition()) {
            let section = elf.section_by_index(symbol.section_index().unwrap()).unwrap();
            let range = section.address()..section.address() + section.size();
            assert!(range.contains(&symbol.address()) && section.file_range().is_none());
            seen.push(symbol.name().unwrap().to_owned());
        }
        assert_eq!(seen, ["_text", "alias", "vfs_open", "modf"]);
        assert!(file([].iter()).is_none());
    }
}
