// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record durations` by BPF, in the guest, at a module whose calls are known: how many, in which others, how long; two
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
    off: u64,
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
            off: number("off_ns"),
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
        numbers.own += took - call.child_ns - call.off_ns;
        numbers.off += call.off_ns;
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
    let on = |numbers: &Numbers| numbers.total - numbers.off;
    assert_eq!(leaf.own, on(leaf), "{which}");
    // A call's time on a CPU without its own is that of the calls from it, to the nanosecond.
    assert_eq!(on(outer) - outer.own, on(middle), "{which}");
    assert_eq!((on(middle) - middle.own) + (on(sleeper) - sleeper.own), on(leaf), "{which}");
    // Waiting counts for who called, too.
    assert!(outer.off >= middle.off && sleeper.off <= sleeper.total, "{which}: {outer:?} {middle:?}");
    assert!(middle.own / middle.count >= 1000, "{which}: {middle:?}");
    // Ten calls inside each other, each with 200 instructions of its own: what is their own is counted once.
    assert!(down.own >= 300 * 200 && down.total > 2 * down.own, "{which}: {down:?}");
    assert!((200..2000).contains(&down.min), "{which}: {down:?}");
    // Two sleeps of five ticks each, of 4 ms; the first tick may be due already, and come late in the other CPU's turn.
    // That is time off the CPU, and not the sleeper's own.
    assert!(sleeper.min >= 16_000_000 && sleeper.off >= 12 * 15_900_000, "{which}: {sleeper:?}");
    assert!(sleeper.own < 12 * 100_000, "{which}: {sleeper:?}");
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
    // The command twice, counted in the kernel or added up here: the same but for what the recording itself costs. A sleep ends at
    // a tick, so that its length depends on when it began.
    for (name, counted) in counted.iter().filter(|(name, _)| *name != "nest_sleeper") {
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
        assert_eq!(outer.total - outer.off - outer.own, inner.total - inner.off, "{which}: {found:?}");
    }
    assert_eq!(counted["vfs_write"].count, added["vfs_write"].count);

    assert!(section("during enabled").matches("vfs_write ").count() >= 2, "{}", section("during enabled"));
    assert_eq!(section("before enabled"), section("after enabled"));
}

/// Two hogs share a CPU: what one does while the other waits for its turn is no time of the other's. The same command
/// in a guest that is watched from outside says how long the function is on the CPU.
#[test]
fn another_tasks_turn_is_off_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let hog = "dd if=/dev/zero of=/dev/null bs=16M count=3 status=none";
    let both = format!("{hog} & {hog} & wait");
    let rows = |run: &str| -> Value {
        let output = kprism(&["report", "func", "-i", run, "--json", "--limit", "0", "--comm", "*"]);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let row = |run: &str| -> Value {
        let rows = rows(run);
        let named = |row: &&Value| row["function"] == "vfs_read";
        rows["rows"].as_array().unwrap().iter().find(named).unwrap_or_else(|| panic!("{rows}")).clone()
    };
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
    kprism(&["lab", "run", "-q", "-o", &path("flow"), "--", "sh", "-c", &both]);
    let flow = row(&path("flow"));
    let on_cpu =
        |row: &Value| number(row, "total_ns") - number(row, "off_cpu_ns") - number(row, "interrupts_ns");
    let truth = on_cpu(&flow);
    assert!(number(&flow, "off_cpu_ns") * 4 > number(&flow, "total_ns"), "no turns were taken: {flow}");
    for way in [&["--aggregate"][..], &[]] {
        let name = if way.is_empty() { "calls" } else { "sums" };
        let run = path(name);
        let mut args = vec!["record", "func", "-q", "--guest", "--backend", "bpf-fentry", "--no-events"];
        args.extend(["-T", "vfs_read", "-o", &run]);
        args.extend(way);
        args.extend(["--", "sh", "-c", &both]);
        kprism(&args);
        let found = row(&run);
        assert!(number(&found, "count") >= 6, "{found}");
        assert_eq!(
            number(&found, "self_ns") + number(&found, "off_cpu_ns"),
            number(&found, "total_ns"),
            "{found}"
        );
        // Nothing but `vfs_read` is hooked: interrupts are in its own time, some thousand instructions each 4 ms.
        let own = number(&found, "self_ns");
        assert!(
            own.abs_diff(truth) * 20 < truth,
            "{name}: {own} ns on the CPU, {truth} by the flow: {found}"
        );
        assert!(number(&found, "off_cpu_ns") * 4 > number(&found, "total_ns"), "{name}: {found}");
    }
}

/// At some functions the kernel refuses BPF programs: those that never return (since 6.15), those that serve programs. The
/// others are measured all the same.
#[test]
fn a_function_that_the_kernel_refuses_is_left_out_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let record = |functions: &[&str]| {
        let args = ["record", "func", "--guest", "--backend", "bpf-fentry", "--aggregate", "--no-events"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(args).arg("-o").arg(&run).args(functions).args(["--", "true"]);
        let output = command.output().expect("kprism runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = record(&["-T", "migrate_disable"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("migrate_disable: the kernel refuses BPF programs there"), "{said}");
    let (code, said) = record(&["-T", "migrate_disable", "-T", "vfs_read"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("1 function left out, because the kernel refuses BPF programs there: migrate_disable"),
        "{said}"
    );
    let functions = std::fs::read_to_string(run.join("streams/bpf/functions.jsonl")).unwrap();
    let found = aggregate(&functions);
    assert!(found.keys().eq(["vfs_read"]) && found["vfs_read"].count > 0, "{functions}");
    let manifest: Value = serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["options"]["left_out"][0]["name"], "migrate_disable", "{manifest:#}");
    // Among those of a glob, some never return.
    let (code, said) = record(&["-T", "__x64_sys_e*"]);
    assert_eq!(code, Some(0), "{said}");
    for part in ["2 functions left out", "__x64_sys_exit, __x64_sys_exit_group", "noreturn"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let functions = std::fs::read_to_string(run.join("streams/bpf/functions.jsonl")).unwrap();
    assert!(aggregate(&functions)["__x64_sys_execve"].count > 0, "{functions}");
}
