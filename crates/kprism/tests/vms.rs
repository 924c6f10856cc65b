// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report vms`, on a stream of known entries, exits and times, imported without code; and the flow of a virtual machine
//! of KVM in the guest.

mod guest;

use std::path::Path;
use std::process::{Command, Output};

use guest::{alone, json, kprism, number, ok, script, text};
use kprism_pt::Packet;
use kprism_test::{APT, GCC, QEMU, needs, test};
use serde_json::Value;

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

/// Instructions of the virtual machine in `vms/kvm.c`: two, in each of three rounds the count and 1000 times an addition and its
/// loop, the port, the decrement and its jump; and the halt.
const OF_THE_MACHINE: u64 = 2 + 3 * (1 + 2 * 1000 + 1 + 2) + 1;

#[test]
fn a_virtual_machine_in_the_guest_is_in_the_flow() {
    needs(&[QEMU, APT, GCC]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (dir.path().join("kvm"), dir.path().join("run"));
    let built =
        Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&program).arg("tests/vms/kvm.c").status();
    assert!(built.unwrap().success());
    let share = format!("{}:/k", text(dir.path()));
    let machine = ["--cpu-features", "+svm", "--module", "kvm-amd", "--share", &share];
    let said = ok(&[&["lab", "run", "-q", "-o", text(&run)][..], &machine, &["--", "/k/kvm"]].concat());
    assert_eq!(String::from_utf8_lossy(&said), "halted after 3 writes, exit 5\n");

    // Each exit is told as a guess; what ran since the last branch before it is lost, and counted.
    let info = json(&["info", "--json", "-i", text(&run)]);
    let told = |fate: &str, unit: &str| {
        let mut all = info["accounts"]["flow"].as_array().unwrap().iter();
        let of = |one: &&Value| one["fate"] == fate && one["unit"].as_str().unwrap().starts_with(unit);
        number(all.find(of).unwrap(), "count")
    };
    let (lost, exits) = (told("lost", "instructions"), told("guessed", "branches"));
    assert_eq!(exits, 4, "three writes and the halt");
    let insns = script(&run, &["insns", "--comm", "kvm"]);
    let inside = |line: &&Value| (0x1000..0x1012).contains(&address(&line["ip"]));
    let listed = insns.iter().filter(inside).count() as u64;
    assert_eq!(listed + lost, OF_THE_MACHINE);
    assert!(lost <= 3 * exits, "{lost}");
    // Every entry is a branch from the host's instruction.
    let branches = script(&run, &["branches", "--comm", "kvm"]);
    let entry = |line: &&Value| line["kind"] == "vmentry" && inside(&&line["to"]);
    let entries: Vec<&Value> = branches.iter().filter(entry).collect();
    assert_eq!(entries.len() as u64, exits);
    assert!(entries.iter().all(|line| line["from"]["symbol"] == "__svm_vcpu_run"), "{entries:#?}");
}

/// An address in JSON.
fn address(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

kprism_test::main!();
