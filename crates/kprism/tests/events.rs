// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel events beside the flow: each event's time is that of the instruction that read the clock for it, in the flow. The merged
//! listing, and the timeline, judged by Perfetto's trace processor.

mod guest;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use guest::{alone, ask_perfetto, json, kprism, number, ok, page_data, script, text, waits};
use kprism_test::{APT, QEMU, TRACE_CMD, needs, test};
use serde_json::Value;

const EVENTS: &str = "sched:sched_switch,sched:sched_waking,irq:softirq_*";
/// Tasks on two CPUs that wake each other, one with a name that is hostile to terminals, and a line of the kernel's log.
const COMMAND: &str = r#"cp /bin/ls "$(printf '/tmp/a\033[2J')"; ("$(printf '/tmp/a\033[2J')" /etc | tail -1) &
ls -l /etc | sort -r; echo 'hello log' > /dev/kmsg; sleep 0.01; wait"#;

/// A run with events on two CPUs, recorded once for all tests.
fn run() -> &'static Path {
    static RUN: OnceLock<PathBuf> = OnceLock::new();
    RUN.get_or_init(|| {
        let _alone = alone();
        let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join("events-run");
        ok(&["lab", "run", "-q", "-o", text(&run), "--smp", "2", "-e", EVENTS, "--", "sh", "-c", COMMAND]);
        run
    })
}

/// Lines of JSON of `kprism script`.
fn lines(arguments: &[&str]) -> Vec<Value> {
    script(run(), arguments)
}

/// True if the end of a listed call was seen.
fn has_ended(call: &Value) -> bool {
    call["wall_ns"].is_u64()
}

/// The first and the last time at which the flow of a CPU is known.
fn span(cpu: u64) -> (u64, u64) {
    let windows = lines(&["all", "--only", "window", "--cpu", &cpu.to_string()]);
    (number(&windows[0], "time_ns"), number(windows.last().unwrap(), "time_ns"))
}

#[test]
fn every_event_is_where_the_flow_read_the_clock_for_it() {
    needs(&[QEMU, APT]);
    let mut clock: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for insn in lines(&["insns", "--func", "trace_clock_x86_tsc", "--self"]) {
        if insn["insn"].as_str().is_some_and(|text| text.starts_with("rdtsc")) {
            clock.entry(number(&insn, "cpu")).or_default().insert(number(&insn, "time_ns"));
        }
    }
    let mut calls = lines(&["calls", "--func", "trace_event_raw_event_*", "--self"]);
    calls.retain(has_ended);
    let mut checked = BTreeMap::new();
    let mut late = Vec::new();
    for event in lines(&["all", "--only", "event"]) {
        let (cpu, ns) = (number(&event, "cpu"), number(&event, "time_ns"));
        let (first, last) = span_of(&clock, cpu);
        // The flow is that of the command; events are recorded a little longer.
        if ns < first || ns > last {
            continue;
        }
        let apart = apart(&clock[&cpu], ns);
        assert!(apart <= FARTHEST_NS, "nothing read the clock at {event}");
        if apart > 1 {
            late.push((apart, event.clone()));
        }
        let name = event["name"].as_str().unwrap().split_once(':').unwrap().1;
        let template = match name {
            "sched_waking" => "sched_wakeup_template",
            name if name.starts_with("softirq_") => "softirq",
            name => name,
        };
        let inside = calls.iter().any(|call| {
            let start = number(call, "time_ns");
            call["symbol"] == format!("trace_event_raw_event_{template}")
                && number(call, "cpu") == cpu
                && (start - FARTHEST_NS..=start + number(call, "wall_ns") + FARTHEST_NS).contains(&ns)
                && call["pid"] == event["pid"]
        });
        assert!(inside, "{event} lies in no call of its tracepoint");
        *checked.entry(name.to_owned()).or_insert(0u64) += 1;
    }
    assert!(
        checked["sched_switch"] > 40 && checked["sched_waking"] > 20 && checked["softirq_entry"] > 20,
        "{checked:?}"
    );
    // The others are few.
    assert!(late.len() as u64 * 50 <= checked.values().sum::<u64>(), "{late:?}");
}

/// By how much an event's time may differ from that of the instruction that read the clock for it: `kernel::ERROR_NS`.
const FARTHEST_NS: u64 = 64;

/// Distance to the nearest of these times, ns.
fn apart(times: &BTreeSet<u64>, ns: u64) -> u64 {
    let (before, after) = (times.range(..=ns).next_back(), times.range(ns..).next());
    before.into_iter().chain(after).map(|time| time.abs_diff(ns)).min().unwrap_or(u64::MAX)
}

fn span_of(clock: &BTreeMap<u64, BTreeSet<u64>>, cpu: u64) -> (u64, u64) {
    let of = &clock[&cpu];
    (*of.first().unwrap(), *of.last().unwrap())
}

/// Between `__schedule` and `__switch_to`: the next switch of the CPU after a `sched_switch` is the one it tells, a few
/// instructions later.
#[test]
fn every_sched_switch_is_followed_by_its_switch() {
    needs(&[QEMU, APT]);
    let mut told: BTreeMap<u64, Value> = BTreeMap::new();
    let mut pairs = 0;
    let spans: Vec<(u64, u64)> = (0..2).map(span).collect();
    for moment in lines(&["all", "--only", "event,switch"]) {
        let cpu = number(&moment, "cpu");
        let is_event = moment["name"] == "sched:sched_switch";
        if is_event && (spans[cpu as usize].0..=spans[cpu as usize].1).contains(&number(&moment, "time_ns")) {
            assert!(told.insert(cpu, moment.clone()).is_none(), "two of them without a switch: {moment}");
        } else if moment["kind"] == "switch" {
            let Some(event) = told.remove(&cpu) else { panic!("no event before {moment}") };
            assert_eq!(event["args"]["next_pid"], moment["args"]["next_pid"]);
            assert_eq!(event["args"]["prev_pid"], moment["args"]["prev_pid"]);
            let (from, to) = (number(&event, "time_ns"), number(&moment, "time_ns"));
            // The guest's CPUs run in turn: time may pass in which this one does nothing.
            if to - from >= SOON {
                let ran = executed(cpu, from, to);
                assert!((1..SOON).contains(&ran), "{ran} instructions from {event} to {moment}");
            }
            pairs += 1;
        }
    }
    assert!(pairs > 40, "{pairs}");
}

/// Most instructions, and thereby nanoseconds, from a `sched_switch` to its switch.
const SOON: u64 = 5_000;

/// Instructions that a CPU executed between two times.
fn executed(cpu: u64, from: u64, to: u64) -> u64 {
    let (cpu, from, to) = (cpu.to_string(), format!("{from}ns"), format!("{to}ns"));
    lines(&["insns", "--cpu", &cpu, "--from", &from, "--to", &to]).len() as u64
}

#[test]
fn the_listing_is_in_order_and_honours_its_options() {
    needs(&[QEMU, APT]);
    let all = lines(&["all"]);
    let times: Vec<u64> = all.iter().map(|moment| number(moment, "time_ns")).collect();
    assert!(times.is_sorted());
    assert_eq!(all, lines(&["all"]), "the same twice");
    let kinds: BTreeSet<&str> = all.iter().map(|moment| moment["kind"].as_str().unwrap()).collect();
    for kind in ["mark", "switch", "window", "irqs", "syscall", "event", "console"] {
        assert!(kinds.contains(kind), "{kind} in {kinds:?}");
    }
    assert!(!kinds.contains("call"));
    // A system call has a beginning, and an end with the length that `script syscalls` tells.
    let of = |all: &[Value], phase: &str| {
        all.iter()
            .filter(|m| m["kind"] == "syscall" && m["phase"] == phase)
            .map(|m| number(m, "length_ns"))
            .sum::<u64>()
    };
    let syscalls = lines(&["syscalls"]);
    let wall: u64 = syscalls.iter().filter_map(|call| call["wall_ns"].as_u64()).sum();
    assert_eq!(of(&all, "end"), wall);
    // Calls that are under way at the end have no length, and the reason.
    let endless: Vec<&Value> = syscalls.iter().filter(|call| !has_ended(call)).collect();
    assert!(!endless.is_empty(), "the program's last call does not return");
    for call in endless {
        let reason = call["ending"].as_str().unwrap_or_default();
        assert!(["open", "untraced"].contains(&reason), "{call}");
    }
    // Calls, by themselves, are those of `script calls`.
    let ended = |of: &[Value]| {
        of.iter().filter(|m| m["phase"] == "end").map(|m| number(m, "length_ns")).collect::<Vec<_>>()
    };
    let calls = ended(&lines(&["all", "--only", "call"]));
    let listed: Vec<u64> = lines(&["calls"])
        .iter()
        .filter(|c| c["kind"] != "syscall" && has_ended(c))
        .map(|call| number(call, "wall_ns"))
        .collect();
    assert_eq!(calls, listed);
    // The line of the log lies within the write that made it, as far as the clock of the log tells.
    let console: Vec<&Value> = all.iter().filter(|m| m["kind"] == "console").collect();
    assert_eq!((console.len(), console[0]["name"].as_str()), (1, Some("hello log")));
    let at = number(console[0], "time_ns");
    let written = all.iter().any(|m| {
        let end = number(m, "time_ns");
        m["kind"] == "syscall"
            && m["name"] == "write"
            && m["phase"] == "end"
            && at + 3_000 >= end - number(m, "length_ns")
            && at <= end + 3_000
    });
    assert!(written, "no write at {at}");
    // Options.
    let (from, to) = (times[times.len() / 3].to_string() + "ns", times[times.len() / 2].to_string() + "ns");
    let part = lines(&["all", "--only", "event", "--from", &from, "--to", &to]);
    let expected: Vec<Value> = all
        .iter()
        .filter(|m| {
            m["kind"] == "event"
                && (times[times.len() / 3]..times[times.len() / 2]).contains(&number(m, "time_ns"))
        })
        .cloned()
        .collect();
    assert_eq!(part, expected);
    let on_one = lines(&["all", "--cpu", "1"]);
    assert!(!on_one.is_empty() && on_one.iter().all(|m| m["cpu"] == 1));
    let pid = all.iter().find(|m| m["kind"] == "switch" && m["pid"] != 0).unwrap()["pid"].to_string();
    let of_task = lines(&["all", "--task", &pid]);
    assert!(!of_task.is_empty() && of_task.iter().all(|m| m["pid"] == pid.parse::<u64>().unwrap()));
    assert_eq!(lines(&["all", "--limit", "7"]), all[..7]);
    let refused = kprism(&["script", "all", "-i", text(run()), "--depth", "3"]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn hostile_names_stay_text() {
    needs(&[QEMU, APT]);
    let listing = String::from_utf8(ok(&["script", "all", "-q", "-i", text(run())])).unwrap();
    assert!(listing.contains("2J"), "the task is there");
    assert!(!listing.chars().any(|c| c.is_control() && c != '\n'));
}

#[test]
fn losses_are_counted_and_shown() {
    needs(&[QEMU, APT]);
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let made = {
        let _alone = alone();
        kprism(&[
            "lab",
            "run",
            "-o",
            text(&run),
            "-e",
            "kmem:*",
            "--buffer-size",
            "64K",
            "--",
            "ls",
            "-l",
            "/bin",
        ])
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let account = json(&["info", "--json", "-i", text(&run)])["accounts"]["flow"].clone();
    let count = |fate: &str| {
        let entries = account.as_array().or_else(|| account["entries"].as_array()).expect("entries");
        let of = entries.iter().find(|e| e["fate"] == fate && e["unit"] == "events of the kernel");
        of.and_then(|entry| entry["count"].as_u64()).unwrap_or_else(|| panic!("{fate} in {account}"))
    };
    assert!(count("lost") > 1000, "{account}");
    assert_eq!(count("seen"), count("kept") + count("lost"));
    let listed = kprism(&["script", "all", "-i", text(&run), "--only", "event"]);
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(said.contains(&format!("{} kernel events were lost", count("lost"))), "{said}");
    let lines = String::from_utf8_lossy(&listed.stdout).lines().filter(|l| l.contains(": event ")).count();
    assert_eq!(lines as u64, count("kept"));
    // The trace ends within a page, or is damaged: what is left is listed, nothing panics.
    let raw = run.join("streams/events/cpu0.raw");
    let mut bytes = std::fs::read(&raw).unwrap();
    bytes.truncate(bytes.len() - 1000);
    bytes[100..2000].fill(0xff);
    std::fs::write(&raw, bytes).unwrap();
    ok(&["script", "all", "-q", "-i", text(&run), "--only", "event"]);
    std::fs::write(run.join("streams/events/events.json"), "{").unwrap();
    let broken = kprism(&["script", "all", "-i", text(&run)]);
    let said = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(!broken.status.success() && said.contains("events.json"), "{said}");
}

#[test]
fn what_cannot_be_placed_is_refused() {
    needs(&[QEMU, APT]);
    for (arguments, expected) in [
        (&["--fast", "-e", "irq:*"][..], "--fast"),
        (&["-e", "a b"][..], "SYSTEM:NAME"),
        (&["-e", "irq:*", "--unobserved"][..], "--unobserved"),
        (&["-e", "irq:*", "--boot"][..], "--boot"),
        (&["--buffer-size", "1M"][..], "--event"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let refused = kprism(&[&["lab", "run", "-o", text(&run)], arguments, &["--", "true"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(expected), "{arguments:?}: {said}");
        assert!(!run.exists(), "{arguments:?}");
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let unknown = kprism(&["lab", "run", "-o", text(&dir.path().join("run")), "-e", "no:such", "--", "true"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && said.contains("no event is called no:such"), "{said}");
}

/// A file of trace-cmd, recorded in the guest while its flow was: `import --beside` puts its events where `--event` would.
#[test]
fn a_file_of_trace_cmd_stands_beside_the_flow() {
    needs(&[QEMU, APT, TRACE_CMD]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("trace.dat"));
    let traced = |clock: &str, command: &str, run: &Path| {
        let record = format!(
            "trace-cmd record -q -C {clock} -e sched:sched_switch -e sched:sched_waking -o /tmp/t.dat {command} \
             >/dev/null 2>&1; cat /tmp/t.dat"
        );
        ok(&[
            "lab",
            "run",
            "-q",
            "-o",
            text(run),
            "--smp",
            "2",
            "--package",
            "trace-cmd",
            "--",
            "sh",
            "-c",
            &record,
        ])
    };
    std::fs::write(&file, traced("x86-tsc", "sh -c 'ls /bin | sort'", &run)).unwrap();
    let said = kprism(&["import", text(&file), "--beside", text(&run)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let list = |only: &[&str]| -> Vec<Value> {
        let out = ok(&[&["script", "-q", "-i", text(&run), "--json"], only].concat());
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let events = list(&["all", "--only", "event"]);
    // As many as trace-cmd itself lists, of each kind.
    let report = Command::new("trace-cmd").args(["report", "-i", text(&file)]).output().unwrap();
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    for name in ["sched_switch", "sched_waking"] {
        let listed = report.lines().filter(|line| line.contains(&format!(": {name}:"))).count();
        let ours = events.iter().filter(|event| event["name"] == format!("sched:{name}")).count();
        assert!(listed > 0 && listed == ours, "{name}: trace-cmd has {listed}, we {ours}: {said}");
    }
    assert!(said.contains(&format!("{} events of the kernel beside the flow", events.len())), "{said}");
    // Where the flow read the clock for them.
    let mut clock: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for insn in list(&["insns", "--func", "trace_clock_x86_tsc", "--self"]) {
        if insn["insn"].as_str().is_some_and(|text| text.starts_with("rdtsc")) {
            clock.entry(number(&insn, "cpu")).or_default().insert(number(&insn, "time_ns"));
        }
    }
    for event in &events {
        let (cpu, ns) = (number(event, "cpu"), number(event, "time_ns"));
        assert!(apart(&clock[&cpu], ns) <= FARTHEST_NS, "nothing read the clock at {event}");
    }
    // Once is enough; another clock, another tool's file, a run without a flow are refused, and change nothing.
    let refused = |file: &Path, run: &Path, expected: &str| {
        let output = kprism(&["import", text(file), "--beside", text(run)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{said}");
    };
    refused(&file, &run, "has kernel events already");
    let (other, plain) = (dir.path().join("other.dat"), dir.path().join("plain"));
    std::fs::write(&other, traced("mono", "true", &plain)).unwrap();
    refused(&other, &plain, "record with trace-cmd record -C x86-tsc");
    refused(&plain.join("manifest.json"), &plain, "");
    let mut damaged = std::fs::read(&file).unwrap();
    damaged.truncate(2000);
    std::fs::write(&other, damaged).unwrap();
    refused(&other, &plain, "other.dat");
    assert!(!plain.join("streams/events").exists());
    let output = kprism(&["import", text(&file), "--beside", text(&plain), "-o", "x"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The rows of an answer as a map from the first column to the second.
fn map(answer: &Value, key: &str, value: &str) -> BTreeMap<String, u64> {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let rows = answer.as_array().unwrap().iter();
    rows.map(|row| (text(&row[key]), row[value].as_u64().unwrap())).collect()
}

#[test]
fn perfetto_counts_what_our_tables_count() {
    needs(&[QEMU, APT]);
    let engine = kprism_test::perfetto();
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("run.perfetto-trace");
    ok(&["export", "-q", "-i", text(run()), "-o", text(&trace)]);
    let answers = ask_perfetto(
        &engine,
        &trace,
        &[
            "select name, count(*) as n from slice where category = 'kernel event' group by name",
            "select name, count(*) as n from slice where category = 'syscall' and name not in ('entry_SYSCALL_64') group by name",
            "select name, sum(dur) as ns from slice where category = 'syscall' and name not in ('entry_SYSCALL_64') group by name",
            "select th.tid as pid, sum(s.dur) as ns from slice s join track t on s.track_id = t.id join thread th on th.utid = extract_arg(t.dimension_arg_set_id, 'utid') where s.category = 'on CPU' group by 1",
            "select count(*) as n, sum(a.ts <= b.ts) as later, sum(b.category = 'on CPU') as running from flow join slice a on slice_out = a.id join slice b on slice_in = b.id",
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
            "select name, count(*) as n from slice where category = 'kernel log' group by name",
            "select count(*) as n, sum(dur) as ns from slice where category = 'interrupts off'",
            "select sum(s.dur) as ns from slice s where s.category = 'recorded'",
            "select extract_arg(arg_set_id, 'debug.next_pid') as pid, count(*) as n from slice where name = 'sched:sched_switch' group by 1",
        ],
    );
    assert_eq!(answers[5], Value::Array(Vec::new()), "the trace processor complains");
    let mut events: BTreeMap<String, u64> = BTreeMap::new();
    let mut switched_to: BTreeMap<String, u64> = BTreeMap::new();
    for event in lines(&["all", "--only", "event"]) {
        *events.entry(event["name"].as_str().unwrap().to_owned()).or_default() += 1;
        if event["name"] == "sched:sched_switch" {
            *switched_to.entry(event["args"]["next_pid"].to_string()).or_default() += 1;
        }
    }
    assert_eq!(map(&answers[0], "name", "n"), events);
    assert_eq!(map(&answers[9], "pid", "n"), switched_to);
    // System calls, their number and their time, as in the table.
    let table = dir.path().join("syscalls.json");
    ok(&["export", "syscalls", "-q", "-i", text(run()), "-o", text(&table)]);
    let table: Value = serde_json::from_slice(&std::fs::read(&table).unwrap()).unwrap();
    assert_eq!(map(&answers[1], "name", "n"), map(&table["rows"], "syscall", "count"));
    assert_eq!(map(&answers[2], "name", "ns"), map(&table["rows"], "syscall", "wall_ns"));
    // Times on a CPU: a switch is a place in `__switch_to`, and the table counts to the instruction where the task changes.
    let tasks = dir.path().join("tasks.json");
    ok(&["export", "tasks", "-q", "-i", text(run()), "-o", text(&tasks)]);
    let tasks: Value = serde_json::from_slice(&std::fs::read(&tasks).unwrap()).unwrap();
    let (on_cpu, running) = (map(&tasks["rows"], "pid", "on_cpu_ns"), map(&answers[3], "pid", "ns"));
    assert!(running.len() > 5);
    // What a CPU waits for its turn is in no task's time, and on the timeline the task is on it.
    let (waits, whole) = waits_of_tasks();
    for (pid, ns) in &running {
        let (sure, unsure) = waits.get(pid).copied().unwrap_or_default();
        let apart = (on_cpu[pid] + sure).abs_diff(*ns);
        assert!(apart <= 2_000 + unsure, "task {pid}: {ns} ns in the timeline, {} in the table", on_cpu[pid]);
    }
    // Arrows lead from a waking to a later time on a CPU.
    let arrows = &answers[4][0];
    assert!(arrows["n"].as_u64() > Some(20), "{arrows}");
    assert_eq!((&arrows["n"], &arrows["n"]), (&arrows["later"], &arrows["running"]));
    assert_eq!(map(&answers[6], "name", "n"), BTreeMap::from([("hello log".to_owned(), 1)]));
    let irqs = lines(&["all", "--only", "irqs"]);
    assert_eq!(number(&answers[7][0], "n"), irqs.len() as u64);
    assert_eq!(number(&answers[7][0], "ns"), irqs.iter().map(|m| number(m, "length_ns")).sum::<u64>());
    let recorded: u64 = (0..2).map(span).map(|(first, last)| last - first).sum();
    assert_eq!(number(&answers[8][0], "ns"), recorded);
    // Each moment is one task's or a wait, to the nanosecond.
    let of_tasks = tasks["rows"].as_array().unwrap().iter().map(|row| number(row, "on_cpu_ns")).sum::<u64>();
    assert!(whole > 0);
    assert_eq!(of_tasks + whole, recorded);
}

/// By the packets and the kernel's events: what the CPUs of each task waited for their turns, by thread id, and as much again of which a
/// switch of tasks is so near that it may be another's; and the sum of all waits. All in ns.
fn waits_of_tasks() -> (BTreeMap<String, (u64, u64)>, u64) {
    let mut switches: BTreeMap<u64, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for event in lines(&["all", "--only", "event"]) {
        if event["name"] == "sched:sched_switch" {
            let pids = (number(&event["args"], "prev_pid"), number(&event["args"], "next_pid"));
            switches.entry(number(&event, "cpu")).or_default().insert(number(&event, "time_ns"), pids);
        }
    }
    let (mut of_tasks, mut whole) = (BTreeMap::<String, (u64, u64)>::new(), 0);
    for (cpu, from, to) in waits(run()) {
        whole += to - from;
        let around: Vec<_> = switches[&cpu].range(from.saturating_sub(2_000)..to + 2_000).collect();
        let before = switches[&cpu].range(..from).next_back().map(|(_, pids)| pids.1);
        let first = switches[&cpu].first_key_value().map(|(_, pids)| pids.0);
        for (_, (prev, next)) in &around {
            for pid in [prev, next] {
                of_tasks.entry(pid.to_string()).or_default().1 += to - from;
            }
        }
        if let (true, Some(pid)) = (around.is_empty(), before.or(first)) {
            of_tasks.entry(pid.to_string()).or_default().0 += to - from;
        }
    }
    (of_tasks, whole)
}

/// TLB misses: the listing and the timeline have as many as the report.
#[test]
fn tlb_misses_are_counted_alike() {
    needs(&[QEMU, APT]);
    let engine = kprism_test::perfetto();
    let dir = tempfile::tempdir().unwrap();
    let (run, trace) = (dir.path().join("run"), dir.path().join("run.pftrace"));
    {
        let _alone = alone();
        ok(&["record", "tlb", "-q", "-o", text(&run), "--", "ls", "/bin"]);
    }
    let report = json(&["report", "tlb", "--json", "-i", text(&run)]);
    let account = report["run"]["account"].as_array().unwrap();
    let kept = account.iter().find(|e| e["fate"] == "kept" && e["unit"] == "misses").unwrap()["count"]
        .as_u64()
        .unwrap();
    let sum = |more: &[&str], name: &str| -> u64 {
        let out = ok(&[&["script", "all", "-q", "--json", "-i", text(&run), "--only", "tlb"], more].concat());
        let out = String::from_utf8(out).unwrap();
        out.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["args"][name].as_u64().unwrap()).sum()
    };
    assert!(kept > 100);
    assert_eq!(sum(&[], "misses"), kept);
    assert_eq!(sum(&["--tlb-interval", "10us"], "misses"), kept);
    assert_eq!(sum(&["--tlb-interval", "0"], "last_level"), kept);
    ok(&["export", "-q", "-i", text(&run), "-o", text(&trace)]);
    let query = "select cast(sum(c.value) as int) as n from counter c join counter_track t on c.track_id = t.id where t.name like 'TLB misses%'";
    assert_eq!(ask_perfetto(&engine, &trace, &[query])[0][0]["n"], kept);
}

/// The page's timeline has the events of the flow's time, each at its time, with its values, and the kernel's log.
#[test]
fn the_page_has_them_on_its_timeline() {
    needs(&[QEMU, APT]);
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let output = kprism(&["report", "-i", text(run()), "--html", text(&page)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let data = page_data(&page);
    let timeline = &data["timeline"];
    let lanes = timeline["lanes"].as_array().unwrap();
    let ends: Vec<(u64, u64)> = (0..2).map(span).collect();
    let (begin, end) = (ends.iter().map(|e| e.0).min().unwrap(), ends.iter().map(|e| e.1).max().unwrap());
    let mut outside = 0;
    for cpu in 0..2 {
        let lane = lanes.iter().find(|lane| lane["name"] == format!("kernel events CPU {cpu}")).unwrap();
        let all = lines(&["all", "--only", "event", "--cpu", &cpu.to_string()]);
        let expected: Vec<&Value> =
            all.iter().filter(|event| (begin..=end).contains(&number(event, "time_ns"))).collect();
        outside += all.len() - expected.len();
        assert!(expected.len() > 20 && number(lane, "count") == expected.len() as u64, "{}", lane["count"]);
        let (mut ns, texts) = (timeline["from_ns"].as_u64().unwrap(), timeline["texts"].as_array().unwrap());
        for (i, event) in expected.iter().enumerate() {
            ns += lane["start"][i].as_u64().unwrap();
            assert_eq!(ns, number(event, "time_ns"));
            assert_eq!(texts[lane["label"][i].as_u64().unwrap() as usize], event["name"]);
            let values = texts[lane["values"][2 * i + 1].as_u64().unwrap() as usize].as_str().unwrap();
            assert!(event["args"].as_object().unwrap().keys().all(|key| values.contains(&format!("{key}="))));
        }
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        outside > 0 && said.contains(&format!("{outside} events of the kernel before or after")),
        "{said}"
    );
    assert!(lanes.iter().any(|lane| lane["name"] == "kernel log"));
    let texts = timeline["texts"].as_array().unwrap();
    assert!(texts.iter().any(|text| text.as_str().is_some_and(|text| text.contains("hello log"))));
}

kprism_test::main!();
