// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transcripts of the command line: `tests/cmd/*.trycmd`, each with its folder of files.
//!
//! `report.in/true.data` is a run of `true` in the lab, tables and manifest only. To renew transcripts after
//! an intended change: `TRYCMD=overwrite cargo test -p kprism --test cli`.

use std::path::Path;
use std::process::Command;

use kprism_test::{NO_INTEL_PT, needs, test};

fn transcripts_of(files: &str) {
    // Colours and width must not depend on who runs the tests.
    trycmd::TestCases::new().env("NO_COLOR", "1").env("COLUMNS", "100").case(files);
}

#[test]
fn transcripts() {
    transcripts_of("tests/cmd/*.trycmd");
}

/// A machine that can record does not refuse.
#[test]
fn transcripts_without_intel_pt() {
    needs(&[NO_INTEL_PT]);
    transcripts_of("tests/cmd/no_pmu/*.trycmd");
}

/// Of many places that cannot be decoded the first are listed, and the others are counted beside them.
#[test]
fn errors_that_are_not_listed_are_counted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/import.in");
    let dir = tempfile::tempdir().unwrap();
    let (stream, run) = (dir.path().join("many.pt"), dir.path().join("run"));
    // One more place after the other, without a packet to begin anew at: up to there, a limited number is kept.
    let bytes = std::fs::read(folder.join("nocode.pt")).unwrap();
    let (before, place) = bytes.split_at(bytes.len() - 11);
    // Each is in a page of its own, as a page of missing code counts once.
    let mut many = before.to_vec();
    for page in 0..5000u64 {
        let address = u64::from_le_bytes(place[1..9].try_into().unwrap()) + (page << 12);
        many.extend([&place[..1], &address.to_le_bytes(), &place[9..]].concat());
    }
    std::fs::write(&stream, many).unwrap();
    let code = format!("{}@401000", folder.join("code.bin").display());
    let kprism = |args: &[&std::ffi::OsStr]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (run, import) = (run.as_os_str(), ["import".as_ref(), "--code".as_ref(), code.as_ref()]);
    kprism(&[&import[..], &[stream.as_os_str(), "-o".as_ref(), run]].concat());
    let errors = ["report", "errors", "--limit", "0", "-i"].map(std::ffi::OsStr::new);
    let text = kprism(&[&errors[..], &[run]].concat());
    assert!(text.contains("… 904 more were counted only"), "{}", &text[text.len().saturating_sub(900)..]);
    let json = kprism(&[&errors[..], &[run, "--json".as_ref()]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["rows"].as_array().unwrap().len(), &json["unlisted"]), (4096, &904.into()));
}

/// An option about something that is not asked for is refused before a guest is made.
#[test]
fn options_of_a_guest_that_would_change_nothing_are_refused() {
    let lines: [(&[&str], &str); 6] = [
        (&["--snapshot-size", "64K"], "--snapshot-when <CONDITION>"),
        (&["--unobserved", "--psb", "4096"], "--psb"),
        (&["--unobserved", "--cyc", "on"], "--cyc"),
        (&["--unobserved", "--mtc", "3"], "--mtc"),
        (&["--unobserved", "--retc", "off"], "--retc"),
        (&["--unobserved", "--no-decode"], "--no-decode"),
    ];
    for (options, named) in lines {
        let command = ["lab", "run", "--kernel", "/nowhere"];
        let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(command)
            .args(options)
            .args(["--", "true"])
            .output();
        let output = output.expect("kprism runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(named), "{options:?}: {said}");
    }
}

/// What kind of recording it is decides which options mean something.
#[test]
fn an_import_refuses_what_it_would_ignore() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/import.in");
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let code = format!("{}@401000", folder.join("code.bin").display());
    let text = dir.path().join("trace");
    std::fs::write(&text, "# tracer: function_graph\n#\n 0)   1.000 us    |  f();\n").unwrap();
    let stream = folder.join("loop.pt");
    let lines: [(&Path, &[&str], Option<&str>); 6] = [
        (&stream, &["--code", &code, "--symfs", "/"], Some("--symfs")),
        (&stream, &["--code", &code, "--kcore", "x"], Some("--kcore")),
        (&stream, &["--code", &code, "--vmlinux", "x"], Some("--vmlinux")),
        (&stream, &["--code", &code, "--kallsyms", "x"], Some("--kallsyms")),
        (&text, &["--code", &code], Some("--code")),
        (&stream, &["--code", &code], None),
    ];
    for (path, options, refused) in lines {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        let output = command.arg("import").arg(path).args(options).arg("-o").arg(&run).output();
        let output = output.expect("kprism runs");
        let said = String::from_utf8_lossy(&output.stderr);
        match refused {
            Some(option) => {
                assert_eq!((output.status.code(), run.exists()), (Some(2), false), "{options:?}: {said}");
                assert!(said.contains(&format!("{option} does not go with")), "{options:?}: {said}");
            }
            None => assert_eq!(output.status.code(), Some(0), "{said}"),
        }
    }
}

kprism_test::main!();
