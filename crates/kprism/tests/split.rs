// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the time of calls goes that are known to compute, recurse, sleep and be interrupted, in a module in the
//! guest: told by ftrace, by BPF, and from the flow.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

mod guest;
use guest::{json, kprism, ok, text};

/// Writes, each of which makes all calls.
const TURNS: u64 = 5;
const MS: u64 = 1_000_000;

/// A row of the report, in ns.
#[derive(Debug, Clone, Copy)]
struct Row {
    count: u64,
    total: u64,
    own: u64,
    sum: u64,
    off: u64,
    irq: u64,
}

fn rows(report: &Value) -> BTreeMap<String, Row> {
    let all = report["rows"].as_array().unwrap_or_else(|| panic!("rows: {report}"));
    let row = |row: &Value| {
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
        let numbers = Row {
            count: number("count"),
            total: number("total_ns"),
            own: number("self_ns"),
            sum: number("sum_ns"),
            off: number("off_cpu_ns"),
            irq: number("interrupts_ns"),
        };
        (row["function"].as_str().expect("a name").to_owned(), numbers)
    };
    all.iter().map(row).collect()
}

/// `parts`: time off the CPU and in interrupts is told apart for each function.
fn judge(which: &str, found: &BTreeMap<String, Row>, parts: bool) {
    let row = |name: &str| {
        *found
            .get(&format!("split_{name}"))
            .unwrap_or_else(|| panic!("{which}: no split_{name} in {found:#?}"))
    };
    let [outer, own, down, sleeper, interrupted] =
        ["outer", "own", "down", "sleeper", "interrupted"].map(row);
    // In the lab an instruction takes a nanosecond.
    let near = |what: &str, ns: u64, expected: u64, slack: u64| {
        let limits = TURNS * expected..TURNS * (expected + slack);
        assert!(limits.contains(&ns), "{which}: {what}: {ns} ns, not in {limits:?}: {found:#?}");
    };
    assert_eq!(
        [outer, own, down, sleeper, interrupted].map(|row| row.count),
        [TURNS, TURNS, 5 * TURNS, TURNS, TURNS],
        "{which}"
    );
    near("self of split_own", own.own, MS, MS / 10);
    // Five calls inside each other: their own time adds up once.
    near("self of split_down", down.own, MS / 2, MS / 10);
    near("sum of split_down", down.sum, 3 * MS / 2, MS / 5);
    near("self of split_sleeper", sleeper.own, MS / 10, MS / 10);
    near("self of split_interrupted", interrupted.own, 10 * MS, MS / 5);
    assert!(outer.own < TURNS * MS / 10, "{which}: {outer:?}");
    if !parts {
        return;
    }
    near("total of split_down", down.total, MS / 2, MS / 5);
    near("off CPU of split_sleeper", sleeper.off, 20 * MS, 20 * MS);
    near("interrupts of split_interrupted", interrupted.irq, 2 * MS, MS / 2);
    assert_eq!((own.off, down.off, interrupted.off), (0, 0, 0), "{which}");
    // What is in the calls is in their caller.
    assert!(outer.off >= sleeper.off && outer.irq >= interrupted.irq, "{which}: {outer:?}");
    let inner = own.own + down.own + sleeper.own + interrupted.own;
    let all = outer.own + inner + outer.off + outer.irq;
    assert!(outer.total.abs_diff(all) <= outer.total / 100, "{which}: {} and {all} ns", outer.total);
}

#[test]
fn time_is_told_apart() {
    let _alone = guest::alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let release = ok(&["lab", "run", "-q", "--unobserved", "-o", &path("release"), "--", "uname", "-r"]);
    let release = String::from_utf8(release).unwrap();
    let built = Command::new("sh")
        .arg(here.join("../../../scripts/build-module.sh"))
        .args([release.trim(), text(dir.path())])
        .arg(here.join("split/splitting.c"))
        .status()
        .expect("sh runs");
    assert!(built.success(), "splitting.ko could not be built for {release}");

    let share = dir.path().join("share");
    std::fs::create_dir(&share).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_kprism"), share.join("kprism")).unwrap();
    std::fs::copy(here.join("split/guest.sh"), share.join("guest.sh")).unwrap();
    let module = path("splitting.ko");
    let shared = format!("{}:/test", text(&share));
    let recorded = kprism(&[
        "lab",
        "run",
        "-q",
        "--unobserved",
        "-o",
        &path("run"),
        "--module",
        &module,
        "--share",
        &shared,
        "--",
        "sh",
        "/test/guest.sh",
    ]);
    let printed = String::from_utf8_lossy(&recorded.stdout);
    let said = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{printed}{said}");
    let mut runs = BTreeMap::new();
    for part in printed.split("== ").skip(1) {
        let (name, report) = part.split_once('\n').expect("a heading");
        runs.insert(name, rows(&serde_json::from_str(report).expect("JSON")));
    }
    judge("ftrace", &runs["ftrace"], true);
    judge("kprobe", &runs["kprobe"], true);
    judge("aggregate", &runs["aggregate"], false);
    let long = &runs["ftrace-long"];
    let sleeper = long["split_sleeper"];
    assert_eq!(long.keys().filter(|name| name.starts_with("split_")).count(), 3, "{long:#?}");
    assert!(sleeper.off >= TURNS * 20 * MS && sleeper.own < TURNS * MS, "{sleeper:?}");

    let flow = path("flow");
    ok(&[
        "lab",
        "run",
        "-q",
        "-o",
        &flow,
        "--module",
        &module,
        "--",
        "sh",
        "-c",
        "for i in 1 2 3 4 5; do echo > /proc/splitting; done",
    ]);
    let report = json(&["report", "func", "-q", "-i", &flow, "--limit", "0", "--json"]);
    judge("flow", &rows(&report), true);
}
