// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked of coverage, and the answer where there is none: names of files, lines and functions, patches, options,
//! sources that changed, and `--strict`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use kprism_test::{GCC, needs, test};
use serde_json::Value;

/// Exit code, standard output, standard error.
fn kprism(folder: &Path, line: &str) -> (i32, String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let program = env!("CARGO_BIN_EXE_kprism");
    let output = Command::new(program).args(words).current_dir(folder).env("NO_COLOR", "1").output().unwrap();
    let Output { status, stdout, stderr } = output;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Asserts the exit code, and words of standard error.
fn fails(folder: &Path, line: &str, code: i32, words: &str) {
    let (found, out, said) = kprism(folder, line);
    assert!(found == code && said.contains(words), "{line}: {found}, not {code} with {words:?}\n{out}{said}");
}

/// What it printed, having succeeded.
fn said(folder: &Path, line: &str) -> String {
    let (code, out, said) = kprism(folder, line);
    assert_eq!(code, 0, "{line}: {out}{said}");
    out
}

fn json(folder: &Path, line: &str) -> Value {
    serde_json::from_str(&said(folder, line)).unwrap()
}

const A: &str = "\
#include \"h.h\"
int twice(int a) { return a * 2; }
int never(int a) { return a - 1; }
int main(int argc, char **argv) { return small(argc) + twice(argc) == 0; }
";
const H: &str = "\
static inline int small(int a)
{
  return a > 1 ? a : 0;
}
";

/// A program in `dir/t`, which ran.
fn build(dir: &Path) {
    needs(&[GCC]);
    let t = dir.join("t");
    fs::create_dir(&t).unwrap();
    fs::write(t.join("a.c"), A).unwrap();
    fs::write(t.join("h.h"), H).unwrap();
    let gcc = Command::new("gcc").args(["--coverage", "-c", "a.c"]).current_dir(&t).status().unwrap();
    let link = Command::new("gcc").args(["--coverage", "-o", "a", "a.o"]).current_dir(&t).status().unwrap();
    assert!(gcc.success() && link.success());
    assert!(Command::new("./a").current_dir(&t).status().unwrap().success());
}

fn touch(path: &Path) {
    File::options()
        .append(true)
        .open(path)
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_secs(60))
        .unwrap();
}

#[test]
fn files_lines_and_functions_by_the_names_that_people_give() {
    let dir = tempfile::tempdir().unwrap();
    let dir = &dir.path().canonicalize().unwrap();
    build(dir);
    let absolute = dir.join("t").display().to_string();
    for name in ["a.c", "./a.c", &format!("{absolute}/a.c"), &format!("{absolute}//a.c")] {
        let table = json(dir, &format!("report cover {name} -i t --json --each file"));
        assert_eq!((&table["files"], &table["rows"][0]["path"]), (&1.into(), &"a.c".into()), "{name}");
    }
    for name in [".", &absolute, &format!("{absolute}/")] {
        assert_eq!(json(dir, &format!("report cover {name} -i t --json"))["files"], 2, "{name}");
    }
    for line in
        ["report cover nofile.c -i t", "report cover /nowhere -i t --html x.html", "diff t t --under ./no"]
    {
        fails(dir, line, 1, "no source matches");
    }
    // Lines.
    fails(dir, "annotate a.c:0 -i t", 2, "lines count from 1");
    fails(dir, "annotate a.c:4-2 -i t", 2, "a.c:2-4");
    fails(dir, "annotate a.c:100-200 -i t", 1, "a.c: ends at line 4");
    fails(dir, "annotate a.c:6 -i t --json", 1, "a.c: ends at line 4");
    fails(dir, "annotate nofile.c -i t", 1, "no such source file");
    assert!(said(dir, "annotate ./a.c:2-3 -i t").contains("twice"));
    // Functions by pattern.
    assert!(said(dir, "annotate mai* -i t").contains("main: called 1"));
    assert!(said(dir, "annotate tw?ce -i t").contains("twice: called 1"));
    let (code, out, _) = kprism(dir, "annotate * -i t");
    assert_eq!(code, 1);
    assert!(out.contains("* is several functions") && out.contains("a.c:3-3  never"), "{out}");
    let (code, out, _) = kprism(dir, "annotate *e* -i t --json");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, value["several"].as_array().unwrap().len()), (1, 2), "{value}");
}

#[test]
fn a_comparison_is_limited_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    build(dir);
    let all = json(dir, "report cover -i t --json")["totals"]["lines_hit"].clone();
    let part = json(dir, "report cover h.h -i t --json")["totals"].clone();
    assert_ne!(all, part["lines_hit"]);
    let (code, out, said) = kprism(dir, "diff t t --under h.h --json");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, said.as_str()), (1, ""), "no difference is no complaint");
    assert_eq!((&value["old"], &value["new"]), (&part, &part));
    let hit = part["lines_hit"].as_u64().unwrap();
    let (_, out, _) = kprism(dir, "diff t t --under h.h");
    assert!(out.contains(&format!("\nlines executed: {hit} before, {hit} after;")), "{out}");
}

#[test]
fn what_is_not_whole_is_told_even_where_nothing_matches() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    build(dir);
    for (line, code) in [
        ("report cover -i t --strict", 0),
        ("report cover nofile.c -i t --strict", 1),
        ("diff t t --strict", 1),
        ("annotate nofile.c -i t --strict", 1),
        ("annotate a.c -i t --strict", 0),
        ("export -i t -o q.gcda --strict", 0),
        ("export -i t -o q.info --strict", 0),
    ] {
        assert_eq!(kprism(dir, line).0, code, "{line}");
    }
    assert!(!said(dir, "annotate a.c -i t").contains("not whole"));
    for suffix in ["gcda", "gcno"] {
        fs::write(dir.join("t/other").with_extension(suffix), "damaged").unwrap();
    }
    for line in [
        "report cover -i t --strict",
        "report cover nofile.c -i t --strict",
        "report cover nofile.c -i t --html x.html --strict",
        "diff t t --strict",
        "diff t t --under nofile --strict",
        "annotate nofile.c -i t --strict",
        "annotate a.c:99 -i t --strict",
        "annotate a.c -i t --strict",
        "annotate * -i t --strict",
        "export -i t -o q.gcda --strict",
    ] {
        fails(dir, line, 4, "1 object left out");
    }
    let text = said(dir, "annotate a.c -i t");
    assert!(text.contains("not whole\n  lost            1 object left out\n"), "{text}");
    assert_eq!(kprism(dir, "diff t t").0, 1, "without --strict as before");
}

#[test]
fn sources_that_changed_since_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    build(dir);
    assert_eq!(kprism(dir, "annotate a.c -i t").2, "");
    let unit = |value: &Value| {
        let account = value["run"]["account"].as_array().unwrap().clone();
        account.iter().find(|e| e["unit"] == "source files newer than the code").unwrap()["count"].clone()
    };
    assert_eq!(unit(&json(dir, "annotate a.c -i t --json")), 0);
    touch(&dir.join("t/a.c"));
    let words = "a.c: source is newer than t/a.gcno: counts may be of other lines";
    for line in ["annotate a.c -i t", "annotate a.c -i t --json", "report cover -i t --html x.html"] {
        fails(dir, line, 0, words);
        fails(dir, &format!("{line} --strict"), 4, "1 source file newer than the code");
    }
    assert_eq!(unit(&json(dir, "annotate a.c -i t --json")), 1);
    assert_eq!(kprism(dir, "annotate h.h -i t --strict"), (0, said(dir, "annotate h.h -i t"), String::new()));
    // Of a run the moment of its recording counts.
    let streams = dir.join("run/streams/gcov");
    fs::create_dir_all(&streams).unwrap();
    let mut archive = File::create(streams.join("counters.cpio")).unwrap();
    let bytes = fs::read(dir.join("t/a.gcda")).unwrap();
    let name = dir.canonicalize().unwrap().join("t/a.gcda").display().to_string();
    let entry = cpio::newc::Builder::new(name.trim_start_matches('/')).mode(0o100_400).nlink(1);
    let mut writer = entry.write(&mut archive, bytes.len() as u32);
    std::io::Write::write_all(&mut writer, &bytes).unwrap();
    writer.finish().unwrap();
    cpio::newc::trailer(&mut archive).unwrap();
    let manifest = |created: &str| {
        let text = format!(
            r#"{{"version": 1, "kind": "lab", "command": ["a"], "vcpus": 1, "created": "{created}"}}"#
        );
        fs::write(dir.join("run/manifest.json"), text).unwrap();
    };
    manifest("2001-01-01T00:00:00Z");
    fails(dir, "annotate h.h -i run", 0, "h.h: source is newer than the run");
    manifest("2999-01-01T00:00:00Z");
    assert_eq!(kprism(dir, "annotate a.c -i run").2, "");
    // A file that is there and too short is not missing.
    fs::write(dir.join("t/a.c"), "int x;\n").unwrap();
    fails(dir, "annotate a.c -i t", 0, "a.c: has fewer lines (1) than the code");
    fails(dir, "report cover -i t --html x.html", 0, "a.c: has fewer lines (1) than the code");
    fs::remove_file(dir.join("t/a.c")).unwrap();
    fails(dir, "annotate a.c -i t", 0, "no source; --source-dir names its folder");
}

#[test]
fn patches_with_quoted_names_and_files_that_are_not_in_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    build(dir);
    let folder = dir.join("t/s p");
    fs::create_dir(&folder).unwrap();
    fs::rename(dir.join("t/a.c"), folder.join("\u{fc}.c")).unwrap();
    for name in ["a.gcda", "a.gcno"] {
        fs::remove_file(dir.join("t").join(name)).unwrap();
    }
    let build = ["--coverage", "-I.", "-o", "a", "s p/\u{fc}.c"];
    assert!(Command::new("gcc").args(build).current_dir(dir.join("t")).status().unwrap().success());
    assert!(Command::new("./a").current_dir(dir.join("t")).status().unwrap().success());
    let patch = "\
--- \"a/s p/\\303\\274.c\"
+++ \"b/s p/\\303\\274.c\"
@@ -1 +1,3 @@
 a
+int twice(int a) { return a * 2; }
+int never(int a) { return a - 1; }
";
    fs::write(dir.join("p"), patch).unwrap();
    let value = json(dir, "diff t --patch p --strict --json");
    assert_eq!(value["rows"][0]["path"], "s p/\u{fc}.c");
    assert_eq!((&value["totals"]["lines"], &value["totals"]["lines_hit"]), (&2.into(), &1.into()));
    let more = format!("{patch}--- a/README\n+++ b/README\n@@ -1 +1,2 @@\n a\n+b\n");
    fs::write(dir.join("p"), more).unwrap();
    fails(dir, "diff t --patch p --strict", 4, "1 file of the patch that are not in the run");
    assert_eq!(json(dir, "diff t --patch p --json")["totals"]["files_not_in_the_run"], 1);
    fails(dir, "diff t --patch p --under nofile", 1, "no file of the patch matches nofile");
    assert!(said(dir, "diff t --patch p").contains("1 file is not in the run"));
}

#[test]
fn options_and_formats_that_counters_cannot_honour() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    build(dir);
    for view in
        ["report cover -i t", "annotate a.c -i t", "export -i t -o -.info", "diff t t", "diff t --patch p"]
    {
        for option in ["--vmlinux t/a", "--module-file t/a", "--debug-dir t", "--since-boot", "--by-flow"] {
            let name = option.split(' ').next().unwrap();
            fails(dir, &format!("{view} {option}"), 2, &format!("{name} does not go with"));
        }
        fails(dir, &format!("{view} --build-dir /nope"), 2, "--build-dir /nope: no such folder");
        fails(dir, &format!("{view} --source-dir /nope"), 2, "--source-dir /nope: no such folder");
    }
    let prefix = "--source-prefix /nowhere=/else";
    fails(dir, &format!("report cover -i t {prefix}"), 0, "no source is below /nowhere");
    let moved = format!("--source-prefix {}=/else", dir.canonicalize().unwrap().display());
    fails(dir, &format!("report cover -i t {moved}"), 0, "");
    assert_eq!(kprism(dir, &format!("report cover -i t {moved}")).2, "");
    // What can be written of counters, in small or large letters.
    for name in ["x.info", "X.INFO", "x.XML", "x.LLVM.json", "x.GCDA"] {
        said(dir, &format!("export -i t -o {name}"));
    }
    fails(dir, "export -i t -o y.csv", 2, "`kprism export cover` writes coverage as .csv");
    fails(dir, "export -i t -o y.bogus", 2, "the suffix picks the format of coverage: .info");
    fails(dir, "export cover -i t -o y.bogus", 2, "the suffix picks the format of coverage: .info");
    fails(dir, "export -i t -o y.AFDO", 2, "for gcc -fprofile-use: -o FOLDER.gcda");
    fails(dir, "diff t nope", 2, "nope: no such file or folder");
    fails(dir, "diff nope t", 2, "nope: no such file or folder");
}

kprism_test::main!();
