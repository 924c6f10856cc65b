// SPDX-License-Identifier: MIT OR Apache-2.0
//! All of a run as CTF, judged by babeltrace2: as many events of each name, on each CPU, at the same times and with the same sums as
//! the listing.

mod guest;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use guest::{alone, json, kprism, ok, text};
use kprism_test::{APT, BABELTRACE, QEMU, needs, test};
use serde_json::Value;

const EVENTS: &str = "sched:sched_switch,sched:sched_waking,irq:*";
/// Two CPUs; a task whose name is hostile to terminals and to metadata, one whose name is a number, and a line of the kernel's log.
const COMMAND: &str = r#"cp /bin/ls "$(printf '/tmp/a"};\033[2J')"; cp /bin/ls /tmp/42
("$(printf '/tmp/a"};\033[2J')" /bin | sort | tail -1) & /tmp/42 -l /usr/bin | sed s/a/z/g | sort -r | head -1
echo 'hello "log" \x' > /dev/kmsg; sleep 0.01; wait"#;

/// A run with events on two CPUs, recorded once for all tests.
fn run() -> &'static Path {
    static RUN: OnceLock<PathBuf> = OnceLock::new();
    RUN.get_or_init(|| {
        let _alone = alone();
        let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ctf-run");
        ok(&["lab", "run", "-q", "-o", text(&run), "--smp", "2", "-e", EVENTS, "--", "sh", "-c", COMMAND]);
        run
    })
}

/// An event as babeltrace2 prints it.
struct Read {
    ns: u64,
    name: String,
    cpu: Option<u64>,
    tid: i64,
    line: String,
}

impl Read {
    fn number(&self, field: &str) -> Option<i64> {
        let (_, rest) = self.line.rsplit_once(&format!(" {field} = "))?;
        rest.split([',', ' ']).next()?.parse().ok()
    }
}

fn read(trace: &Path) -> Vec<Read> {
    let output =
        Command::new("babeltrace2").args(["--clock-seconds", "--no-delta"]).arg(trace).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8_lossy(&output.stdout).lines().map(event).collect()
}

/// `[5.426406918] sched_waking: { cpu_id = 0 }, { tid = 135, procname = "recorder" }, { … }`
fn event(line: &str) -> Read {
    let (time, rest) =
        line.strip_prefix('[').and_then(|l| l.split_once("] ")).unwrap_or_else(|| panic!("{line}"));
    let (seconds, ns) = time.split_once('.').unwrap();
    let ns = seconds.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap();
    let (name, rest) = rest.split_once(": {").unwrap_or_else(|| panic!("{line}"));
    let after =
        |key: &str| rest.split_once(key).and_then(|(_, rest)| rest.split([' ', ',']).next()?.parse().ok());
    Read {
        ns,
        name: name.to_owned(),
        cpu: after("cpu_id = ").map(|cpu: i64| cpu as u64),
        tid: after("tid = ").unwrap_or_else(|| panic!("{line}")),
        line: line.to_owned(),
    }
}

/// The name that an object of the listing has in the trace.
fn expected(moment: &Value) -> String {
    let name = moment["name"].as_str().unwrap();
    let is_begin = moment["phase"] == "begin";
    let either = |begin: &str, end: &str| if is_begin { begin.to_owned() } else { end.to_owned() };
    match moment["kind"].as_str().unwrap() {
        "mark" if name == "fork" => "sched_process_fork".to_owned(),
        "mark" if name == "name" => "task_name".to_owned(),
        "mark" => format!("command_{name}"),
        "switch" => "flow_switch".to_owned(),
        "window" => either("flow_begin", "flow_end"),
        "irqs" => "irqs_off".to_owned(),
        "syscall" => format!("syscall_{}_{name}", either("entry", "exit")),
        "call" => either("func_entry", "func_exit"),
        "packet" => format!("intel_pt_{}", name.to_lowercase().replace(' ', "_")),
        "event" => name.split_once(':').unwrap().1.to_owned(),
        "tlb" => "tlb_misses".to_owned(),
        "console" => "printk_console".to_owned(),
        kind => panic!("{kind}"),
    }
}

const ALL: &str = "mark,switch,window,irqs,syscall,call,packet,event,lost,probe,tlb,console";

fn listed(run: &Path, more: &[&str]) -> Vec<Value> {
    let out = ok(&[&["script", "all", "-q", "--json", "-i", text(run), "--only", ALL], more].concat());
    let objects = String::from_utf8(out).unwrap();
    let objects = objects.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // One is of the kinds that this run did not record.
    objects.filter(|object| object.get("not_recorded").is_none()).collect()
}

#[test]
fn babeltrace_reads_what_the_listing_has() {
    needs(&[QEMU, APT, BABELTRACE]);
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("run.ctf");
    ok(&["export", "-q", "-i", text(run()), "-o", text(&trace)]);
    let events = read(&trace);
    let all = listed(run(), &[]);
    assert!(all.len() > 10_000, "{}", all.len());
    assert_eq!(events.len(), all.len());
    // By name, CPU and thread: how many, the sum of times, the sum of lengths.
    type Sums = BTreeMap<(String, Option<u64>, i64), (u64, u128, i64)>;
    let (mut ours, mut theirs) = (Sums::new(), Sums::new());
    for moment in &all {
        let key = (expected(moment), moment["cpu"].as_u64(), moment["pid"].as_i64().unwrap_or(-1));
        let of = ours.entry(key).or_default();
        *of = (
            of.0 + 1,
            of.1 + u128::from(moment["time_ns"].as_u64().unwrap()),
            of.2 + moment["length_ns"].as_i64().unwrap_or(0),
        );
    }
    for event in &events {
        let of = theirs.entry((event.name.clone(), event.cpu, event.tid)).or_default();
        *of = (of.0 + 1, of.1 + u128::from(event.ns), of.2 + event.number("length_ns").unwrap_or(0));
    }
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    assert_eq!(ours, theirs);

    // System calls: the sums of the report's table.
    let table = dir.path().join("syscalls.json");
    ok(&["export", "syscalls", "-q", "-i", text(run()), "-o", text(&table)]);
    let table: Value = serde_json::from_slice(&std::fs::read(&table).unwrap()).unwrap();
    for row in table["rows"].as_array().unwrap() {
        let name = format!("syscall_exit_{}", row["syscall"].as_str().unwrap());
        let of = || events.iter().filter(|event| event.name == name);
        assert_eq!(of().count() as u64, row["count"].as_u64().unwrap(), "{row}");
        // The sums of the table and those of single calls differ by a nanosecond or two a call.
        let apart =
            of().filter_map(|e| e.number("length_ns")).sum::<i64>() - row["wall_ns"].as_i64().unwrap();
        assert!(apart.unsigned_abs() <= 2 * row["count"].as_u64().unwrap(), "{apart} ns: {row}");
    }

    // The fields that analyses of Trace Compass take: the tracepoint has the short name of LTTng.
    let named = |name: &'static str| events.iter().filter(move |event| event.name == name);
    assert!(named("sched_switch").count() > 40 && named("softirq_entry").count() > 2);
    for event in named("sched_switch") {
        for field in ["prev_tid", "prev_prio", "prev_state", "next_tid", "next_prio"] {
            assert!(event.number(field).is_some(), "{field} in {}", event.line);
        }
        assert!(
            event.line.contains(" prev_comm = \"") && event.line.contains(" next_comm = \""),
            "{}",
            event.line
        );
    }
    for (name, fields) in [
        ("sched_waking", &["tid", "prio", "target_cpu"][..]),
        ("irq_handler_entry", &["irq"]),
        ("irq_handler_exit", &["irq", "ret"]),
        ("softirq_entry", &["vec"]),
        ("sched_process_fork", &["parent_tid", "child_tid", "child_pid"]),
    ] {
        for event in named(name) {
            for field in fields {
                assert!(event.number(field).is_some(), "{field} in {}", event.line);
            }
        }
    }
    // Hostile names are data. A name that is a number is a text.
    assert!(named("flow_switch").any(|e| e.line.contains("next_comm = \"42\"")));
    assert!(events.iter().any(|e| e.line.contains("2J")));
    let logged = named("printk_console").next().expect("the line of the log");
    assert!(logged.line.contains("hello") && logged.cpu.is_none(), "{}", logged.line);
}

/// Metadata: what makes Trace Compass take it as a kernel's.
#[test]
fn it_says_what_it_is_and_is_the_same_twice() {
    needs(&[QEMU, APT]);
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("1.ctf"), dir.path().join("2.ctf"));
    ok(&["export", "-q", "-i", text(run()), "-o", text(&one)]);
    ok(&["export", "-q", "-i", text(run()), "-o", text(&two)]);
    let metadata = std::fs::read_to_string(one.join("metadata")).unwrap();
    for wanted in [
        "domain = \"kernel\"",
        "tracer_name = \"lttng-modules\"",
        "tracer_minor = 9",
        "written_by = \"kprism",
    ] {
        assert!(metadata.contains(wanted), "{wanted}");
    }
    let files = |dir: &Path| {
        let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name()).collect();
        all.sort();
        all
    };
    assert_eq!(files(&one), ["cpu_0", "cpu_1", "metadata", "no_cpu"]);
    for file in files(&one) {
        assert!(
            std::fs::read(one.join(&file)).unwrap() == std::fs::read(two.join(&file)).unwrap(),
            "{file:?}"
        );
    }
    // Nothing is written over; standard output is no folder.
    for (output, why) in [(text(&one), "is not empty"), ("-.ctf", "cannot be written to standard output")] {
        let refused = kprism(&["export", "-i", text(run()), "-o", output]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
}

/// Without `sched:sched_switch`, the switches of the flow have its name, and their missing state is told.
#[test]
fn tlb_misses_and_switches_of_the_flow() {
    needs(&[QEMU, APT, BABELTRACE]);
    let dir = tempfile::tempdir().unwrap();
    let (run, trace) = (dir.path().join("run"), dir.path().join("run.ctf"));
    {
        let _alone = alone();
        ok(&["record", "tlb", "-q", "-o", text(&run), "--", "sh", "-c", "ls /bin | sort | tail -1"]);
    }
    let exported = kprism(&["export", "-i", text(&run), "-o", text(&trace)]);
    let said = String::from_utf8_lossy(&exported.stderr).into_owned();
    assert!(exported.status.success() && said.contains("prev_state and priorities are 0"), "{said}");
    let events = read(&trace);
    let sum = |field: &str| {
        events.iter().filter(|e| e.name == "tlb_misses").filter_map(|e| e.number(field)).sum::<i64>()
    };
    let report = json(&["report", "tlb", "--json", "-i", text(&run)]);
    let account = report["run"]["account"].as_array().unwrap();
    let kept = account.iter().find(|e| e["fate"] == "kept" && e["unit"] == "misses").unwrap();
    assert_eq!(sum("misses"), kept["count"].as_i64().unwrap());
    let switches = listed(&run, &["--tlb-interval", "100us"]);
    assert_eq!(events.len(), switches.len());
    let switches = switches.iter().filter(|moment| moment["kind"] == "switch").count();
    assert_eq!(events.iter().filter(|e| e.name == "sched_switch").count(), switches);
    assert!(events.iter().filter(|e| e.name == "sched_switch").all(|e| e.number("prev_state") == Some(0)));
}

kprism_test::main!();
