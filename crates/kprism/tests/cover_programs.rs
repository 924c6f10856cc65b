// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of programs compiled and run here: sources elsewhere than the build, C++, counters cleared in the window,
//! patches. gcov and c++filt are the judges.

mod commands;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use commands::{kprism, run, said};
use kprism_test::{GCC, needs, skip, test};
use serde_json::{Value, json};

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&said(folder, arguments)).unwrap()
}

/// A C++ compiler with gcov, or the test is left out.
fn cpp() {
    needs(&[GCC]);
    if Command::new("g++").arg("--version").output().is_err() {
        skip("no g++: apt install g++");
    }
}

const HEADER: &str = "\
#pragma once
#include <stdexcept>
#include <vector>
namespace ns {
template <class T> struct Box {
  std::vector<T> all;
  void add(T t) { if (t > T(2)) all.push_back(t); else all.push_back(T(2)); }
  T at(unsigned i) { return all.at(i); }
};
int free_function(int a, const char *b);
}
";
const LIBRARY: &str = "\
#include \"lib.hpp\"
static inline int twice(int a) { return a > 3 ? a * 2 : a + a; }
int ns::free_function(int a, const char *b)
{
  return a && b ? twice(a) : 2;
}
";
const MAIN: &str = "\
#include \"lib/lib.hpp\"
#define BOTH(name, sign) static int name(int a) { return a > 0 && a < 9 ? a sign 1 : 0; }
BOTH(zulu, +) BOTH(alpha, -)
int main(int argc, char **)
{
  ns::Box<int> ints; ns::Box<double> doubles;
  for (int i = 0; i < argc + 3; i++) { ints.add(i); doubles.add(i); }
  try {
    ints.at(0);
  } catch (std::out_of_range &) {
    return 3;
  }
  return zulu(argc) + alpha(argc) + ns::free_function(argc, nullptr) == 3;
}
";

/// Sources in `src`, objects in `out`, as `make O=` and CMake have them; the program ran.
fn build(dir: &Path) {
    for (path, text) in [("src/main.cpp", MAIN), ("src/lib/lib.hpp", HEADER), ("src/lib/lib.cpp", LIBRARY)] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let out = dir.join("out");
    fs::create_dir_all(out.join("lib")).unwrap();
    for name in ["main", "lib/lib"] {
        let (object, source) = (format!("{name}.o"), format!("../src/{name}.cpp"));
        run(&out, "g++", &["--coverage", "-O0", "-c", "-o", &object, &source]);
    }
    run(&out, "g++", &["--coverage", "-o", "program", "main.o", "lib/lib.o"]);
    assert!(Command::new(out.join("program")).current_dir(&out).status().is_ok());
}

#[test]
fn sources_that_lie_outside_the_folder_of_the_build() {
    cpp();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    build(&dir);
    let table = json(&dir, &["report", "cover", "-i", "out", "--each", "file", "--json"]);
    assert_eq!(table["root"], dir.join("src").to_str().unwrap());
    let paths: Vec<&str> =
        table["rows"].as_array().unwrap().iter().filter_map(|row| row["path"].as_str()).collect();
    assert!(paths.contains(&"main.cpp") && paths.contains(&"lib/lib.cpp"), "{paths:?}");
    // Folders that hold one folder only have no row.
    let folders = said(&dir, &["report", "cover", "-i", "out"]);
    assert!(!folders.lines().any(|line| line.ends_with(" /usr")), "{folders}");
    let cobertura = said(&dir, &["export", "-i", "out", "-o", "-.xml"]);
    assert!(cobertura.contains(&format!("<source>{}</source>", dir.join("src").display())), "{cobertura}");
    assert!(cobertura.contains("filename=\"lib/lib.cpp\"") && !cobertura.contains("filename=\"/"));
    assert!(!cobertura.contains("timestamp=\"0\""));
    // The sources move.
    let moved = dir.join("moved");
    fs::rename(dir.join("src"), &moved).unwrap();
    let line = "int ns::free_function(int a, const char *b)";
    let lost = said(&dir, &["annotate", "lib.cpp", "-i", "out"]);
    assert!(!lost.contains(line));
    let found = said(&dir, &["annotate", "lib.cpp", "-i", "out", "--source-dir", "moved"]);
    assert!(found.contains(line), "{found}");
    let prefix = format!("{}={}", dir.join("src").display(), moved.display());
    let found = said(&dir, &["annotate", "lib.cpp", "-i", "out", "--source-prefix", &prefix]);
    assert!(found.contains(line), "{found}");
    let info = said(&dir, &["export", "-i", "out", "-o", "-.info", "--source-prefix", &prefix]);
    assert!(info.contains(&format!("SF:{}", moved.join("main.cpp").display())), "{info}");
    // Where no source is read, the folder says nothing.
    let refused = kprism(&dir, &["report", "cover", "-i", "out", "--source-dir", "moved"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// gcov's own JSON of one object.
fn gcov(folder: &Path, gcda: &str) -> Value {
    let text = run(folder, "gcov", &["-i", "-b", "-t", gcda]);
    serde_json::from_str(text.lines().next().unwrap()).unwrap()
}

#[test]
fn names_are_those_of_cppfilt_and_branches_in_gcovs_order() {
    cpp();
    let dir = tempfile::tempdir().unwrap();
    build(dir.path());
    let out = dir.path().join("out");
    for gcda in ["main.gcda", "lib/lib.gcda"] {
        let judge = gcov(&out, gcda);
        let ours = json(&out, &["export", "cover", "-i", gcda, "-o", "-.json"]);
        assert!(ours["gcc_version"].is_string());
        let (mut names, mut lines, mut multiple, mut unknown) = (0, 0, 0, 0);
        for file in judge["files"].as_array().unwrap() {
            let name = Path::new(file["file"].as_str().unwrap()).file_name().unwrap().to_str().unwrap();
            let all = ours["files"].as_array().unwrap();
            let mine = all.iter().filter(|f| f["file"].as_str().unwrap().ends_with(name));
            let mine: Vec<&Value> = mine.collect();
            let functions = file["functions"].as_array().unwrap();
            for function in functions {
                let found = mine.iter().flat_map(|f| f["functions"].as_array().unwrap());
                let found: Vec<&Value> = found.filter(|f| f["name"] == function["name"]).collect();
                assert_eq!(found.len(), 1, "{function}");
                let shown = run(&out, "c++filt", &[function["name"].as_str().unwrap()]);
                // The demangler does not know every name: such are left as they are, never half done.
                match found[0]["demangled_name"] == function["name"] && shown.trim_end() != function["name"] {
                    true => unknown += 1,
                    false => assert_eq!(found[0]["demangled_name"], shown.trim_end()),
                }
                for key in ["start_column", "end_column", "start_line", "end_line", "execution_count"] {
                    assert_eq!(found[0][key], function[key], "{function}");
                }
                names += 1;
            }
            let [mine] = mine[..] else { continue };
            let their_lines = file["lines"].as_array().unwrap();
            for line in their_lines {
                // gcov has lines of templates once for each instance; ours are put together.
                let number = &line["line_number"];
                if their_lines.iter().filter(|l| l["line_number"] == *number).count() > 1 {
                    continue;
                }
                let found = mine["lines"].as_array().unwrap().iter();
                let found = found.filter(|l| l["line_number"] == *number).collect::<Vec<_>>();
                assert_eq!(found.len(), 1, "{name}:{number}");
                // gcov 14 tells the blocks of a branch too.
                let theirs: Vec<Value> = line["branches"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|b| json!({"count": b["count"], "fallthrough": b["fallthrough"], "throw": b["throw"]}))
                    .collect();
                assert_eq!(found[0]["branches"], Value::Array(theirs), "{name}:{number}");
                assert_eq!(found[0]["count"], line["count"], "{name}:{number}");
                lines += 1;
                multiple += usize::from(line["branches"].as_array().unwrap().len() > 2);
            }
        }
        assert!(unknown * 10 <= names, "{unknown} of {names} names are not demangled");
        assert!(names > 1 && lines > 2, "{gcda}: {names} names, {lines} lines, {multiple}");
    }
    let annotated = said(&out, &["annotate", "main.cpp", "-i", "main.gcda", "--branches"]);
    // As gcov's text has it: ways of a line are numbered through, what only exceptions reach is marked.
    let text = run(&out, "gcov", &["-b", "-c", "-t", "main.gcda"]);
    let theirs = text.lines().find(|line| line.trim_start().starts_with("=====")).expect("a handler");
    let number = theirs.split(':').nth(1).unwrap().trim();
    let ours = annotated.lines().filter(|line| line.trim_start().starts_with("====="));
    assert!(ours.clone().any(|line| line.split_whitespace().any(|word| word == number)), "{annotated}");
    let (_, third) = annotated.split_once("BOTH(zulu").unwrap();
    let numbers: Vec<usize> = third
        .lines()
        .skip(1)
        .map_while(|line| {
            let line = line.trim_start();
            let rest = line.strip_prefix("branch ").or_else(|| line.strip_prefix("call "))?;
            rest.split(' ').next()?.parse().ok()
        })
        .collect();
    assert!(numbers.len() > 6 && numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
}

const BOOT: &str = "int boot(int n) { return n > 0 ? n : 1; }\n";
const WORK: &str = "int work(int n) { return n & 1; }\n";
const CLEARS: &str = "\
#include <stdio.h>
void __gcov_dump(void); void __gcov_reset(void);
int boot(int), work(int);
static void keep(const char *to) { char name[99];
  for (int i = 0; i < 3; i++) { static const char *all[] = { \"boot\", \"work\", \"main\" };
    char old[99]; sprintf(old, \"%s.gcda\", all[i]); sprintf(name, \"%s/%s.gcda\", to, all[i]); rename(old, name); } }
int main(void)
{
  boot(1);
  for (int i = 0; i < 5; i++) work(i);
  __gcov_dump();
  keep(\"before\");
  __gcov_reset();
  for (int i = 0; i < 9; i++) work(i);
  __gcov_dump();
  keep(\"after\");
}
";

/// An archive of a folder's counters, as of the objects in `dir`.
fn archive(dir: &Path, from: &str, to: &Path) {
    let mut out = fs::File::create(to).unwrap();
    for name in ["boot", "work", "main"] {
        let bytes = fs::read(dir.join(from).join(name).with_extension("gcda")).unwrap();
        let path = dir.join(name).with_extension("gcda");
        let path = path.to_str().unwrap().trim_start_matches('/');
        let mut writer =
            cpio::newc::Builder::new(path).mode(0o100_400).nlink(1).write(&mut out, bytes.len() as u32);
        writer.write_all(&bytes).unwrap();
        writer.finish().unwrap();
    }
    cpio::newc::trailer(&mut out).unwrap();
}

#[test]
fn a_reset_in_the_window_is_never_subtracted() {
    needs(&[GCC]);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (name, text) in [("boot.c", BOOT), ("work.c", WORK), ("main.c", CLEARS)] {
        fs::write(dir.join(name), text).unwrap();
        run(dir, "gcc", &["--coverage", "-c", name]);
    }
    run(dir, "gcc", &["--coverage", "-o", "program", "boot.o", "work.o", "main.o"]);
    for folder in ["before", "after", "run/streams/gcov"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    run(dir, "./program", &[]);
    let streams = dir.join("run/streams/gcov");
    archive(dir, "before", &streams.join("before.cpio"));
    archive(dir, "after", &streams.join("counters.cpio"));
    // work() was called 5 times before and 9 times after the reset: the difference of 4 is nobody's.
    let value = json(dir, &["annotate", "work", "-i", "run", "--json"]);
    assert_eq!(value["functions"][0]["called"], 9, "{value}");
    let output = kprism(dir, &["report", "cover", "-i", "run"]);
    let (text, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(complaints.contains("all counters were cleared in the window (2 objects"), "{complaints}");
    assert!(text.contains("1 window cut by a reset of all counters"), "{text}");
    assert_eq!(kprism(dir, &["report", "cover", "-i", "run", "--strict"]).status.code(), Some(4));
    // The same in a profile for gcc.
    let output = kprism(dir, &["export", "cover", "-i", "run", "-o", "p.gcda", "--strict"]);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{complaints}");
    assert!(complaints.contains("all counters were cleared in the window (2 objects"), "{complaints}");
    assert!(complaints.contains("1 window cut by a reset of all counters"), "{complaints}");
    let work = dir.join("work").to_str().unwrap().replace('/', "#");
    let counters = fs::read(dir.join("p.gcda").join(format!("{work}.gcda"))).unwrap();
    assert_eq!(kprism_gcov::data::read(&counters).unwrap().highest(), 9);
    fs::remove_dir_all(dir.join("p.gcda")).unwrap();
    // Without a window there is none to be cut; the folder's account is whole.
    fs::remove_dir_all(dir.join("before")).unwrap();
    for name in ["boot", "work", "main"] {
        fs::copy(dir.join("after").join(name).with_extension("gcda"), dir.join(name).with_extension("gcda"))
            .unwrap();
    }
    fs::remove_dir_all(dir.join("after")).unwrap();
    assert_eq!(kprism(dir, &["report", "cover", "-i", ".", "--strict"]).status.code(), Some(0));
    fs::write(dir.join("work.gcno"), "damaged").unwrap();
    assert_eq!(kprism(dir, &["report", "cover", "-i", ".", "--strict"]).status.code(), Some(4));
    let account = json(dir, &["report", "cover", "-i", ".", "--json"])["run"]["account"].clone();
    let lost = account.as_array().unwrap().iter().find(|entry| entry["unit"] == "objects left out").unwrap();
    assert_eq!(lost["count"], 1, "{account}");
}

#[test]
fn folders_patches_and_what_is_none() {
    cpp();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    build(dir);
    // Two folders without a word about coverage.
    let output = kprism(dir, &["diff", "out", "out"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("\nlines executed: "), "{output:?}");
    assert!(said(dir, &["annotate", "zulu", "-i", "out"]).contains("zulu"));
    for (name, words) in [
        ("x.info", "there is none"),
        ("x.xml", "worked out already"),
        ("x.tar", "unpacked first"),
        ("x.gcno", "no counts"),
    ] {
        fs::write(dir.join(name), if name == "x.info" { "TN:\n" } else { "?" }).unwrap();
        let output = kprism(dir, &["report", "cover", "-i", name]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && complaint.contains(words), "{complaint}");
    }
    let patch = "\
--- src/lib/lib.cpp
+++ src/lib/lib.cpp
@@ -1,1 +1,2 @@
 a
+static inline int twice(int a) { return a > 3 ? a * 2 : a + a; }
--- src/main.cpp
+++ src/main.cpp
@@ -6,1 +6,2 @@
 a
+  for (int i = 0; i < argc + 3; i++) { ints.add(i); doubles.add(i); }
--- README
+++ README
@@ -1,0 +1,1 @@
+words
";
    let patched = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(["diff", "out", "--patch", "-", "--json"]).args(more).current_dir(dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(patch.as_bytes()).unwrap();
        serde_json::from_slice::<Value>(&child.wait_with_output().unwrap().stdout).unwrap()
    };
    let all = patched(&[]);
    assert_eq!(all["totals"]["added"], 3, "{all}");
    assert_eq!(all["totals"]["lines"], 2, "{all}");
    assert_eq!(all["totals"]["lines_hit"], 1, "twice() is never reached: {all}");
    assert_eq!(all["totals"]["files_not_in_the_run"], 1);
    let under = patched(&["--under", "lib"]);
    assert_eq!(under["rows"].as_array().unwrap().len(), 1, "{under}");
    assert_eq!(under["totals"]["lines_hit"], 0);
}

kprism_test::main!();
