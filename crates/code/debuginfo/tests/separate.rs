// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stripped library, as distributions install it: functions have the names of its debug file where lines come from it, and a debug
//! file of another build gives neither.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_debuginfo::separate::{by_build_id, keep};
use kprism_debuginfo::source::Source;
use kprism_image::BuildId;
use kprism_image::sideband::{Mmap, Record};
use kprism_image::symbols::{Function, FunctionId, Symbols};
use kprism_test::{GCC, needs, test};

/// The library's path on its machine.
const PATH: &str = "/usr/lib/libwork.so";

const SOURCE: &str = "
static __attribute__((noipa)) int inner(int n) { return n * n + 1; }
int outer(int n) { return inner(n) + inner(n + 1); }
";

fn run(folder: &Path, words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).current_dir(folder).output().expect(words[0]);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A folder of a machine's files with the stripped library, and the library's debug file.
fn built(folder: &Path, source: &str) -> (PathBuf, PathBuf) {
    let root = folder.join("root");
    let place = root.join("usr/lib");
    fs::create_dir_all(&place).unwrap();
    fs::write(folder.join("work.c"), source).unwrap();
    let library = place.join("libwork.so");
    let library = library.to_str().unwrap();
    run(folder, &["gcc", "-g", "-O1", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-o", library, "work.c"]);
    run(folder, &["objcopy", "--only-keep-debug", library, "libwork.debug"]);
    run(folder, &["objcopy", "--strip-all", library]);
    (root, folder.join("libwork.debug"))
}

/// The functions of the library, with the remarks on debug files.
fn functions(root: &Path, debug: &[PathBuf]) -> (Vec<Function>, Vec<String>) {
    let (start, end, path) = (0x7000_0000_0000, 0x7000_0010_0000, PATH.to_owned());
    let mmap = Mmap { t: 0, cpu: 0, pid: 1, tgid: 1, asid: 0x1000, start, end, pgoff: 0, exec: true, path };
    let symbols = Symbols::load_with(b"", &[Record::Mmap(mmap)], Some(root), debug).unwrap();
    assert!(symbols.missing().is_empty(), "{:?}", symbols.missing());
    let all = (0..symbols.len() as u32).map(|id| symbols.function(FunctionId(id)));
    (all.filter(|f| f.module == PATH).cloned().collect(), symbols.debug_not_used().to_vec())
}

fn start_of(functions: &[Function], name: &str) -> Option<u64> {
    functions.iter().find(|f| f.name == name).map(|f| f.start)
}

/// Puts a debug file where its build id, or another one, is looked for.
fn install(file: &Path, id: &BuildId, folder: &Path) -> PathBuf {
    let place = folder.join(id.debug_path());
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fs::copy(file, &place).unwrap();
    place
}

#[test]
fn a_debug_file_names_functions_where_it_has_their_lines() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().unwrap();
    let (root, debug_file) = built(folder.path(), SOURCE);
    let library = root.join("usr/lib/libwork.so");
    let id = BuildId::of_file(&library).expect("a build id");
    let debug = [folder.path().join("debug")];

    let (alone, _) = functions(&root, &debug);
    let outer = start_of(&alone, "outer").expect("a dynamic symbol");
    assert_eq!(start_of(&alone, "inner"), None);

    install(&debug_file, &id, &debug[0]);
    let (named, not_used) = functions(&root, &debug);
    assert_eq!(not_used, Vec::<String>::new());
    let inner = start_of(&named, "inner").expect("a symbol of the debug file");
    assert_eq!(start_of(&named, "outer"), Some(outer));
    let by_address = format!("libwork.so+{inner:#x}");
    assert_eq!(start_of(&alone, &by_address), Some(inner), "{alone:?}");
    assert_eq!(start_of(&named, &by_address), None, "{named:?}");

    let source = Source::of_file(&library, &debug).unwrap().expect("lines");
    let frames = source.frames(inner);
    assert_eq!(frames[0].function.as_deref(), Some("inner"));
    assert!(frames[0].file.ends_with("work.c") && frames[0].line == 2, "{frames:?}");
}

#[test]
fn a_debug_file_of_another_build_gives_neither_names_nor_lines() {
    needs(&[GCC]);
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (root, _) = built(one.path(), SOURCE);
    let (_, other_debug) = built(other.path(), &SOURCE.replace("n * n", "n * 7"));
    let library = root.join("usr/lib/libwork.so");
    let id = BuildId::of_file(&library).expect("a build id");
    let debug = [one.path().join("debug")];
    let place = install(&other_debug, &id, &debug[0]);
    assert_eq!(by_build_id(&id, &debug), None);
    let (functions, not_used) = functions(&root, &debug);
    assert_eq!(start_of(&functions, "inner"), None);
    assert!(start_of(&functions, "outer").is_some());
    assert_eq!(not_used.len(), 1);
    assert!(not_used[0].contains(place.to_str().unwrap()), "{not_used:?}");
    assert!(not_used[0].contains(&id.to_string()), "{not_used:?}");
    assert!(Source::of_file(&library, &debug).unwrap().is_none());
}

/// A run is read on another machine, which has no such debug file.
#[test]
fn a_run_keeps_debug_files() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().unwrap();
    let (root, debug_file) = built(folder.path(), SOURCE);
    let library = root.join("usr/lib/libwork.so");
    let id = BuildId::of_file(&library).expect("a build id");
    let debug = [folder.path().join("debug")];
    let kept = |run: &str| {
        let run = folder.path().join(run);
        let target = run.join(PATH.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&library, target).unwrap();
        assert_eq!(keep(&library, Path::new(PATH), &debug, &run), Ok(()));
        start_of(&functions(&run, &[run.join("usr/lib/debug")]).0, "inner").is_some()
    };
    assert!(!kept("nothing installed"));
    // Beside the library, by its link; not that of another build.
    run(folder.path(), &["objcopy", "--add-gnu-debuglink=libwork.debug", library.to_str().unwrap()]);
    let beside = library.with_file_name("libwork.debug");
    let other = tempfile::tempdir().unwrap();
    let (_, other_debug) = built(other.path(), &SOURCE.replace("n * n", "n * 7"));
    fs::copy(other_debug, &beside).unwrap();
    assert!(!kept("another build beside it"));
    fs::copy(&debug_file, &beside).unwrap();
    assert!(kept("beside it"));
    fs::remove_file(beside).unwrap();
    install(&debug_file, &id, &debug[0]);
    assert!(kept("installed"));
    // A second program of the same build finds it there.
    assert!(kept("installed"));
}

kprism_test::main!();
