// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's sqlite, fio and redis in the guest (`docs/workloads`): the calls that a recording has are those that the
//! program counts by itself. One of them a day.

mod guest;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use guest::{alone, json, kprism, ok, text};
use kprism_test::{APT, QEMU, needs, skip, test, turn};

/// An empty ext4, and the command that mounts it.
fn disk(dir: &Path) -> String {
    let image = dir.join("disk.ext4");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", text(&image)]).output();
    if made.is_err() {
        skip("mkfs.ext4 is not installed (package e2fsprogs)");
    }
    assert!(made.unwrap().status.success());
    text(&image).to_owned()
}

const MOUNT: &str = "mkdir -p /mnt && busybox mount -t ext4 /dev/disk0 /mnt";

/// Records a command with Debian's packages; its output.
fn record(run: &Path, packages: &[&str], options: &[&str], command: &[&str]) -> String {
    let mut line = vec!["lab", "run", "-q", "-o", text(run)];
    line.extend(packages.iter().flat_map(|package| ["--package", package]));
    line.extend(options);
    line.push("--");
    line.extend(command);
    let output = kprism(&line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains("apt cannot provide") {
        skip("Debian's packages for the guest cannot be had: apt-get update, with a network once");
    }
    assert!(output.status.success(), "{said}");
    let info = json(&["info", "--json", "-i", text(run)]);
    assert_eq!((&info["decode_errors"], &info["lost_bytes"]), (&0.into(), &0.into()), "{info}");
    ok(&["info", "--strict", "-q", "-i", text(run)]);
    String::from_utf8(output.stdout).unwrap()
}

/// Rows of a table: the numbers of `column` by the name in `key`.
fn numbers(run: &Path, table: &[&str], key: &str, column: &str) -> BTreeMap<String, u64> {
    let line = [&["report"], table, &["--json", "--limit", "0", "-q", "-i", text(run)]].concat();
    let report = json(&line);
    let mut found = BTreeMap::new();
    for row in report["rows"].as_array().unwrap() {
        *found.entry(row[key].as_str().unwrap().to_owned()).or_default() += row[column].as_u64().unwrap();
    }
    found
}

#[test]
fn sqlite_syncs_four_times_a_transaction() {
    needs(&[QEMU, APT]);
    turn(3, 0);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let disk = disk(dir.path());
    let inserts = "INSERT INTO t VALUES(1);".repeat(20);
    // The file's header has the number of transactions that changed it: 4 bytes, big-endian, at 24.
    let script =
        format!("sqlite3 /mnt/a.db 'CREATE TABLE t(n);{inserts}' && od -A n -t u1 -j 24 -N 4 /mnt/a.db");
    let said = record(&run, &["sqlite3"], &["--disk", &disk, "--before", MOUNT], &["sh", "-c", &script]);
    let transactions =
        said.split_whitespace().fold(0, |number, byte| number * 256 + byte.parse::<u64>().unwrap());
    assert_eq!(transactions, 21, "{said}");
    let calls = numbers(&run, &["syscalls", "--comm", "sqlite3"], "syscall", "count");
    assert_eq!((calls["fdatasync"], calls["unlink"]), (4 * transactions, transactions), "{calls:?}");
    let functions = numbers(&run, &["functions", "--comm", "sqlite3"], "function", "calls");
    assert_eq!(functions["__x64_sys_fdatasync"], calls["fdatasync"]);
    assert_eq!(functions["ext4_sync_file"], calls["fdatasync"]);
}

#[test]
fn fio_counts_its_reads_and_writes_and_reads_the_clock_in_the_vdso() {
    needs(&[QEMU, APT]);
    turn(3, 1);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let disk = disk(dir.path());
    let job = ["fio", "--name=a", "--filename=/mnt/f", "--size=1m", "--bs=4k", "--rw=randrw"];
    let more = ["--fsync=16", "--thread", "--output-format=json"];
    let said = record(&run, &["fio"], &["--disk", &disk, "--before", MOUNT], &[&job[..], &more].concat());
    let report: serde_json::Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
    let count = |kind: &str| report["jobs"][0][kind]["total_ios"].as_u64().unwrap();
    // The thread that does the load has a number of its own; the loader's calls are another's.
    let tasks = json(&["report", "tasks", "--json", "--limit", "0", "-q", "-i", text(&run)]);
    let found = tasks["rows"].as_array().unwrap().iter().any(|task| {
        let pid = task["pid"].to_string();
        let calls = numbers(&run, &["syscalls", "--task", &pid], "syscall", "count");
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        (of("pread64"), of("pwrite64"), of("fsync")) == (count("read"), count("write"), count("sync"))
    });
    assert!(found && count("read") + count("write") == 256, "{report}\n{tasks}");
    // fio compares the processor's counter with the clock; the clock's code is in no file.
    let functions = numbers(&run, &["functions", "--comm", "fio"], "function", "calls");
    assert!(functions["__vdso_clock_gettime"] > 10_000, "{:?}", functions.get("__vdso_clock_gettime"));
    assert_eq!(functions["__vdso_clock_gettime"], functions["clock_gettime"]);
}

#[test]
fn redis_executes_the_commands_that_its_client_sends() {
    needs(&[QEMU, APT]);
    turn(3, 2);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let script = "redis-server --save '' --daemonize yes --logfile /tmp/log >/dev/null
        until redis-cli ping >/dev/null 2>&1; do sleep 0.01; done
        redis-benchmark -n 200 -c 4 -t set,get --csv
        redis-cli info commandstats
        redis-cli shutdown nosave";
    let said = record(&run, &["redis-server", "redis-tools"], &[], &["sh", "-c", script]);
    let counted = |command: &str| {
        let from = said.find(&format!("cmdstat_{command}:calls=")).unwrap_or_else(|| panic!("{said}"));
        let rest = said[from..].split_once('=').unwrap().1;
        rest.split_once(',').unwrap().0.parse::<u64>().unwrap()
    };
    let functions = numbers(&run, &["functions", "--comm", "redis-server"], "function", "calls");
    for command in ["set", "get"] {
        assert_eq!(functions[&format!("{command}Command")], counted(command), "{command}");
        assert_eq!(counted(command), 200);
    }
}

kprism_test::main!();
