// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loaded modules and their symbols: the kernel's list `modules`, in the layout that BTF gives. [`entries`] reads the symbols of one
//! module, for those who know where it is.

use std::collections::BTreeSet;

use kprism_btf::Btf;

use crate::{Kernel, Memory, Symbol};

/// Limit of the number of modules.
const MOST: usize = 4096;
/// Limit of a name's length in bytes (KSYM_NAME_LEN).
const LONGEST: usize = 512;
/// Limit of a module's symbols, and of their names in bytes.
const SYMBOLS: u64 = 1 << 20;
const NAMES: usize = 64 << 20;
/// Size of `Elf64_Sym`.
const SYMBOL: usize = 24;
/// Section of a symbol that the module only uses (SHN_UNDEF). The kernel puts the address of what it found into the table.
const UNDEFINED: u16 = 0;
/// Limit of a module's name (MODULE_NAME_LEN is 56).
const NAME: usize = 64;

/// A loaded module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Module {
    /// Name.
    pub name: String,
    /// Address of its code.
    pub base: u64,
    /// Size in memory, in bytes.
    pub size: u64,
    /// Symbols, in the order of the module's table.
    pub symbols: Vec<Symbol>,
}

/// Places of a module's symbols: offsets in bytes (include/linux/module.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymbolPlaces {
    /// `kallsyms` in `struct module`.
    pub kallsyms: u64,
    /// `symtab` in `struct mod_kallsyms`.
    pub symtab: u64,
    /// `num_symtab` in `struct mod_kallsyms`.
    pub num_symtab: u64,
    /// `strtab` in `struct mod_kallsyms`.
    pub strtab: u64,
    /// `typetab` in `struct mod_kallsyms`, from 5.2 on.
    pub typetab: Option<u64>,
}

/// An element of a module's table of symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Address, kind and name; the name may be empty.
    pub symbol: Symbol,
    /// Size in bytes; 0 if it is not known.
    pub size: u64,
    /// False if the symbol is another module's or the kernel's, which this one uses.
    pub is_own: bool,
}

/// Offsets in bytes.
struct Layout {
    list: u64,
    name: u64,
    parts: Parts,
    symbols: SymbolPlaces,
}

/// The module's memory.
enum Parts {
    /// `struct module_memory mem[]` (from 6.4): of the array, its elements' size, those for the module's life; base and size in an
    /// element.
    Array { at: u64, step: u64, count: u64, base: u64, size: u64 },
    /// `core_layout`: base and size.
    Core { base: u64, size: u64 },
}

/// The first elements of `mem` live as long as the module: text, data, rodata, ro_after_init (enum mod_mem_type).
const CORE_PARTS: u64 = 4;

impl Layout {
    fn of(btf: &Btf) -> Result<Self, String> {
        let of = |structure: &str, path: &str| {
            btf.offset(structure, path).map(|offset| offset as u64).map_err(|error| error.to_string())
        };
        let parts = match of("module", "mem") {
            Ok(at) => {
                let element = btf.structure("module_memory").map_err(|error| error.to_string())?.id;
                let step = btf.size_of(element).ok_or("struct module_memory has no size")?;
                Parts::Array {
                    at,
                    step,
                    count: CORE_PARTS,
                    base: of("module_memory", "base")?,
                    size: of("module_memory", "size")?,
                }
            }
            Err(_) => Parts::Core {
                base: of("module", "core_layout.base")?,
                size: of("module", "core_layout.size")?,
            },
        };
        Ok(Self {
            list: of("module", "list")?,
            name: of("module", "name")?,
            parts,
            symbols: SymbolPlaces {
                kallsyms: of("module", "kallsyms")?,
                symtab: of("mod_kallsyms", "symtab")?,
                num_symtab: of("mod_kallsyms", "num_symtab")?,
                strtab: of("mod_kallsyms", "strtab")?,
                typetab: of("mod_kallsyms", "typetab").ok(),
            },
        })
    }
}

/// The modules, and for which of them symbols are missing.
///
/// # Errors
/// There is no list, no layout, or the list cannot be followed.
pub(crate) fn read(kernel: &Kernel, memory: &mut dyn Memory) -> Result<(Vec<Module>, Vec<String>), String> {
    let is_data = |kind: u8| matches!(kind, b'd' | b'D' | b'b' | b'B');
    let head = kernel.symbols.iter().find(|symbol| symbol.name == "modules" && is_data(symbol.kind));
    let Some(head) = head else {
        return match kernel.address("sys_init_module").or(kernel.address("__x64_sys_init_module")) {
            Some(_) => Err("no symbol `modules`: the kernel was built without CONFIG_KALLSYMS_ALL".into()),
            None => Ok(Default::default()),
        };
    };
    let btf = kernel.btf.as_ref().ok_or("the kernel was built without CONFIG_DEBUG_INFO_BTF")?;
    let layout = Layout::of(btf)?;
    let (mut modules, mut gaps, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut at = pointer(memory, head.address)?;
    while at != head.address {
        if !seen.insert(at) || seen.len() > MOST {
            return Err(format!("the list of modules does not end ({} modules)", seen.len()));
        }
        let module = at.wrapping_sub(layout.list);
        let mut found = one(memory, &layout, module)?;
        match entries(memory, &layout.symbols, module) {
            Ok(entries) => {
                let symbols = entries.into_iter().map(|entry| entry.symbol);
                found.symbols = symbols.filter(|symbol| !symbol.name.is_empty()).collect();
            }
            Err(why) => gaps.push(format!("the symbols of module {} are not known: {why}", found.name)),
        }
        modules.push(found);
        at = pointer(memory, at)?;
    }
    Ok((modules, gaps))
}

fn one(memory: &mut dyn Memory, layout: &Layout, module: u64) -> Result<Module, String> {
    let mut name = [0; NAME];
    memory.read(module.wrapping_add(layout.name), &mut name)?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    let name = String::from_utf8_lossy(&name[..length]).into_owned();
    let field = |memory: &mut dyn Memory, offset: u64| pointer(memory, module.wrapping_add(offset));
    let size_at = |memory: &mut dyn Memory, offset: u64| Ok(field(memory, offset)? & 0xffff_ffff);
    let (base, size): (u64, u64) = match layout.parts {
        Parts::Core { base, size } => (field(memory, base)?, size_at(memory, size)?),
        Parts::Array { at, step, count, base, size } => {
            let mut sum = 0;
            for part in 0..count {
                let part: Result<u64, String> = size_at(memory, at + part * step + size);
                sum += part?;
            }
            (field(memory, at + base)?, sum)
        }
    };
    Ok(Module { name, base, size, symbols: Vec::new() })
}

/// The symbols of the module whose `struct module` is at `module`, in the order of its table: while its init runs all of them, then
/// those that live as long as the module (kernel/module/kallsyms.c, `add_kallsyms`).
///
/// # Errors
/// The module has no table, one that is too long, or one that cannot be read.
pub fn entries(memory: &mut dyn Memory, places: &SymbolPlaces, module: u64) -> Result<Vec<Entry>, String> {
    let table = pointer(memory, module.wrapping_add(places.kallsyms))?;
    if table == 0 {
        return Err("it has no table of them".into());
    }
    let field = |memory: &mut dyn Memory, offset: u64| pointer(memory, table.wrapping_add(offset));
    let number = field(memory, places.num_symtab)? & 0xffff_ffff;
    if number > SYMBOLS {
        return Err(format!("{number} symbols, more than {SYMBOLS}"));
    }
    let (symtab, strtab) = (field(memory, places.symtab)?, field(memory, places.strtab)?);
    let mut bytes = vec![0; number as usize * SYMBOL];
    memory.read(symtab, &mut bytes)?;
    let kinds = match places.typetab {
        None => None,
        Some(offset) => {
            let mut kinds = vec![0; number as usize];
            let typetab = field(memory, offset)?;
            memory.read(typetab, &mut kinds)?;
            Some(kinds)
        }
    };
    let (elements, _) = bytes.as_chunks::<SYMBOL>();
    let mut names = Names { start: strtab, bytes: Vec::new() };
    let mut found = Vec::with_capacity(elements.len());
    for (index, element) in elements.iter().enumerate() {
        // st_name, st_info, st_other, st_shndx, st_value, st_size (ELF-64 object file format, "Symbol table").
        let name = u32::from_le_bytes([element[0], element[1], element[2], element[3]]);
        let section = u16::from_le_bytes([element[6], element[7]]);
        let [value, size] =
            [8usize, 16].map(|at| element[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b)));
        let symbol = Symbol {
            address: value,
            // Before 5.2 the type replaces st_info.
            kind: kinds.as_ref().map_or(element[4], |kinds| kinds[index]),
            name: names.get(memory, name as usize)?,
        };
        found.push(Entry { symbol, size, is_own: section != UNDEFINED });
    }
    Ok(found)
}

/// A string table, read as far as it is needed.
struct Names {
    start: u64,
    bytes: Vec<u8>,
}

impl Names {
    fn get(&mut self, memory: &mut dyn Memory, at: usize) -> Result<String, String> {
        if at > NAMES {
            return Err(format!("a name at offset {at} of the names"));
        }
        loop {
            let rest = self.bytes.get(at..).unwrap_or_default();
            if let Some(end) = memchr::memchr(0, rest) {
                return Ok(String::from_utf8_lossy(&rest[..end.min(LONGEST)]).into_owned());
            }
            // To the end of the next page: the page after it may not be mapped.
            let end = self.start.wrapping_add(self.bytes.len() as u64);
            let mut piece = vec![0; (4096 - end % 4096) as usize];
            memory.read(end, &mut piece)?;
            self.bytes.append(&mut piece);
            if self.bytes.len() > NAMES {
                return Err("its names do not end".into());
            }
        }
    }
}

fn pointer(memory: &mut dyn Memory, address: u64) -> Result<u64, String> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes).map_err(|why| format!("{address:#x}: {why}"))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of memory: address and contents.
    struct Pages(Vec<(u64, Vec<u8>)>);

    impl Memory for Pages {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
            let part = self.0.iter().find_map(|(start, bytes)| {
                let at = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get(at..at.checked_add(into.len())?)
            });
            into.copy_from_slice(part.ok_or("nothing is mapped there")?);
            Ok(())
        }
    }

    const PLACES: SymbolPlaces =
        SymbolPlaces { kallsyms: 8, symtab: 0, num_symtab: 8, strtab: 16, typetab: Some(24) };
    const AT: u64 = 0xffff_ffff_c000_0000;

    fn element(name: u32, section: u16, value: u64, size: u64) -> Vec<u8> {
        let mut bytes = name.to_le_bytes().to_vec();
        bytes.extend([2, 0]);
        bytes.extend(section.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes
    }

    /// A module at [`AT`] with these elements; its table is a page behind it, then the elements, the names and the types.
    fn module(number: u64, elements: &[Vec<u8>], names: &[u8], types: &[u8]) -> Pages {
        let page = |n: u64| AT + n * 4096;
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut names = names.to_vec();
        names.resize(4096, 0);
        Pages(vec![
            (page(0), words(&[0, page(1)])),
            (page(1), words(&[page(2), number, page(3), page(4)])),
            (page(2), elements.concat()),
            (page(3), names),
            (page(4), types.to_vec()),
        ])
    }

    #[test]
    fn a_module_s_symbols_are_read_from_its_table() {
        let elements = [
            element(0, 0, 0, 0),
            element(1, 5, AT + 0x8000, 0x40),
            element(6, 0, 0xffff_ffff_8100_0000, 0),
            element(14, 7, AT + 0x9000, 8),
        ];
        let mut memory = module(4, &elements, b"\0init\0_printk\0value\0", b"?tUd");
        let found = entries(&mut memory, &PLACES, AT).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|entry| {
                (entry.symbol.name.as_str(), char::from(entry.symbol.kind), entry.size, entry.is_own)
            })
            .collect();
        let expected = [
            ("", '?', 0, false),
            ("init", 't', 0x40, true),
            ("_printk", 'U', 0, false),
            ("value", 'd', 8, true),
        ];
        assert_eq!(told, expected);
        assert_eq!(found[1].symbol.address, AT + 0x8000);
        // Before 5.2, the type is in the element.
        let old = SymbolPlaces { typetab: None, ..PLACES };
        assert_eq!(entries(&mut memory, &old, AT).unwrap()[1].symbol.kind, 2);
    }

    #[test]
    fn a_table_that_cannot_be_is_an_error() {
        let read = |mut memory: Pages| entries(&mut memory, &PLACES, AT).unwrap_err();
        assert!(read(module(u64::from(u32::MAX), &[], b"", b"")).contains("symbols, more than"));
        assert!(read(module(1, &[], b"", b"t")).contains("nothing is mapped"));
        let outside = [element(5000, 1, AT, 1)];
        assert!(read(module(1, &outside, b"", b"t")).contains("nothing is mapped"));
        let mut none = module(0, &[], b"", b"");
        none.0[0].1 = vec![0; 16];
        assert!(read(none).contains("no table"));
    }
}
