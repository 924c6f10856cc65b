// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the debug information of what ran: of mapped programs and libraries, the kernel and its modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kprism_debuginfo::lines::Lines;
use kprism_debuginfo::separate::by_build_id;
use kprism_image::BuildId;
use kprism_image::symbols::{FunctionId, under_root};
use kprism_store::Run;

use crate::cover::options::DebugFiles;
use crate::flow;

/// Debug information of what ran, by the symbols' name for it. Files without any are passed over.
pub fn find(
    run: &Run,
    loaded: &flow::Loaded,
    debug: &DebugFiles,
    problems: &mut Vec<String>,
) -> BTreeMap<String, (PathBuf, Lines)> {
    let folders = debug.folders();
    let mut files = BTreeMap::new();
    let mut take = |module: &str, file: &Path, asked: bool| match Lines::of_file(file, &folders) {
        Ok(Some(lines)) => drop(files.insert(module.to_owned(), (file.to_owned(), lines))),
        Ok(None) if asked => problems.push(format!("{}: no debug information", file.display())),
        Ok(None) => {}
        Err(reason) => problems.push(format!("{}: {reason}", file.display())),
    };
    let mut modules: Vec<&str> = (0..loaded.symbols.len() as u32)
        .map(|id| loaded.symbols.function(FunctionId(id)))
        .filter(|f| !f.kernel && f.module.starts_with('/'))
        .map(|f| f.module.as_str())
        .collect();
    modules.sort_unstable();
    modules.dedup();
    for module in modules {
        let Some(file) = under_root(&run.root(), module) else { continue };
        if file.exists() {
            take(module, &file, false);
        }
    }
    // A kernel that the lab built is where it was built.
    let built = loaded.manifest.options.get("build_dir").and_then(|folder| folder.as_str());
    let built = built.map(|folder| Path::new(folder).join("vmlinux")).filter(|file| file.exists());
    let vmlinux = debug.vmlinux.clone().or(built).or_else(|| installed_vmlinux(loaded, &folders));
    if let Some(file) = vmlinux {
        take("[kernel]", &file, debug.vmlinux.is_some());
    }
    let recorded = ["module", "with_module"].into_iter().filter_map(|key| loaded.manifest.options.get(key));
    let recorded = recorded.flat_map(|list| list.as_array().into_iter().flatten());
    let recorded = recorded.filter_map(|name| name.as_str()).map(PathBuf::from).filter(|file| file.is_file());
    let recorded = recorded.map(|file| (file, false)).collect::<Vec<_>>();
    for (file, asked) in recorded.into_iter().chain(debug.module_file.iter().map(|f| (f.clone(), true))) {
        // The kernel has `_` in modules' names for `-` in those of their files.
        let name = file.file_stem().map(|stem| stem.to_string_lossy().replace('-', "_")).unwrap_or_default();
        take(&format!("[{name}]"), &file, asked);
    }
    files
}

/// The debug information of the recorded kernel, where distributions put it.
pub fn installed_vmlinux(loaded: &flow::Loaded, debug: &[PathBuf]) -> Option<PathBuf> {
    let kernel = loaded.manifest.kernel.as_ref()?;
    let by_id = BuildId::from_hex(&kernel.build_id).and_then(|id| by_build_id(&id, debug));
    let by_release = debug.iter().map(|dir| dir.join(format!("boot/vmlinux-{}", kernel.release)));
    by_id.or_else(|| by_release.into_iter().find(|place| Path::is_file(place)))
}
