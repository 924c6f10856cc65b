// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared by the tests of ARM: the kernel's own text of a trace, and its log, as judges of a run.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::guest::{json, ok, text};

/// Calls and nanoseconds of each function of a run, and the report.
pub fn measured(run: &Path) -> (BTreeMap<String, (u64, u64)>, Value) {
    let report = json(&["report", "durations", "-q", "--json", "--limit", "0", "-i", text(run)]);
    let rows = report["rows"].as_array().expect("rows").iter().map(|row| {
        let number = |name: &str| row[name].as_u64().expect("a number");
        // On s390x both are names of one address.
        let function = row["function"].as_str().expect("a name").replace("__s390x_sys_", "__se_sys_");
        (function, (number("count"), number("total_ns")))
    });
    (rows.collect(), report)
}

/// A run tells the same calls of the same functions, as long, as a text. Returns their number, and the run's report.
pub fn same_as_text(run: &Path, judge: &Path) -> (u64, Value) {
    let judged = judge.with_extension("judged");
    ok(&["import", "-q", text(judge), "-o", text(&judged)]);
    let ((ours, report), (theirs, _)) = (measured(run), measured(&judged));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (function, (calls, ns)) in &ours {
        let (judged, about) = theirs[function];
        // The text has seven digits of a duration in microseconds.
        assert!(
            *calls == judged && ns.abs_diff(about) <= calls * 1000,
            "{function}: {calls}, {ns} ns; {judged}, {about} ns"
        );
        assert!(!function.starts_with("0x"), "{function} has no name");
    }
    (ours.values().map(|(calls, _)| calls).sum(), report)
}

/// All events that the kernel's counts say were read are accounted for. `stats`: the folder with a file for each CPU.
pub fn accounts_for_all(report: &Value, stats: &Path) {
    let seen = &report["run"]["account"][0];
    let stats: u64 = fs::read_dir(stats)
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .map(|stats| {
            stats.lines().find_map(|l| l.strip_prefix("read events: ")?.parse::<u64>().ok()).unwrap()
        })
        .sum();
    assert_eq!((&seen["unit"], seen["count"].as_u64()), (&"events".into(), Some(stats)));
}

/// The initcalls of a run of a boot are those in the kernel's log, and its page has them. Returns the report.
pub fn same_as_log(run: &Path, log: &Path) -> Value {
    let report = json(&["report", "boot", "-q", "--json", "--limit", "0", "-i", text(run)]);
    let initcalls = report["initcalls"].as_array().expect("initcalls");
    let log = fs::read_to_string(log).unwrap();
    let named = |line: &str| Some(line.split_once("] calling  ")?.1.split(['+', ' ']).next()?.to_owned());
    let mut expected: Vec<String> = log.lines().filter_map(named).collect();
    let mut found: Vec<String> =
        initcalls.iter().map(|call| call["name"].as_str().unwrap().to_owned()).collect();
    expected.sort();
    found.sort();
    assert!(expected.len() > 400, "{}", expected.len());
    assert_eq!(found, expected);
    let chart = run.with_extension("html");
    ok(&["report", "boot", "-q", "-i", text(run), "--html", text(&chart)]);
    assert!(fs::read_to_string(chart).unwrap().contains(&expected[0]));
    report
}
