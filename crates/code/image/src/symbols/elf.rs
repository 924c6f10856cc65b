// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of an ELF file: executables (static, PIE or not), shared libraries, and vDSO images.
//!
//! The input is the bytes of a file, and of its separate debug file if there is one; the output is an [`ElfSymbols`].
//! There are five sources, in order of preference: `.symtab` (of both files), `.dynsym`, the PLT (entries are named
//! `name@plt` after the symbol of the GOT slot through which they jump), the entry point, and the ranges of `.eh_frame`.
//! The last is important because distributions strip their programs, but every function keeps its unwind entry and can
//! at least be distinguished from its neighbours; such functions are named `file+0xaddress`. References: ELF gABI
//! chapters 4 and 5; x86-64 psABI 5.2 for the PLT; LSB 10.6 for `.eh_frame`.

use std::collections::{BTreeMap, BTreeSet};

use gimli::UnwindSection as _;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, ObjectSymbolTable as _, elf};

use super::names::Binding;
use super::table::{Symbol, Table};
use crate::x86::stubs;

/// Follows the name of a symbol of type `STT_GNU_IFUNC`. The code at its address is not the function, but chooses it once, when the
/// file is loaded (gABI extension of GNU; psABI 7.3). The one that is chosen has a symbol of its own. GCC names the resolvers
/// that it makes in the same way.
const RESOLVER: &str = ".resolver";

/// The reason why a file gives no functions.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The file is not an ELF file of the class and machine that kprism reads.
    #[error("expected a 64-bit little-endian x86-64 ELF file: {0}")]
    Format(String),
}

/// The data kept of one ELF file.
#[derive(Debug, Default)]
pub struct ElfSymbols {
    /// Functions at their link-time virtual addresses.
    pub table: Table,
    /// Loadable segments: (file offset, size in the file, virtual address).
    segments: Vec<(u64, u64, u64)>,
}

impl ElfSymbols {
    /// The link-time virtual address of the byte at `offset` in the file, or `None` if no segment contains it.
    ///
    /// Pages are mapped as a whole, so the rest of a segment's first and last page in the file belongs to it too.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        const PAGE: u64 = 4096;
        let exact = self.segments.iter().find(|&&(start, size, _)| offset.wrapping_sub(start) < size);
        let near = || {
            self.segments.iter().find(|&&(start, size, _)| {
                let first = start & !(PAGE - 1);
                let last = start.saturating_add(size).saturating_add(PAGE - 1) & !(PAGE - 1);
                (first..last).contains(&offset)
            })
        };
        exact.or_else(near).map(|&(start, _, address)| address.wrapping_add(offset.wrapping_sub(start)))
    }
}

/// Parses the functions of an ELF file. `file_name` is used in the names of functions without a symbol.
///
/// Damaged tables inside a valid file are read as far as possible.
///
/// # Errors
/// Fails if the file is not x86-64 ELF.
pub fn parse(bytes: &[u8], file_name: &str) -> Result<ElfSymbols, ElfError> {
    parse_with(bytes, None, file_name)
}

/// The same, with the symbols of its separate debug file, `debug`, of which only the symbol table is read.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(bytes: &[u8], debug: Option<&[u8]>, file_name: &str) -> Result<ElfSymbols, ElfError> {
    let file = ElfFile64::<LittleEndian>::parse(bytes).map_err(|e| ElfError::Format(e.to_string()))?;
    let machine = file.elf_header().e_machine(LittleEndian);
    if machine != elf::EM_X86_64 {
        return Err(ElfError::Format(format!("its machine is number {}", machine.0)));
    }
    let segments = (file.elf_program_headers().iter())
        .filter(|p| p.p_type(LittleEndian) == elf::PT_LOAD)
        .map(|p| (p.p_offset(LittleEndian), p.p_filesz(LittleEndian), p.p_vaddr(LittleEndian)))
        .collect();

    let code = code_sections(&file);
    let in_code = |address: u64| code.iter().any(|&(start, end)| (start..end).contains(&address));
    let mut symbols = Vec::new();
    add_symbols(&file, &in_code, &mut symbols);
    // Both files have the same addresses. The sections of the debug file are empty, so that all else comes from the file itself.
    if let Some(debug) = debug.and_then(|bytes| ElfFile64::<LittleEndian>::parse(bytes).ok()) {
        add_symbols(&debug, &in_code, &mut symbols);
    }
    add_plt(&file, &mut symbols);
    add_entry(&file, &in_code, &mut symbols);
    add_unwind_ranges(&file, file_name, &in_code, &mut symbols);
    // End marks: a function without a size must not extend into the next section.
    symbols.extend(code.iter().map(|&(_, end)| Symbol {
        start: end,
        size: 0,
        name: "".into(),
        binding: Binding::Local,
        code: false,
    }));
    let limit = code.iter().map(|c| c.1).max().unwrap_or(0);
    Ok(ElfSymbols { table: Table::build(symbols, limit), segments })
}

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// Address ranges of the executable sections, or of the executable segments if the file has no sections.
fn code_sections(file: &Elf) -> Vec<(u64, u64)> {
    let mut code: Vec<(u64, u64)> = (file.sections())
        .filter(|s| {
            let object::SectionFlags::Elf { sh_flags, .. } = s.flags() else { return false };
            sh_flags.0 & elf::SHF_EXECINSTR.0 != 0
        })
        .map(|s| (s.address(), s.address().saturating_add(s.size())))
        .collect();
    if code.is_empty() {
        code = (file.elf_program_headers().iter())
            .filter(|p| {
                p.p_type(LittleEndian) == elf::PT_LOAD && p.p_flags(LittleEndian).0 & elf::PF_X.0 != 0
            })
            .map(|p| p.p_vaddr(LittleEndian)..p.p_vaddr(LittleEndian).saturating_add(p.p_memsz(LittleEndian)))
            .map(|r| (r.start, r.end))
            .collect();
    }
    code
}

/// Adds the functions of `.symtab` and `.dynsym`.
fn add_symbols(file: &Elf, in_code: &dyn Fn(u64) -> bool, out: &mut Vec<Symbol<'_>>) {
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let object::SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
        let kind = st_info.st_type();
        let is_function = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
        // Assembly functions often have no type. Other names without a type (mapping marks, assembler locals) do no
        // harm, because they are ignored inside a sized function.
        if symbol.is_undefined() || !(is_function || kind == elf::STT_NOTYPE) || !in_code(symbol.address()) {
            continue;
        }
        let Ok(name) = symbol.name_bytes() else { continue };
        if name.is_empty() || name.len() > 1 << 16 {
            continue;
        }
        let binding = match st_info.st_bind() {
            elf::STB_LOCAL => Binding::Local,
            elf::STB_WEAK => Binding::Weak,
            _ => Binding::Global,
        };
        let mut name = String::from_utf8_lossy(name).into_owned();
        if kind == elf::STT_GNU_IFUNC {
            name += RESOLVER;
        }
        out.push(Symbol {
            start: symbol.address(),
            size: symbol.size(),
            name: name.into(),
            binding,
            code: true,
        });
    }
}

/// Adds the PLT entries, named after the relocation of the GOT slot through which they jump.
fn add_plt(file: &Elf, out: &mut Vec<Symbol<'_>>) {
    let mut slots: Vec<(u64, String)> = Vec::new();
    let dynamic = file.dynamic_symbol_table();
    for (slot, relocation) in file.dynamic_relocations().into_iter().flatten() {
        let name = match relocation.target() {
            object::RelocationTarget::Symbol(index) => (dynamic.as_ref())
                .and_then(|t| t.symbol_by_index(index).ok())
                .and_then(|s| s.name_bytes().ok().map(|n| String::from_utf8_lossy(n).into_owned())),
            // IRELATIVE: the addend is the address of the resolver function.
            _ => resolver_name(out, relocation.addend() as u64),
        };
        if let Some(name) = name.filter(|n| !n.is_empty()) {
            slots.push((slot, name));
        }
    }
    // A static executable has no dynamic symbols, and `object` then lists no dynamic relocations.
    if slots.is_empty()
        && let Some(rela) = file.section_by_name(".rela.plt").or_else(|| file.section_by_name(".rela.iplt"))
        && let Ok(data) = rela.data()
    {
        for entry in data.chunks_exact(24) {
            let word = |i: usize| u64::from_le_bytes(entry[i..i + 8].try_into().unwrap_or_default());
            if let Some(name) = resolver_name(out, word(16)) {
                slots.push((word(0), name));
            }
        }
    }
    slots.sort();
    for section_name in stubs::PLT {
        let Some(section) = file.section_by_name(section_name) else { continue };
        let Ok(data) = section.data() else { continue };
        let size = stubs::entry_size(section_name, data);
        for (i, entry) in data.chunks_exact(size).enumerate() {
            let start = section.address().wrapping_add((i * size) as u64);
            let slot = stubs::jump_slot(entry, start);
            let found = slot.and_then(|s| slots.binary_search_by(|(at, _)| at.cmp(&s)).ok());
            let name = found.map_or_else(|| section_name.to_owned(), |at| format!("{}@plt", slots[at].1));
            out.push(Symbol {
                start,
                size: size as u64,
                name: name.into(),
                binding: Binding::Local,
                code: true,
            });
        }
    }
}

/// The name of the function that the resolver at this address chooses.
fn resolver_name(symbols: &[Symbol<'_>], address: u64) -> Option<String> {
    let aliases = symbols.iter().filter(|s| s.start == address);
    let key = |s: &Symbol<'_>| (s.binding, std::cmp::Reverse(s.name.to_string()));
    let name = aliases.max_by_key(|s| key(s)).map(|s| &s.name)?;
    Some(name.strip_suffix(RESOLVER).unwrap_or(name).to_owned())
}

/// Adds `_start`, at which the file (a program, or the dynamic linker) begins, and `main`, which `_start` passes to the
/// C library. Stripped programs lose both names.
fn add_entry(file: &Elf, in_code: &dyn Fn(u64) -> bool, out: &mut Vec<Symbol<'_>>) {
    let entry = file.entry();
    let is_known = |at: u64, out: &[Symbol<'_>]| out.iter().any(|s| s.start == at);
    let text = file.sections().find(|s| (s.address()..s.address().saturating_add(s.size())).contains(&entry));
    let Some(text) = text.filter(|_| entry != 0 && in_code(entry) && !is_known(entry, out)) else { return };
    // Their sizes come from `.eh_frame`, or from the next symbol.
    let named = |start, name: &str| Symbol {
        start,
        size: 0,
        name: name.to_owned().into(),
        binding: Binding::Global,
        code: true,
    };
    out.push(named(entry, "_start"));
    let Ok(Some(code)) = text.data_range(entry, 48) else { return };
    let main = stubs::main(code, entry);
    if let Some(main) = main.filter(|&m| in_code(m) && !is_known(m, out)) {
        out.push(named(main, "main"));
    }
}

/// Adds the function ranges of `.eh_frame` that no symbol covers.
fn add_unwind_ranges(file: &Elf, file_name: &str, in_code: &dyn Fn(u64) -> bool, out: &mut Vec<Symbol<'_>>) {
    let Some(section) = file.section_by_name(".eh_frame") else { return };
    let Ok(data) = section.data() else { return };
    let mut bases = gimli::BaseAddresses::default().set_eh_frame(section.address());
    for (name, set) in [(".text", 0), (".got", 1)] {
        if let Some(s) = file.section_by_name(name) {
            bases = if set == 0 { bases.set_text(s.address()) } else { bases.set_got(s.address()) };
        }
    }
    let frames = gimli::EhFrame::new(data, gimli::LittleEndian);
    let mut entries = frames.entries(&bases);
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(|section, bases, offset| section.cie_from_offset(bases, offset)) else {
            continue;
        };
        if fde.len() > 0 && in_code(fde.initial_address()) {
            sizes.insert(fde.initial_address(), fde.len());
        }
    }
    // Symbols without a size get it from here. If there is none, they extend to the next function, with or without a
    // name.
    for symbol in out.iter_mut().filter(|s| s.size == 0) {
        symbol.size = sizes.get(&symbol.start).copied().unwrap_or(0);
    }
    let known = Table::build(out.iter().filter(|s| s.size > 0).cloned().collect(), 0);
    let named: BTreeSet<u64> = out.iter().map(|s| s.start).collect();
    for (start, size) in sizes {
        if known.find(start).is_none() && !named.contains(&start) {
            let name = format!("{file_name}+{start:#x}");
            out.push(Symbol { start, size, name: name.into(), binding: Binding::Local, code: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn other_files_are_refused() {
        assert!(parse(b"", "x").is_err());
        assert!(parse(b"#!/bin/sh\n", "x").unwrap_err().to_string().contains("x86-64 ELF"));
    }

    #[inline(never)]
    fn landmark(n: u64) -> u64 {
        std::hint::black_box(n) + 1
    }

    /// This test's own executable is PIE and has `.symtab`, a PLT or GOT calls, and Rust names.
    #[test]
    fn finds_itself() {
        assert_eq!(landmark(1), 2);
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(path).unwrap();
        let elf = parse(&bytes, "me").unwrap();
        let names: Vec<&str> = elf.table.functions().iter().map(|f| f.name.as_str()).collect();
        assert!(names.iter().any(|n| n.ends_with("symbols::elf::tests::landmark")), "own name");
        assert!(names.contains(&"_start"));
    }

    /// The C library is a shared object without `.symtab`, which leaves the names of `.dynsym` and the unwind ranges.
    #[test]
    fn a_stripped_library_has_named_and_unnamed_functions() {
        let bytes = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let elf = parse(&bytes, "libc.so.6").unwrap();
        let count = |f: &dyn Fn(&str) -> bool| elf.table.functions().iter().filter(|x| f(&x.name)).count();
        assert_eq!(count(&|n| n == "printf"), 1);
        // An indirect function: its symbol is at the code that chooses it.
        assert_eq!((count(&|n| n == "strlen"), count(&|n| n == "strlen.resolver")), (0, 1));
        assert!(count(&|n| n.ends_with("@plt")) > 5);
        assert!(count(&|n| n.starts_with("libc.so.6+0x")) > 500);
    }

    #[test]
    fn a_stripped_program_begins_at_start_and_main() {
        let bytes = std::fs::read("/bin/ls").unwrap();
        let elf = parse(&bytes, "ls").unwrap();
        for name in ["_start", "main"] {
            assert_eq!(elf.table.functions().iter().filter(|f| f.name == name).count(), 1, "{name}");
        }
        assert!(elf.table.functions().iter().filter(|f| f.name.starts_with("ls+0x")).count() > 50);
    }

    proptest! {
        /// Damage anywhere in a real file never causes a panic.
        #[test]
        fn damaged_files_are_safe(hits in prop::collection::vec((0usize..1 << 14, any::<u8>()), 1..40), cut in 0usize..1 << 15) {
            let mut bytes = std::fs::read("/bin/true").unwrap();
            for (at, value) in hits {
                if let Some(b) = bytes.get_mut(at) { *b = value; }
            }
            let _ = parse(&bytes, "true");
            bytes.truncate(cut);
            let _ = parse(&bytes, "true");
        }
    }
}
