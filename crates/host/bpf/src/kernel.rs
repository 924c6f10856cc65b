// SPDX-License-Identifier: MIT OR Apache-2.0
//! The running kernel: its types, traceable functions and addresses.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use kprism_btf::{Btf, Kind};
use kprism_image::symbols::kallsyms::code_symbols;

use crate::error::Error;
use crate::host;
use crate::prog::BtfTarget;
use crate::sys::{self, Cmd};

/// A function of the running kernel that ftrace, and so any probe, can attach to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Symbol name.
    pub name: String,
    /// Its module; `None` for the kernel itself.
    pub module: Option<String>,
    /// Address of the function.
    pub address: u64,
    /// Other names of the function, which some reports show.
    pub aliases: Vec<String>,
    /// True if another function has the same name. BTF identifies functions by name only, so it may mean that one.
    pub ambiguous: bool,
}

/// BTF of the kernel and of the modules requested so far.
#[derive(Debug)]
pub struct Kernel {
    btf: Arc<Btf>,
    modules: BTreeMap<String, Option<(Btf, OwnedFd)>>,
}

impl Kernel {
    /// Reads the running kernel's BTF.
    pub fn running() -> Result<Self, Error> {
        Ok(Self { btf: Arc::new(types("vmlinux", None)?), modules: BTreeMap::new() })
    }

    /// The kernel's BTF.
    pub fn btf(&self) -> &Btf {
        &self.btf
    }

    /// Returns the `btf_trace_NAME` typedef of a tracepoint.
    pub fn tracepoint(&self, name: &str) -> Result<BtfTarget<'_>, Error> {
        let name = format!("btf_trace_{name}");
        let found = self.btf.find(Kind::Typedef, &name);
        let id = found.map(|ty| ty.id).ok_or_else(|| kprism_btf::Error::Unknown {
            origin: self.btf.origin().into(),
            what: format!("typedef {name}: this kernel has no such tracepoint"),
        })?;
        Ok(BtfTarget { id, module: None })
    }

    /// Returns `bpf_iter_KIND`, the target of a program that iterates over all objects of a kind.
    pub fn iterator(&self, kind: &str) -> Result<BtfTarget<'_>, Error> {
        let function = self.btf.function(&format!("bpf_iter_{kind}"))?;
        Ok(BtfTarget { id: function.id, module: None })
    }

    /// Returns true if an fentry program can attach to a function: BTF describes it, and its name is unique. Loads the
    /// module's BTF if needed; call this before [`Self::target`].
    pub fn knows(&mut self, function: &Function) -> bool {
        if let Some(module) = &function.module
            && !self.modules.contains_key(module)
        {
            let read = types(module, Some(self.btf.clone())).ok();
            let found = read.and_then(|btf| Some((btf, module_fd(module).ok()??)));
            self.modules.insert(module.clone(), found);
        }
        !function.ambiguous && self.target(function).is_some()
    }

    /// Returns the target of an fentry program at a function.
    pub fn target(&self, function: &Function) -> Option<BtfTarget<'_>> {
        let (btf, fd) = self.types_of(function)?;
        let found = btf.function(&function.name).ok()?;
        // A module's function must be described by the module's own BTF.
        (found.id >= btf.first_id()).then_some(BtfTarget { id: found.id, module: fd })
    }

    /// Returns the BTF that describes a function, if its parameters are known. Call [`Self::knows`] before.
    pub fn describes(&self, function: &Function) -> Option<&Btf> {
        self.target(function).filter(|_| !function.ambiguous)?;
        self.types_of(function).map(|(btf, _)| btf)
    }

    fn types_of(&self, function: &Function) -> Option<(&Btf, Option<BorrowedFd<'_>>)> {
        let Some(module) = &function.module else { return Some((&self.btf, None)) };
        let (btf, fd) = self.modules.get(module)?.as_ref()?;
        Some((btf, Some(fd.as_fd())))
    }
}

/// Reads the BTF of the running kernel (`vmlinux`) or of a loaded module.
fn types(name: &str, base: Option<Arc<Btf>>) -> Result<Btf, Error> {
    let path = Path::new("/sys/kernel/btf").join(name);
    let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::refused(
            path.display().to_string(),
            "not there: the kernel needs CONFIG_DEBUG_INFO_BTF=y (and _MODULES for modules)",
        ),
        _ => Error::Io { path: path.clone(), source },
    })?;
    Ok(Btf::parse(&path.display().to_string(), bytes, base)?)
}

/// Returns a descriptor of a loaded module's BTF.
fn module_fd(module: &str) -> Result<Option<OwnedFd>, Error> {
    let failed = |source| host::explain(format!("BTF of module {module}"), source);
    let mut id = 0;
    loop {
        let mut next = sys::Id { start: id, ..Default::default() };
        match sys::bpf(Cmd::BtfNextId, &mut next) {
            Ok(_) => id = next.next,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(source)),
        }
        let mut by_id = sys::Id { start: id, ..Default::default() };
        let fd = match sys::bpf_fd(Cmd::BtfFdById, &mut by_id) {
            Ok(fd) => fd,
            // The BTF was unloaded meanwhile.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(failed(source)),
        };
        // `struct bpf_btf_info`: btf, its size and ID, then name, size of the name, and whether it is the kernel's.
        let mut name = [0u8; 64];
        let mut info = [0u64, 0, name.as_mut_ptr() as u64, name.len() as u64];
        let len = size_of_val(&info) as u32;
        let mut attr = sys::Info { fd: sys::raw(fd.as_fd()), len, info: info.as_mut_ptr() as u64 };
        sys::bpf(Cmd::InfoByFd, &mut attr).map_err(failed)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        if &name[..end] == module.as_bytes() {
            return Ok(Some(fd));
        }
    }
}

/// Returns all traceable functions, sorted by address. `kallsyms` is the text of `/proc/kallsyms`; it is passed in
/// because the kernel takes long to produce it, and callers need it too.
pub fn functions(kallsyms: &str) -> Result<Vec<Function>, Error> {
    let Some(tracefs) = host::tracefs() else {
        return Err(Error::refused("the list of traceable functions", host::no_tracefs()));
    };
    // Of several functions with the same name, some may not be traceable. Since Linux 6.5 the kernel lists addresses, in a file
    // that has the names too: to write one of them takes the kernel 300 million instructions.
    let with_places = tracefs.join("available_filter_functions_addrs");
    let has_places = with_places.exists();
    let path = if has_places { with_places } else { tracefs.join("available_filter_functions") };
    let list = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let found = traceable(&list, has_places, kallsyms);
    if found.iter().all(|function| function.address == 0) {
        let remedy = "every address is 0: run as root, or sysctl kernel.kptr_restrict=0";
        return Err(Error::refused("/proc/kallsyms", remedy));
    }
    Ok(found)
}

/// A symbol of code, or a line of the list: address, name, module.
type Symbol<'t> = (u64, &'t str, Option<&'t str>);
type Counts<K> = foldhash::HashMap<K, u32>;

/// The functions of the kernel's list that kallsyms has, sorted by address. `has_places`: the list's lines begin with addresses.
fn traceable(list: &str, has_places: bool, kallsyms: &str) -> Vec<Function> {
    let mut symbols: Vec<Symbol<'_>> = code_symbols(kallsyms).collect();
    let mut found = if has_places { at_places(list, &symbols) } else { by_names(list, &symbols) };
    found.sort_unstable();
    // A function may have several names.
    found.dedup_by_key(|&mut (address, ..)| address);
    let mut seen: Counts<&str> = Counts::default();
    symbols.iter().for_each(|&(_, name, _)| *seen.entry(name).or_default() += 1);
    symbols.sort_by_key(|&(address, ..)| address);
    let function = |(address, name, module): Symbol<'_>| {
        let same = &symbols[symbols.partition_point(|symbol| symbol.0 < address)..];
        let names = same.iter().take_while(|symbol| symbol.0 == address).map(|symbol| symbol.1);
        Function {
            name: name.to_owned(),
            aliases: names.filter(|other| *other != name).map(str::to_owned).collect(),
            module: module.map(str::to_owned),
            address,
            ambiguous: seen[name] > 1,
        }
    };
    found.into_iter().map(function).collect()
}

/// Symbols at which the list has a line of that name.
fn at_places<'t>(list: &'t str, symbols: &[Symbol<'t>]) -> Vec<Symbol<'t>> {
    let line = |line: &'t str| {
        let mut words = line.split_ascii_whitespace();
        let place = u64::from_str_radix(words.next()?, 16).ok()?;
        Some((place, words.next()?, words.next().map(bare_module)))
    };
    let mut places: Vec<Symbol<'_>> = list.lines().filter_map(line).collect();
    places.sort_unstable();
    // The call to the tracer is the first instruction, or the one after ENDBR64.
    let is_there = |&(address, name, module): &Symbol<'_>| {
        [0, 4].iter().any(|into| places.binary_search(&(address.wrapping_add(*into), name, module)).is_ok())
    };
    symbols.iter().copied().filter(is_there).collect()
}

/// Symbols whose name the list has at least as often as kallsyms: of the others it cannot be told which one is meant.
fn by_names<'t>(list: &str, symbols: &[Symbol<'t>]) -> Vec<Symbol<'t>> {
    let mut listed: Counts<(&str, Option<&str>)> = Counts::default();
    for line in list.lines() {
        let mut words = line.split_ascii_whitespace();
        if let Some(name) = words.next() {
            *listed.entry((name, words.next().map(bare_module))).or_default() += 1;
        }
    }
    let mut owned: Counts<(&str, Option<&str>)> = Counts::default();
    symbols.iter().for_each(|&(_, name, module)| *owned.entry((name, module)).or_default() += 1);
    let is_clear = |&(_, name, module): &Symbol<'_>| {
        listed.get(&(name, module)).is_some_and(|listed| owned[&(name, module)] <= *listed)
    };
    symbols.iter().copied().filter(is_clear).collect()
}

/// Returns true if the kernel calls this function to run a program at a function's entry or return
/// (kernel/trace/bpf_trace.c, fprobe.c, rethook.c). A program at such a function would be skipped as recursive a dozen
/// times for each call of any other function, and would never see a call of its own.
pub fn serves_probes(name: &str) -> bool {
    const BEGIN: [&str; 12] = [
        "__bpf",
        "__rcu_read",
        "__rethook",
        "arch_rethook",
        "bpf_",
        "fprobe",
        "ftrace_",
        "kprobe_multi",
        "ktime_get",
        "migrate_",
        "rcu_read",
        "rethook_",
    ];
    ["bsearch", "rcu_is_watching"].contains(&name) || BEGIN.iter().any(|begin| name.starts_with(begin))
}

fn bare_module(word: &str) -> &str {
    word.trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
ffffffff81000000 T one
ffffffff81000000 t alias_of_one
ffffffff81000100 t twice
ffffffff81000200 t twice
ffffffff81000300 T not_listed
ffffffff81000400 d data
ffffffff81000500 W weak
ffffffffc0000000 t twice\t[module]
ffffffffc0000100 t own\t[module]
";

    /// A function: address, name, module, aliases, and whether others have its name.
    type Row = (u64, String, Option<String>, Vec<String>, bool);

    fn found(list: &str, has_places: bool) -> Vec<Row> {
        let all = traceable(list, has_places, KALLSYMS).into_iter();
        all.map(|f| (f.address, f.name, f.module, f.aliases, f.ambiguous)).collect()
    }

    fn one(address: u64, name: &str, module: Option<&str>, ambiguous: bool) -> Row {
        let aliases = if name == "one" { vec!["alias_of_one".to_owned()] } else { Vec::new() };
        (address, name.to_owned(), module.map(str::to_owned), aliases, ambiguous)
    }

    #[test]
    fn places_tell_functions_of_one_name_apart() {
        // The second one begins with ENDBR64; of the first `twice` there is no line.
        let list = "ffffffff81000000 one\nffffffff81000204 twice\nffffffff81000500 weak\n\
                    ffffffffc0000004 twice [module]\nffffffffc0000100 own [module]\nffffffff81000600 unknown\n";
        let expected = [
            one(0xffff_ffff_8100_0000, "one", None, false),
            one(0xffff_ffff_8100_0200, "twice", None, true),
            one(0xffff_ffff_8100_0500, "weak", None, false),
            one(0xffff_ffff_c000_0000, "twice", Some("module"), true),
            one(0xffff_ffff_c000_0100, "own", Some("module"), false),
        ];
        assert_eq!(found(list, true), expected);
    }

    #[test]
    fn without_places_a_name_must_be_listed_as_often_as_it_is_there() {
        let list = "one\ntwice\nweak\ntwice [module]\nown [module]\nunknown\n";
        let names: Vec<_> = found(list, false).into_iter().map(|(address, ..)| address & 0xf_ffff).collect();
        // Which `twice` of the kernel is meant is not known; of the module's there is one.
        assert_eq!(names, [0, 0x500, 0, 0x100]);
        assert_eq!(found(&format!("{list}twice\n"), false).len(), 6);
    }

    #[test]
    fn lines_that_are_no_functions_are_passed_over() {
        assert!(found("", true).is_empty() && found("", false).is_empty());
        assert!(found("not-an-address one\n\nffffffff81000000\n", true).is_empty());
    }
}
