// SPDX-License-Identifier: MIT OR Apache-2.0
//! The running kernel: its types, traceable functions and addresses.

use std::collections::{BTreeMap, HashMap, HashSet};
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
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let mut traceable: HashMap<(&str, Option<&str>), u32> = HashMap::new();
    let mut places: HashSet<u64> = HashSet::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if has_places {
            places.extend(words.next().and_then(|word| u64::from_str_radix(word, 16).ok()));
        }
        if let Some(name) = words.next() {
            *traceable.entry((name, words.next().map(bare_module))).or_default() += 1;
        }
    }
    let symbols: Vec<(u64, &str, Option<&str>)> = code_symbols(kallsyms).collect();
    let mut seen: HashMap<&str, u32> = HashMap::new();
    let mut owned: HashMap<(&str, Option<&str>), u32> = HashMap::new();
    let mut found = Vec::new();
    for &(address, name, module) in &symbols {
        *seen.entry(name).or_default() += 1;
        if !has_places {
            *owned.entry((name, module)).or_default() += 1;
        }
        if traceable.contains_key(&(name, module)) {
            found.push((address, name, module));
        }
    }
    found.retain(|&(address, name, module)| match has_places {
        // The call to the tracer is the first instruction, or the one after ENDBR64.
        true => [0, 4].iter().any(|into| places.contains(&(address + into))),
        false => owned[&(name, module)] <= traceable[&(name, module)],
    });
    if found.iter().all(|&(address, ..)| address == 0) {
        let remedy = "every address is 0: run as root, or sysctl kernel.kptr_restrict=0";
        return Err(Error::refused("/proc/kallsyms", remedy));
    }
    found.sort_unstable();
    // A function may have several names.
    found.dedup_by_key(|&mut (address, ..)| address);
    let mut names: HashMap<u64, Vec<&str>> =
        found.iter().map(|&(address, ..)| (address, Vec::new())).collect();
    for &(address, name, _) in &symbols {
        if let Some(names) = names.get_mut(&address) {
            names.push(name);
        }
    }
    let function = |(address, name, module): (u64, &str, Option<&str>)| Function {
        name: name.to_owned(),
        aliases: names[&address]
            .iter()
            .filter(|other| **other != name)
            .map(|other| (*other).to_owned())
            .collect(),
        module: module.map(str::to_owned),
        address,
        ambiguous: seen[name] > 1,
    };
    Ok(found.into_iter().map(function).collect())
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
