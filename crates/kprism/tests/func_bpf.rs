// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record durations` by BPF, in the guest, at a module whose calls are known: how many, in which others, how long; two
//! writers on two CPUs that sleep inside calls. And at functions of the kernel itself, by the other kind of hook.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use kprism_durations::record::{CallRecord, SIZE};
use kprism_test::{test, turn};
use serde_json::Value;

fn kprism(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What the guest printed, by heading.
fn sections(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    // A condition in a manifest has `==` too.
    for part in format!("\n{text}").split("\n== ").skip(1) {
        // An empty file has no line.
        let (head, body) = part.split_once('\n').unwrap_or((part.trim_end(), ""));
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
    turn(2, 0);
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

    conditions(&found);

    assert!(section("during enabled").matches("vfs_write ").count() >= 2, "{}", section("during enabled"));
    assert_eq!(section("before enabled"), section("after enabled"));
}

/// Of known calls, those for which a condition holds: kept or counted, by each way to hook, and by a probe at the same
/// place. The others are counted, and their callers' times are as they were.
fn conditions(found: &BTreeMap<String, String>) {
    let section = |name: &str| found.get(name).unwrap_or_else(|| panic!("no {name}"));
    let options = |run: &str| -> Value {
        let manifest = section(&format!("{run} manifest"));
        complete(run, manifest);
        serde_json::from_str::<Value>(manifest).expect("a manifest")["options"].clone()
    };
    let kept = |run: &str| {
        summed(&calls(section(&format!("{run} calls.bin"))), &names(section(&format!("{run} kallsyms"))))
    };
    // 300 calls, and the condition of none can be computed. Of one function alone the kernel follows 2 calls a CPU inside
    // each other (fprobe), and counts the others as missed.
    let unreadable: Value = serde_json::from_str(section("unreadable manifest")).expect("a manifest");
    let number = |of: &Value| of.as_u64().expect("a number");
    let filtered = number(&unreadable["options"]["filtered"]);
    assert_eq!(number(&unreadable["options"]["condition_errors"]["bad read"]), filtered);
    assert_eq!(filtered + number(&unreadable["losses"]["missed"]), 300);
    assert!(section("unreadable calls.bin").trim().is_empty());

    // A probe at the same places, with the same condition and command.
    let probed: Value = serde_json::from_str(section("probed report")).expect("JSON");
    let passed = |number: usize| probed["counts"][number]["passed"].as_u64().expect("a count");
    let everything = kept("all");
    let total = everything.values().map(|n| n.count).sum::<u64>();
    for run in ["three", "three-kprobe"] {
        let kept = kept(run);
        assert_eq!((kept["vfs_read"].count, kept["vfs_write"].count), (passed(0), passed(1)), "{run}");
        assert_eq!((passed(0), passed(1)), (500, 500));
        // Some reads are of the program's libraries.
        assert_eq!(options(run)["filtered"], total - 1000, "{run}");
    }
    assert!(total > 1000);
    let by_result = kept("result");
    assert_eq!((by_result["vfs_write"].count, by_result["ksys_write"].count), (500, 500));
    let (outer, inner) = (&by_result["ksys_write"], &by_result["vfs_write"]);
    assert_eq!(outer.total - outer.off - outer.own, inner.total - inner.off);
    // The duration of the condition is that of the record.
    let slow = calls(section("slow calls.bin"));
    assert!(slow.iter().all(|call| call.exit_ns - call.enter_ns > 5000), "{slow:?}");
    assert_eq!(slow.len() as u64 + options("slow")["filtered"].as_u64().unwrap(), total);
}

/// A condition is refused where it has no meaning, with the remedy.
#[test]
fn a_condition_without_a_meaning_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let record = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(["record", "durations", "-o"]).arg(&run).args(args).args(["--", "true"]);
        let output = command.output().expect("kprism runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let refused: [(&[&str], &str); 5] = [
        (&["--backend", "ftrace", "-T", "vfs_read", "--if", "count"], "--if is done by BPF"),
        (&["--guest", "--if", "count"], "name them with -T"),
        (&["--guest", "-T", "vfs_read", "--if", "cuont > 3"], "did you mean `count`?"),
        (
            &["--guest", "-T", "vfs_read", "--backend", "bpf-kprobe", "--if", "$retval && count"],
            "use --backend bpf-fentry",
        ),
        (&["--guest", "-T", "vfs_read", "--if", "count >"], "expected"),
    ];
    for (args, why) in refused {
        let (code, said) = record(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    // Of several functions, those without the name are left out, and said.
    let (code, said) =
        record(&["--guest", "-T", "vfs_re*", "-T", "vfs_write", "--aggregate", "--if", "count > 0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("left out, where the condition has no meaning, such as vfs_re"), "{said}");
    let functions = std::fs::read_to_string(run.join("streams/bpf/functions.jsonl")).unwrap();
    let kept = aggregate(&functions);
    assert!(kept.contains_key("vfs_read"), "{kept:?}");
    let foreign = kept
        .keys()
        .find(|name| name.starts_with("vfs_") && !["vfs_read", "vfs_write"].contains(&name.as_str()));
    assert_eq!(foreign, None, "{kept:?}");
    // Functions were counted alone: a timeline of them would be empty.
    let timeline = dir.path().join("x.pftrace");
    let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["export", "-i", run.to_str().unwrap(), "-o", timeline.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no single calls were kept") && !timeline.exists(), "{said}");
}

/// Two hogs share a CPU: what one does while the other waits for its turn is no time of the other's. The same command
/// in a guest that is watched from outside says how long the function is on the CPU.
#[test]
fn another_tasks_turn_is_off_the_cpu() {
    turn(2, 1);
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

/// A call that a condition leaves out is no time of its caller's own: what the caller has beside its own is that of the same
/// calls, recorded without a condition.
#[test]
fn a_call_left_out_is_not_its_callers_own_time() {
    turn(2, 1);
    let dir = tempfile::tempdir().unwrap();
    let recorded = |name: &str, more: &[&str]| {
        let run = dir.path().join(name).to_str().unwrap().to_owned();
        let mut args = vec!["record", "func", "-q", "--guest", "--backend", "bpf-fentry", "--no-events"];
        args.extend(["--aggregate", "-T", "ksys_write", "-T", "vfs_write", "-o", &run]);
        args.extend(more);
        args.extend(["--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1000", "count=77", "status=none"]);
        kprism(&args);
        let output = kprism(&["report", "func", "-i", &run, "--json", "--limit", "0"]);
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        rows["rows"].as_array().unwrap().clone()
    };
    let number = |rows: &[Value], name: &str, key: &str| {
        let row =
            rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        row[key].as_u64().unwrap()
    };
    let all = recorded("all", &[]);
    let inner = number(&all, "vfs_write", "total_ns");
    let (least, most) = (inner / 77, number(&all, "ksys_write", "total_ns") / 77);
    let condition = format!("$retval == 1000 && $duration > {}ns", (least + most) / 2);
    let some = recorded("some", &["--if", &condition]);
    assert_eq!(some.len(), 1, "{condition}: {some:?}");
    let [count, total, own] = ["count", "total_ns", "self_ns"].map(|key| number(&some, "ksys_write", key));
    assert_eq!(count, 77, "{some:?}");
    assert!((total - own).abs_diff(inner) * 20 < inner, "{condition}: {all:?} {some:?}");
}

/// At some functions the kernel refuses BPF programs: those that never return (since 6.15), those that serve programs. The
/// others are measured all the same.
#[test]
fn a_function_that_the_kernel_refuses_is_left_out_and_said() {
    turn(2, 1);
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

kprism_test::main!();
