// SPDX-License-Identifier: MIT OR Apache-2.0
//! The size of a recording in the guest: a terminal shows it while it grows, and `--max-size` or a disk that is nearly full ends it.
//! The command is a loop without end, so that nothing else does.

mod guest;
// The tests of screens use the rest of it.
#[allow(dead_code)]
#[path = "terminal/pty.rs"]
mod pty;

use std::fs;
use std::path::Path;
use std::process::Command;

use guest::{alone, json, kprism, text};
use kprism_test::{APT, MOUNTS, QEMU, needs, test};
use pty::Pty;

const LOOP: [&str; 4] = ["--", "sh", "-c", "while :; do :; done"];

/// Bytes of the streams of a run.
fn size(streams: &Path) -> u64 {
    let files = fs::read_dir(streams).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap()).filter(fs::Metadata::is_file).map(|m| m.len()).sum()
}

/// The run's account says why it ended, and its report has the loop.
fn is_kept(run: &Path, why: &str) {
    let stopped = json(&["info", "--json", "-i", text(run)])["stopped"].to_string();
    assert!(stopped.contains(why), "{stopped}");
    let report = json(&["report", "tasks", "-q", "--json", "-i", text(run)]);
    assert!(report["rows"].to_string().contains("\"sh\""), "{report}");
    let strict = kprism(&["report", "tasks", "--strict", "-i", text(run)]);
    assert_eq!(strict.status.code(), Some(4), "{}", String::from_utf8_lossy(&strict.stderr));
}

#[test]
fn a_recording_ends_at_its_limit_and_is_kept() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = kprism(&[&["lab", "run", "--max-size", "8M", "-o", text(&run)], &LOOP[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(124), "{said}");
    let why = "the recording reached --max-size, 8.0 MiB";
    assert!(said.contains(why), "{said}");
    // Without a terminal the size is not told.
    assert!(!said.contains("left on the disk"), "{said}");
    let bytes = size(&run.join("streams"));
    assert!((8 << 20..16 << 20).contains(&bytes), "{bytes}");
    assert_eq!(json(&["info", "--json", "-i", text(&run)])["options"]["max_size"], 8 << 20);
    is_kept(&run, why);
}

#[test]
fn a_recording_ends_before_its_disk_is_full() {
    needs(&[QEMU, APT, MOUNTS]);
    let _alone = alone();
    // The cache is filled outside of the small disk.
    guest::ok(&["lab", "prepare", "-q"]);
    let dir = tempfile::tempdir().unwrap();
    let (small, run) = (dir.path().join("small"), dir.path().join("run"));
    fs::create_dir(&small).unwrap();
    // The kernel's symbols take 12 MB of it. Half of the rest is the reserve.
    let script = r#"mount -t tmpfs -o size=80M none "$1" || exit 99
        "$2" lab run -o "$1/run" -- sh -c 'while :; do :; done'; code=$?
        cp -r "$1/run" "$3" || exit 98
        exit $code"#;
    let words = [script, "sh", text(&small), env!("CARGO_BIN_EXE_kprism"), text(&run)];
    let output = Command::new("unshare").args(["-m", "sh", "-c"]).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    let why = "the disk of the run folder is nearly full";
    assert!(said.contains(why) && !said.contains("No space left"), "{said}");
    assert!(size(&run.join("streams")) > 8 << 20);
    is_kept(&run, why);
}

#[test]
fn a_terminal_shows_how_a_recording_grows() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    guest::ok(&["lab", "prepare", "-q"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args(["lab", "run", "--max-size", "1G", "--timeout", "20", "--no-decode", "-o", text(&run)]);
    command.args(["--", "sh", "-c", "echo begun; while :; do :; done"]).env("TERM", "xterm-256color");
    let mut pty = Pty::start(command, 24, 120);
    let shown = pty.until("the size", |text| text.contains("MiB of 1.0 GiB written") && text.contains("/s"));
    let line = shown.lines().find(|line| line.contains("written")).unwrap();
    assert!(line.contains("running the command: 0:") && line.contains("left on the disk"), "{shown}");
    // One line, in place, below the command's output.
    assert_eq!(shown.matches("written").count(), 1, "{shown}");
    assert!(shown.lines().any(|line| line.trim_end() == "begun"), "{shown}");
    pty.signal(libc::SIGINT);
    assert_eq!(pty.end().code(), Some(130));
}

#[test]
fn a_limit_of_what_is_not_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let cases: [(&[&str], &str); 7] = [
        (&["lab", "run", "--unobserved", "--max-size", "1G", "--", "true"], "--unobserved"),
        (&["lab", "run", "--max-size", "0", "--", "true"], "expected bytes"),
        (&["lab", "boot", "--max-size", "1G"], "--max-size"),
        (&["lab", "gcov-kernel", "--max-size", "1G", "--", "true"], "--max-size limits"),
        (&["record", "durations", "--max-size", "1G", "--", "true"], "--max-size is about a guest"),
        (&["record", "durations", "--guest", "--max-size", "1G", "--", "true"], "--max-size limits"),
        (&["record", "probe", "--max-size", "1G", "work", "--", "true"], "--max-size is about a guest"),
    ];
    for (arguments, expected) in cases {
        let command = kprism(&[&arguments[..2], &["-o", text(&run)], &arguments[2..]].concat());
        let said = String::from_utf8_lossy(&command.stderr).into_owned();
        assert!(!command.status.success() && said.contains(expected), "{arguments:?}: {said}");
        assert!(!run.exists(), "{arguments:?}");
    }
}

kprism_test::main!();
