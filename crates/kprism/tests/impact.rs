// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tracers add, to a program whose system calls are known.

mod guest;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use guest::{kprism, ok, text};
use kprism_test::{LTTNG_MODULES, TRACER_GUEST, lttng_modules, needs, of_today, test, turn};
use serde_json::Value;

/// What the program makes, but for `exit_group`, which does not return.
const CALLS: [(&str, u64); 9] = [
    ("close", 1),
    ("execve", 1),
    ("getgid", 1),
    ("getppid", 7),
    ("getuid", 1),
    ("mmap", 5),
    ("munmap", 5),
    ("openat", 1),
    ("read", 3),
];

fn impact(dir: &Path, args: &[&str]) -> Output {
    // A folder of its own: what is recorded must not go into the guest of the next recording.
    let share = format!("{}:/test", dir.join("share").display());
    let output = dir.join("runs");
    let options = ["impact", "-q", "--json", "--share", &share, "-o", text(&output)];
    kprism(&[&options, args, &["--", "/test/calls"]].concat())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn tracer<'a>(page: &'a Value, name: &str) -> &'a Value {
    page["tracers"].as_array().unwrap().iter().find(|t| t["name"] == name).expect("the tracer is there")
}

/// A tracer's system calls by name.
fn syscalls(tracer: &Value) -> BTreeMap<&str, &Value> {
    let calls = tracer["syscalls"].as_array().unwrap_or_else(|| panic!("{tracer:#}"));
    calls.iter().map(|call| (call["syscall"].as_str().unwrap(), call)).collect()
}

/// Instructions added to a call, by function.
fn functions(call: &Value) -> BTreeMap<&str, f64> {
    let rows = call["functions"].as_array().unwrap().iter();
    rows.map(|f| (f["function"].as_str().unwrap(), number(&f["added_per_call"]["instructions"]))).collect()
}

/// Builds the program whose system calls are known.
fn build_calls(dir: &Path) {
    std::fs::create_dir(dir.join("share")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/impact/calls.c");
    let built = Command::new("cc")
        .args(["-O1", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-o"])
        .arg(dir.join("share/calls"))
        .arg(source)
        .status()
        .expect("cc runs");
    assert!(built.success());
}

/// The system calls of a tracer are those that the program makes, and it leaves the program itself alone.
fn check_calls(tracer: &Value) {
    let counted: Vec<(&str, u64)> = syscalls(tracer)
        .iter()
        .map(|(name, call)| (*name, number(&call["traced"]["calls"]) as u64))
        .collect();
    assert_eq!(counted, CALLS, "{}", tracer["name"]);
    let user = &tracer["places"]["user_code"];
    assert_eq!(user["bare"]["instructions"], user["traced"]["instructions"]);
}

/// Two tracers that are programs: perf and bpftrace. Their guest takes minutes to make, and a test run then takes it from the
/// cache; a file in the cache's folder tells that it was made.
#[test]
fn programs_add_what_they_do() {
    needs(&[TRACER_GUEST]);
    let dir = tempfile::tempdir().unwrap();
    build_calls(dir.path());
    let output = impact(dir.path(), &["--tracer", "perf", "--tracer", "bpftrace"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).expect("--json prints JSON");
    assert!(page["run"]["account"].as_array().is_some_and(|all| !all.is_empty()), "{}", page["run"]);
    assert_eq!(page["bare_twice_the_same"], true);
    for (name, own, events) in [
        (
            "perf",
            &["perf_tp_event", "perf_output_sample", "__output_copy"][..],
            " events, 0 records of losses",
        ),
        ("bpftrace", &["trace_call_bpf", "htab_map_update_elem", "htab_map_hash"], " events"),
    ] {
        let tracer = tracer(&page, name);
        assert!(tracer["error"].is_null(), "{}", tracer["error"]);
        check_calls(tracer);
        let said = tracer["events"].as_str().unwrap();
        assert!(said.contains(events), "{name}: {said}");
        let calls = syscalls(tracer);
        let getppid = number(&calls["getppid"]["median_added_instructions"]);
        for (syscall, call) in &calls {
            let functions = functions(call);
            for own in own {
                assert!(
                    functions.get(own).is_some_and(|&n| n > 0.0),
                    "{name}, {syscall} without {own}: {functions:?}"
                );
            }
            // The program of bpftrace itself, compiled by the kernel.
            let programs = functions.keys().filter(|f| f.starts_with("bpf_prog_")).count();
            assert_eq!(programs > 0, name == "bpftrace", "{name}, {syscall}: {functions:?}");
            // Each call hits two events. What they cost depends on the call only by the map's bucket.
            if !["execve", "mmap"].contains(syscall) {
                let added = number(&call["median_added_instructions"]);
                assert!(
                    (added - getppid).abs() < 0.1 * getppid,
                    "{name}, {syscall}: {added}, not about {getppid}"
                );
            }
        }
    }
    std::fs::write(kprism_test::tracer_guest(), "made by crates/kprism/tests/impact.rs\n").unwrap();
}

/// LTTng adds to each call what its own functions take, and keeps every call.
#[test]
fn lttng_adds_what_it_does() {
    needs(&[LTTNG_MODULES]);
    turn(2, 0);
    let modules = lttng_modules().expect("LTTNG_MODULES is met");
    let dir = tempfile::tempdir().unwrap();
    build_calls(dir.path());
    let output = impact(dir.path(), &["--tracer", "lttng", "--lttng", text(&modules)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).expect("--json prints JSON");
    assert_eq!(page["bare_twice_the_same"], true);
    let tracer = tracer(&page, "lttng");
    assert!(tracer["error"].is_null(), "{}", tracer["error"]);
    check_calls(tracer);
    for (syscall, call) in &syscalls(tracer) {
        let functions = functions(call);
        for own in ["lttng_event_reserve", "lttng_event_commit"] {
            assert!(functions.get(own).is_some_and(|&n| n > 0.0), "{syscall} without {own}: {functions:?}");
        }
        // execve by itself differs by what the preparations left, as above.
        if *syscall != "execve" {
            assert!(number(&call["least_added_instructions"]) > 0.0, "{syscall}: {call:#}");
        }
        // Each call has a probe of its own, at entry and exit; those of calls with nothing to copy are shared.
        let own = format!("__event_probe__syscall_entry_{syscall}");
        let any = functions.keys().any(|name| name.starts_with("__event_probe__syscall_exit_"));
        let copies = ["mmap", "munmap", "openat", "read", "close"].contains(syscall);
        assert!(any && (!copies || functions.contains_key(own.as_str())), "{syscall}: {functions:?}");
    }
    // Of the whole guest: the program's are among them, each at entry and exit.
    let said = tracer["events"].as_str().unwrap();
    let (kept, rest) = said.split_once(" events, ").unwrap_or_else(|| panic!("{said}"));
    let made: u64 = CALLS.iter().map(|(_, times)| 2 * times).sum();
    assert!(kept.parse::<u64>().unwrap() >= made && rest.starts_with("0 lost; "), "{said}");

    // The same tracer with each event's program, which costs more of every event: babeltrace2 says what is in its trace.
    let names = |path: std::fs::DirEntry| path.path().display().to_string();
    let modules: Vec<String> =
        std::fs::read_dir(&modules).unwrap().map(|entry| names(entry.unwrap())).collect();
    std::fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/impact/lttng.sh"),
        dir.path().join("share/lttng.sh"),
    )
    .unwrap();
    let (run, share) = (dir.path().join("judged"), format!("{}:/test", dir.path().join("share").display()));
    let mut args =
        vec!["lab", "run", "-q", "--unobserved", "--mem", "2G", "--share", &share, "-o", text(&run)];
    for package in ["lttng-tools", "babeltrace2"] {
        args.extend(["--package", package]);
    }
    for module in &modules {
        args.extend(["--with-module", module]);
    }
    args.extend(["--", "sh", "/test/lttng.sh"]);
    let said = String::from_utf8(ok(&args)).unwrap();
    let mut counted = BTreeMap::new();
    for line in said.lines() {
        let (times, name) = line.trim().split_once(' ').unwrap_or_else(|| panic!("{said}"));
        counted.insert(name.to_owned(), times.parse::<u64>().unwrap());
    }
    let mut expected = BTreeMap::from([("lost".to_owned(), 0), ("syscall_entry_exit_group".to_owned(), 1)]);
    for (name, times) in CALLS {
        // The program has its name only once execve has begun.
        if name != "execve" {
            expected.insert(format!("syscall_entry_{name}"), times);
        }
        expected.insert(format!("syscall_exit_{name}"), times);
    }
    assert_eq!(counted, expected);
}

/// `function`, and one of the others a day.
#[test]
fn tracers_add_what_they_do() {
    let tracers = [&of_today(["events", "function_graph", "kprobes"], 1)[..], &["function"]].concat();
    let dir = tempfile::tempdir().unwrap();
    build_calls(dir.path());
    let html = dir.path().join("page.html");
    let html = html.to_str().unwrap();
    let mut options = vec!["--html", html, "--with", "nothing=:"];
    options.extend(["--with", "broken=echo no such tracer >&2; exit 3"]);
    options.extend(tracers.iter().flat_map(|name| ["--tracer", name]));
    let output = impact(dir.path(), &options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page: Value = serde_json::from_slice(&output.stdout).expect("--json prints JSON");

    // Without a tracer nothing is added.
    assert_eq!(page["bare_twice_the_same"], true);
    for (name, call) in syscalls(tracer(&page, "nothing")) {
        assert_eq!(number(&call["added_per_call"]["instructions"]), 0.0, "{name}: {call:#}");
        assert_eq!(number(&call["added_per_call"]["ns"]), 0.0, "{name}: {call:#}");
        assert!(functions(call).is_empty(), "{name}: {call:#}");
    }

    for name in &tracers {
        let tracer = tracer(&page, name);
        let calls = syscalls(tracer);
        check_calls(tracer);
        for (syscall, call) in &calls {
            let rows = call["functions"].as_array().unwrap().iter();
            let only_traced = rows.filter(|f| number(&f["bare"]["instructions"]) == 0.0);
            let own: f64 = only_traced.map(|f| number(&f["added_per_call"]["instructions"])).sum();
            assert!(own > 0.0, "{name}, {syscall}: {call:#}");
            // The work of execve itself differs by more than a tracer adds: it depends on which pages and slabs the
            // preparations left, as `other_preparations` says.
            if *syscall != "execve" {
                assert!(number(&call["least_added_instructions"]) > 0.0, "{name}, {syscall}: {call:#}");
                assert!(number(&call["added_per_call"]["ns"]) > 0.0, "{name}, {syscall}: {call:#}");
            }
            // The functions are the whole of it.
            let sum: f64 = functions(call).values().sum();
            let added = number(&call["added_per_call"]["instructions"]);
            assert!((sum - added).abs() < 1e-6 * added.abs(), "{name}, {syscall}: {sum} of {added}");
        }
        // Two calls from one and the same place: how their entries' functions are shared out is a guess, and said.
        for syscall in ["getuid", "getgid", "getppid"] {
            assert_eq!(calls[syscall]["entry_shared"], syscall != "getppid", "{syscall}");
        }
        assert!(tracer["events"].as_str().unwrap().contains(" events, "), "{tracer:#}");
    }

    // What a tracer adds by system call; nothing of one whose turn is another day.
    let added = |name: &str| match tracers.contains(&name) {
        true => syscalls(tracer(&page, name)),
        false => BTreeMap::new(),
    };
    for (syscall, call) in &added("function") {
        let functions = functions(call);
        for own in ["function_trace_call", "ftrace_trampoline", "ring_buffer_lock_reserve"] {
            assert!(functions.get(own).is_some_and(|&n| n > 0.0), "{syscall} without {own}: {functions:?}");
        }
    }
    // function_graph does the same work for each function, so the shares of its own functions are everywhere the same.
    for (syscall, call) in &added("function_graph") {
        let functions = functions(call);
        let [enter, entry, back] = ["function_graph_enter", "trace_graph_entry", "ftrace_return_to_handler"]
            .map(|own| functions[own]);
        assert!(enter > 0.0, "{syscall}: {functions:?}");
        for (share, expected) in [(entry / enter, 1.39), (back / enter, 0.93)] {
            assert!((share - expected).abs() < 0.05, "{syscall}: {share}: {functions:?}");
        }
    }
    // A kprobe is hit once in each call, at its entry.
    let kprobes = added("kprobes");
    let getppid = kprobes.get("getppid").map(|call| number(&call["median_added_instructions"]));
    for (syscall, call) in &kprobes {
        let functions = functions(call);
        for own in ["kprobe_ftrace_handler", "kprobe_trace_func", "ftrace_trampoline"] {
            assert!(functions.get(own).is_some_and(|&n| n > 0.0), "{syscall} without {own}: {functions:?}");
        }
        if *syscall != "execve" {
            let (added, getppid) = (number(&call["median_added_instructions"]), getppid.unwrap());
            assert!((added - getppid).abs() < 0.1 * getppid, "{syscall}: {added}, not about {getppid}");
        }
    }
    // Events of system calls are made at entry and exit, and cost each of them the same.
    let events = added("events");
    let getppid = events.get("getppid").map(|call| number(&call["median_added_instructions"]));
    for (syscall, call) in &events {
        let functions = functions(call);
        for own in
            ["syscall_trace_enter", "trace_event_raw_event_sys_enter", "trace_event_raw_event_sys_exit"]
        {
            assert!(functions.get(own).is_some_and(|&n| n > 0.0), "{syscall} without {own}: {functions:?}");
        }
        assert!(!functions.contains_key("function_trace_call"), "{syscall}: {functions:?}");
        let body = format!("__x64_sys_{syscall}");
        assert!(!functions.contains_key(body.as_str()), "{syscall}: its body changed: {functions:?}");
        if *syscall != "execve" {
            let (added, getppid) = (number(&call["median_added_instructions"]), getppid.unwrap());
            assert!((added - getppid).abs() < 0.2 * getppid, "{syscall}: {added}, not about {getppid}");
        }
    }

    // One that cannot be switched on says why, and the others go on.
    let broken = tracer(&page, "broken")["error"].as_str().expect("an error").to_owned();
    assert!(broken.contains("no such tracer"), "{broken}");
    let text = std::fs::read_to_string(html).unwrap();
    for part in ["function_trace_call", "getppid", "no such tracer"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("<script"));
}

#[test]
fn a_command_that_is_not_there_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("share")).unwrap();
    let output = impact(dir.path(), &["--tracer", "events"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/test/calls: "), "{said}");
}

#[test]
fn unknown_tracers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = impact(dir.path(), &["--tracer", "magic"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no tracer \"magic\"") && said.contains("function_graph"), "{said}");
}

kprism_test::main!();
