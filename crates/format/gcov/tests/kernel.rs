// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares a whole kernel with gcov: every function, line, branch and total of every object.
//!
//! `KPRISM_GCOV_TREE` is a directory with the `.gcda` files of a run and the `.gcno` files next to them.
//! `KPRISM_GCOV_SOURCE` is the directory in which the kernel was built (`make test` and `make test-gcov-kernel` set
//! both). Without them the test is skipped.

mod judge;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use judge::{compare_json, compare_totals, json_lines};
use kprism_gcov::{UnitCounter, data, notes};
use kprism_test::{skip, test};

fn data_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            data_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "gcda") {
            found.push(path);
        }
    }
}

#[test]
fn every_number_of_a_whole_kernel_is_gcovs() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let (Some(tree), Some(source)) = (variable("KPRISM_GCOV_TREE"), variable("KPRISM_GCOV_SOURCE")) else {
        skip("no KPRISM_GCOV_TREE and KPRISM_GCOV_SOURCE: make test has them");
    };
    let mut files = Vec::new();
    data_files(&tree, &mut files);
    // `make test` uses a smaller kernel.
    let least = if std::env::var_os("KPRISM_GCOV_ARGS").is_some() { 300 } else { 1000 };
    assert!(files.len() > least, "{}: {} data files", tree.display(), files.len());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                let mut counter = UnitCounter::default();
                while let Some(gcda) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(gcda, &source, &mut counter);
                }
            });
        }
    });
    println!("{} objects", files.len());
}

fn one(gcda: &Path, source: &Path, counter: &mut UnitCounter) {
    let note_bytes = std::fs::read(gcda.with_extension("gcno")).unwrap();
    let data = data::read(&std::fs::read(gcda).unwrap()).unwrap();
    let notes = notes::read(&note_bytes).unwrap();
    let unit = counter.unit(&notes, Some(&data)).unwrap();
    let what = gcda.display().to_string();
    let gcov = |arguments: &[&str]| {
        Command::new("gcov").args(arguments).arg(gcda).current_dir(source).output().unwrap().stdout
    };
    let json = json_lines(&gcov(&["-i", "-b", "-t"]));
    compare_json(&json[0], (&notes, &unit), &what);
    compare_totals(&String::from_utf8_lossy(&gcov(&["-b", "-c", "-n"])), (&notes, &unit), &what);
}

kprism_test::main!();
