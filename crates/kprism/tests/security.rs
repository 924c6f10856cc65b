// SPDX-License-Identifier: MIT OR Apache-2.0
//! What SECURITY.md promises, at the command line: what a run from elsewhere can do, and what a recorder's rights are for.
//! (Who is served by `gdbserver` is in `gdb_users.rs`.)

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use kprism_store::{Manifest, Run, RunKind};
use kprism_test::{BPF, ROOT, UPROBES, needs, skip, test};
use serde_json::json;

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

/// A run of a probe whose names were chosen by somebody else.
fn made(dir: &Path, name: &str) -> Run {
    let run = Run::create(dir).unwrap();
    run.write_manifest(&Manifest::new(RunKind::Host, 1)).unwrap();
    let folder = run.probe();
    fs::create_dir(&folder).unwrap();
    let probe = json!({"place": name, "found": name, "condition": name, "file": name, "address": null,
        "hook": "uprobe", "record_bytes": 32, "items": []});
    let counts = json!({"hits": 1, "passed": 1, "lost": 0, "condition_errors": {name: 1}, "value_errors": {}, "missed": 0});
    let all = json!({"version": 1, "probes": [probe], "counts": [counts]});
    fs::write(folder.join("probes.json"), all.to_string()).unwrap();
    let mut record = vec![0; 32];
    record[0] = 32;
    fs::write(folder.join("hits.bin"), record).unwrap();
    run
}

/// Names from a run do not command the terminal that shows them, in no view and no message.
#[test]
fn names_command_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let evil = "\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31mname";
    let run = made(&dir.path().join("run"), evil);
    let at = run.dir().to_str().unwrap();
    let views: [&[&str]; 5] = [
        &["report", "probe"],
        &["report"],
        &["script"],
        &["report", "probe", "--csv"],
        &["script", "--json"],
    ];
    for view in views {
        let output = kprism(&[view, &["-i", at]].concat());
        assert_eq!(output.status.code(), Some(0), "{view:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("title") && text.contains("name"), "{view:?}: {text}");
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{view:?}: {text:?}");
    }
    let output = kprism(&["info", "-i", &format!("{at}/{evil}")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("^[]0;title^G") && !said.contains('\u{1b}'), "{said:?}");
}

/// A run with a link out of it is not opened.
#[test]
fn a_run_reads_and_writes_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let run = made(&dir.path().join("run"), "name");
    let at = run.dir().to_str().unwrap();
    assert_eq!(kprism(&["report", "-i", at]).status.code(), Some(0));
    fs::remove_file(run.streams().join("probe/hits.bin")).unwrap();
    symlink("/etc/hostname", run.streams().join("probe/hits.bin")).unwrap();
    for command in ["report", "script", "info"] {
        let output = kprism(&[command, "-i", at]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("hits.bin") && said.contains("leads out of the run"), "{command}: {said}");
    }
}

/// The rights that a message asks for are enough: given by setcap, another user than root records what it was refused.
#[test]
fn the_rights_that_are_asked_for_are_enough() {
    const OTHER: u32 = 65534;
    needs(&[ROOT, BPF, UPROBES]);
    if Command::new("setcap").arg("-h").output().is_err() {
        skip("setcap is not installed: apt install libcap2-bin");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (own, case) = (dir.path().join("kprism"), dir.path().join("case"));
    fs::copy(env!("CARGO_BIN_EXE_kprism"), &own).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/case.c");
    assert!(Command::new("gcc").args(["-g", "-o"]).arg(&case).arg(source).status().unwrap().success());
    let record = || {
        let mut command = Command::new(&own);
        command.args([
            "record",
            "probe",
            "busy",
            "--collect",
            "n",
            "-o",
            "run",
            "--",
            "./case",
            "100",
            "busy",
        ]);
        let output = command.current_dir(dir.path()).uid(OTHER).gid(OTHER).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (mut code, mut said) = record();
    assert_eq!(code, Some(2), "{said}");
    // On a kernel that asks for more, it says what.
    for _ in 0..2 {
        let asked = said.split("setcap ").nth(1).and_then(|rest| rest.split_ascii_whitespace().next());
        let asked = asked.unwrap_or_else(|| panic!("no remedy: {said}"));
        assert!(Command::new("setcap").arg(asked).arg(&own).status().unwrap().success(), "{asked}");
        (code, said) = record();
        if code == Some(0) {
            break;
        }
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("100 hits, 100 records, 0 lost"), "{said}");
}

kprism_test::main!();
