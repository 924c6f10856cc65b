// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts how often each instruction of some functions ran.
//!
//! In: a decoded flow, the functions. Out: [`Counts`], and the debug information of a function.

use std::collections::BTreeMap;

use kprism_debuginfo::source::Source;
use kprism_flow::replay::Task;
use kprism_flow::replay::count::{Counter, Counts};
use kprism_flow::window::Window;
use kprism_image::symbols::{FunctionId, under_root};
use kprism_profile::units::printable;
use kprism_store::{Account, Run};

use crate::cover::DebugFiles;
use crate::cover::executed::{module_sources, recorded_vmlinux};
use crate::flow::{Loaded, follow};
use crate::progress::Progress;

/// Counts the instructions of the functions that are marked in `chosen`, where `takes` accepts the CPU and the task, and in
/// the window alone if there is one. Ends early when `stop` returns true. What could not be decoded is noted.
pub fn count(
    loaded: &Loaded,
    chosen: &[bool],
    takes: &dyn Fn(u16, &Task) -> bool,
    window: Option<Window>,
    stop: &dyn Fn() -> bool,
    progress: &Progress,
) -> (Counts, Account) {
    let lanes = loaded.streams().len();
    let mut counter = Counter::new(lanes, &loaded.symbols, chosen, takes, stop).within(window);
    let streams = follow(loaded, &mut counter, progress);
    (counter.finish(), streams)
}

/// Number of instructions by function, of those that ran.
pub fn by_function(counts: &Counts) -> BTreeMap<u32, u64> {
    let mut ran: BTreeMap<u32, u64> = BTreeMap::new();
    for site in &counts.sites {
        *ran.entry(site.func).or_default() += site.count;
    }
    ran
}

/// Debug information for a function, if there is some: in the file that was mapped, in `files`, in a module's file that the lab
/// loaded, or where distributions install it.
///
/// # Errors
/// A file that was found or named cannot be used, or the named module is not the function's; the text says why.
pub fn find_source(
    run: &Run,
    loaded: &Loaded,
    func: u32,
    files: &DebugFiles,
) -> Result<Option<Source>, String> {
    let symbols = &loaded.symbols;
    let function = symbols.function(FunctionId(func));
    let debug = files.folders(run);
    let is_module = function.kernel && function.module != "[kernel]";
    if !files.module_file.is_empty() && !is_module {
        return Err(format!(
            "--module-file {}: {} is no function of a module, but of {}",
            files.module_file[0].display(),
            printable(&function.name),
            printable(&function.module)
        ));
    }
    if !function.kernel {
        let Some(file) = under_root(&run.root(), &function.module) else { return Ok(None) };
        return Source::of_file(&file, &debug);
    }
    if is_module {
        return module_sources(run, loaded, &function.module, files);
    }
    let vmlinux = match &files.vmlinux {
        Some(file) => Some(file.clone()),
        None => recorded_vmlinux(&loaded.manifest, &debug)?,
    };
    let Some(vmlinux) = vmlinux else { return Ok(None) };
    // The kernel's own text begins with its lowest function.
    let start = (0..symbols.len() as u32)
        .map(|id| symbols.function(FunctionId(id)))
        .filter(|f| f.module == "[kernel]" && f.start >= 0xffff_ffff_8000_0000)
        .map(|f| f.start)
        .min()
        .unwrap_or(0);
    Source::of_kernel(&vmlinux, start, &function.name, function.start).map(Some)
}
