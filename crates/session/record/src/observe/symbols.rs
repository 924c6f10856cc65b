// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbols of a run: the kernel's as its memory has them, and the programs' from a folder with the guest's files.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use kprism_debuginfo::separate;
use kprism_kmem::Kernel;
use kprism_lab::{inside, mapped_files};
use kprism_store::Run;

/// Writes the symbols of the kernel and of its modules.
pub fn write(run: &Run, kernel: &Kernel) -> Result<()> {
    fs::create_dir_all(run.symbols()).with_context(|| run.symbols().display().to_string())?;
    write_file(&run.kallsyms(), kernel.kallsyms().as_bytes())?;
    write_file(&run.modules(), kernel.modules().as_bytes())
}

/// Adds symbols that were not there before. Those of unloaded modules stay: their code may have run.
pub fn add(run: &Run, kernel: &Kernel) -> Result<()> {
    let path = run.kallsyms();
    let mut text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let new = kernel.kallsyms();
    let added: Vec<&str> = {
        let known: HashSet<&str> = text.lines().collect();
        new.lines().filter(|line| !known.contains(line)).collect()
    };
    for line in added {
        text.push_str(line);
        text.push('\n');
    }
    write_file(&path, text.as_bytes())?;
    match kernel.modules.is_empty() {
        // Perhaps the list could not be read.
        true => Ok(()),
        false => write_file(&run.modules(), kernel.modules().as_bytes()),
    }
}

/// Where the observer finds the running task, as lines of its hooks: variables of each CPU, by the symbols.
pub fn current(kernel: &Kernel) -> String {
    let mut lines = String::new();
    for name in ["__per_cpu_offset", "current_task", "pcpu_hot"] {
        if let Some(address) = kernel.address(name) {
            writeln!(lines, "sym.{name}={address:#x}").ok();
        }
    }
    let offset = kernel.btf.as_ref().and_then(|btf| btf.offset("pcpu_hot", "current_task").ok());
    if let Some(offset) = offset {
        writeln!(lines, "off.pcpu_hot.current_task={offset}").ok();
    }
    lines
}

/// Copies the program files that were mapped, and their separate debug files, from a folder with the guest's files. Returns the
/// program files that it does not have, and remarks on debug files that were not copied.
pub fn collect_files(run: &Run, sysroot: Option<&Path>) -> Result<(Vec<String>, Vec<String>)> {
    let (mut missing, mut not_kept) = (Vec::new(), Vec::new());
    let sysroot =
        sysroot.map(|dir| dir.canonicalize().with_context(|| dir.display().to_string())).transpose()?;
    let debug = separate::folders(sysroot.as_deref());
    for path in mapped_files(&run.streams())? {
        let source = inside(&path).and_then(|inside| {
            // The guest's links must not lead to files of this machine.
            let (sysroot, target) = (sysroot.as_ref()?, run.root().join(&inside));
            let source = sysroot.join(&inside).canonicalize().ok()?;
            source.starts_with(sysroot).then_some((source, target))
        });
        let copied = source.is_some_and(|(source, target)| {
            let is_file = fs::metadata(&source).is_ok_and(|facts| facts.is_file());
            let copied = is_file
                && target.parent().is_some_and(|parent| fs::create_dir_all(parent).is_ok())
                && fs::copy(&source, &target).is_ok();
            if copied {
                let kept = separate::keep(&source, Path::new(&path), &debug, &run.root());
                not_kept.extend(kept.err().map(|(file, why)| format!("{}: not kept: {why}", file.display())));
            }
            copied
        });
        if !copied {
            missing.push(path);
        }
    }
    Ok((missing, not_kept))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| path.display().to_string())
}
