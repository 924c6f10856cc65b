// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares this crate with gcov: real programs are compiled and run here, and counted by both.
//!
//! Every gcc on this machine with a matching gcov is used (`gcc`, `gcc-11`, …). For each object, the test compares
//! every line's count and whether a block of it was not executed, every branch of every line in gcov's order, calls in
//! gcov's text, every function's counts, and gcov's totals for each file.

mod judge;

use std::path::{Path, PathBuf};
use std::process::Command;

use judge::{compare_json, compare_totals, json_lines};
use kprism_gcov::Unit;
use kprism_gcov::{Data, Notes, UnitCounter, data, notes};
use kprism_test::{GCC, needs, test};

/// Returns the pairs of gcc and gcov on this machine.
fn compilers() -> Vec<(String, String)> {
    let versions = (5..=16).map(|n| (format!("gcc-{n}"), format!("gcov-{n}")));
    std::iter::once(("gcc".to_owned(), "gcov".to_owned()))
        .chain(versions)
        .filter(|(gcc, gcov)| {
            [gcc, gcov].iter().all(|program| Command::new(program).arg("--version").output().is_ok())
        })
        .collect()
}

/// Runs a program, which must succeed. Returns its output.
fn run(program: &str, arguments: &[&str], folder: &Path) -> Vec<u8> {
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    output.stdout
}

/// Compares an object with gcov's output for `gcda`: the JSON, and the totals in its text.
fn compare(gcov: &str, folder: &Path, gcda: &Path, ours_of: (&Notes<'_>, &Unit), what: &str) {
    let gcda = gcda.to_str().unwrap();
    let json = json_lines(&run(gcov, &["-i", "-b", "-t", gcda], folder));
    assert_eq!(json.len(), 1, "{what}");
    compare_json(&json[0], ours_of, what);
    let text = run(gcov, &["-b", "-c", "-n", gcda], folder);
    compare_totals(&String::from_utf8_lossy(&text), ours_of, what);
}

fn programs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[test]
fn every_number_of_real_programs_is_gcovs() {
    let compilers = compilers();
    needs(&[GCC]);
    let mut objects = 0;
    for (gcc, gcov) in &compilers {
        for program in programs() {
            for options in [&["-O0"][..], &["-O2"], &["-O2", "-fprofile-update=atomic"], &["-Os"]] {
                let folder = tempfile::tempdir().unwrap();
                let file = program.file_name().unwrap().to_str().unwrap();
                std::fs::copy(&program, folder.path().join(file)).unwrap();
                let is_cpp = file.ends_with(".cc");
                let mut arguments = vec!["--coverage", "-w", "-c", file, "-o", "unit.o"];
                arguments.extend(options);
                // For the default compiler both C and C++ are installed; for others perhaps only C.
                if is_cpp
                    && gcc != "gcc"
                    && Command::new(gcc.replace("gcc", "g++")).arg("--version").output().is_err()
                {
                    continue;
                }
                run(gcc, &arguments, folder.path());
                let link = if is_cpp { gcc.replace("gcc", "g++") } else { gcc.clone() };
                run(&link, &["--coverage", "unit.o", "-o", "program", "-lm"], folder.path());
                // Any exit status is accepted.
                Command::new(folder.path().join("program")).current_dir(folder.path()).output().unwrap();
                let what = format!("{gcc} {options:?} {file}");
                let note_bytes = std::fs::read(folder.path().join("unit.gcno")).unwrap();
                let gcda = folder.path().join("unit.gcda");
                let data_bytes = std::fs::read(&gcda).unwrap();
                let notes = notes::read(&note_bytes).unwrap();
                let data = data::read(&data_bytes).unwrap();
                let unit = UnitCounter::default().unit(&notes, Some(&data)).unwrap();
                compare(gcov, folder.path(), &gcda, (&notes, &unit), &what);
                written_data_is_taken(gcov, folder.path(), &notes, &data, &what);
                objects += 1;
            }
        }
    }
    println!("{objects} objects of {} compilers", compilers.len());
    assert!(objects >= 4);
}

/// Checks that gcov reads the written data, and reports doubled counts for a sum of two.
fn written_data_is_taken(gcov: &str, folder: &Path, notes: &Notes<'_>, data: &Data, what: &str) {
    let mut twice = data.clone();
    twice.add(data).unwrap();
    let gcda = folder.join("unit.gcda");
    std::fs::write(&gcda, twice.to_bytes()).unwrap();
    let unit = UnitCounter::default().unit(notes, Some(&twice)).unwrap();
    compare(gcov, folder, &gcda, (notes, &unit), &format!("{what}, twice"));
    twice.subtract(data).unwrap();
    assert_eq!(
        UnitCounter::default().unit(notes, Some(&twice)),
        UnitCounter::default().unit(notes, Some(data))
    );
    let mut read = data::read(&data.to_bytes()).unwrap();
    assert_eq!(&read, data, "{what}: written and read");
    read.header.big_endian = true;
    assert_eq!(data::read(&read.to_bytes()).unwrap(), read, "{what}: big-endian");
}

/// The compiler must accept the written data like libgcov's, and ignore data without a summary, as the kernel writes
/// it.
#[test]
fn written_data_guides_the_compiler() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/loops.c");
    std::fs::copy(program, place.join("loops.c")).unwrap();
    run("gcc", &["--coverage", "-O2", "-w", "-c", "loops.c", "-o", "unit.o"], &place);
    run("gcc", &["--coverage", "unit.o", "-o", "program"], &place);
    Command::new(place.join("program")).output().unwrap();
    let original = std::fs::read(place.join("unit.gcda")).unwrap();
    let data = data::read(&original).unwrap();
    // With `-fprofile-use=DIR`, gcc looks for the object's full path with `#` for `/`.
    let name = format!("{}#used.gcda", place.display().to_string().replace('/', "#"));
    std::fs::create_dir(place.join("profile")).unwrap();
    let compile = |bytes: &[u8]| {
        std::fs::write(place.join("profile").join(&name), bytes).unwrap();
        let arguments = ["-O2", "-S", "-fprofile-use=profile", "-Wno-missing-profile", "loops.c"];
        run("gcc", &[&arguments[..], &["-Werror=coverage-mismatch", "-o", "used.s"]].concat(), &place);
        std::fs::read(place.join("used.s")).unwrap()
    };
    let guided = compile(&original);
    assert!(data.summary.is_some());
    assert_eq!(compile(&data.to_bytes()), guided, "what we wrote is what libgcov wrote");
    let kernels = Data { summary: None, ..data.clone() };
    assert_ne!(compile(&kernels.to_bytes()), guided, "no summary, no notice");
    let sum_max = u32::try_from(kernels.highest()).unwrap();
    let completed = Data { summary: Some(data::Summary { runs: 1, sum_max }), ..kernels };
    assert_eq!(compile(&completed.to_bytes()), guided, "a summary of our own");
}

kprism_test::main!();

/// A function is inlined into one above it in the source, and into one below it. gcov gives a block to its highest line, so that the
/// inlined line has only the calls of the one above; by every block it has all of them.
#[test]
fn every_block_of_a_line_counts_if_asked_for() {
    needs(&[GCC]);
    const PROGRAM: &str = "static inline __attribute__((always_inline)) int low(int x);\n\
        __attribute__((noinline)) int up(int x) { int y = low(x); asm volatile(\"\"); return y; }\n\
        static inline __attribute__((always_inline)) int low(int x)\n\
        {\n\
        return x * 3 + 1;\n\
        }\n\
        __attribute__((noinline)) int down(int x) { int y = low(x); asm volatile(\"\"); return y; }\n\
        int main(int n, char **v) { int s = 0;\n\
        for (int i = 0; i < 3 * n; i++) s += up(i);\n\
        for (int i = 0; i < 4 * n; i++) s += down(i);\n\
        return s == 0 && v; }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("unit.c"), PROGRAM).unwrap();
    run("gcc", &["--coverage", "-O2", "-c", "unit.c", "-o", "unit.o"], folder.path());
    run("gcc", &["--coverage", "unit.o", "-o", "program"], folder.path());
    assert!(
        Command::new(folder.path().join("program")).current_dir(folder.path()).status().unwrap().success()
    );
    let bytes = std::fs::read(folder.path().join("unit.gcno")).unwrap();
    let gcda = folder.path().join("unit.gcda");
    let (notes, data) = (notes::read(&bytes).unwrap(), data::read(&std::fs::read(&gcda).unwrap()).unwrap());
    let unit = UnitCounter::default().unit(&notes, Some(&data)).unwrap();
    compare("gcov", folder.path(), &gcda, (&notes, &unit), "blocks of a line");
    let every = UnitCounter::of_every_block().unit(&notes, Some(&data)).unwrap();
    let count =
        |unit: &kprism_gcov::Unit, line| unit.lines.iter().find(|found| found.line == line).unwrap().count;
    assert_eq!((count(&unit, 5), count(&every, 5)), (3, 7));
    assert_eq!([2, 7].map(|line| count(&every, line)), [3, 4]);
}
