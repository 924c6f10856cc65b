// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf as a child of `kprism record`: the real perf, with an event that every kernel has.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kprism_record::flow::perf::{Ended, Request, SHORT_TICK, TICK, run, start};
use kprism_record::flow::when::Attached;
use kprism_record::flow::{Rings, Settings};
use kprism_session::Progress;
use kprism_test::{BPF, PERF, ROOT, UPROBES, needs, test};

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
    assert!(error.contains("no Intel PT in this perf.data, but samples of cpu-clock:u ("), "{error}");
}

#[test]
fn the_command_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let line = recording(dir.path(), &["sh", "-c", "exit 3"]);
    let ended = run(Path::new(PERF_PROGRAM), &line, None, TICK, &|_| Ok(None)).unwrap();
    assert_eq!(ended, Ended { code: Some(3), signal: None, stopped: false });
    assert_eq!(ended.to_string(), "ended with 3");
    is_whole(dir.path());
}

#[test]
fn stopped_by_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let line = recording(dir.path(), &["sleep", "1000"]);
    let begun = Instant::now();
    let ended =
        run(Path::new(PERF_PROGRAM), &line, Some(Duration::from_millis(700)), TICK, &|_| Ok(None)).unwrap();
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
    let ended = run(Path::new(PERF_PROGRAM), &line, Some(Duration::from_secs(600)), TICK, &|_| {
        if !child_says.exists() {
            return Ok(None);
        }
        asked.set(asked.get() + 1);
        Ok(match asked.get() {
            1 => Some(Request::Snapshot),
            ..20 => None,
            _ => Some(Request::Stop),
        })
    });
    let ended = ended.unwrap();
    assert!(ended.stopped && asked.get() >= 20, "{ended:?} after {}", asked.get());
    is_whole(dir.path());
    let pid = std::fs::read_to_string(&child_says).unwrap();
    let command = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    assert!(!command.starts_with(b"sleep"), "the command goes with perf");
}

/// A condition has perf save what it holds. Without the PMU perf has no ring of packets; on the same signal it begins another file
/// (`--switch-output=signal`), so that the files tell how often it came.
#[test]
fn a_condition_asks_for_snapshots() {
    needs(&[ROOT, BPF, UPROBES, PERF]);
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("work.c"), dir.path().join("work"));
    let text = "#include <unistd.h>\n__attribute__((noipa)) int work(int n) { return n; }\n\
                int main(void) { for (int n = 1; n <= 300; n++) { work(n); work(-n); usleep(5000); } return 7; }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("gcc").args(["-g", "-O2", "-o"]).arg(&program).arg(&source).status();
    assert!(built.unwrap().success());
    let command = vec![program.to_str().unwrap().to_owned()];
    let settings = Settings { command: command.clone(), rings: Rings::User, ..Settings::default() };
    let attached = Attached::begin("work if n > 0 && n % 100 == 0", &settings, &Progress::silent()).unwrap();
    let watch = attached.watch();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let mut line: Vec<OsString> =
        ["record", "-q", "-e", "cpu-clock:u", "--switch-output=signal", "-o"].map(OsString::from).into();
    line.push(files.join("perf.data").into());
    line.push("--".into());
    line.extend(command.into_iter().map(OsString::from));
    let ended = run(Path::new(PERF_PROGRAM), &line, Some(Duration::from_secs(300)), SHORT_TICK, &|perf| {
        Ok(watch.held(perf)?.then_some(Request::Snapshot))
    });
    assert_eq!(ended.unwrap().code, Some(7));
    let counted = watch.end();
    assert_eq!((counted.held, counted.hits, counted.failed), (3, 600, 0), "{counted:?}");
    // The last hit may come with the program's end, and after the last look.
    assert!((2..=3).contains(&counted.requests) && counted.longest_delay_ns > 0, "{counted:?}");
    let files = std::fs::read_dir(files).unwrap().count() as u64;
    assert_eq!(files, counted.requests + 1, "one for each request, and the last");
}

/// Whatever cannot be a condition is refused before perf starts, with its reason.
#[test]
fn conditions_that_cannot_be() {
    needs(&[ROOT, BPF]);
    let settings = Settings { command: vec!["true".to_owned()], ..Settings::default() };
    for (spec, told) in [
        ("irqs_off > 100us", "irqs_off is measured from outside a guest"),
        ("ksys_raed if count == 1", "ksys_raed"),
        ("ksys_read if cuont == 1", "cuont"),
    ] {
        let error = Attached::begin(spec, &settings, &Progress::silent()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.starts_with("--snapshot-when") && error.contains(told), "{error}");
    }
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
    let error = run(Path::new("/nowhere/perf"), &[], None, TICK, &|_| Ok(None)).unwrap_err();
    assert!(error.to_string().contains("/nowhere/perf"), "{error}");
}

kprism_test::main!();
