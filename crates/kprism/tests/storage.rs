// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--storage`: the command's files are on a device whose requests take time. The guest's kernel counts the requests, and its flow
//! has the waits.

mod guest;

use std::fs;
use std::path::Path;

use guest::{alone, json, kprism, number, ok, script, text};
use kprism_test::{APT, QEMU, needs, test};
use serde_json::Value;

/// Blocks that are written again, each with a sync of its data alone: one request each.
const AGAIN: u64 = 16;

fn record(run: &Path, storage: &str, command: &str) -> String {
    let lab = ["lab", "run", "-q", "--storage", storage, "-o", text(run), "--", "sh", "-c", command];
    String::from_utf8(ok(&lab)).unwrap()
}

/// Requests to write that the kernel counts for the device (Documentation/admin-guide/iostats.rst, field 5).
fn writes(diskstats: &str) -> u64 {
    let line = diskstats.lines().find(|line| line.split_whitespace().nth(2) == Some("storage"));
    let line = line.unwrap_or_else(|| panic!("no device in {diskstats}"));
    line.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn a_sync_waits_for_the_device() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let command = format!(
        "stat -f -c %T . /tmp /var/tmp /etc; dd if=/dev/zero of=f bs=4k count={AGAIN} conv=fsync 2> /dev/null; sync; \
         cat /proc/diskstats; echo AGAIN; dd if=/dev/zero of=f bs=4k count={AGAIN} oflag=dsync conv=notrunc 2> /dev/null; \
         cat /proc/diskstats"
    );
    let said = record(&run, "1ms", &command);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..3], ["ext2/ext3"; 3], "{said}");
    assert_ne!(lines[3], "ext2/ext3", "{said}");
    let (before, after) = said.split_once("AGAIN\n").unwrap();
    let requests = writes(after) - writes(before);
    // A sync of a file's first change of its times writes the journal, too.
    assert!((AGAIN..AGAIN + 4).contains(&requests), "{requests}: {said}");

    // The time off the CPU is that of a request, and the way to the device and back.
    let calls = script(&run, &["syscalls"]);
    let waits: Vec<u64> = (calls.iter())
        .filter(|call| call["comm"] == "dd" && call["syscall"] == "write")
        .map(|call| number(call, "wall_ns") - number(call, "on_cpu_ns"))
        .filter(|&ns| ns > 500_000)
        .collect();
    let one = waits.iter().filter(|ns| (1_000_000..1_100_000).contains(*ns)).count() as u64;
    assert!(waits.len() as u64 == AGAIN && one >= AGAIN - 1, "{waits:?}");

    let report = json(&["report", "syscalls", "--json", "-i", text(&run)]);
    let told = report["run"]["guest"].as_array().expect("conditions of a guest");
    let storage = told.iter().find(|one| one["what"] == "storage_with_time").expect("syncs were made");
    assert_eq!(
        (number(&storage["numbers"], "request_ns"), number(&storage["numbers"], "fsync")),
        (1_000_000, 1)
    );
    assert!(told.iter().all(|one| one["what"] != "files_in_memory"), "{told:?}");
    let info = String::from_utf8(ok(&["info", "-i", text(&run)])).unwrap();
    assert!(info.contains("storage       a device whose requests take 1.000 ms"), "{info}");
}

#[test]
fn a_device_is_the_same_each_time_and_a_part_of_the_environment() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let [first, second, memory] = ["first", "second", "memory"].map(|name| dir.path().join(name));
    let command = "for n in 1 2 3; do echo $n > /tmp/$n; sync; done; cat /tmp/?";
    let said = record(&first, "nvme", command);
    assert_eq!((said.as_str(), record(&second, "nvme", command).as_str()), ("1\n2\n3\n", "1\n2\n3\n"));
    assert_eq!(record(&memory, "memory", command), said);
    let stream = |run: &Path| fs::read(run.join("streams/cpu0.pt")).unwrap();
    assert!(stream(&first) == stream(&second), "not the same");
    let manifest = |run: &Path| json(&["info", "--json", "-i", text(run)]);
    let (timed, plain) = (manifest(&first), manifest(&memory));
    assert_eq!(timed["options"]["storage"]["name"], "nvme");
    assert_eq!(plain["options"]["storage"], Value::Null);
    assert!(timed["environment"]["parts"].to_string().contains("option --storage"));
    // Each sync is that of a file that grew: data, journal and commit are requests one after the other.
    let syncs = |run: &Path| {
        let calls = script(run, &["syscalls"]);
        let syncs = calls.iter().filter(|call| call["syscall"] == "sync");
        syncs.map(|call| number(call, "wall_ns")).collect::<Vec<u64>>()
    };
    let (timed, plain) = (syncs(&first), syncs(&memory));
    assert_eq!((timed.len(), plain.len()), (3, 3));
    assert!(
        timed.iter().all(|&ns| ns > 3 * 20_000) && plain.iter().all(|&ns| ns < 20_000),
        "{timed:?} {plain:?}"
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |arguments: &[&str]| {
        let output = kprism(&[&["lab", "run"], arguments, &["--", "true"]].concat());
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for odd in ["floppy", "0", "20s", "10ns"] {
        let said = refused(&["--storage", odd]);
        assert!(said.contains("--storage"), "{said}");
    }
    let dir = tempfile::tempdir().unwrap();
    let said = refused(&["--storage", "nvme", "--root", text(dir.path())]);
    assert!(said.contains("leave out --storage"), "{said}");
}

kprism_test::main!();
