// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples for compilers from a recorded flow: gcc and clang take them, and what they make of the program executes fewer
//! instructions. Needs what `scripts/setup.sh test` installs; clang, llvm-profdata and dump_gcov among it.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, ok, text};
use kprism_test::{program, test};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samples/hot.c");

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Records programs, each once; instructions in user mode of each.
fn record(run: &Path, share: &Path, names: &[&str]) -> Vec<u64> {
    let script = format!("for p in {}; do /share/$p; done", names.join(" "));
    let said = ok(&["lab", "run", "-q", "-o", text(run), "--share", text(share), "--", "sh", "-c", &script]);
    let said = String::from_utf8(said).unwrap();
    let last: Vec<&str> = said.lines().filter(|line| *line != "seldom").collect();
    assert!(
        last.len() == names.len() && last.windows(2).all(|two| two[0] == two[1]),
        "the same result: {last:?}"
    );
    let report = json(&["report", "tasks", "-q", "--json", "--limit", "0", "-i", text(run)]);
    let rows = report["rows"].as_array().unwrap();
    let of = |name: &&str| rows.iter().find(|row| row["comm"] == **name).expect("it ran");
    names.iter().map(|name| of(name)["user_instructions"].as_u64().unwrap()).collect()
}

/// GCC's file with its strings as before GCC 12, as Debian's autofdo reads them: counted and padded in words.
fn as_before(file: &[u8]) -> Vec<u8> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let mut old = file[..24].to_vec();
    let mut at = 24;
    for _ in 0..word(20) {
        let length = word(at) as usize;
        let words = length.div_ceil(4);
        old.extend((words as u32).to_le_bytes());
        old.extend(&file[at + 4..at + 4 + length]);
        old.resize(old.len() + words * 4 - length, 0);
        at += 4 + length;
    }
    old.extend(&file[at..]);
    // It wants a summary behind it that GCC does not read any more: 128 entries of 12 bytes.
    old.extend(0xaf00_0000_u64.to_le_bytes());
    old.resize(old.len() + 128 * 12, 0);
    old
}

#[test]
fn gcc_makes_a_program_faster_with_what_it_did() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| -> PathBuf { dir.path().join(name) };
    let share = place("share");
    fs::create_dir(&share).unwrap();
    run(Command::new("gcc").args(["-O2", "-g", "-o", text(&share.join("plain")), SOURCE]));
    record(&place("first"), &share, &["plain"]);
    let file = place("plain.afdo");
    ok(&["export", "-q", "-i", text(&place("first")), "--comm", "plain", "-o", text(&file)]);
    let option = format!("-fauto-profile={}", text(&file));
    run(Command::new("gcc").args(["-O2", "-g", &option, "-o", text(&share.join("guided")), SOURCE]));
    let counts = record(&place("second"), &share, &["plain", "guided"]);
    println!("gcc: {} instructions, {} with the profile", counts[0], counts[1]);
    assert!(counts[1] * 10 < counts[0] * 9, "{counts:?}: the profile is used");
}

/// autofdo's own reader finds in the samples what ran.
#[test]
fn dump_gcov_reads_the_samples() {
    let dump = program(&["dump_gcov"], "autofdo");
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| -> PathBuf { dir.path().join(name) };
    let share = place("share");
    fs::create_dir(&share).unwrap();
    run(Command::new("gcc").args(["-O2", "-g", "-o", text(&share.join("plain")), SOURCE]));
    record(&place("run"), &share, &["plain"]);
    let file = place("plain.afdo");
    ok(&["export", "-q", "-i", text(&place("run")), "--comm", "plain", "-o", text(&file)]);
    let old = place("old.afdo");
    fs::write(&old, as_before(&fs::read(&file).unwrap())).unwrap();
    let said = Command::new(dump).args(["--gcov_version=2", text(&old)]).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let (_, own) = said.split_once("loop total:").expect("the function");
    let own: Vec<&str> = own.lines().map(str::trim).take(12).collect();
    println!("{own:?}");
    assert!(own.iter().any(|line| line.contains("20000") && line.contains("twist:20000")), "{own:?}");
}

#[test]
fn llvm_takes_samples() {
    let _alone = alone();
    let clang = program(&["clang", "clang-19", "clang-14"], "clang");
    let judge = program(&["llvm-profdata", "llvm-profdata-19", "llvm-profdata-14"], "llvm");
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| -> PathBuf { dir.path().join(name) };
    let share = place("share");
    fs::create_dir(&share).unwrap();
    let flags = ["-O2", "-g", "-fdebug-info-for-profiling", "-Werror", "-o"];
    run(Command::new(&clang).args(flags).args([text(&share.join("plain")), SOURCE]));
    record(&place("first"), &share, &["plain"]);
    let file = place("plain.prof");
    ok(&["export", "-q", "-i", text(&place("first")), "--comm", "plain", "-o", text(&file)]);
    let option = format!("-fprofile-sample-use={}", text(&file));
    run(Command::new(&clang).args(flags).args([text(&share.join("guided")), &option, SOURCE]));
    let counts = record(&place("second"), &share, &["plain", "guided"]);
    println!("clang: {} instructions, {} with the profile", counts[0], counts[1]);
    assert!(counts[1] < counts[0], "{counts:?}: the profile is used");
    let binary = place("merged");
    run(Command::new(&judge).args(["merge", "--sample", text(&file), "-o", text(&binary)]));
    let shown =
        |file: &Path| run(Command::new(&judge).args(["show", "--sample", "--function=loop", text(file)]));
    let said = shown(&file);
    assert_eq!(said, shown(&binary));
    assert!(said.contains("calls: twist:20000") && said.contains("inlined callee: big"), "{said}");
}

kprism_test::main!();
