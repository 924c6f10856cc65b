// SPDX-License-Identifier: GPL-2.0-or-later
//! Functions of the kernel's modules. A module that is unloaded takes its names with it, and one that stays loses those of its init:
//! the symbols of the end have neither.
//!
//! In: entries of the kernel's functions by which a module comes and goes, and the module's table of symbols in the guest's memory.
//! Out: sideband events that say which functions came or went.
//!
//! | entered | then |
//! |---|---|
//! | `do_init_module(module)` | all functions of the module are there; its init runs next |
//! | `do_free_init(work)` | functions of inits that have ended are gone |
//! | `free_module(module)`, in it `module_arch_cleanup(module)` | all that is left of the module is gone |
//!
//! (kernel/module/main.c; before 5.18, kernel/module.c)

use std::collections::BTreeMap;

use kprism_image::is_kernel;
use kprism_image::symbols::kallsyms;
use kprism_image::symbols::table::{Range, Symbol, Table};
use kprism_kmem::Memory;
use kprism_kmem::modules::{Entry, entries};
use serde_json::{Value, json};

use crate::guest;
use crate::hooks::{Hook, Layout};
use crate::side::{Part, What};

/// Limit of the functions of a module that get a name.
const MOST: usize = 1 << 16;
/// Limit of a module's name in bytes (MODULE_NAME_LEN).
const NAME: usize = 56;
const PAGE: u64 = 4096;

/// The memory of the guest whose vCPU's callback runs.
pub struct GuestMemory;

impl Memory for GuestMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        match into.is_empty() || guest::memory(address, into) {
            true => Ok(()),
            false => Err(format!("{address:#x} is not mapped")),
        }
    }
}

/// A module that was seen to come.
#[derive(Debug)]
struct Loaded {
    name: String,
    /// Address of its table of symbols while its init runs. The kernel replaces the table when the init has ended.
    initial: Option<u64>,
    parts: Vec<Part>,
    /// An event said that it came: tracing was on.
    is_told: bool,
}

/// The modules that were seen to come.
#[derive(Debug, Default)]
pub struct Modules {
    /// By the address of their `struct module`.
    loaded: BTreeMap<u64, Loaded>,
    named: u64,
    unnamed: u64,
    cut: u64,
}

impl Modules {
    /// The kernel entered a hooked function with `argument`. `is_on`: tracing is on.
    pub fn entered(
        &mut self,
        memory: &mut dyn Memory,
        layout: &Layout,
        hook: Hook,
        argument: u64,
        is_on: bool,
    ) -> Vec<What> {
        let mut events = Vec::new();
        match hook {
            Hook::ModuleBegins => {
                // Its structure is a new one: that this address had another module until now was not seen to end.
                events.extend(self.ends(argument, is_on));
                self.inits_end(memory, layout, is_on, &mut events);
                events.extend(self.begins(memory, layout, argument, is_on));
            }
            Hook::InitsFreed => self.inits_end(memory, layout, is_on, &mut events),
            Hook::ModuleFreed if !self.loaded.contains_key(&argument) => {
                // It was there before the observer was, or its table could not be read.
                let read = is_on.then(|| self.read(memory, layout, argument));
                self.unnamed += u64::from(matches!(read, Some(Err(_))));
                let read = read.and_then(Result::ok);
                events.extend(read.and_then(|(name, parts)| event(&name, true, parts)));
            }
            Hook::ModuleFreed | Hook::ModuleCleanup => events.extend(self.ends(argument, is_on)),
            Hook::SwitchTo | Hook::Mmap | Hook::SetComm => {}
        }
        events
    }

    /// Counts for the recording's account.
    pub fn account(&self) -> Value {
        json!({ "named": self.named, "unnamed": self.unnamed, "cut_functions": self.cut })
    }

    fn begins(&mut self, memory: &mut dyn Memory, layout: &Layout, module: u64, is_on: bool) -> Option<What> {
        match self.read(memory, layout, module) {
            Ok((name, parts)) => {
                self.named += 1;
                let initial = table(memory, layout, module);
                let told = is_on.then(|| event(&name, false, parts.clone())).flatten();
                self.loaded.insert(module, Loaded { name, initial, parts, is_told: is_on });
                told
            }
            Err(_) => {
                self.unnamed += 1;
                None
            }
        }
    }

    fn ends(&mut self, module: u64, is_on: bool) -> Option<What> {
        let Loaded { name, parts, is_told, .. } = self.loaded.remove(&module)?;
        if is_on || is_told { event(&name, true, parts) } else { None }
    }

    /// Of modules whose init has ended, those functions are gone that the module's table no longer has.
    fn inits_end(&mut self, memory: &mut dyn Memory, layout: &Layout, is_on: bool, events: &mut Vec<What>) {
        for (&module, loaded) in &mut self.loaded {
            let now = table(memory, layout, module);
            if loaded.initial.is_none() || now == loaded.initial {
                continue;
            }
            // If it cannot be read now, the next hook tries again.
            let Ok(left) = entries(memory, &layout.symbols, module) else { continue };
            loaded.initial = None;
            let left = parts(&left);
            let stays = |part: &Part| {
                let after = left.partition_point(|other| other.start <= part.start);
                left[..after].last().is_some_and(|other| part.start < other.end)
            };
            let (stay, gone): (Vec<Part>, Vec<Part>) =
                std::mem::take(&mut loaded.parts).into_iter().partition(stays);
            loaded.parts = stay;
            if is_on || loaded.is_told {
                events.extend(event(&loaded.name, true, gone));
            }
        }
    }

    /// The name and the functions of a module.
    fn read(
        &mut self,
        memory: &mut dyn Memory,
        layout: &Layout,
        module: u64,
    ) -> Result<(String, Vec<Part>), String> {
        let mut name = [0; NAME];
        memory.read(module.wrapping_add(layout.name), &mut name)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
            return Err(format!("no module is at {module:#x}"));
        }
        let name = format!("[{}]", String::from_utf8_lossy(name));
        let mut parts = parts(&entries(memory, &layout.symbols, module)?);
        self.cut += parts.len().saturating_sub(MOST) as u64;
        parts.truncate(MOST);
        Ok((name, parts))
    }
}

/// Address of a module's table of symbols.
fn table(memory: &mut dyn Memory, layout: &Layout, module: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(module.wrapping_add(layout.symbols.kallsyms), &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// The event by which these parts came or went, if there are any.
fn event(module: &str, gone: bool, parts: Vec<Part>) -> Option<What> {
    (!parts.is_empty()).then(|| What::Functions { module: module.to_owned(), gone, parts })
}

/// The functions of a module's table in order of address, under the names that kallsyms would give them.
fn parts(entries: &[Entry]) -> Vec<Part> {
    let own =
        |entry: &&Entry| entry.is_own && is_kernel(entry.symbol.address) && !entry.symbol.name.is_empty();
    let symbols: Vec<Symbol<'_>> = (entries.iter().filter(own))
        .map(|Entry { symbol, size, .. }| Symbol {
            size: *size,
            ..kallsyms::symbol(symbol.address, symbol.kind, &symbol.name)
        })
        .collect();
    let last = symbols.iter().map(|symbol| symbol.start).max().unwrap_or(0);
    let table = Table::build(symbols, (last | (PAGE - 1)).saturating_add(1));
    let functions = table.functions();
    let part = |range: &Range| {
        let function = functions.get(range.func as usize)?;
        let (start, end, name) = (range.start, range.end, function.name.clone());
        Some(Part { start, end, entry: function.start, name })
    };
    table.ranges().iter().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_kmem::modules::SymbolPlaces;

    const MODULE: u64 = 0xffff_ffff_c000_0000;
    const TEXT: u64 = MODULE + 0x10_0000;
    const INIT: u64 = MODULE + 0x20_0000;
    const LAYOUT: Layout = Layout {
        name: 24,
        symbols: SymbolPlaces { kallsyms: 0, symtab: 0, num_symtab: 8, strtab: 16, typetab: Some(24) },
    };

    /// Address, size, section, type and name of a symbol.
    type Row = (u64, u64, u16, u8, &'static str);

    /// Memory by address: a `struct module` with two tables, of which the second is that behind its init.
    #[derive(Default)]
    struct Bytes(BTreeMap<u64, u8>);

    impl Memory for Bytes {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
            for (at, byte) in (address..).zip(into) {
                *byte = *self.0.get(&at).ok_or("not mapped")?;
            }
            Ok(())
        }
    }

    impl Bytes {
        fn write(&mut self, address: u64, bytes: &[u8]) {
            self.0.extend((address..).zip(bytes.iter().copied()));
        }

        fn words(&mut self, address: u64, words: &[u64]) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.write(address, &bytes);
        }

        /// A table of symbols at `at`.
        fn table(&mut self, at: u64, symbols: &[Row]) {
            let [elements, names, types] = [1, 2, 3].map(|page| at + page * PAGE);
            self.words(at, &[elements, symbols.len() as u64, names, types]);
            // Names are read to the end of their page.
            self.write(names, &[0; PAGE as usize]);
            let mut name_at = 1u64;
            for (number, (address, size, section, kind, name)) in (0..).zip(symbols) {
                let mut element = (name_at as u32).to_le_bytes().to_vec();
                element.extend([2, 0]);
                element.extend(section.to_le_bytes());
                element.extend([*address, *size].map(u64::to_le_bytes).as_flattened());
                self.write(elements + 24 * number, &element);
                self.write(types + number, &[*kind]);
                self.write(names + name_at, name.as_bytes());
                name_at += name.len() as u64 + 1;
            }
        }
    }

    fn guest() -> Bytes {
        let mut bytes = Bytes::default();
        bytes.write(MODULE, &[0; 24 + NAME]);
        bytes.words(MODULE, &[MODULE + 0x1000]);
        bytes.write(MODULE + 24, b"dummy");
        let core: [Row; 5] = [
            (TEXT, 0x40, 1, b't', "dummy_xmit"),
            (TEXT + 0x40, 0x20, 1, b't', "dummy_cleanup_module"),
            (TEXT + 0x40, 0x20, 1, b't', "cleanup_module"),
            (TEXT + 0x80, 0x10, 1, b't', "dummy_xmit.cold"),
            (TEXT + 0x1000, 8, 2, b'd', "a_value"),
        ];
        let init: [Row; 4] = [
            (INIT, 0x30, 5, b't', "dummy_init_module"),
            (0xffff_ffff_8100_0000, 0, 0, b'U', "_printk"),
            (0xffff_ffff_8100_0000, 0, 0, b'w', "perhaps"),
            (3, 0, 1, b't', "no_address"),
        ];
        bytes.table(MODULE + 0x1000, &[&core[..], &init[..]].concat());
        bytes.table(MODULE + 0x8000, &core);
        bytes
    }

    /// An event as text: `+` or `-`, then each part by its offset.
    fn told(events: &[What]) -> Vec<String> {
        let one = |what: &What| {
            let What::Functions { module, gone, parts } = what else { panic!("{what:?}") };
            let part = |part: &Part| {
                format!(" {}@{:x}+{:x}", part.name, part.start & 0xff_ffff, part.end - part.start)
            };
            format!("{}{module}{}", if *gone { '-' } else { '+' }, parts.iter().map(part).collect::<String>())
        };
        events.iter().map(one).collect()
    }

    const CORE: &str = " dummy_xmit@100000+40 cleanup_module@100040+20 dummy_xmit@100080+10";
    const BEGIN: &str = " dummy_init_module@200000+30";

    #[test]
    fn names_come_with_a_module_and_go_with_it() {
        let (mut bytes, mut modules) = (guest(), Modules::default());
        let mut enter = |bytes: &mut Bytes, hook, on| modules.entered(bytes, &LAYOUT, hook, MODULE, on);
        let came = enter(&mut bytes, Hook::ModuleBegins, true);
        assert_eq!(told(&came), [format!("+[dummy]{CORE}{BEGIN}")]);
        let What::Functions { parts, .. } = &came[0] else { panic!("{came:?}") };
        assert_eq!(parts[2].entry, TEXT, "code that was moved away is the function's");
        // Another module's init is freed while this one runs.
        assert!(enter(&mut bytes, Hook::InitsFreed, true).is_empty());
        bytes.words(MODULE, &[MODULE + 0x8000]);
        assert_eq!(told(&enter(&mut bytes, Hook::InitsFreed, true)), [format!("-[dummy]{BEGIN}")]);
        assert!(enter(&mut bytes, Hook::InitsFreed, true).is_empty());
        assert_eq!(told(&enter(&mut bytes, Hook::ModuleFreed, true)), [format!("-[dummy]{CORE}")]);
        // Within the freeing, after it.
        assert!(enter(&mut bytes, Hook::ModuleCleanup, true).is_empty());
        assert_eq!(modules.account(), json!({ "named": 1, "unnamed": 0, "cut_functions": 0 }));
    }

    #[test]
    fn what_no_recording_saw_is_not_told() {
        let (mut bytes, mut modules) = (guest(), Modules::default());
        let mut enter = |bytes: &mut Bytes, hook, on| modules.entered(bytes, &LAYOUT, hook, MODULE, on);
        // It came and went while tracing was off.
        assert!(enter(&mut bytes, Hook::ModuleBegins, false).is_empty());
        assert!(enter(&mut bytes, Hook::ModuleFreed, false).is_empty());
        // It went while tracing was off, or came then: that it is gone is told.
        enter(&mut bytes, Hook::ModuleBegins, true);
        assert_eq!(enter(&mut bytes, Hook::ModuleFreed, false).len(), 1);
        enter(&mut bytes, Hook::ModuleBegins, false);
        assert_eq!(enter(&mut bytes, Hook::ModuleCleanup, true).len(), 1);
        // It was there before the observer.
        bytes.words(MODULE, &[MODULE + 0x8000]);
        assert_eq!(told(&enter(&mut bytes, Hook::ModuleFreed, true)), [format!("-[dummy]{CORE}")]);
        assert!(enter(&mut bytes, Hook::ModuleCleanup, true).is_empty());
    }

    #[test]
    fn a_table_that_cannot_be_read_is_counted() {
        let (mut bytes, mut modules) = (guest(), Modules::default());
        bytes.words(MODULE, &[MODULE + 0x100]);
        assert!(modules.entered(&mut bytes, &LAYOUT, Hook::ModuleBegins, MODULE, true).is_empty());
        assert!(modules.entered(&mut bytes, &LAYOUT, Hook::ModuleFreed, MODULE, true).is_empty());
        bytes.write(MODULE + 24, &[0]);
        assert!(modules.entered(&mut bytes, &LAYOUT, Hook::ModuleBegins, MODULE, true).is_empty());
        assert_eq!(modules.account()["unnamed"], 3);
    }
}
