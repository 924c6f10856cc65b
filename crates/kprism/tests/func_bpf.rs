// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record func` by BPF, in the guest, at a module whose calls are known: how many, in which others, how long; two
//! writers on two CPUs that sleep inside calls. And at functions of the kernel itself, by the other kind of hook.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use kprism_durations::record::{CallRecord, SIZE};
use serde_json::Value;

fn kprism(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What the guest printed, by heading.
fn sections(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in text.split("== ").skip(1) {
        let (head, body) = part.split_once('\n').expect("a heading");
        found.insert(head.to_owned(), body.to_owned());
    }
    found
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Numbers {
    count: u64,
    total: u64,
    own: u64,
    min: u64,
    max: u64,
    log2: Vec<u64>,
}

/// Functions as the kernel counted them.
fn aggregate(text: &str) -> BTreeMap<String, Numbers> {
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    rows.map(|row| {
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
        let log2 = row["log2_ns"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let numbers = Numbers {
            count: number("count"),
            total: number("total_ns"),
            own: number("self_ns"),
            min: number("min_ns"),
            max: number("max_ns"),
            log2,
        };
        (row["name"].as_str().unwrap().to_owned(), numbers)
    })
    .collect()
}

fn calls(hex: &str) -> Vec<CallRecord> {
    let bytes: Vec<u8> = hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let (records, rest) = bytes.as_chunks::<SIZE>();
    assert!(rest.is_empty(), "{} bytes more than whole records", rest.len());
    records.iter().map(CallRecord::from_bytes).collect()
}

fn names(kallsyms: &str) -> BTreeMap<u64, String> {
    let words = kallsyms.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.map(|w| (u64::from_str_radix(w[0], 16).unwrap(), w[2].to_owned())).collect()
}

/// Functions as single calls add up.
fn summed(calls: &[CallRecord], names: &BTreeMap<u64, String>) -> BTreeMap<String, Numbers> {
    let mut found: BTreeMap<String, Numbers> = BTreeMap::new();
    for call in calls {
        let name = names.get(&call.func).unwrap_or_else(|| panic!("no function at {:#x}", call.func));
        let took = call.exit_ns - call.enter_ns;
        let first = Numbers { min: u64::MAX, log2: vec![0; 64], ..Numbers::default() };
        let numbers = found.entry(name.clone()).or_insert(first);
        numbers.count += 1;
        numbers.total += took;
        numbers.own += took - call.child_ns;
        numbers.min = numbers.min.min(took);
        numbers.max = numbers.max.max(took);
        numbers.log2[took.max(1).ilog2() as usize] += 1;
    }
    found
}

/// How often one write calls each, times 6 writes.
const KNOWN: [(&str, u64); 5] = [
    ("nest_down", 6 * 50),
    ("nest_leaf", 6 * 64),
    ("nest_middle", 6 * 20),
    ("nest_outer", 6 * 10),
    ("nest_sleeper", 6 * 2),
];

fn judge(which: &str, found: &BTreeMap<String, Numbers>) {
    let counts: Vec<(&str, u64)> = found.iter().map(|(name, n)| (name.as_str(), n.count)).collect();
    assert_eq!(counts, KNOWN, "{which}");
    let [leaf, middle, outer, down, sleeper] =
        ["leaf", "middle", "outer", "down", "sleeper"].map(|name| &found[&format!("nest_{name}")]);
    // One instruction takes a nanosecond; the rest is the probe's, and now and then an interrupt or a turn of the
    // other CPU: the two take turns, by one clock, and a turn ends with the next timer, which is 4 ms at most. No
    // leaf waits for the 20 ms that its caller may sleep.
    assert!((2000..4000).contains(&leaf.min), "{which}: {leaf:?}");
    assert!(leaf.log2[11] * 10 >= leaf.count * 9, "{which}: {leaf:?}");
    assert!(leaf.max < 15_000_000, "{which}: {leaf:?}");
    assert_eq!(leaf.own, leaf.total, "{which}");
    // A call's time without its own is that of the calls from it, to the nanosecond.
    assert_eq!(outer.total - outer.own, middle.total, "{which}");
    assert_eq!((middle.total - middle.own) + (sleeper.total - sleeper.own), leaf.total, "{which}");
    assert!(middle.own / middle.count >= 1000, "{which}: {middle:?}");
    // Ten calls inside each other, each with 200 instructions of its own: what is their own is counted once.
    assert!(down.own >= 300 * 200 && down.total > 2 * down.own, "{which}: {down:?}");
    assert!((200..2000).contains(&down.min), "{which}: {down:?}");
    // Two sleeps of five ticks each, of 4 ms; the first tick may be due already, and come late in the other CPU's turn.
    // Their time is the sleeper's own.
    assert!(sleeper.min >= 16_000_000 && sleeper.own >= 12 * 16_000_000, "{which}: {sleeper:?}");
    for numbers in found.values() {
        assert_eq!(numbers.log2.iter().sum::<u64>(), numbers.count, "{which}");
        assert!(numbers.log2[numbers.min.ilog2() as usize] > 0, "{which}: {numbers:?}");
        assert!(numbers.log2[numbers.max.ilog2() as usize] > 0, "{which}: {numbers:?}");
    }
}

/// Nothing was lost or missed.
fn complete(which: &str, manifest: &str) {
    let manifest: Value = serde_json::from_str(manifest).expect("a manifest");
    assert_eq!(manifest["exit_code"], 0, "{which}: {manifest:#}");
    assert_eq!(manifest["stopped"], Value::Null, "{which}");
    for (kind, count) in manifest["losses"].as_object().expect("losses") {
        assert_eq!(count, 0, "{which}: {kind}");
    }
}

#[test]
fn known_calls_are_measured_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let release = kprism(&["lab", "run", "-q", "--unobserved", "-o", &path("release"), "--", "uname", "-r"]);
    let release = String::from_utf8(release.stdout).unwrap();
    let built = Command::new("sh")
        .arg(here.join("../../../scripts/build-module.sh"))
        .args([release.trim(), dir.path().to_str().unwrap()])
        .arg(here.join("func_bpf/nesting.c"))
        .status()
        .expect("sh runs");
    assert!(built.success(), "nesting.ko could not be built for {release}");
    let share = dir.path().join("share");
    std::fs::create_dir(&share).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_kprism"), share.join("kprism")).unwrap();
    std::fs::copy(here.join("func_bpf/guest.sh"), share.join("guest.sh")).unwrap();
    let output = kprism(&[
        "lab",
        "run",
        "-q",
        "--unobserved",
        "--smp",
        "2",
        "-o",
        &path("run"),
        "--module",
        &path("nesting.ko"),
        "--share",
        &format!("{}:/test", share.display()),
        "--",
        "sh",
        "/test/guest.sh",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    let found = sections(&text);
    let section = |name: &str| found.get(name).unwrap_or_else(|| panic!("no {name} in {text}"));

    for run in ["session", "calls", "long", "fentry", "fentry-calls"] {
        complete(run, section(&format!("{run} manifest")));
    }
    let counted = aggregate(section("session functions.jsonl"));
    judge("aggregate", &counted);
    let single = calls(section("calls calls.bin"));
    let added = summed(&single, &names(section("calls kallsyms")));
    judge("calls", &added);
    // The command twice, counted in the kernel or added up here: the same but for what the recording itself costs.
    for (name, counted) in &counted {
        let (least, added) = (counted.min, &added[name]);
        assert!(least.abs_diff(added.min) < 2000 + least / 10, "{name}: {counted:?} {added:?}");
    }
    // Calls of a recursion lie inside each other.
    let known = names(section("calls kallsyms"));
    let depth =
        |name: &str| single.iter().filter(|call| known[&call.func] == name).map(|call| call.depth).max();
    assert_eq!((depth("nest_outer"), depth("nest_middle"), depth("nest_leaf")), (Some(0), Some(1), Some(2)));
    assert_eq!(depth("nest_down"), Some(9));
    // One record for each call that is kept, none for the others.
    let long = summed(&calls(section("long calls.bin")), &names(section("long kallsyms")));
    assert_eq!(long.keys().collect::<Vec<_>>(), ["nest_sleeper"]);
    assert_eq!(long["nest_sleeper"].count, 12);

    let counted = aggregate(section("fentry functions.jsonl"));
    let added = summed(&calls(section("fentry-calls calls.bin")), &names(section("fentry-calls kallsyms")));
    for (which, found) in [("aggregate", &counted), ("calls", &added)] {
        let (outer, inner) = (&found["ksys_write"], &found["vfs_write"]);
        assert!(inner.count == 500 && outer.count == 500, "{which}: {found:?}");
        assert_eq!(outer.total - outer.own, inner.total, "{which}: {found:?}");
    }
    assert_eq!(counted["vfs_write"].count, added["vfs_write"].count);

    assert!(section("during enabled").matches("vfs_write ").count() >= 2, "{}", section("during enabled"));
    assert_eq!(section("before enabled"), section("after enabled"));
}
