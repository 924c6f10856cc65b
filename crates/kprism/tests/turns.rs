// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several CPUs that take turns: what a CPU waits for its next one is in nobody's time and in no interval.

mod guest;
mod judge;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{json, number, ok, script, text};
use kprism_test::{APT, PTORACLE, QEMU, needs, test};
use serde_json::Value;

fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/turns").join(file)
}

/// The program `threads` in a folder to share.
fn program(dir: &Path) -> PathBuf {
    let share = dir.join("share");
    fs::create_dir(&share).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-static", "-pthread", "-o"])
        .arg(share.join("threads"))
        .arg(source("threads.c"))
        .status();
    assert!(built.expect("a C compiler").success());
    share
}

/// Instructions and time on a CPU of each task that computed, ns.
fn computed(run: &Path) -> Vec<(u64, u64)> {
    let report = json(&["report", "tasks", "--comm", "threads", "--json", "-i", text(run)]);
    let rows = report["rows"].as_array().unwrap_or_else(|| panic!("{report}"));
    let of = |row: &Value| (number(row, "instructions"), number(row, "on_cpu_ns"));
    rows.iter().map(of).filter(|(instructions, _)| *instructions > 4_000_000).collect()
}

#[test]
fn a_wait_for_a_turn_is_nobodys_time() {
    needs(&[QEMU, APT, PTORACLE]);
    let dir = tempfile::tempdir().unwrap();
    let share = program(dir.path());
    let path = |name: &str| dir.path().join(name);
    for (cpus, threads) in [("2", "1"), ("2", "2"), ("4", "4")] {
        let run = path(&format!("{cpus}-{threads}"));
        let lab = ["lab", "run", "-q", "--smp", cpus, "--share", text(&share), "-o", text(&run), "--"];
        ok(&[&lab[..], &["/share/threads", threads]].concat());
        let found = computed(&run);
        assert_eq!(found.len().to_string(), threads, "{found:?}");
        for (instructions, ns) in &found {
            // In the lab an instruction takes a nanosecond. A CPU that waits for another one's answer spins, which is its own time.
            let spun = ns.checked_sub(*instructions).unwrap_or_else(|| panic!("{cpus} CPUs: {found:?}"));
            assert!(spun < instructions / 100, "{cpus} CPUs: {found:?}");
        }
        let info = json(&["info", "--json", "-i", text(&run)]);
        assert_eq!((&info["decode_errors"], &info["lost_bytes"]), (&0.into(), &0.into()), "{info}");
    }
    // The calls one by one have the times of the table.
    let run = path("2-2");
    let clones = |value: &Value, key: &str| {
        let sum = value
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["syscall"] == "futex" || row["syscall"] == "clone3");
        sum.map(|row| number(row, key)).sum::<u64>()
    };
    let table =
        json(&["report", "syscalls", "--comm", "threads", "--json", "--limit", "0", "-i", text(&run)]);
    let calls = Value::Array(script(&run, &["syscalls", "--comm", "threads"]));
    let sum = clones(&table["rows"], "on_cpu_ns");
    assert!(sum > 0, "{table}");
    assert_eq!(sum, clones(&calls, "on_cpu_ns"));
    // Other decoders follow the flow to the same instructions, and a second run is the same.
    judge::compare(&path("2-2"), &judge::oracle());
    let again = path("again");
    let lab = ["lab", "run", "-q", "--smp", "2", "--share", text(&share), "-o", text(&again), "--"];
    ok(&[&lab[..], &["/share/threads", "2"]].concat());
    for stream in ["cpu0.pt", "cpu1.pt"] {
        let read = |run: &Path| fs::read(run.join("streams").join(stream)).unwrap();
        assert!(read(&path("2-2")) == read(&again), "{stream}: two runs differ");
    }
}

#[test]
fn a_window_is_as_long_as_its_instructions() {
    needs(&[QEMU, APT]);
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let release = ok(&["lab", "run", "-q", "--unobserved", "-o", text(&run), "--", "uname", "-r"]);
    let release = String::from_utf8(release).unwrap();
    let built = Command::new("sh")
        .arg(source("../../../../scripts/build-module.sh"))
        .args([release.trim(), text(dir.path())])
        .arg(source("hold.c"))
        .status();
    assert!(built.expect("sh runs").success(), "hold.ko could not be built for {release}");
    let busy =
        "taskset 2 sh -c 'while :; do :; done' & sleep 0.01; taskset 1 sh -c 'echo > /proc/hold'; kill $!";
    let module = dir.path().join("hold.ko");
    let lab = ["lab", "run", "-q", "--smp", "2", "--module", text(&module), "-o", text(&run), "--"];
    ok(&[&lab[..], &["sh", "-c", busy]].concat());
    let report = json(&["report", "delta", "irqs", "--list", "--json", "--limit", "0", "-i", text(&run)]);
    let rows = report["rows"].as_array().unwrap_or_else(|| panic!("{report}"));
    let long: Vec<_> = rows
        .iter()
        .map(|row| (number(row, "instructions"), number(row, "ns")))
        .filter(|row| row.0 > 200_000)
        .collect();
    assert_eq!(long, [(200_001, 200_001); 10]);
}

kprism_test::main!();
