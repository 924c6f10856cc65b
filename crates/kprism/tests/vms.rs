// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report vms`, on a stream of known entries, exits and times, imported without code.

use std::path::Path;
use std::process::{Command, Output};

use kprism_pt::Packet;
use serde_json::Value;

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Rounds of a host that enters one virtual CPU for `inside` ticks, whose clock is far behind, and is back for 50.
fn stream(rounds: u64, inside: u64) -> Vec<u8> {
    let pip = |cr3: u64, non_root: bool| Packet::Pip { cr3, non_root };
    let tsc = |tsc: u64| Packet::Tsc { tsc };
    let mut all = vec![Packet::Psb, pip(0x1000, false), Packet::Vmcs { base: 0xa000 }, Packet::PsbEnd];
    let mut now = 1_000_000;
    for _ in 0..rounds {
        all.extend([tsc(now), pip(0x5000, true), tsc(now - 900_000), tsc(now - 900_000 + inside)]);
        all.extend([pip(0x1000, false), tsc(now + inside + 10)]);
        now += inside + 60;
    }
    let mut bytes = Vec::new();
    all.iter().for_each(|packet| packet.encode(&mut bytes));
    bytes
}

fn rows(run: &str, more: &[&str]) -> Value {
    let output = kprism(&[&["report", "vms", "--json", "--limit", "0", "-i", run], more].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn time_and_changes_are_those_of_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, run) = (path("x.pt"), path("run"));
    std::fs::write(&file, stream(7, 300)).unwrap();
    // Without code nothing can be decoded, and that is said.
    let output = kprism(&["import", &file, "-o", &run]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("--no-decode") && !Path::new(&run).exists(), "{}", said(&output));
    let output = kprism(&["import", &file, "-o", &run, "--no-decode"]);
    assert!(output.status.success(), "{}", said(&output));

    let found = rows(&run, &[]);
    let row = |place: &str| {
        let row = found["rows"].as_array().unwrap().iter().find(|row| row["place"] == place).unwrap();
        ["entries", "exits", "least_ticks", "most_ticks"].map(|key| row[key].as_u64().unwrap())
    };
    // Between two times of the host lie 310 ticks with the guest in them, or 50 of its own.
    assert_eq!(row("guest"), [7, 7, 7 * 300, 7 * 310]);
    assert_eq!(row("host"), [7, 7, 6 * 50, 6 * 50 + 7 * 10]);
    let cpu = &found["cpus"][0];
    assert_eq!((&cpu["observed"], &cpu["unknown"]), (&Value::from(7 * 310 + 6 * 50), &Value::from(0)));
    assert_eq!(cpu["unit"], "TSC ticks");

    let each = rows(&run, &["--each"]);
    let each = each["rows"].as_array().unwrap();
    let words: Vec<&str> = each.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(words, ["entry", "exit"].repeat(7));
    assert!(each.iter().all(|row| row["vmcs"] == 0xa000 && row["before_ticks"].is_u64()));
}

#[test]
fn damage_is_counted_and_other_runs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, run) = (path("x.pt"), path("run"));
    let mut bytes = stream(3, 300);
    bytes.extend([0x55; 9]);
    bytes.extend(stream(2, 100));
    std::fs::write(&file, &bytes).unwrap();
    assert!(kprism(&["import", &file, "-o", &run, "--no-decode"]).status.success());
    let found = rows(&run, &[]);
    assert!(found["cpus"][0]["skipped_bytes"].as_u64().unwrap() >= 9, "{found:#}");
    let output = kprism(&["report", "vms", "-i", &path("nothing")]);
    assert_eq!(output.status.code(), Some(2));
    // A host without virtual machines says so.
    let mut bytes = Vec::new();
    let alone = [Packet::Psb, Packet::Pip { cr3: 0x1000, non_root: false }, Packet::PsbEnd];
    alone.iter().for_each(|packet| packet.encode(&mut bytes));
    std::fs::write(&file, &bytes).unwrap();
    assert!(kprism(&["import", &file, "-o", &run, "--no-decode"]).status.success());
    let output = kprism(&["report", "vms", "-i", &run]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("no packet tells of a virtual machine"));
}
