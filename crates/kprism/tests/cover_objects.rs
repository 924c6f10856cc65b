// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which objects are counted, and what is said of those that are not whole: copies of a build, units that never ran,
//! damaged files. gcov, gcov-tool and gcc are the judges.

mod commands;

use std::fs;
use std::path::Path;
use std::process::Command;

use commands::{kprism, run, said};
use kprism_test::{GCC, needs, skip, test};
use serde_json::Value;

/// The JSON of `report cover` for an input.
fn report(folder: &Path, input: &[&str]) -> Value {
    serde_json::from_str(&said(folder, &[&["report", "cover", "--json", "-i"], input].concat())).unwrap()
}

/// A count of the account whose unit begins so.
fn counted(report: &Value, unit: &str) -> u64 {
    let entries = report["run"]["account"].as_array().unwrap();
    let found = entries.iter().filter(|entry| entry["unit"].as_str().unwrap().starts_with(unit));
    found.map(|entry| entry["count"].as_u64().unwrap()).sum()
}

/// Whether `--strict` takes it.
fn is_whole(folder: &Path, input: &str) -> bool {
    kprism(folder, &["report", "cover", "-i", input, "--strict"]).status.code() == Some(0)
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Compiles sources of `src` and `lib` from the folder of the build, and runs the program.
fn build_and_run(dir: &Path, src: std::ops::RangeInclusive<u32>) {
    let build = dir.join("pr/build");
    let mut arguments = vec!["--coverage".to_owned(), "-c".to_owned()];
    for i in src {
        fs::write(dir.join(format!("pr/src/s{i}.c")), format!("int s{i}(void){{return {i};}}\n")).unwrap();
        arguments.push(format!("../src/s{i}.c"));
    }
    arguments.extend(["l1", "l2", "l3", "main"].map(|name| format!("../lib/{name}.c")));
    run(&build, "gcc", &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    run(&build, "sh", &["-c", "gcc --coverage *.o -o m && ./m"]);
}

#[test]
fn runs_are_compared_by_file_whichever_folder_most_sources_are_below() {
    needs(&[GCC]);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(
        dir,
        &[
            ("pr/lib/l1.c", "int l1(void){return 1;}\n"),
            ("pr/lib/l2.c", "int l2(void){return 2;}\n"),
            ("pr/lib/l3.c", "int l3(void){return 3;}\n"),
            ("pr/lib/main.c", "int s1(void);int l1(void);int main(void){return s1()+l1()==0;}\n"),
            ("pr/build/.keep", ""),
            ("pr/src/.keep", ""),
        ],
    );
    build_and_run(dir, 1..=3);
    copy(&dir.join("pr/build"), &dir.join("first"));
    build_and_run(dir, 1..=5);
    copy(&dir.join("pr/build"), &dir.join("second"));
    // Nothing changed: the table is empty, which the exit code tells.
    let compared = |old, new| String::from_utf8_lossy(&kprism(dir, &["diff", old, new]).stdout).into_owned();
    let text = compared("first", "second");
    assert!(text.contains(" 0 gained, 0 lost"), "{text}");
    // Both folders are below that which paths are shown from.
    for (folder, files) in [("lib", 4), ("src", 5)] {
        assert_eq!(report(dir, &["second", folder])["files"], files, "{folder}");
    }
    // The same sources elsewhere, and another build there: still the same files.
    let moved = dir.join("elsewhere");
    fs::create_dir(&moved).unwrap();
    run(dir, "cp", &["-r", "pr", "elsewhere/pr"]);
    run(&moved.join("pr/build"), "sh", &["-c", "rm -f *.gc* *.o"]);
    build_and_run(&moved, 1..=5);
    copy(&moved.join("pr/build"), &dir.join("third"));
    let text = compared("first", "third");
    assert!(text.contains(" 0 gained, 0 lost"), "{text}");
}

const PARTS: &str = "\
#include <stdlib.h>
int f(int a){return a>1?2:3;}
int g(int a){return a>1?2:3;}
int h(int a){return a>1?2:3;}
int main(int c, char **v){int n=0; for(int i=0;i<(c>1?atoi(v[1]):1);i++) n+=f(i)+g(i); return h(n)==0;}
";

/// Lines with their counts, as `export` and gcov have them.
fn lines(text: &str) -> Vec<(u64, u64)> {
    let value: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let lines = value["files"][0]["lines"].as_array().unwrap();
    lines
        .iter()
        .map(|line| (line["line_number"].as_u64().unwrap(), line["count"].as_u64().unwrap()))
        .collect()
}

#[test]
fn copies_of_a_build_are_added_object_by_object() {
    needs(&[GCC]);
    if Command::new("gcov-tool").arg("--version").output().is_err() {
        skip("no gcov-tool: apt install gcc");
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, &[("b/t.c", PARTS)]);
    let build = dir.join("b");
    run(&build, "gcc", &["--coverage", "-c", "t.c"]);
    run(&build, "gcc", &["--coverage", "t.o", "-o", "t"]);
    for (folder, times) in [("m1", "3"), ("m2", "5")] {
        run(&build, "./t", &[times]);
        copy(&build, &dir.join(folder));
        fs::remove_file(build.join("t.gcda")).unwrap();
    }
    run(dir, "gcov-tool", &["merge", "m1", "m2", "-o", "m3"]);
    fs::copy(build.join("t.gcno"), dir.join("m3/t.gcno")).unwrap();
    let theirs = lines(&run(dir, "gcov", &["-i", "-b", "-t", "m3/t.gcda"]));
    for pair in [["m1", "m2"], ["m1/t.gcda", "m2/t.gcda"], ["m1", "m2/t.gcda"], ["m1/t.gcda", "m2"]] {
        let value = report(dir, &[pair[0], "--merge", pair[1]]);
        assert_eq!(value["objects"], 1, "{pair:?}");
        let ours = said(dir, &["export", "cover", "-i", pair[0], "--merge", pair[1], "-o", "-.json"]);
        assert_eq!(lines(&ours), theirs, "{pair:?}");
    }
}

#[test]
fn units_that_never_ran_are_counted_as_such() {
    needs(&[GCC]);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, &[("b/t.c", PARTS), ("b/lonely.c", "int lonely(int a)\n{\n  return a > 1;\n}\n")]);
    let build = dir.join("b");
    run(&build, "gcc", &["--coverage", "-c", "t.c", "lonely.c"]);
    run(&build, "gcc", &["--coverage", "t.o", "-o", "t"]);
    run(&build, "./t", &[]);
    let value = report(dir, &["b"]);
    assert_eq!((&value["objects"], &value["files"]), (&2.into(), &2.into()));
    assert_eq!(counted(&value, "objects that never ran"), 1);
    assert!(is_whole(dir, "b"));
    let text = said(dir, &["report", "cover", "-i", "b"]);
    assert!(text.contains("\n2 objects (1 of them never ran), 2 source files"), "{text}");
    let annotated = said(dir, &["annotate", "lonely.c", "-i", "b"]);
    assert_eq!(annotated.matches("#####").count(), 2, "{annotated}");
    let patch = "--- a/lonely.c\n+++ b/lonely.c\n@@ -2,0 +3,1 @@\n+  return a > 1;\n";
    fs::write(dir.join("patch"), patch).unwrap();
    let found: Value =
        serde_json::from_str(&said(dir, &["diff", "b", "--patch", "patch", "--json"])).unwrap();
    assert_eq!((&found["totals"]["lines"], &found["totals"]["lines_hit"]), (&1.into(), &0.into()), "{found}");
    // One file by itself says nothing of others.
    assert_eq!(report(dir, &["b/t.gcda"])["objects"], 1);
}

/// Offsets of the records of functions, and of the word that ends the file.
fn functions(bytes: &[u8]) -> (Vec<usize>, usize) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut found) = (16, Vec::new());
    while word(at) != 0 {
        if word(at) == 0x0100_0000 {
            found.push(at);
        }
        at += 8 + usize::try_from(word(at + 4) as i32).unwrap_or(0);
    }
    (found, at)
}

#[test]
fn files_that_are_not_whole_are_counted() {
    needs(&[GCC]);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, &[("b/t.c", PARTS)]);
    let build = dir.join("b");
    run(&build, "gcc", &["--coverage", "-c", "t.c"]);
    run(&build, "gcc", &["--coverage", "t.o", "-o", "t"]);
    run(&build, "./t", &[]);
    assert!(is_whole(dir, "b"));
    let data = fs::read(build.join("t.gcda")).unwrap();
    if (data[7], data[6]) < (b'B', b'2') {
        skip("GCC 12 or later is needed: lengths are in bytes");
    }
    let (places, end) = functions(&data);
    let damaged = |name: &str, bytes: &[u8]| {
        copy(&build, &dir.join(name));
        fs::write(dir.join(name).join("t.gcda"), bytes).unwrap();
        assert!(!is_whole(dir, name), "{name}");
    };
    // Cut between two records: refused where libgcov's end is missing, counted where none is written (the kernel).
    damaged("cut", &data[..places[2]]);
    let output = kprism(dir, &["report", "cover", "-i", "cut"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is truncated"), "{output:?}");
    damaged("kernels", &[&data[..16], &data[places[0]..places[2]]].concat());
    assert_eq!(counted(&report(dir, &["kernels"]), "functions without counters"), 2);
    let mut flipped = data.clone();
    flipped[places[1]] ^= 1;
    damaged("flipped", &flipped);
    let value = report(dir, &["flipped"]);
    assert_eq!(counted(&value, "functions without counters"), 1);
    assert_eq!(counted(&value, "records of unknown kinds"), 2, "the function and its counters: {value}");
    damaged("after", &[&data[..end + 4], b"more"].concat());
    assert_eq!(counted(&report(dir, &["after"]), "bytes after the end"), 4);
    damaged("version", &[&data[..4], b"*20B", &data[8..]].concat());
    let output = kprism(dir, &["report", "cover", "-i", "version"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the data's version is GCC 10.2"), "{output:?}");
    // Notes that end between two functions.
    let notes = fs::read(build.join("t.gcno")).unwrap();
    let ident = &data[places[2] + 8..places[2] + 12];
    let third = notes.windows(4).position(|word| word == ident).unwrap() - 8;
    copy(&build, &dir.join("notes"));
    fs::write(dir.join("notes/t.gcno"), &notes[..third]).unwrap();
    assert!(!is_whole(dir, "notes"));
    assert!(counted(&report(dir, &["notes"]), "functions that the notes do not have") > 0);
}

#[test]
fn impossible_counts_and_files_of_other_kinds() {
    needs(&[GCC]);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(
        dir,
        &[("b/t.c", "void exit(int);\nint f(int a){return a;}\nint main(void){\n  f(1);\n  exit(0);\n}\n")],
    );
    let build = dir.join("b");
    run(&build, "gcc", &["--coverage", "-c", "t.c"]);
    run(&build, "gcc", &["--coverage", "t.o", "-o", "t"]);
    run(&build, "./t", &[]);
    let good = kprism_gcov::data::read(&fs::read(build.join("t.gcda")).unwrap()).unwrap();
    assert_eq!(counted(&report(dir, &["b"]), "lines with counts that cannot be"), 0);
    // Each counter in turn is torn.
    let mut torn = 0;
    for function in 0..good.functions.len() {
        let mut bad = good.clone();
        for (_, values) in &mut bad.functions[function].values {
            let all = (0..values.len()).map(|at| if at == 0 { -7 } else { values.get(at) }).collect();
            *values = kprism_gcov::data::Values::All(all);
        }
        fs::write(build.join("t.gcda"), bad.to_bytes()).unwrap();
        let value = report(dir, &["b"]);
        let returned = counted(&value, "lines with calls that returned more often");
        torn += u64::from(returned + counted(&value, "lines with counts that cannot be") > 0);
        let output = kprism(dir, &["export", "-i", "b", "-o", "profile.gcda"]);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && words.contains("1 counters were negative"), "{words}");
    }
    assert_eq!(torn, good.functions.len() as u64);
    // Nothing waits for a FIFO.
    fs::write(build.join("t.gcda"), good.to_bytes()).unwrap();
    run(&build, "mkfifo", &["x.gcda"]);
    let output = kprism(dir, &["report", "cover", "-i", "b"]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && words.contains("b/x.gcda: not a regular file"), "{words}");
    assert!(!is_whole(dir, "b"));
    for (name, bytes, words) in [
        ("words", &b"words"[..], "no counters: a run, a folder with .gcda files"),
        ("other", &good.to_bytes(), "counters under another name"),
        ("archive", b"070701 cut", "a cpio archive that is damaged"),
    ] {
        fs::write(dir.join(name), bytes).unwrap();
        let output = kprism(dir, &["report", "cover", "-i", name]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && complaint.contains(words), "{name}: {complaint}");
    }
}

kprism_test::main!();
