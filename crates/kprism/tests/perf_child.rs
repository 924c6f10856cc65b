// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf as a child of `kprism record`: the real perf, with an event that every kernel has.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kprism_record::flow::perf::{Ended, Request, run, start};
use kprism_test::{PERF, needs, test};

const PERF_PROGRAM: &str = "perf";

/// perf's arguments.
fn recording(dir: &Path, command: &[&str]) -> Vec<OsString> {
    needs(&[PERF]);
    let mut line: Vec<OsString> = ["record", "-q", "-e", "cpu-clock:u", "-o"].map(OsString::from).into();
    line.push(dir.join("perf.data").into());
    line.push("--".into());
    line.extend(command.iter().map(OsString::from));
    line
}

/// perf wrote a whole file: the import reads it and misses nothing but Intel PT.
fn is_whole(dir: &Path) {
    let run = dir.join("run");
    let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .arg("import")
        .arg(dir.join("perf.data"))
        .arg("-o")
        .arg(run)
        .output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(error.trim_end().ends_with("Intel PT: record with `perf record -e intel_pt//`"), "{error}");
}

#[test]
fn the_command_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let line = recording(dir.path(), &["sh", "-c", "exit 3"]);
    let ended = run(Path::new(PERF_PROGRAM), &line, None, &|| None).unwrap();
    assert_eq!(ended, Ended { code: Some(3), signal: None, stopped: false });
    assert_eq!(ended.to_string(), "ended with 3");
    is_whole(dir.path());
}

#[test]
fn stopped_by_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let line = recording(dir.path(), &["sleep", "1000"]);
    let begun = Instant::now();
    let ended = run(Path::new(PERF_PROGRAM), &line, Some(Duration::from_millis(700)), &|| None).unwrap();
    assert!(ended.stopped && begun.elapsed() > Duration::from_millis(600), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(900), "not the whole sleep");
    is_whole(dir.path());
}

/// As Ctrl-C does; a request for a snapshot before it ends nothing.
#[test]
fn stopped_by_the_user() {
    let dir = tempfile::tempdir().unwrap();
    let child_says = dir.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", child_says.display());
    let line = recording(dir.path(), &["sh", "-c", &script]);
    let asked = Cell::new(0);
    let ended = run(Path::new(PERF_PROGRAM), &line, Some(Duration::from_secs(600)), &|| {
        if !child_says.exists() {
            return None;
        }
        asked.set(asked.get() + 1);
        match asked.get() {
            1 => Some(Request::Snapshot),
            ..20 => None,
            _ => Some(Request::Stop),
        }
    });
    let ended = ended.unwrap();
    assert!(ended.stopped && asked.get() >= 20, "{ended:?} after {}", asked.get());
    is_whole(dir.path());
    let pid = std::fs::read_to_string(&child_says).unwrap();
    let command = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert!(!command.starts_with(b"sleep"), "the command goes with perf");
}

/// The kernel ends perf when the thread that started it is gone, as when kprism is killed.
#[test]
fn perf_is_not_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let line = recording(dir.path(), &["sleep", "1000"]);
    let mut child =
        std::thread::spawn(move || start(Command::new(PERF_PROGRAM).args(&line)).unwrap()).join().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(300), "perf still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_that_is_not_there() {
    let error = run(Path::new("/nowhere/perf"), &[], None, &|| None).unwrap_err();
    assert!(error.to_string().contains("/nowhere/perf"), "{error}");
}

kprism_test::main!();
