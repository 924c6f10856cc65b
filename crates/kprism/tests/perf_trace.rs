// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints in perf.data: what `kprism import` reads is what perf itself reads, event by event.
//!
//! Real perf records processes of this test's own; where it cannot (no perf, no right to), the tests say so.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use kprism_test::{PERF_TRACEPOINTS, needs, test};
use serde_json::Value;

fn kprism(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

const SCRIPT: &str = "for i in 1 2 3; do sleep 0.01; ls /bin | sed s/a/z/g > /dev/null; done";

/// Has perf record a command of ours.
fn record(to: &Path, args: &[&str], script: &str) {
    needs(&[PERF_TRACEPOINTS]);
    let mut perf = Command::new("perf");
    perf.arg("record").args(args).arg("-o").arg(if args.contains(&"-") { Path::new("-") } else { to });
    let out = if args.contains(&"-") { Stdio::from(File::create(to).unwrap()) } else { Stdio::null() };
    let ended = perf.args(["--", "sh", "-c", script]).stdout(out).stderr(Stdio::null()).status();
    assert!(ended.is_ok_and(|status| status.success()), "perf record {args:?}");
    assert!(fs::metadata(to).is_ok_and(|m| m.len() > 0), "perf record {args:?}: nothing recorded");
}

fn perf_script(data: &Path, args: &[&str]) -> String {
    let output = Command::new("perf").arg("script").args(args).arg("-i").arg(data).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One event: thread, CPU, time, name, the thread's name.
type Event = (u64, u64, u64, String, String);

/// A line of perf script: `sh 5440 [001] 25540.872671985: sched:sched_switch:`. A thread's name may have spaces.
fn of_perf(line: &str) -> Event {
    let (task, rest) = line.split_once(" [").unwrap_or_else(|| panic!("{line}"));
    let (comm, tid) = task.trim().rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    let words: Vec<&str> = rest.split_whitespace().collect();
    let [cpu, time, name, ..] = words[..] else { panic!("{line}") };
    let time = time.trim_end_matches(':').replace('.', "").parse().unwrap();
    let name = name.trim_end_matches(':').rsplit(':').next().unwrap();
    let cpu = cpu.trim_end_matches(']').parse().unwrap();
    (tid.parse().unwrap(), cpu, time, name.to_owned(), comm.trim().to_owned())
}

/// A line of ours.
fn of_ours(line: &Value) -> Event {
    let number = |key: &str| line[key].as_u64().unwrap_or_else(|| panic!("{key}: {line}"));
    let name = match line["event"].as_str().unwrap() {
        "switch" => "sched_switch",
        "event" => line["text"].as_str().unwrap().split(':').next().unwrap(),
        other => other,
    };
    let comm = line["comm"].as_str().unwrap_or_default().to_owned();
    (number("pid"), number("cpu"), number("time_ns"), name.to_owned(), comm)
}

/// What we read of a file.
fn read(data: &Path) -> Vec<Value> {
    let run = data.with_extension("run");
    // Without calls and switches there is nothing to report, and the exit code says that.
    let import =
        Command::new(env!("CARGO_BIN_EXE_kprism")).arg("import").arg(data).arg("-o").arg(&run).output();
    assert!(matches!(import.unwrap().status.code(), Some(0 | 1)));
    let ours = kprism(&["script", "--json", "-i", run.to_str().unwrap()]);
    ours.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Holds what we read of a file against what perf reads.
fn compare(data: &Path, least: usize) {
    let ours = read(data);
    let theirs = perf_script(data, &["-F", "comm,tid,cpu,time,event", "--ns"]);
    let theirs: Vec<Event> = theirs
        .lines()
        .filter(|line| line.contains(':'))
        .map(of_perf)
        .filter(|e| !e.3.contains("clock"))
        .collect();
    let mut events: Vec<Event> = ours.iter().filter(|line| line["event"] != "lost").map(of_ours).collect();
    let mut expected = theirs;
    assert!(expected.len() >= least, "{}", expected.len());
    assert_eq!(events.len(), expected.len());
    // Of the same time, the order is nobody's.
    events.sort_by(|a, b| (a.2, a).cmp(&(b.2, b)));
    expected.sort_by(|a, b| (a.2, a).cmp(&(b.2, b)));
    assert_eq!(events, expected);
}

#[test]
fn events_are_those_that_perf_reads() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("plain.data");
    let events = ["-e", "sched:*", "-e", "raw_syscalls:*"];
    record(&data, &events, SCRIPT);
    compare(&data, 500);
    // With stacks and counts before the raw data, other events between, compressed.
    let data = dir.path().join("packed.data");
    record(
        &data,
        &["-z", "-g", "--sample-cpu", "-e", "sched:*", "-e", "raw_syscalls:*", "-e", "cpu-clock"],
        SCRIPT,
    );
    compare(&data, 500);
    // With the counts of a group, which perf script makes more samples of: one for each of its events.
    let data = dir.path().join("group.data");
    let naps = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.01; done";
    record(&data, &["-e", "{sched:sched_switch,sched:sched_wakeup}:S"], naps);
    let dump = Command::new("perf").args(["report", "-D", "-i"]).arg(&data).output().unwrap();
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let samples = dump.lines().filter(|line| line.contains("PERF_RECORD_SAMPLE")).count();
    // Each nap is a switch away from it, whatever else is, and on however many CPUs.
    assert!(samples >= 10, "{samples}");
    assert_eq!(read(&data).len(), samples);
    let data = dir.path().join("pipe.data");
    record(&data, &["-e", "sched:*", "-o", "-"], SCRIPT);
    compare(&data, 50);
}

/// What `kprism import --strict` says of a file, and how it ends.
fn judge(data: &Path, more: &[&str]) -> (Option<i32>, String) {
    let run = data.with_extension("judged");
    let mut import = Command::new(env!("CARGO_BIN_EXE_kprism"));
    let import = import.arg("import").arg(data).arg("-o").arg(&run).args(more).output().unwrap();
    if !import.status.success() {
        return (import.status.code(), String::from_utf8_lossy(&import.stderr).into_owned());
    }
    let mut report = Command::new(env!("CARGO_BIN_EXE_kprism"));
    let report = report.args(["report", "durations", "--strict", "-i"]).arg(&run).output().unwrap();
    let both = [import.stderr, report.stdout, report.stderr].concat();
    (report.status.code(), String::from_utf8_lossy(&both).into_owned())
}

#[test]
fn files_of_further_threads_are_perfs() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("threads.data");
    record(&data, &["--threads", "-e", "sched:*", "-e", "raw_syscalls:*"], SCRIPT);
    assert!(data.join("data.0").is_file(), "perf made no folder: the test means nothing");
    compare(&data, 500);
}

#[test]
fn a_recording_that_is_not_all_is_not_whole() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("all.data");
    record(&data, &["-e", "sched:sched_switch", "-e", "raw_syscalls:*"], SCRIPT);
    let (code, text) = judge(&data, &[]);
    // No call is in it, so there may be nothing to show.
    assert!(matches!(code, Some(0 | 1)), "{code:?} {text}");
    // Cut inside its data. A pipe has the formats before them, a file behind them.
    let data = dir.path().join("pipe.data");
    record(&data, &["-e", "sched:sched_switch", "-e", "raw_syscalls:*", "-o", "-"], SCRIPT);
    let whole = fs::read(&data).unwrap();
    let part = dir.path().join("part.data");
    fs::write(&part, &whole[..whole.len() - 5]).unwrap();
    let (code, text) = judge(&part, &[]);
    assert!(code == Some(4) && text.contains("a record is cut off"), "{code:?} {text}");
    // Only samples of the events.
    let sampled = dir.path().join("sampled.data");
    record(&sampled, &["-F", "997", "-e", "sched:sched_switch", "-e", "raw_syscalls:*"], SCRIPT);
    let (code, text) = judge(&sampled, &[]);
    assert!(code == Some(4) && text.contains("events between samples not known"), "{code:?} {text}");
    assert!(text.contains("sched:sched_switch (-F 997)"), "{text}");
}

#[test]
fn an_option_without_a_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("plain.data");
    record(&data, &["-e", "sched:*"], SCRIPT);
    for option in ["--code", "--symfs", "--kcore", "--vmlinux"] {
        let (code, text) = judge(&data, &[option, "/etc/hostname"]);
        assert!(code == Some(2) && text.contains(option), "{option}: {code:?} {text}");
    }
}

#[test]
fn what_perf_lost_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("small.data");
    let script = "dd if=/dev/zero of=/dev/null bs=1 count=60000";
    record(&data, &["-m", "1", "-e", "raw_syscalls:*"], script);
    let theirs = perf_script(&data, &["--show-lost-events"]);
    let lost = |line: &str| -> Option<u64> {
        line.contains("PERF_RECORD_LOST").then(|| line.rsplit(' ').next()?.parse().ok()).flatten()
    };
    let told: u64 = theirs.lines().filter_map(lost).sum();
    // Newer kernels add up for each event; then it is known what was lost at the very end too.
    let dump = Command::new("perf").args(["report", "-D", "-i"]).arg(&data).output().unwrap();
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let summed: u64 = dump
        .lines()
        .filter(|line| line.contains("PERF_RECORD_LOST_SAMPLES"))
        .filter_map(|line| line.rsplit(':').next()?.trim().parse::<u64>().ok())
        .sum();
    let theirs = told.max(summed);
    let ours = read(&data);
    let lost: u64 =
        ours.iter().filter(|line| line["event"] == "lost").filter_map(|l| l["count"].as_u64()).sum();
    assert_eq!(lost, theirs);
    assert!(lost > 0, "the buffer was large enough: the test means nothing");
    // They stand where they belong.
    assert!(ours.is_sorted_by_key(|line| line["time_ns"].as_u64()));
}

#[test]
fn cut_and_broken_files_are_read_as_far_as_they_go() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("whole.data");
    record(&data, &["-e", "sched:*"], SCRIPT);
    let whole = fs::read(&data).unwrap();
    let part = dir.path().join("part.data");
    for step in 1..40 {
        fs::write(&part, &whole[..whole.len() * step / 40]).unwrap();
        let run = dir.path().join("run");
        let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(["import", part.to_str().unwrap(), "-o", run.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0..=2)) && !said.contains("panicked"), "{step}: {said}");
    }
}

kprism_test::main!();
