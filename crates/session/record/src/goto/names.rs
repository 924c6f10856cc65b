// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names for GDB of the code of a stopped guest: the kernel's symbols, its modules', and the running program's.
//!
//! In: a run, the task that is stopped and the time. Out: [`Names`]: a file for GDB's command line, and a script with an
//! `add-symbol-file` for each other file. Made files go into the replay's folder and vanish with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_image::sideband::{self, Record};
use kprism_image::symbols::kallsyms::value_of;
use kprism_image::symbols::maps::Maps;
use kprism_image::symbols::{elf, under_root};
use kprism_session::cover::DebugFiles;
use kprism_session::cover::executed::{recorded_module, recorded_vmlinux};
use kprism_store::{Manifest, Run};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use super::symbol_elf::{self, Module};

/// Files from which GDB has the names of code.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// The kernel's symbols, at the addresses at which it ran.
    pub kernel: Option<PathBuf>,
    /// GDB's commands that load the other files.
    pub script: Option<PathBuf>,
    /// Files that GDB does not get, each with the reason.
    pub notes: Vec<String>,
}

/// The task that is stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// Thread id.
    pub pid: u32,
    /// Guest time, ns.
    pub ns: u64,
}

/// Collects what the run has. Files are made in `folder`.
///
/// # Errors
/// A file of the run cannot be read, one in `folder` cannot be written, or a named module is none of the run.
pub(super) fn collect(
    run: &Run,
    manifest: &Manifest,
    files: &DebugFiles,
    task: Task,
    folder: &Path,
) -> Result<Names> {
    let mut names = Names::default();
    let mut script = Script::default();
    let kallsyms = kprism_session::files::read_if_there(&run.kallsyms())?;
    let mut modules = symbol_elf::modules(&kallsyms).unwrap_or_else(|error| {
        names.notes.push(format!("{}: {error}", run.kallsyms().display()));
        BTreeMap::new()
    });
    let vmlinux = match &files.vmlinux {
        Some(file) => Some(file.clone()),
        None => recorded_vmlinux(manifest, &files.folders(run)).unwrap_or_else(|reason| {
            names.notes.push(reason);
            None
        }),
    };
    if let Some(file) = vmlinux {
        let file = std::path::absolute(&file).with_context(|| file.display().to_string())?;
        modules.remove("[kernel]");
        match moved_by(&file, &kallsyms) {
            Ok(0) => names.kernel = Some(file),
            Err(reason) => {
                names.notes.push(reason);
                names.kernel = Some(file);
            }
            // With KASLR the kernel is not where it was linked to be.
            Ok(bias) => script.add(&file, &format!("-o {bias:#x}"), &mut names.notes),
        }
    }
    for file in &files.module_file {
        let name = module_name(file);
        let Some(ran) = modules.get(&name) else {
            bail!("--module-file {}: the run has no module {name}, or it is given twice", file.display());
        };
        let bytes = fs::read(file).with_context(|| format!("--module-file {}", file.display()))?;
        let Some(sections) = sections(&bytes, ran) else {
            bail!(
                "--module-file {}: not the {name} that ran: expected an unpacked .ko of the same build",
                file.display()
            );
        };
        script.add(file, &sections, &mut names.notes);
        modules.remove(&name);
    }
    for module in manifest.kernel.iter().flat_map(|kernel| &kernel.modules) {
        let name = format!("[{}]", module.name);
        let Some(ran) = modules.get(&name) else { continue };
        let file = match recorded_module(run, module) {
            Ok(file) => file,
            Err(reason) => {
                names.notes.push(format!("{reason}: {name} has its functions' names and no lines"));
                continue;
            }
        };
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        if let Some(sections) = sections(&bytes, ran) {
            script.add(&file, &sections, &mut names.notes);
            modules.remove(&name);
        }
    }
    if let Some(bytes) = symbol_elf::file(modules.values()) {
        let file = folder.join("symbols.elf");
        fs::write(&file, bytes).with_context(|| file.display().to_string())?;
        match names.kernel {
            None => names.kernel = Some(file),
            Some(_) => script.add(&file, "-o 0x0", &mut names.notes),
        }
    }
    for (file, bias) in programs(run, task)? {
        script.add(&file, &format!("-o {bias:#x}"), &mut names.notes);
    }
    if !script.0.is_empty() {
        let file = folder.join("symbols.gdb");
        fs::write(&file, script.0).with_context(|| file.display().to_string())?;
        names.script = Some(file);
    }
    Ok(names)
}

/// GDB's commands.
#[derive(Debug, Default)]
struct Script(String);

impl Script {
    fn add(&mut self, file: &Path, place: &str, notes: &mut Vec<String>) {
        let absolute = std::path::absolute(file).ok();
        match absolute.as_deref().and_then(Path::to_str).and_then(quoted) {
            Some(name) => drop(writeln!(self.0, "add-symbol-file {name} {place}")),
            None => notes.push(format!("{}: GDB cannot be given a file of this name", file.display())),
        }
    }
}

/// The text as one word of a GDB command (GDB manual, "Commands to Specify Files"). `None` if it cannot be: a line's end ends
/// the command.
fn quoted(text: &str) -> Option<String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return None;
    }
    let mut word = String::new();
    for c in text.chars() {
        if c.is_ascii() && !c.is_ascii_alphanumeric() && !"-_./:+,=@%".contains(c) {
            word.push('\\');
        }
        word.push(c);
    }
    Some(word)
}

/// Distance from where the kernel was linked to be to where it ran.
///
/// # Errors
/// The reason why that is not known; GDB then names the code as if it had not been moved.
fn moved_by(vmlinux: &Path, kallsyms: &[u8]) -> Result<u64, String> {
    let linked = || {
        let cache = object::ReadCache::new(fs::File::open(vmlinux).ok()?);
        let elf = object::File::parse(&cache).ok()?;
        elf.symbols().find(|symbol| symbol.name() == Ok("_stext")).map(|symbol| symbol.address())
    };
    let unknown = |what: &str| {
        format!(
            "{}: {what}, so whether the kernel ran where it was linked to be is not known",
            vmlinux.display()
        )
    };
    let ran = value_of(kallsyms, "_stext").filter(|ran| *ran != 0);
    let ran = ran.ok_or_else(|| unknown("the run's symbols have no address of `_stext`"))?;
    let linked = linked().ok_or_else(|| unknown("no symbol `_stext`"))?;
    Ok(ran.wrapping_sub(linked))
}

/// The kernel's name for the module in this file, as kallsyms has it.
fn module_name(file: &Path) -> String {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().replace('-', "_")).unwrap_or_default();
    format!("[{stem}]")
}

/// The addresses of a module's code sections, as arguments of `add-symbol-file`: most of the functions that have one name in both
/// tell them. `None` if most are elsewhere, as those of another build, or the file has none of them.
fn sections(file: &[u8], ran: &Module) -> Option<String> {
    let elf = object::File::parse(file).ok()?;
    let mut there: HashMap<&str, Option<u64>> = HashMap::new();
    for (name, address, _) in &ran.functions {
        // Static functions may share a name: those do not help.
        there.entry(name).and_modify(|known| *known = None).or_insert(Some(*address));
    }
    let mut votes: BTreeMap<usize, BTreeMap<u64, usize>> = BTreeMap::new();
    for symbol in elf.symbols().filter(|symbol| symbol.is_definition()) {
        let (Some(section), Ok(name)) = (symbol.section_index(), symbol.name()) else { continue };
        if let Some(Some(address)) = there.get(name) {
            let start = address.wrapping_sub(symbol.address());
            *votes.entry(section.0).or_default().entry(start).or_default() += 1;
        }
    }
    let (mut good, mut bad) = (0, 0);
    let mut words = Vec::new();
    for (index, starts) in votes {
        let all: usize = starts.values().sum();
        let (start, most) = starts.into_iter().max_by_key(|(_, count)| *count)?;
        let section = elf.section_by_index(object::SectionIndex(index)).ok()?;
        (good, bad) = (good + most, bad + all - most);
        let address = start.wrapping_add(section.address());
        words.push(format!("-s {} {address:#x}", quoted(section.name().ok()?)?));
    }
    (good > bad).then(|| words.join(" "))
}

/// Files of the program that the task runs, and what is to be added to their addresses.
fn programs(run: &Run, task: Task) -> Result<BTreeSet<(PathBuf, u64)>> {
    let (records, _) = sideband::read(&run.sideband_text()?);
    let maps = Maps::new(&records);
    let Some(space) = address_space(&records, task) else { return Ok(BTreeSet::new()) };
    let mut files = BTreeSet::new();
    for mapping in maps.life(space, task.ns) {
        let in_force = maps.find(space, mapping.start, task.ns) == Some(*mapping);
        let path = mapping.file.and_then(|file| maps.paths().get(file as usize));
        let (true, Some(path)) = (in_force && mapping.from <= task.ns, path) else { continue };
        // The kernel adds this to the names of files that were removed while they were mapped.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let Some(file) = under_root(&run.root(), path).filter(|file| file.is_file()) else { continue };
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        let linked = elf::parse(&bytes, path).ok().and_then(|symbols| symbols.address_of(mapping.pgoff));
        if let Some(linked) = linked {
            files.insert((file, mapping.start.wrapping_sub(linked)));
        }
    }
    Ok(files)
}

/// The address space of a task: where its process mapped something last; of a child that mapped nothing yet, its parent's.
fn address_space(records: &[Record], task: Task) -> Option<u64> {
    let mut threads: HashMap<u32, u32> = HashMap::new();
    let mut parents: HashMap<u32, u32> = HashMap::new();
    let mut spaces: HashMap<u32, u64> = HashMap::new();
    for record in records {
        match record {
            Record::Switch(switch) if switch.t <= task.ns => {
                threads.insert(switch.pid, switch.tgid);
                threads.insert(switch.prev_pid, switch.prev_tgid);
            }
            Record::Fork(fork) if fork.t <= task.ns => {
                threads.insert(fork.pid, fork.tgid);
                parents.insert(fork.pid, fork.ppid);
            }
            Record::Mmap(mmap) if mmap.t <= task.ns => {
                spaces.insert(mmap.tgid, mmap.asid);
            }
            _ => {}
        }
    }
    let mut pid = task.pid;
    // A chain of parents has an end; a damaged record may make a circle of it.
    for _ in 0..=parents.len() {
        let process = threads.get(&pid).copied().unwrap_or(pid);
        if let Some(space) = spaces.get(&process) {
            return Some(*space);
        }
        pid = *parents.get(&process).or_else(|| parents.get(&pid))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use kprism_store::RunKind;

    use super::*;

    #[test]
    fn a_name_is_one_word_of_one_command() {
        assert_eq!(quoted("/a/b-1.so").as_deref(), Some("/a/b-1.so"));
        assert_eq!(quoted("/a b'\"\\#$!").as_deref(), Some(r#"/a\ b\'\"\\\#\$\!"#));
        assert_eq!(quoted("/ä").as_deref(), Some("/ä"));
        assert!(quoted("/a\nshell true").is_none() && quoted("").is_none());
    }

    #[test]
    fn sections_are_where_most_functions_ran() {
        let functions = |base: u64| {
            let all = [("one", 0x10), ("two", 0x40), ("three", 0x90)];
            all.map(|(name, offset)| (name.to_owned(), base + offset, 8u64)).to_vec()
        };
        // The made file's section begins with its first function.
        let file = symbol_elf::file([Module { functions: functions(0x1000) }].iter()).unwrap();
        let mut ran = Module { functions: functions(0xffff_ffff_c000_0000) };
        assert_eq!(sections(&file, &ran).as_deref(), Some("-s .text.1 0xffffffffc0000010"));
        ran.functions[2].1 += 4;
        assert_eq!(sections(&file, &ran).as_deref(), Some("-s .text.1 0xffffffffc0000010"));
        ran.functions[1].1 += 8;
        assert_eq!(sections(&file, &ran), None);
    }

    #[test]
    fn where_the_kernel_ran_is_known_or_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vmlinux");
        let linked = Module { functions: vec![("_stext".into(), 0xffff_ffff_8100_0000, 16)] };
        fs::write(&file, symbol_elf::file([linked].iter()).unwrap()).unwrap();
        assert_eq!(moved_by(&file, b"ffffffff81000000 T _stext\n"), Ok(0));
        assert_eq!(moved_by(&file, b"ffffffff92000000 T _stext\n"), Ok(0x1100_0000));
        for kallsyms in ["", "0000000000000000 T _stext\n"] {
            let reason = moved_by(&file, kallsyms.as_bytes()).unwrap_err();
            assert!(reason.contains("the run's symbols have no address of `_stext`"), "{reason}");
        }
        fs::write(&file, "no ELF").unwrap();
        let reason = moved_by(&file, b"ffffffff81000000 T _stext\n").unwrap_err();
        assert!(reason.contains("vmlinux: no symbol `_stext`"), "{reason}");
    }

    #[test]
    fn a_child_without_mappings_has_its_parents_program() {
        let text = concat!(
            r#"{"k":"mmap","t":1,"cpu":0,"pid":5,"tgid":5,"asid":4096,"start":1,"end":2,"exec":true,"path":"/a"}"#,
            "\n",
            r#"{"k":"fork","t":2,"cpu":0,"pid":6,"tgid":6,"ppid":5}"#,
            "\n",
            r#"{"k":"mmap","t":9,"cpu":0,"pid":6,"tgid":6,"asid":8192,"start":1,"end":2,"exec":true,"path":"/b"}"#,
            "\n"
        );
        let (records, _) = sideband::read(text.as_bytes());
        assert_eq!(records.len(), 3);
        let space = |pid, ns| address_space(&records, Task { pid, ns });
        assert_eq!((space(5, 5), space(6, 5), space(6, 9)), (Some(4096), Some(4096), Some(8192)));
        assert_eq!((space(7, 9), space(5, 0)), (None, None));
    }

    #[test]
    fn a_run_without_a_vmlinux_has_the_names_of_its_kernel_and_modules() {
        let dir = tempfile::tempdir().unwrap();
        let run = Run::create(&dir.path().join("run")).unwrap();
        fs::create_dir_all(run.symbols()).unwrap();
        let text = "ffffffff81000000 T _stext\nffffffff81000010 T vfs_open\nffffffffc0000000 t modf\t[mod]\n";
        fs::write(run.kallsyms(), text).unwrap();
        let manifest = Manifest::new(RunKind::Lab, 1);
        let task = Task { pid: 1, ns: 1 };
        let names = collect(&run, &manifest, &DebugFiles::default(), task, dir.path()).unwrap();
        let bytes = fs::read(names.kernel.unwrap()).unwrap();
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        let defined = elf.symbols().filter(|symbol| symbol.is_definition());
        let all: Vec<_> = defined.map(|symbol| symbol.name().unwrap().to_owned()).collect();
        assert_eq!(all, ["_stext", "vfs_open", "modf"]);
        assert!(names.script.is_none() && names.notes.is_empty(), "{:?}", names.notes);
        // A file of a module that did not run, and one that is no module.
        let other = dir.path().join("other.ko");
        let refused = |file: &Path| {
            let files = DebugFiles { module_file: vec![file.to_owned()], ..DebugFiles::default() };
            collect(&run, &manifest, &files, task, dir.path()).unwrap_err().to_string()
        };
        assert!(refused(&other).contains("no module [other]"));
        let packed = dir.path().join("mod.ko");
        fs::write(&packed, "packed").unwrap();
        assert!(refused(&packed).contains("expected an unpacked .ko"));
    }
}
