// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of kprism.toml hold where nothing is typed, and no more than that.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use kprism_test::test;

fn kprism(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(arguments).current_dir(folder).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run of the transcripts.
fn run() -> String {
    format!("{}/tests/cmd/diff.in/plain.data", env!("CARGO_MANIFEST_DIR"))
}

/// Rows of the table of system calls.
fn rows(folder: &Path, more: &[&str]) -> usize {
    let run = run();
    let output = kprism(folder, &[&["report", "syscalls", "--json", "-i", &run], more].concat());
    assert!(output.status.success(), "{}", err(&output));
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["rows"].as_array().unwrap().len()
}

#[test]
fn a_file_holds_where_nothing_is_typed() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("below");
    fs::create_dir(&below).unwrap();
    let all = rows(&below, &["--limit", "0"]);
    assert!(all > 3);
    fs::write(
        dir.path().join("kprism.toml"),
        "[report.syscalls]\nlimit = 2\n[guest]\nsmp = 2\n[profile.ci.report.syscalls]\nlimit = 3\n",
    )
    .unwrap();
    assert_eq!(rows(&below, &[]), 2);
    assert_eq!(rows(&below, &["--limit", "1"]), 1);
    assert_eq!(rows(&below, &["--profile", "ci"]), 3);
    assert!(rows(&below, &["--no-options-file"]) > 3);

    // info shows it; without a run, too.
    let shown = out(&kprism(&below, &["info", "--options"]));
    assert!(shown.contains("[report.syscalls] limit = 2") && shown.contains("other profiles: ci"), "{shown}");
    let run = run();
    assert!(out(&kprism(&below, &["info", "-i", &run])).contains("options file  "));
    assert_eq!(kprism(&below, &["info", "--options", "--no-options-file"]).status.code(), Some(1));

    // A file elsewhere is named.
    let other = below.join("other.toml");
    fs::write(&other, "[report.syscalls]\nlimit = 1\n").unwrap();
    assert_eq!(rows(&below, &["--options-file", other.to_str().unwrap()]), 1);
}

/// Options of commands that have the name or the value of one that all have.
#[test]
fn commands_with_options_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let gcov = ["lab", "gcov-kernel", "--config", "CONFIG_X=y", "--smp", "none", "--", "true"];
    let output = kprism(dir.path(), &gcov);
    assert!(output.status.code() == Some(2), "{}", err(&output));
    assert!(!err(&output).contains("panicked"), "{}", err(&output));
}

#[test]
fn what_is_wrong_in_a_file_is_an_error_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let run = run();
    for (text, expected) in [
        ("[report.syscals]\nlimit = 2", "kprism.toml:2: [report.syscals] is no command"),
        ("[guest]\nspm = 2", "kprism.toml:2: `spm` is no option of [guest]"),
        ("[report.syscalls]\nlimit = 'x'", "kprism.toml:2"),
        ("[report.syscalls]\nlimit = true", "takes a value"),
        ("limit = 1", "is in no table"),
        ("[report", "kprism.toml:1"),
    ] {
        fs::write(dir.path().join("kprism.toml"), text).unwrap();
        let output = kprism(dir.path(), &["report", "syscalls", "-i", &run]);
        assert_eq!(output.status.code(), Some(2), "{text}: {}", err(&output));
        assert!(err(&output).contains(expected), "{text}: {}", err(&output));
        assert!(
            kprism(dir.path(), &["report", "syscalls", "-i", &run, "--no-options-file"]).status.success()
        );
    }
    let output = kprism(dir.path(), &["report", "-i", &run, "--options-file", "missing.toml"]);
    assert_eq!(output.status.code(), Some(2));
}

kprism_test::main!();
