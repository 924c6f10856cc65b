// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the debug information of what ran: of mapped programs and libraries, the kernel and its modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kprism_debuginfo::lines::Lines;
use kprism_debuginfo::separate::by_build_id;
use kprism_debuginfo::source::Source;
use kprism_image::BuildId;
use kprism_image::symbols::{FunctionId, under_root};
use kprism_layout::KernelBuild;
use kprism_profile::units::printable;
use kprism_store::{KernelModule, Manifest, OptionKey, Run};

use super::places::places;
use crate::cover::options::DebugFiles;
use crate::flow;

/// Debug information of what ran, by the symbols' name for it. Files without any are passed over.
pub fn find(
    run: &Run,
    loaded: &flow::Loaded,
    debug: &DebugFiles,
    problems: &mut Vec<String>,
) -> BTreeMap<String, (PathBuf, Lines)> {
    let folders = debug.folders(run);
    let vmlinux = match &debug.vmlinux {
        Some(file) => Some(file.clone()),
        None => recorded_vmlinux(&loaded.manifest, &folders).unwrap_or_else(|reason| {
            problems.push(reason);
            None
        }),
    };
    let built = built_modules(run, &loaded.manifest, problems);
    let mut asked = Vec::new();
    for file in &debug.module_file {
        match of_the_build(&loaded.manifest, file) {
            Ok(()) => asked.push((module_name(file), file.clone(), true)),
            Err(reason) => problems.push(reason),
        }
    }
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
    if let Some(file) = vmlinux {
        take("[kernel]", &file, debug.vmlinux.is_some());
    }
    let built = built.into_iter().map(|(name, file)| (name, file, false));
    for (name, file, asked) in built.chain(asked) {
        take(&name, &file, asked);
    }
    files
}

/// Source lines of a module's code: of the file that the user names, of the run's copy of the file that was loaded, or of that file.
///
/// # Errors
/// A file is of another module or another build, is not there any more, or cannot be read.
pub fn module_sources(
    run: &Run,
    loaded: &flow::Loaded,
    module: &str,
    debug: &DebugFiles,
) -> Result<Option<Source>, String> {
    let folders = debug.folders(run);
    let named = debug.module_file.iter().find(|file| module_name(file) == module);
    let mut problems = Vec::new();
    let file = match (named, debug.module_file.first()) {
        (Some(file), _) => {
            of_the_build(&loaded.manifest, file)?;
            file.clone()
        }
        (None, Some(other)) => {
            return Err(format!(
                "--module-file {}: its name is that of {}, and the function is in {}",
                other.display(),
                module_name(other),
                printable(module)
            ));
        }
        (None, None) => {
            let built = built_modules(run, &loaded.manifest, &mut problems);
            match built.into_iter().find(|(name, _)| name == module) {
                Some((_, file)) => file,
                None => {
                    let bare = module.trim_matches(['[', ']']);
                    let own = problems.into_iter().find(|why| why.contains(bare));
                    return own.map_or(Ok(None), Err);
                }
            }
        }
    };
    let of = |why: String| format!("{}: {why}", file.display());
    let Some(lines) = Lines::of_file(&file, &folders).map_err(of)? else {
        return match named {
            Some(_) => Err(of("no debug information: build it with -g (CONFIG_DEBUG_INFO)".to_owned())),
            None => Ok(None),
        };
    };
    let places = places(module, &lines, &loaded.symbols).map_err(of)?;
    Source::of_module(&file, &folders, places.iter().map(|place| (place.section, place.bias)).collect())
}

/// The recorded kernel with debug information: where the lab or the user built it, or where distributions put it.
///
/// # Errors
/// It was built again since, or the tree is not there.
pub fn recorded_vmlinux(manifest: &Manifest, debug: &[PathBuf]) -> Result<Option<PathBuf>, String> {
    let Some(kernel) = &manifest.kernel else { return Ok(None) };
    let built = build(manifest).map(|build| build.vmlinux());
    let own = built.as_deref().and_then(BuildId::of_file);
    if own.as_ref().is_some_and(|id| id.to_string() == kernel.build_id) {
        return Ok(built);
    }
    let by_id = BuildId::from_hex(&kernel.build_id).and_then(|id| by_build_id(&id, debug));
    let by_release = || {
        let places = debug.iter().map(|dir| dir.join(format!("boot/vmlinux-{}", kernel.release)));
        // A release does not tell two builds of a user's kernel apart.
        let is_it = |id: BuildId| kernel.build_id.is_empty() || id.to_string() == kernel.build_id;
        places.into_iter().find(|place| place.is_file() && BuildId::of_file(place).is_none_or(is_it))
    };
    match (by_id.or_else(by_release), built, own) {
        (Some(installed), ..) => Ok(Some(installed)),
        (None, None, _) => Ok(None),
        (None, Some(file), Some(own)) => Err(format!(
            "{}: built again since the run (its build id is {own}, the run's {}): name the run's kernel with --vmlinux",
            file.display(),
            if kernel.build_id.is_empty() { "not known" } else { &kernel.build_id },
        )),
        (None, Some(file), None) => Err(format!(
            "{}: not there any more, or without a build id: name the run's kernel with --vmlinux",
            file.display()
        )),
    }
}

/// The folder in which the recorded kernel was built.
fn build(manifest: &Manifest) -> Option<KernelBuild> {
    let tree = manifest.kernel.as_ref().and_then(|kernel| kernel.tree.as_ref());
    // Older runs of kernels with gcov have it as an option.
    let older = || manifest.option(OptionKey::BuildDir).and_then(|folder| folder.as_str()).map(Path::new);
    tree.map(|tree| tree.folder.as_path()).or_else(older).map(KernelBuild::of)
}

/// The modules that the user built, by the symbols' names for them, if they were not built again since.
fn built_modules(run: &Run, manifest: &Manifest, problems: &mut Vec<String>) -> Vec<(String, PathBuf)> {
    let of_kernel = manifest.kernel.iter().flat_map(|kernel| &kernel.modules);
    let mut built: Vec<(String, PathBuf)> = Vec::new();
    for module in of_kernel {
        match recorded_module(run, module) {
            Ok(file) => built.push((format!("[{}]", module.name), file)),
            Err(reason) => problems.push(reason),
        }
    }
    // Older runs have only the options.
    let older = [OptionKey::Module, OptionKey::WithModule].into_iter().filter_map(|key| manifest.option(key));
    let older = older.flat_map(|list| list.as_array().into_iter().flatten());
    let older = older.filter_map(|name| name.as_str()).map(PathBuf::from).filter(|file| file.is_file());
    for file in older {
        let name = module_name(&file);
        if built.iter().all(|(known, _)| *known != name) && !is_recorded(manifest, &name) {
            built.push((name, file));
        }
    }
    built
}

/// The file of a module that the user built, as it was loaded: the run's copy, or the user's file, if that was not built again since.
///
/// # Errors
/// Neither is there. The text says what became of the user's file.
pub fn recorded_module(run: &Run, module: &KernelModule) -> Result<PathBuf, String> {
    let is_it = |file: &Path| match BuildId::of_file(file) {
        Some(id) => id.to_string() == module.build_id,
        // Without one, nothing tells two builds apart.
        None => module.build_id.is_empty() && file.is_file(),
    };
    let places = [run.module_file(&module.name), module.file.clone()];
    places.into_iter().find(|file| is_it(file)).ok_or_else(|| {
        let there = BuildId::of_file(&module.file).is_some();
        format!(
            "{}: {}: name the run's module with --module-file",
            module.file.display(),
            if there { "built again since the run" } else { "not there any more" }
        )
    })
}

/// Refuses a file of `--module-file` that is of another build than the module of its name that ran.
///
/// # Errors
/// It is; with both build ids.
pub fn of_the_build(manifest: &Manifest, file: &Path) -> Result<(), String> {
    let name = module_name(file);
    let mut modules = manifest.kernel.iter().flat_map(|kernel| &kernel.modules);
    let ran = modules.find(|module| format!("[{}]", module.name) == name && !module.build_id.is_empty());
    match (ran, BuildId::of_file(file)) {
        (Some(ran), Some(id)) if id.to_string() != ran.build_id => Err(format!(
            "--module-file {}: another build: its build id is {id}, that of the {name} that ran {}",
            file.display(),
            ran.build_id
        )),
        // The functions' places tell more.
        _ => Ok(()),
    }
}

/// True if the manifest knows the module's build.
fn is_recorded(manifest: &Manifest, name: &str) -> bool {
    let modules = manifest.kernel.iter().flat_map(|kernel| &kernel.modules);
    modules.map(|module| format!("[{}]", module.name)).any(|known| known == name)
}

/// The symbols' name for the module in this file: the kernel has `_` for `-`.
fn module_name(file: &Path) -> String {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().replace('-', "_")).unwrap_or_default();
    format!("[{stem}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_store::{Kernel, KernelTree, RunKind};

    /// An ELF file that is nothing but a build id of these four bytes.
    fn elf(id: [u8; 4]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        // ET_EXEC for x86-64; one program header, at 64.
        file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        file.extend([[0u8; 8], 64u64.to_le_bytes(), [0; 8]].concat());
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
        // PT_NOTE, the 20 bytes at 120.
        file.extend([4, 0, 0, 0, 4, 0, 0, 0]);
        file.extend([120u64, 0, 0, 20, 20, 4].map(u64::to_le_bytes).concat());
        file.extend([4, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0]);
        file.extend(b"GNU\0");
        file.extend(id);
        file
    }

    fn manifest(folder: &Path, build_id: &str, modules: Vec<KernelModule>) -> Manifest {
        let (changed, gaps) = (Some(false), Vec::new());
        let tree = KernelTree { folder: folder.to_owned(), commit: None, changed, gaps };
        let (release, build_id) = ("6.12.0-mine".to_owned(), build_id.to_owned());
        let kernel = Kernel { release, build_id, tree: Some(tree), modules };
        Manifest { kernel: Some(kernel), ..Manifest::new(RunKind::Lab, 1) }
    }

    #[test]
    fn a_tree_that_was_built_again_is_not_taken_for_the_recorded_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let vmlinux = folder.path().join("vmlinux");
        std::fs::write(&vmlinux, elf([1, 2, 3, 0xab])).unwrap();
        let of = |build_id: &str| manifest(folder.path(), build_id, Vec::new());
        assert_eq!(recorded_vmlinux(&of("010203ab"), &[]), Ok(Some(vmlinux.clone())));
        for other in ["0123456789abcdef", ""] {
            let reason = recorded_vmlinux(&of(other), &[]).unwrap_err();
            assert!(reason.contains("built again since the run") && reason.contains("010203ab"), "{reason}");
        }
        // A release is not enough where there are build ids.
        let installed = folder.path().join("boot/vmlinux-6.12.0-mine");
        std::fs::create_dir(installed.parent().unwrap()).unwrap();
        std::fs::write(&installed, elf([7, 7, 7, 7])).unwrap();
        let debug = [folder.path().to_owned()];
        assert!(recorded_vmlinux(&of("0123"), &debug).is_err());
        assert_eq!(recorded_vmlinux(&of("07070707"), &debug), Ok(Some(installed)));
        std::fs::remove_file(&vmlinux).unwrap();
        assert!(recorded_vmlinux(&of("010203ab"), &[]).unwrap_err().contains("not there any more"));
    }

    #[test]
    fn a_module_that_was_built_again_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        let file = folder.path().join("my-mod.ko");
        std::fs::write(&file, elf([1, 2, 3, 4])).unwrap();
        let of = |build_id: &str| {
            let (name, build_id) = ("my_mod".to_owned(), build_id.to_owned());
            let mut manifest =
                manifest(folder.path(), "", vec![KernelModule { name, file: file.clone(), build_id }]);
            // The option is there as well.
            manifest.options.insert("module".into(), vec![file.display().to_string()].into());
            let mut problems = Vec::new();
            (built_modules(&run, &manifest, &mut problems), problems)
        };
        assert_eq!(of("01020304"), (vec![("[my_mod]".to_owned(), file.clone())], Vec::new()));
        let (none, problems) = of("01020305");
        assert!(none.is_empty() && problems[0].contains("built again since the run"), "{problems:?}");
        std::fs::remove_file(&file).unwrap();
        assert!(of("01020304").1[0].contains("not there any more"));
        // The run has its own.
        let kept = run.module_file("my_mod");
        std::fs::create_dir(kept.parent().unwrap()).unwrap();
        std::fs::write(&kept, elf([1, 2, 3, 4])).unwrap();
        assert_eq!(of("01020304"), (vec![("[my_mod]".to_owned(), kept)], Vec::new()));
        assert!(of("01020305").0.is_empty());
    }

    #[test]
    fn a_named_module_of_another_build_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my-mod.ko");
        std::fs::write(&file, elf([1, 2, 3, 4])).unwrap();
        let of = |build_id: &str| {
            let (name, build_id) = ("my_mod".to_owned(), build_id.to_owned());
            let module = KernelModule { name, file: "/absent".into(), build_id };
            of_the_build(&manifest(folder.path(), "", vec![module]), &file)
        };
        assert_eq!((of("01020304"), of("")), (Ok(()), Ok(())));
        let reason = of("01020305").unwrap_err();
        assert!(
            reason.contains("its build id is 01020304, that of the [my_mod] that ran 01020305"),
            "{reason}"
        );
    }
}
