// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loaded modules and their symbols: the kernel's list `modules`, in the layout that BTF gives.

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

/// Offsets in bytes.
struct Layout {
    list: u64,
    name: u64,
    kallsyms: u64,
    parts: Parts,
    symtab: u64,
    num_symtab: u64,
    strtab: u64,
    /// From 5.2.
    typetab: Option<u64>,
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
            kallsyms: of("module", "kallsyms")?,
            parts,
            symtab: of("mod_kallsyms", "symtab")?,
            num_symtab: of("mod_kallsyms", "num_symtab")?,
            strtab: of("mod_kallsyms", "strtab")?,
            typetab: of("mod_kallsyms", "typetab").ok(),
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
        match symbols(memory, &layout, module) {
            Ok(symbols) => found.symbols = symbols,
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

fn symbols(memory: &mut dyn Memory, layout: &Layout, module: u64) -> Result<Vec<Symbol>, String> {
    let table = pointer(memory, module.wrapping_add(layout.kallsyms))?;
    if table == 0 {
        return Err("it has no table of them".into());
    }
    let field = |memory: &mut dyn Memory, offset: u64| pointer(memory, table.wrapping_add(offset));
    let number = field(memory, layout.num_symtab)? & 0xffff_ffff;
    if number > SYMBOLS {
        return Err(format!("{number} symbols, more than {SYMBOLS}"));
    }
    let (symtab, strtab) = (field(memory, layout.symtab)?, field(memory, layout.strtab)?);
    let mut entries = vec![0; number as usize * SYMBOL];
    memory.read(symtab, &mut entries)?;
    let kinds = match layout.typetab {
        None => None,
        Some(offset) => {
            let mut kinds = vec![0; number as usize];
            let typetab = field(memory, offset)?;
            memory.read(typetab, &mut kinds)?;
            Some(kinds)
        }
    };
    let (entries, _) = entries.as_chunks::<SYMBOL>();
    let mut names = Names { start: strtab, bytes: Vec::new() };
    let mut found = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let name = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let value = entry.last_chunk::<16>().and_then(|rest| rest.first_chunk::<8>());
        found.push(Symbol {
            address: value.map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            // Before 5.2 the type replaces st_info.
            kind: kinds.as_ref().map_or(entry[4], |kinds| kinds[index]),
            name: names.get(memory, name as usize)?,
        });
    }
    found.retain(|symbol| !symbol.name.is_empty());
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
