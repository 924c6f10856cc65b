// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kprism counts in a guest against what is known independently: a program whose calls, instructions
//! and system calls are fixed by its source, the recorder's own instruction count, Intel's decoder, and the
//! same guest unobserved. Needs what `scripts/setup.sh test` installs.

mod guest;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest::{alone, json, kprism, ok, text};
use kprism_profile::{FrameKind, NO_PARENT, Profile};
use serde_json::Value;

fn build(name: &str, dir: &Path, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth").join(name).with_extension("c");
    let program = dir.join(name);
    let status =
        Command::new("cc").args(["-O1", "-g"]).args(flags).arg("-o").arg(&program).arg(source).status();
    assert!(status.expect("a C compiler is installed").success());
    program
}

/// Records `truth` under `options` and returns the run folder.
fn record_truth(dir: &Path, flags: &[&str], options: &[&str]) -> PathBuf {
    let share = dir.join("share");
    fs::create_dir_all(&share).unwrap();
    build("truth", &share, flags);
    let run = dir.join("run");
    let mut args = vec!["lab", "run", "-q", "-o", text(&run), "--share", text(&share)];
    args.extend(options);
    args.extend(["--", "/share/truth"]);
    ok(&args);
    run
}

/// A column of a report's row.
fn value(report: &Value, name_column: &str, name: &str, column: &str) -> u64 {
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|r| r[name_column] == name);
    row.unwrap_or_else(|| panic!("no {name} in the report"))[column].as_u64().expect("a number")
}

/// Instructions of a function of `truth` and of all that it calls: without what interrupted it, and with that.
fn inside(profile: &Profile, name: &str) -> (u64, u64) {
    let tasks = profile.task_of_nodes();
    // For each node: in the function; and not in an interrupt, a fault or a signal of it.
    let mut state = vec![(false, false); profile.nodes.len()];
    let (mut clean, mut all) = (0, 0);
    for (index, node) in profile.nodes.iter().enumerate().filter(|(_, node)| node.parent != NO_PARENT) {
        let comm = tasks[index].map(|task| profile.tasks[task as usize].comm.as_str());
        if comm != Some("truth") {
            continue;
        }
        let (within, undisturbed) = state[node.parent as usize];
        let called = matches!(node.kind, FrameKind::Call | FrameKind::Tail);
        let enters = !within && profile.funcs[node.func as usize].name == name;
        state[index] = (within || enters, enters || undisturbed && called);
        all += if state[index].0 { node.insns } else { 0 };
        clean += if state[index].1 { node.insns } else { 0 };
    }
    (clean, all)
}

/// leaf is called by repeat, recurse, interrupted, deep3 and jumper, tail and faulting.
const LEAVES: u64 = 1000 + 7 + 5 + 2 * 20 + 30 + 3;
/// spin is called by the signal handler and by the children.
const SPINS: u64 = 5 + 4 * 11;

/// `exact`: every event has its own time.
fn check_truth(run: &Path, exact: bool) {
    let report = json(&["report", "functions", "--json", "--limit", "0", "--comm", "truth", "-i", text(run)]);
    let calls = |name| value(&report, "function", name, "calls");
    let known = [
        ("leaf", LEAVES),
        ("spin", SPINS),
        ("repeat", 1),
        ("recurse", 7 * 51),
        ("interrupted", 5),
        ("on_signal", 5),
        ("on_signal_inner", 5),
        ("jumper", 20),
        ("deep1", 20),
        ("deep2", 20),
        ("deep3", 20),
        ("tail", 30),
        ("faulting", 3),
        ("child", 4),
        ("main", 1),
        ("__x64_sys_getppid", 123),
        ("__x64_sys_getpriority", 17),
    ];
    for (name, count) in known {
        assert_eq!(calls(name), count, "calls of {name}");
    }
    let own = |name| value(&report, "function", name, "self_instructions");
    assert_eq!(own("leaf"), LEAVES * 4);
    assert_eq!(own("spin"), SPINS * (2 + 200 + 1));
    assert_eq!(own("tail"), 30);
    let total = |name| value(&report, "function", name, "total_instructions");
    // The handler's own frame and what it calls, no more: the return to the interrupted code is its end. A recursive total
    // counts nothing twice. An interrupt or a page fault inside counts in the column.
    let profile = kprism_session::open(run).unwrap().flow().unwrap();
    let recursive = own("recurse") + 7 * 4;
    for (name, count) in
        [("on_signal_inner", own("on_signal_inner") + 5 * (2 + 200 + 1)), ("recurse", recursive)]
    {
        let (clean, all) = inside(&profile, name);
        assert_eq!((clean, all), (count, total(name)), "instructions of {name}");
    }

    let syscalls =
        json(&["report", "syscalls", "--json", "--limit", "0", "--comm", "truth", "-i", text(run)]);
    let count = |name| value(&syscalls, "syscall", name, "count");
    assert_eq!((count("getppid"), count("getpriority")), (123, 17));
    assert_eq!((count("clone"), count("wait4"), count("tgkill")), (4, 4, 5));

    // One call alone is all that its own row counts, and nothing else.
    for (name, which) in
        [("getppid", "123"), ("clone", "slowest"), ("wait4", "median"), ("tgkill", "fastest")]
    {
        let one = ["--syscall", name, "--call", which, "-q", "--comm", "truth", "-i", text(run)];
        let rows = json(&[&["report", "syscalls", "--json"][..], &one[..]].concat());
        let folded = ok(&[&["export", "-o", "-.folded"][..], &one[..]].concat());
        let sum = String::from_utf8(folded).unwrap().lines().fold(0, |sum, line| {
            sum + line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a weight")
        });
        assert_eq!(value(&rows, "syscall", name, "count"), 1);
        // Where times lie between those of packets, an instruction at either edge may have the edge's time.
        let edges = if exact { 0 } else { 2 };
        let whole = value(&rows, "syscall", name, "kernel_instructions");
        assert!(whole.abs_diff(sum) <= edges, "{name}: {whole} of its row, {sum} of its stacks");
    }

    let info = json(&["info", "--json", "-i", text(run)]);
    assert_eq!((info["decode_errors"].as_u64(), info["lost_bytes"].as_u64()), (Some(0), Some(0)));
    assert_eq!(info["instructions"], info["instructions_recorded"], "decoded, and counted by the recorder");
}

/// Contexts that a program switches itself: a function that is resumed was not called again, and what main does next is
/// main's, not the coroutine's.
#[test]
fn coroutines_are_resumed_not_called() {
    const ROUNDS: u64 = 50;
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    build("coroutines", dir.path(), &["-static"]);
    let run = dir.path().join("run");
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(dir.path()), "--", "/share/coroutines"]);
    let report =
        json(&["report", "functions", "--json", "--limit", "0", "--comm", "coroutines", "-i", text(&run)]);
    let calls = |name| value(&report, "function", name, "calls");
    let counted = ["main", "scheduler", "coroutine", "wait_for_turn", "step", "__swapcontext"].map(calls);
    let switches = 2 * (ROUNDS + 1) + 2 * ROUNDS;
    assert_eq!(counted, [1, 1, 2, 2, 2 * ROUNDS, switches]);
    // A listing has a call once, however often its stack was left.
    let lines = ok(&["script", "calls", "--json", "--comm", "coroutines", "-i", text(&run)]);
    let lines = String::from_utf8(lines).expect("UTF-8");
    let listed = |name: &str| {
        let of = |line: &&str| line.contains(&format!("\"symbol\":\"{name}\""));
        lines.lines().filter(of).count() as u64
    };
    assert_eq!(listed("step"), 2 * ROUNDS);
    // Those that are under way at the end have no end.
    assert!(listed("coroutine") <= 2 && listed("wait_for_turn") <= 2, "{lines}");
    assert!((switches - 2..=switches).contains(&listed("__swapcontext")), "{}", listed("__swapcontext"));
}

/// An annotated function of `truth`.
fn annotated(run: &Path, func: &str) -> Value {
    json(&["annotate", func, "--json", "--comm", "truth", "-i", text(run)])
}

/// The annotated line whose instruction begins like this.
fn line<'v>(annotation: &'v Value, insn: &str) -> &'v Value {
    let lines = annotation["lines"].as_array().expect("lines");
    let found = lines.iter().find(|l| l["insn"].as_str().is_some_and(|i| i.starts_with(insn)));
    found.unwrap_or_else(|| panic!("no {insn} in {annotation}"))
}

/// Instruction by instruction: what the program's source says, and the recorder.
fn check_annotations(run: &Path) {
    let leaf = annotated(run, "leaf");
    assert_eq!((leaf["entered"].as_u64(), leaf["instructions"].as_u64()), (Some(LEAVES), Some(4 * LEAVES)));
    for line in leaf["lines"].as_array().expect("lines") {
        assert_eq!(line["count"], LEAVES);
    }
    let spin = annotated(run, "spin");
    let branch = line(&spin, "jne");
    assert_eq!((branch["count"].as_u64(), branch["taken"].as_u64()), (Some(SPINS * 100), Some(SPINS * 99)));
    assert_eq!(line(&spin, "ret")["count"], SPINS);
    let recurse = annotated(run, "recurse");
    assert_eq!(line(&recurse, "je")["taken"], 7, "the depth is used up once for each of seven");
    assert_eq!(line(&recurse, "je")["count"], 7 * 51);
    let source = line(&recurse, "je")["source"][0].clone();
    assert_eq!(source["function"], "recurse");
    assert!(source["file"].as_str().is_some_and(|f| f.ends_with("truth.c")), "{source}");
    let tail = annotated(run, "tail");
    assert_eq!(line(&tail, "jmp")["refers"], "<leaf>");
    assert_eq!(tail["instructions"], 30);
}

/// Lines of `kprism script`, of the program's tasks.
fn script(run: &Path, args: &[&str]) -> Vec<String> {
    let all = [&["script", "-i", text(run), "--comm", "truth"], args].concat();
    String::from_utf8(ok(&all)).expect("UTF-8").lines().map(str::to_owned).collect()
}

fn check_listings(run: &Path) {
    let info = json(&["info", "--json", "-i", text(run)]);
    let lines = ok(&["script", "--fields", "time", "-i", text(run)]);
    let times: Vec<&[u8]> = lines.split(|&b| b == b'\n').filter(|l| !l.is_empty()).collect();
    assert_eq!(Some(times.len() as u64), info["instructions_recorded"].as_u64(), "one line an instruction");
    assert!(times.is_sorted(), "in order of time");

    assert_eq!(script(run, &["--limit", "3"]).len(), 3);
    // A reader that goes away ends it, and is no error.
    let mut child = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["script", "-i", text(run)])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kprism runs");
    let mut some = [0; 4096];
    child.stdout.take().expect("a pipe").read_exact(&mut some).expect("lines");
    assert!(child.wait().expect("it ends").success());

    let spins = script(run, &["--func", "spin", "--self", "--fields", "sym,insn"]);
    assert_eq!(spins.len() as u64, SPINS * (2 + 200 + 1));
    let branches = script(run, &["branches", "--user", "--fields", "sym"]);
    let count = |kind: &str, from: &str, to: &str| {
        let is = |l: &&String| {
            let words: Vec<&str> = l.split_whitespace().collect();
            words[0] == kind && words[1].starts_with(from) && words[3] == to
        };
        branches.iter().filter(is).count() as u64
    };
    assert_eq!(count("call", "", "leaf+0x0"), LEAVES - 30);
    assert_eq!(count("jmp", "tail+", "leaf+0x0"), 30);
    assert_eq!(count("call", "", "spin+0x0"), SPINS);
    assert_eq!(count("jcc", "spin+", "spin+0x7"), SPINS * 99);

    let calls = script(run, &["calls", "--json"]);
    let calls: Vec<Value> = calls.iter().map(|l| serde_json::from_str(l).expect("a JSON object")).collect();
    let ended = |name: &str| calls.iter().filter(|c| c["symbol"] == name).count() as u64;
    assert_eq!((ended("leaf"), ended("spin"), ended("recurse")), (LEAVES, SPINS, 7 * 51));
    let outermost = calls.iter().filter(|c| c["symbol"] == "repeat").map(|c| c["insns"].as_u64());
    assert!(outermost.flatten().all(|insns| insns > 1000 * 4));
    let syscalls = script(run, &["syscalls", "--fields", "time"]);
    let made = |name: &str| syscalls.iter().filter(|l| l.ends_with(&format!("  {name}"))).count();
    assert_eq!((made("getppid"), made("getpriority"), made("clone")), (123, 17, 4));
}

/// One call of a function alone, as the listing of all its calls has it.
fn check_one_call(run: &Path) {
    let objects = |args: &[&str], name: &str| {
        let lines = script(run, &[&["calls", "--json"], args].concat());
        let lines = lines.iter().map(|l| serde_json::from_str::<Value>(l).expect("a JSON object"));
        let mut calls: Vec<Value> = lines.filter(|call| call["symbol"] == name).collect();
        calls.sort_by_key(|call| call["time_ns"].as_u64());
        calls
    };
    let number = |call: &Value, key: &str| call[key].as_u64().expect("a number");

    let leaves = objects(&["--func", "leaf"], "leaf");
    let order = |call: &&Value| (number(call, "wall_ns"), Reverse(number(call, "time_ns")));
    let slowest = leaves.iter().max_by_key(order).expect("a call");
    for (which, known) in [("slowest", slowest), ("1", &leaves[0]), ("517", &leaves[516])] {
        let one = objects(&["--func", "leaf", "--call", which], "leaf");
        assert_eq!(Vec::from_iter(&one), [known], "leaf, {which}");
    }
    let one = ["annotate", "leaf", "--call", "slowest", "--json", "-q", "--comm", "truth", "-i", text(run)];
    let leaf = json(&one);
    assert_eq!((leaf["entered"].as_u64(), leaf["instructions"].as_u64()), (Some(1), Some(4)));

    // A call inside a call is none of its own.
    let mut outermost = objects(&["--func", "recurse"], "recurse");
    outermost.retain(|call| call["depth"] == 0);
    assert_eq!(outermost.len(), 7);
    let third = number(&outermost[2], "insns");
    let of_third = ["--func", "recurse", "--call", "3"];
    assert_eq!(objects(&of_third, "recurse").len(), 51);
    assert_eq!(script(run, &[&["insns", "--fields", "insn"], &of_third[..]].concat()).len() as u64, third);
    let more = ["-q", "--comm", "truth", "-i", text(run)];
    let folded = ok(&[&["export", "-o", "-.folded"][..], &of_third, &more].concat());
    let folded = String::from_utf8(folded).expect("UTF-8");
    let weights = folded.lines().map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()));
    assert_eq!(weights.sum::<Option<u64>>(), Some(third));
    let tree = json(&[&["report", "tree", "--json"][..], &of_third, &more].concat());
    assert_eq!(tree["tree"]["total_instructions"], third, "{tree}");
    let both = ["diff", text(run), text(run), "--function", "recurse", "--call", "3", "--json", "-q"];
    let both = json(&both);
    for side in ["old", "new"] {
        assert_eq!(both[side]["calls"], 1, "{side}");
        assert_eq!(both[side]["instructions"], third, "{side}");
    }

    let refused = |args: &[&str]| {
        let output = kprism(&[args, &more[1..]].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refused(&["script", "calls", "--func", "recurse", "--call", "8"]);
    assert!(error.contains("recurse was called 7 times, no more"), "{error}");
    // A task does not come back from its end.
    let error = refused(&["report", "tree", "--func", "do_exit", "--call", "slowest"]);
    assert!(error.contains("without a known end"), "{error}");
    let error = refused(&["script", "calls", "--func", "deep?", "--call", "1"]);
    assert!(error.contains("3 functions of this name were called"), "{error}");
    let error = refused(&["script", "syscalls", "--func", "getppid", "--call", "1"]);
    assert!(error.contains("--call does not go with system calls"), "{error}");
    for args in [
        &["script", "calls", "--call", "1"][..],
        &["script", "calls", "--func", "leaf", "--call", "1", "--from", "1s"],
        &["script", "calls", "--func", "leaf", "--func", "spin", "--call", "1"],
        &["report", "tree", "--func", "leaf", "--syscall", "clone"],
        &["report", "tree", "--call", "1"],
    ] {
        let error = refused(args);
        assert!(error.contains("--func") || error.contains("--call"), "{error}");
    }
}

#[test]
fn known_calls_are_counted_exactly() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = record_truth(dir.path(), &["-static"], &[]);
    check_truth(&run, true);
    check_annotations(&run);
    check_listings(&run);
    check_one_call(&run);
}

#[test]
fn known_calls_are_counted_exactly_in_every_mode() {
    let _alone = alone();
    let modes: [(&[&str], &[&str]); 4] = [
        (&[], &["--smp", "2"]),
        (&["-no-pie"], &["--retc", "off", "--cyc", "off"]),
        (&[], &["--mtc", "off", "--cyc", "off", "--psb", "2048"]),
        (&[], &["--fast", "--smp", "2"]),
    ];
    for (flags, options) in modes {
        let dir = tempfile::tempdir().unwrap();
        let run = record_truth(dir.path(), flags, options);
        check_truth(&run, !options.contains(&"--cyc"));
        check_annotations(&run);
        check_listings(&run);
    }
}

/// One file system in another, and a part of it in a third place: as /proc/PID/maps of the guest says it.
#[test]
fn mapped_files_have_the_paths_that_their_task_sees() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let script = "set -e; mkdir -p /tmp/in/x /mnt; busybox mount -t tmpfs none /tmp/in; mkdir /tmp/in/x; \
                  cp $(command -v busybox) /tmp/in/x/cat; busybox mount --bind /tmp/in/x /mnt; \
                  /tmp/in/x/cat /proc/self/maps; /mnt/cat /proc/self/maps";
    let args = ["lab", "run", "-q", "-o", text(&run), "--", "sh", "-c", script];
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let told = printed
        .lines()
        .filter(|line| line.contains("r-xp"))
        .filter_map(|line| line.split_whitespace().nth(5));
    let told: BTreeSet<String> = told.filter(|path| path.ends_with("/cat")).map(str::to_owned).collect();
    assert_eq!(Vec::from_iter(&told), ["/mnt/cat", "/tmp/in/x/cat"], "{printed}");

    let sideband = fs::read_to_string(run.join("streams/sideband.jsonl")).unwrap();
    let records = sideband.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
    let mapped = records.filter(|record| record["k"] == "mmap" && record["exec"] == true);
    let paths = mapped.map(|record| record["path"].as_str().expect("a path").to_owned());
    let seen: BTreeSet<String> = paths.filter(|path| path.ends_with("/cat")).collect();
    assert_eq!(seen, told);
}

/// Every file below `dir`, by path from there.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// The guest's own log and output, and how the runs' streams and tables compare.
#[test]
fn the_observer_is_deterministic_and_leaves_the_guest_alone() {
    let _alone = alone();
    const TELLTALE: &str = "date +%s.%N; cat /proc/interrupts /proc/stat /proc/vmstat; sleep 0.02; ls /bin | sed s/a/z/g; echo log > /dev/kmsg";
    for smp in ["1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let run = |name: &str, more: &[&str]| {
            let folder = dir.path().join(name);
            let mut args = vec!["lab", "run", "-q", "--smp", smp, "-o", text(&folder)];
            args.extend(more);
            args.extend(["--", "sh", "-c", TELLTALE]);
            let stdout = ok(&args);
            (folder.clone(), stdout, fs::read(folder.join("console.log")).unwrap())
        };
        let first = run("first", &[]);
        // Guest time as counted is guest time as read, waiting included.
        let counts: Value =
            serde_json::from_slice(&fs::read(first.0.join("streams/counts.json")).unwrap()).unwrap();
        for vcpu in counts["vcpus"].as_array().unwrap() {
            assert_eq!((&vcpu["drift_ns"], &vcpu["unexplained"]), (&0.into(), &0.into()), "{smp} CPUs");
        }
        let second = run("second", &[]);
        let unobserved = run("unobserved", &["--unobserved"]);
        for part in ["streams", "tables"] {
            let (a, b) = (files(&first.0.join(part)), files(&second.0.join(part)));
            assert!(a.len() > 4, "{part}");
            for (a, b) in a.iter().zip(&b) {
                assert!(a == b, "{smp} CPUs: {part}/{} differs between two runs", a.0.display());
            }
            assert_eq!(a.len(), b.len());
        }
        let environment = |run: &Path| {
            let manifest: Value =
                serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
            manifest["environment"].clone()
        };
        let here = environment(&first.0);
        assert!(here["parts"]["package coreutils"].is_string(), "{here}");
        assert_eq!(here, environment(&second.0));
        let compared: Value =
            serde_json::from_slice(&ok(&["diff", text(&first.0), text(&second.0), "--json"])).unwrap();
        assert_eq!(compared["environment"]["same"], true);
        let other = environment(&unobserved.0);
        assert!(here["parts"]["observer"].is_string() && other["parts"]["observer"].is_null());
        assert_ne!(here["id"], other["id"]);
        assert!(String::from_utf8_lossy(&first.2).contains("log"));
        for other in [second, unobserved] {
            assert!(first.1 == other.1, "{smp} CPUs: the guest's output differs");
            assert!(first.2 == other.2, "{smp} CPUs: the guest's log differs");
        }
    }
}

/// All functions of a run: calls, own and total instructions, own and total time.
fn functions(run: &Path) -> Vec<String> {
    let report = json(&["report", "functions", "--json", "--limit", "0", "-q", "-i", text(run)]);
    let mut rows: Vec<_> = report["rows"].as_array().expect("rows").iter().map(Value::to_string).collect();
    rows.sort();
    rows
}

/// A string instruction with a repeat prefix is one instruction, and takes the time of all its turns. Its function has that time,
/// wherever the next packet is. Judges: the program's source, and a recording of the same run with a packet at each return.
#[test]
fn a_repeated_instruction_takes_its_own_time() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    fs::create_dir(&share).unwrap();
    build("repeated", &share, &["-static", "-fno-pie", "-no-pie"]);
    let record = |name: &str, options: &[&str]| {
        let run = dir.path().join(name);
        let to = ["lab", "run", "-q", "-o", text(&run), "--share", text(&share)];
        ok(&[&to, options, &["--", "/share/repeated"]].concat());
        run
    };
    let run = record("run", &[]);
    let report = json(&["report", "functions", "--json", "--limit", "0", "-q", "-i", text(&run)]);
    let column = |name: &str, column: &str| value(&report, "function", name, column);
    // Each turn is a nanosecond beside that of the instruction.
    let turns = |name| column(name, "self_ns") - column(name, "self_instructions");
    assert_eq!(turns("fill"), 200 * 1000 + 199 * 200 / 2);
    assert_eq!(turns("copy"), 200 * 512 + 25 * (1 + 2 + 3 + 4 + 5 + 6 + 7));
    assert_eq!((turns("light"), turns("outer")), (0, 0));
    let account = report["run"]["account"].as_array().expect("an account");
    let is_whole =
        |entry: &Value| matches!(entry["fate"].as_str(), Some("seen" | "kept")) || entry["count"] == 0;
    assert!(account.iter().all(is_whole), "{account:?}");
    // Call by call.
    let calls = ok(&["script", "calls", "--func", "outer", "--json", "-q", "-i", text(&run)]);
    let calls: Vec<Value> =
        serde_json::Deserializer::from_slice(&calls).into_iter().map(|call| call.unwrap()).collect();
    let fills = calls.iter().filter(|call| call["symbol"] == "fill");
    let longer: Vec<u64> = fills
        .filter(|call| call["on_cpu_ns"] == call["wall_ns"])
        .map(|call| call["wall_ns"].as_u64().unwrap() - call["insns"].as_u64().unwrap())
        .collect();
    assert!(longer.len() > 150, "calls that no interrupt and no page fault made longer: {}", longer.len());
    let undisturbed = longer.iter().filter(|turns| (1000..1200).contains(*turns)).count();
    assert!(undisturbed > 150, "{longer:?}");
    let often = record("often", &["--retc", "off"]);
    assert_eq!(functions(&run), functions(&often));
}
