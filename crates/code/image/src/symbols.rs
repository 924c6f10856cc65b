// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions by address space, address and time.
//!
//! The input is kallsyms text, sideband records, the ELF files that the traced machine mapped, and their separate debug
//! files. The output, for an address at a time, is its function and the range of addresses that belong to it. A
//! [`FunctionId`] identifies one function of one file, which is shared by processes that map the file at different
//! addresses.
//!
//! This is built on `object` and not on blazesym. The flow analysis needs ranges, so that one lookup per new code block
//! is enough while execution stays inside; address spaces of a machine that no longer exists, with mappings that change
//! in time; PLT entries; and separate functions in stripped files. blazesym resolves single addresses of a live process
//! or one file, and its choice among aliases cannot be changed.
//!
//! Addresses of kernel functions are run-time addresses; addresses of user functions are link-time addresses of their
//! file.

pub mod called;
mod check;
pub mod elf;
mod files;
pub mod kallsyms;
pub mod maps;
pub mod names;
mod passing;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::bytes::Bytes;
use crate::resolve::{Change, FuncInfo, FuncRef, Resolve};
use crate::sideband::Record;
use crate::x86::address::{is_kernel, is_non_root};
pub use check::Checked;
use elf::ElfSymbols;
pub use files::under_root;
use files::{place, read_elf};
use kallsyms::{KallsymsError, Kernel};
use maps::{Mapping, Maps};
use passing::{Passing, State};

/// Number of a function within its [`Symbols`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// A range of addresses, `start..end`, of an address space that belongs to one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The function.
    pub func: FunctionId,
    /// First address of the range, which is not always the entry; see [`Function::start`].
    pub start: u64,
    /// One past the last address of the range.
    pub end: u64,
    /// The function's entry as mapped in this address space.
    pub entry: u64,
    /// True if a symbol covers the address. Otherwise the function stands for a file without symbols.
    pub known: bool,
}

/// Name and location of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// `[kernel]`, `[module]`, `[vdso]`, or the path of the file.
    pub module: String,
    /// Entry address: at run time for the kernel, at link time within the file otherwise.
    pub start: u64,
    /// True if the function is kernel code.
    pub kernel: bool,
}

/// A mapped file that gave no symbols.
#[derive(Debug)]
pub struct MissingFile {
    /// Path on the traced machine.
    pub path: String,
    /// Reason why there are no symbols.
    pub reason: String,
    /// True if the file exists but could not be read or parsed.
    pub damaged: bool,
}

/// All functions of a run.
#[derive(Debug, Default)]
pub struct Symbols {
    functions: Vec<Function>,
    kernel: Kernel,
    /// Kernel code that came and went.
    passing: Passing,
    maps: Maps,
    /// One element for each path of `maps`.
    files: Vec<File>,
    missing: Vec<MissingFile>,
    /// Remarks on separate debug files that were not used.
    not_used: Vec<String>,
    changes: Vec<Change>,
    /// Functions for addresses that no symbol or mapping covers.
    nowhere: Nowhere,
    /// Number of the first function of this table, which has functions for addresses that nothing else covers.
    called: (u32, table::Table),
}

#[derive(Debug, Default)]
struct Nowhere {
    kernel: FunctionId,
    user: FunctionId,
}

/// The symbols of one mapped file.
#[derive(Debug)]
struct File {
    /// Number of the first function of `elf`. For a file without symbols, number of the one function that stands for
    /// it.
    base: u32,
    elf: Option<ElfSymbols>,
    /// Contents of a file with symbols.
    bytes: Bytes,
    /// Function that stands for the file's code outside of all functions.
    rest: FunctionId,
}

impl Symbols {
    /// Loads all symbols. `kallsyms` may be empty, and kernel functions then stay unknown. `root` is the folder that
    /// contains the machine's files at their original paths.
    ///
    /// Files that cannot be read or parsed are not an error. They are listed by [`Symbols::missing`], and the code of
    /// each counts as one function named `[unknown]`, or `[vdso]` for the vDSO.
    ///
    /// # Errors
    /// Fails if `kallsyms` is not a kallsyms text.
    pub fn load(kallsyms: &[u8], records: &[Record], root: Option<&Path>) -> Result<Self, KallsymsError> {
        Self::load_with(kallsyms, records, root, &[])
    }

    /// The same, with the symbols of separate debug files of the same build, which are looked for by the build id under the folders
    /// `debug`. Such a file that is not used is in [`Symbols::debug_not_used`].
    ///
    /// # Errors
    /// As [`Symbols::load`].
    pub fn load_with(
        kallsyms: &[u8],
        records: &[Record],
        root: Option<&Path>,
        debug: &[PathBuf],
    ) -> Result<Self, KallsymsError> {
        let mut kernel = kallsyms::parse(kallsyms)?;
        let own = kernel.table.take_functions();
        let mut functions: Vec<Function> = (own.into_iter().zip(&kernel.module_of))
            .map(|(f, &module)| Function {
                name: f.name,
                module: kernel.modules[module as usize].clone(),
                start: f.start,
                kernel: true,
            })
            .collect();
        let maps = Maps::new(records);
        let (mut missing, mut not_used) = (Vec::new(), Vec::new());
        let mut files = Vec::new();
        for path in maps.paths() {
            let (elf, bytes) = match read_elf(root, path, debug, &mut not_used) {
                Ok((elf, bytes)) => (Some(elf), bytes),
                Err(reason) => {
                    let file = place(root, path);
                    // A folder is what an older recorder named a file without a path.
                    let damaged = file.is_ok_and(|file| file.symlink_metadata().is_ok_and(|is| !is.is_dir()));
                    missing.push(MissingFile { path: path.clone(), reason, damaged });
                    (None, Bytes::default())
                }
            };
            files.push(add_file(&mut functions, path, elf, bytes));
        }
        let nowhere = Nowhere {
            kernel: unknown(&mut functions, "[kernel]", true),
            user: unknown(&mut functions, "", false),
        };
        let passing = Passing::new(records, &kernel, &mut functions);
        let mut changes = maps.changes();
        changes.extend(passing.changes());
        changes.sort_unstable();
        let called = Default::default();
        Ok(Symbols { functions, kernel, passing, maps, files, missing, not_used, changes, nowhere, called })
    }

    /// See [`Maps::only_certain`].
    #[must_use]
    pub fn only_certain(mut self) -> Self {
        self.maps.only_certain();
        self
    }

    /// Compares code that ran (address space, address, bytes as recorded) with the mapped files. Mappings of which most
    /// differs are of other files, whose functions are not known: their code counts as one function named `[unknown]`. Returns
    /// these mappings, and those of which nothing could be compared.
    pub fn check<'r>(&mut self, ran: impl IntoIterator<Item = (u64, u64, &'r [u8])>) -> Checked {
        let mut all = check::Comparison::default();
        for (asid, va, bytes) in ran {
            let mut files = self.maps.ever_at(asid, va).map(|(_, mapping)| mapping.file);
            let first = files.next();
            // Which of several files it was depends on the time, which is not known.
            let several = files.any(|file| Some(file) != first);
            for (id, mapping) in self.maps.ever_at(asid, va) {
                let Some(file) = mapping.file.and_then(|file| self.files.get(file as usize)) else {
                    continue;
                };
                // Without symbols, there is nothing that could be another file's.
                if file.elf.is_none() {
                    continue;
                }
                if several {
                    all.pass_over(id, check::Why::Several);
                    continue;
                }
                let inside = &bytes[..bytes.len().min((mapping.end - va) as usize)];
                let offset = mapping.pgoff.wrapping_add(va - mapping.start);
                let of_file =
                    usize::try_from(offset).ok().and_then(|at| file.bytes.get(at..)).unwrap_or_default();
                all.add(id, offset, inside, of_file);
            }
        }
        let described =
            |(id, why): (maps::MappingId, check::Why)| Some(format!("{}: {why}", self.describe_mapping(id)?));
        // A mapping has several lives.
        let not_compared: BTreeSet<String> = all.not_compared().filter_map(described).collect();
        let not_compared = not_compared.into_iter().collect();
        // By the path's number.
        let mut others: BTreeMap<u32, u32> = BTreeMap::new();
        let mut told = Vec::new();
        for id in all.others() {
            told.extend(self.describe_mapping(id));
            let Some(&Mapping { file: Some(path), .. }) = self.maps.get(id) else { continue };
            let Symbols { functions, files, maps, .. } = self;
            let name = &maps.paths()[path as usize];
            let file = *others.entry(path).or_insert_with(|| {
                files.push(add_file(functions, &format!("{name} (other code)"), None, Bytes::default()));
                files.len() as u32 - 1
            });
            self.maps.set_file(id, file);
        }
        Checked { others: told, not_compared }
    }

    /// A mapping's path, address and address space, for people.
    fn describe_mapping(&self, id: maps::MappingId) -> Option<String> {
        let mapping = self.maps.get(id)?;
        let path = &self.maps.paths()[mapping.file? as usize];
        Some(format!("{path} at {:#x} of address space {:#x}", mapping.start, id.asid))
    }

    /// Adds functions, named by their addresses, that begin at `starts`, for code that no symbol or mapping covers.
    #[must_use]
    pub fn with_called(mut self, starts: &BTreeSet<u64>) -> Self {
        let mut table = called::table(starts);
        let first = self.functions.len() as u32;
        self.functions.extend(table.take_functions().into_iter().map(|function| Function {
            name: function.name,
            module: String::new(),
            start: function.start,
            kernel: is_kernel(function.start),
        }));
        self.called = (first, table);
        self
    }

    /// The function at `va` of address space `asid` (ignored for kernel addresses) at time `ns`. `None` if no symbol or
    /// mapping covers the address.
    #[must_use]
    pub fn locate(&self, asid: u64, va: u64, ns: u64) -> Option<Located> {
        // A virtual machine's code is not this machine's, at whatever address.
        if is_non_root(asid) {
            return None;
        }
        self.locate_named(asid, va, ns).or_else(|| {
            let (first, called) = &self.called;
            let range = called.find(va)?;
            let func = FunctionId(first + range.func);
            let entry = self.function(func).start;
            Some(Located { func, start: range.start, end: range.end, entry, known: true })
        })
    }

    fn locate_named(&self, asid: u64, va: u64, ns: u64) -> Option<Located> {
        if va >= 1 << 63 {
            return match self.passing.at(va, ns) {
                State::There(there) => Some(there),
                State::Gone => None,
                State::ModuleGone => {
                    let listed = self.locate_in_kernel(va, ns);
                    listed.filter(|at| !self.passing.follows(&self.function(at.func).module))
                }
                State::Unrecorded => self.locate_in_kernel(va, ns).or_else(|| self.passing.next(va, ns)),
            };
        }
        let found = self.maps.look(asid, va, ns)?;
        let file = &self.files[found.mapping.file? as usize];
        let located = locate_in_file(file, &self.functions, &found.mapping, va);
        // A function may reach into addresses that have another mapping since.
        let (start, end) = found.around(va, (located.start, located.end));
        Some(Located { start, end, ..located })
    }

    /// The function at `va` by kallsyms, which is one moment's list.
    fn locate_in_kernel(&self, va: u64, ns: u64) -> Option<Located> {
        let range = self.kernel.table.find(va)?;
        let entry = self.functions[range.func as usize].start;
        let (start, end) = self.passing.outside(va, ns, (range.start, range.end));
        Some(Located { func: FunctionId(range.func), start, end, entry, known: true })
    }

    /// All functions that were ever at a kernel address, in order of time: first that of kallsyms.
    #[must_use]
    pub fn kernel_functions(&self, va: u64) -> Vec<Located> {
        let fixed = self.kernel.table.find(va).map(|range| {
            let entry = self.functions[range.func as usize].start;
            Located { func: FunctionId(range.func), start: range.start, end: range.end, entry, known: true }
        });
        let mut all: Vec<Located> = fixed.into_iter().chain(self.passing.ever(va)).collect();
        if all.is_empty() {
            all.extend(self.locate(0, va, u64::MAX));
        }
        all
    }

    /// The function at a kernel address as seen from the code of `func`, without a time: `func` if it was ever there, else the last
    /// that was.
    #[must_use]
    pub fn locate_from(&self, func: FunctionId, va: u64) -> Option<Located> {
        let all = self.kernel_functions(va);
        all.iter().find(|at| at.func == func).or(all.last()).copied()
    }

    /// The function at link-time address `address` of the file that contains `func`. `None` if no symbol covers the
    /// address.
    #[must_use]
    pub fn locate_in_module(&self, func: FunctionId, address: u64) -> Option<Located> {
        let file = self.files.iter().find(|f| f.base <= func.0 && func.0 <= f.rest.0)?;
        let range = file.elf.as_ref()?.table.find(address)?;
        let func = file.base + range.func;
        let entry = self.functions[func as usize].start;
        Some(Located { func: FunctionId(func), start: range.start, end: range.end, entry, known: true })
    }

    /// The function with this number.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.0 as usize]
    }

    /// Other names of functions. If a symbol table has several names for one address, only one of them is shown.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, FunctionId)> {
        let kernel = self.kernel.table.aliases().map(|(name, func)| (name, FunctionId(func)));
        let of_files = self.files.iter().filter_map(|file| Some((file.base, file.elf.as_ref()?)));
        kernel.chain(of_files.flat_map(|(base, elf)| {
            elf.table.aliases().map(move |(name, func)| (name, FunctionId(base + func)))
        }))
    }

    /// Number of functions; their numbers are `0..len()`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// True if there are no functions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Mapped files without symbols, in the order of their first mapping.
    #[must_use]
    pub fn missing(&self) -> &[MissingFile] {
        &self.missing
    }

    /// Remarks on separate debug files that are there and were not used: they are of another build, damaged or too large.
    #[must_use]
    pub fn debug_not_used(&self) -> &[String] {
        &self.not_used
    }
}

impl Resolve for Symbols {
    fn function_at(&self, asid: u64, va: u64, at_ns: u64) -> FuncRef {
        match self.locate(asid, va, at_ns) {
            Some(at) if at.known => {
                FuncRef { id: at.func.0, entry: at.entry, known: true, start: at.start, end: at.end }
            }
            // An address between symbols: the next address may already have one.
            Some(at) => {
                FuncRef { id: at.func.0, entry: at.entry, known: false, start: va, end: va.saturating_add(1) }
            }
            None => {
                let id = if va >= 1 << 63 { self.nowhere.kernel } else { self.nowhere.user };
                FuncRef { id: id.0, entry: va, known: false, start: va, end: va.saturating_add(1) }
            }
        }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        let Some(f) = self.functions.get(id as usize) else { return FuncInfo::default() };
        FuncInfo { name: f.name.clone(), module: f.module.clone(), start: f.start, kernel: f.kernel }
    }

    fn changes(&self) -> &[Change] {
        &self.changes
    }
}

/// Adds a function that stands for code without symbols in `module`.
fn unknown(functions: &mut Vec<Function>, module: &str, kernel: bool) -> FunctionId {
    let name = if module == "[vdso]" { module } else { "[unknown]" };
    functions.push(Function { name: name.to_owned(), module: module.to_owned(), start: 0, kernel });
    FunctionId(functions.len() as u32 - 1)
}

fn locate_in_file(file: &File, functions: &[Function], mapping: &Mapping, va: u64) -> Located {
    let whole = Located {
        func: file.rest,
        start: mapping.start,
        end: mapping.end,
        entry: mapping.start,
        known: false,
    };
    let Some(elf) = &file.elf else { return whole };
    let offset = mapping.pgoff.wrapping_add(va - mapping.start);
    let Some(address) = elf.address_of(offset) else { return whole };
    // Load address minus link-time address. It wraps for files that are linked high and loaded low.
    let bias = va.wrapping_sub(address);
    match elf.table.find(address) {
        Some(range) => {
            let func = file.base + range.func;
            Located {
                func: FunctionId(func),
                start: range.start.wrapping_add(bias).clamp(mapping.start, va),
                end: range.end.wrapping_add(bias).clamp(va, mapping.end),
                entry: functions[func as usize].start.wrapping_add(bias),
                known: true,
            }
        }
        // In a gap between functions, the result holds for this address only.
        None => Located { func: file.rest, start: va, end: va + 1, entry: mapping.start, known: false },
    }
}

fn add_file(functions: &mut Vec<Function>, path: &str, elf: Option<ElfSymbols>, bytes: Bytes) -> File {
    let module = if path.is_empty() { "[anon]" } else { path };
    let base = functions.len() as u32;
    if let Some(elf) = &elf {
        functions.extend(elf.table.functions().iter().map(|f| Function {
            name: f.name.clone(),
            module: module.to_owned(),
            start: f.start,
            kernel: false,
        }));
    }
    let rest = unknown(functions, module, false);
    File { base, elf, bytes, rest }
}

#[cfg(test)]
mod tests;
