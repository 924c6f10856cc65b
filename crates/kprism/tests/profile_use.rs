// SPDX-License-Identifier: MIT OR Apache-2.0
//! A folder of counters from the command line, judged by gcc and gcov: counters as a kernel writes them, without a summary,
//! guide gcc once they are exported exactly as those that libgcov wrote.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kprism_gcov::{Data, data};
use kprism_test::{GCC, needs, test};

fn kprism(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(arguments).output().unwrap()
}

/// Runs a program that must succeed; its output.
fn run(program: &str, arguments: &[&str], folder: &Path) -> Vec<u8> {
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    output.stdout
}

/// The assembly of `sub/unit`, compiled with a profile, or with none; every function must be in it.
fn compiled(place: &Path, options: &[&str]) -> Vec<u8> {
    let all = [&["-O2", "-S", "-w", "-Werror=coverage-mismatch", "loops.c", "-o", "sub/unit.s"], options];
    run("gcc", &all.concat(), place);
    std::fs::read(place.join("sub/unit.s")).unwrap()
}

fn names(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn exported_counters_guide_gcc() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/gcov/tests/programs/loops.c");
    std::fs::copy(program, place.join("loops.c")).unwrap();
    std::fs::create_dir(place.join("sub")).unwrap();
    run("gcc", &["--coverage", "-O2", "-w", "-c", "loops.c", "-o", "sub/unit.o"], &place);
    run("gcc", &["--coverage", "sub/unit.o", "-o", "program"], &place);
    Command::new(place.join("program")).output().unwrap();
    let counters = place.join("sub/unit.gcda");
    let original = std::fs::read(&counters).unwrap();
    let gcov = |place: &Path| run("gcov", &["-n", "-b", "-c", "sub/unit.gcda"], place);
    let said = gcov(&place);

    // What gcc makes of libgcov's own file, and of none.
    let reference = place.join("reference");
    std::fs::create_dir(&reference).unwrap();
    let name = format!("{}#sub#unit.gcda", place.display().to_string().replace('/', "#"));
    std::fs::write(reference.join(&name), &original).unwrap();
    let used = |folder: &Path| format!("-fprofile-use={}", folder.display());
    let guided = compiled(&place, &[&used(&reference)]);
    assert_ne!(guided, compiled(&place, &[]), "a profile makes a difference");

    // As a kernel writes it: gcc takes no notice.
    let read = data::read(&original).unwrap();
    let kernels = Data { summary: None, ..read.clone() };
    std::fs::write(&counters, kernels.to_bytes()).unwrap();
    std::fs::write(reference.join(&name), kernels.to_bytes()).unwrap();
    assert_ne!(compiled(&place, &[&used(&reference)]), guided);

    // Exported: it does, by the object's whole path, or by that from the build's folder on.
    let profile = place.join("profile.gcda");
    let (input, output) = (place.join("sub").display().to_string(), profile.display().to_string());
    let export = |options: &[&str]| {
        let exported = kprism(&[&["export", "-i", &input, "-o", &output], options].concat());
        assert!(exported.status.success(), "{exported:?}");
        String::from_utf8_lossy(&exported.stderr).into_owned()
    };
    assert!(export(&[]).contains(&used(&profile)));
    assert_eq!(names(&profile), [profile.join(&name)]);
    assert_eq!(compiled(&place, &[&used(&profile)]), guided);
    let prefix = format!("-fprofile-prefix-path={}", place.display());
    assert!(export(&["--relative"]).contains(&prefix));
    assert_eq!(names(&profile), [profile.join("sub#unit.gcda")]);
    let version = run("gcc", &["-dumpversion"], &place);
    // GCC 12 knows it.
    if String::from_utf8_lossy(&version).trim().split('.').next().unwrap().parse::<u32>().unwrap() >= 12 {
        assert_eq!(compiled(&place, &[&used(&profile), &prefix]), guided);
    }
    // gcov has the same numbers of it.
    std::fs::copy(profile.join("sub#unit.gcda"), &counters).unwrap();
    assert_eq!(gcov(&place), said);

    // Of two runs: the sum.
    export(&["--merge", &input]);
    let sum = data::read(&std::fs::read(profile.join(&name)).unwrap()).unwrap();
    assert_eq!(sum.highest(), 2 * read.highest());
    assert_eq!(sum.summary.unwrap().sum_max as i64, 2 * read.highest());

    // A folder that holds something else is left alone.
    std::fs::write(profile.join("notes.txt"), "mine").unwrap();
    let refused = kprism(&["export", "-i", &input, "-o", &output]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("holds other files"));
    assert!(profile.join("notes.txt").exists() && profile.join(&name).exists());
}

kprism_test::main!();
