// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record durations` in a guest: what is recorded is what the kernel counted, and nothing stays switched on.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::{Data, Exit, Func, decode::Decoder, raw::Cpu, side};
use kprism_test::of_today;
use serde_json::Value;

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

/// Records in a guest; gives what was said.
fn record(run: &Path, args: &[&str]) -> String {
    let mut all = vec!["record", "func", "--guest", "-o", run.to_str().unwrap()];
    all.extend(args);
    let output = kprism(&all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// A return: thread, function, duration.
type Returned = (u32, u64, Option<u64>);

/// Tells each event that a CPU recorded, and gives how many there were.
fn each(run: &Path, cpu: u32, mut take: impl FnMut(&kprism_ftrace::Event<'_>)) -> u64 {
    let streams = run.join("streams/ftrace");
    let mut formats = Vec::new();
    for system in fs::read_dir(streams.join("events")).unwrap().flatten() {
        for event in fs::read_dir(system.path()).unwrap().flatten() {
            let text = fs::read(event.path().join("format")).unwrap();
            formats.push(Format::parse(system.file_name().to_str().unwrap(), &text).unwrap());
        }
    }
    let decoder = Decoder::new(&formats, false);
    let layout = PageLayout::parse(&fs::read(streams.join("header_page")).unwrap()).unwrap();
    let pages = fs::read(streams.join(format!("cpu{cpu}.raw"))).unwrap();
    let mut reader = Cpu::new(&decoder, layout, cpu, &pages);
    reader.by_ref().for_each(|event| take(&event));
    assert_eq!(reader.counts().faults, Default::default());
    reader.counts().events
}

/// All exits of functions that a CPU recorded, and how many events there were.
fn read(run: &Path, cpu: u32) -> (Vec<Returned>, u64, side::Stats) {
    let mut exits = Vec::new();
    let events = each(run, cpu, |event| {
        if let Data::Exit(Exit { func: Some(Func::Address(func)), call_ns, ret_ns, .. }) = event.data {
            let ns = call_ns.map(|call| ret_ns.unwrap_or(event.ns) - call);
            exits.push((event.pid, func, ns));
        }
    });
    let stats = side::stats(&fs::read(run.join(format!("streams/ftrace/stats/cpu{cpu}"))).unwrap());
    (exits, events, stats)
}

/// The functions of a run's kernel, by address. Of several names at one address the last is meant.
struct Functions(Vec<(u64, String)>);

impl Functions {
    fn new(run: &Path) -> Self {
        let kallsyms = fs::read_to_string(run.join("symbols/kallsyms")).unwrap();
        let function = |line: &str| {
            let mut words = line.split([' ', '\t']);
            let (address, kind, name) = (words.next()?, words.next()?, words.next()?);
            matches!(kind, "t" | "T").then(|| (u64::from_str_radix(address, 16).unwrap(), name.to_owned()))
        };
        let mut functions: Vec<_> = kallsyms.lines().filter_map(function).collect();
        functions.sort_by_key(|(address, _)| *address);
        Self(functions)
    }

    /// The function that an address is in.
    fn name(&self, address: u64) -> &str {
        let after = self.0.partition_point(|(begin, _)| *begin <= address);
        &self.0[after.checked_sub(1).expect("an address of the kernel")].1
    }
}

/// Runs a script of `record_func` in a guest, which has the program as `/test/kprism`. Gives its output.
fn in_guest(script: &str, options: &[&str], arguments: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let program = format!("--share={}:/test/kprism", env!("CARGO_BIN_EXE_kprism"));
    let file = format!("{}/tests/record_func/{script}", env!("CARGO_MANIFEST_DIR"));
    let (file, place) = (format!("--share={file}:/test/{script}"), format!("/test/{script}"));
    let lab = ["lab", "run", "-q", "--unobserved", "-o", run.to_str().unwrap(), &program, &file];
    let output = kprism(&[&lab, options, &["--", "sh", &place], arguments].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    said
}

#[test]
fn a_killed_recording_leaves_tracefs_as_it_was() {
    let program = env!("CARGO_BIN_EXE_kprism");
    let recorder = Path::new(program).with_file_name("kprism-recorder");
    assert!(recorder.exists(), "{}: it is a program of this crate", recorder.display());
    let share = format!("--share={}:/test/recorder", recorder.display());
    // Twelve kills; four of them a day.
    let kills = of_today(1..=12_usize, 4);
    let numbers: Vec<String> = kills.iter().map(usize::to_string).collect();
    let words = ["/test/recorder", "/test/kprism"].into_iter().chain(numbers.iter().map(String::as_str));
    let said = in_guest("killed.sh", &[&share], &words.collect::<Vec<_>>());
    assert!(!said.contains("NOT AS IT WAS") && !said.contains("JOURNAL NOT EMPTY"));
    assert_eq!(said.lines().filter(|line| line.contains(" ms after its ")).count(), kills.len());
    // The test means something: those that wait for the first change came while something was changed.
    for (who, is_odd) in [("guard", true), ("check", false)] {
        let of = format!(": {who}, left, changed");
        let changed = said.lines().filter(|line| line.ends_with(&of)).count();
        let waited = kills.iter().filter(|kill| (*kill % 2 == 1) == is_odd && *kill % 5 != 0).count();
        assert!(waited > 0 && changed >= waited, "{who}: {changed} of {waited}: {said}");
    }
    assert!(said.contains("put back what a killed recording"));
    assert!(said.contains("an open file holds its instance"), "{said}");
    assert!(said.contains("ended by itself") && said.ends_with("as it was\n"));
    assert!(said.contains("the command ran on") && said.contains("No space left"), "{said}");
    assert!(said.contains("the recorder's exit code on a full disk: 125\n"), "{said}");
}

/// Runs `work` while a thread for each CPU keeps this machine busy, also if it panics.
fn beside_busy_threads<T>(work: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _over = Over(&over);
        work()
    })
}

/// The tracer is on in a guest that is kept for such recordings. With a command before the user's it is switched on each time.
#[test]
fn a_guest_that_is_kept_ready_gives_the_same_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second, other] = ["first", "second", "other"].map(|name| dir.path().join(name));
    let command = ["--", "sh", "-c", "cat /etc/passwd > /dev/null; exit 3"];
    let code = |run: &Path, options: &[&str]| {
        let place = ["record", "durations", "--guest", "-o", run.to_str().unwrap()];
        let output = kprism(&[&place, options, &command].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (_, said) = code(&first, &[]);
    // Nor does it depend on what else this machine does.
    let (_, again) = beside_busy_threads(|| code(&second, &[]));
    assert!(!again.contains("making the guest ready"), "{again}");
    let (_, whole) = code(&other, &["--before", "true"]);
    assert!(!whole.contains("making the guest ready"), "{whole}");
    let pages = |run: &Path| fs::read(run.join("streams/ftrace/cpu0.raw")).unwrap();
    assert!(pages(&first) == pages(&second), "{said}\n{again}");
    for run in [&first, &second, &other] {
        let text = fs::read(run.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(manifest["exit_code"], 3);
        assert_eq!(manifest["command"][0], "sh");
        assert!(!run.join("streams/ftrace/ready.json").exists());
    }
    // The command made the same system calls.
    let calls = |run: &Path| {
        let functions = Functions::new(run);
        let mut counts = HashMap::new();
        read(run, 0).0.iter().for_each(|(_, func, _)| *counts.entry(*func).or_insert(0) += 1);
        let named = counts.into_iter().map(|(func, count)| (functions.name(func).to_owned(), count));
        let calls: HashMap<String, u64> = named.filter(|(name, _)| name.contains("_sys_")).collect();
        calls
    };
    let (kept, anew) = (calls(&first), calls(&other));
    assert!(kept.len() > 20, "{kept:?}");
    assert_eq!(kept, anew);
    // What a ready guest refuses is told as always.
    let output = kprism(&["record", "durations", "--guest", "-o", first.to_str().unwrap(), "--", "no-such"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no-such") && said.contains("nothing was recorded"),
        "{said}"
    );
}

#[test]
fn a_threshold_is_the_kernels_own() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let script = "for i in 1 2 3 4 5; do sleep 0.005; done";
    let said =
        record(&run, &["--longer-than", "1ms", "-e", "sched:sched_process_exec", "--", "sh", "-c", script]);
    let (exits, events, stats) = read(&run, 0);
    let manifest: Value = serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
    assert_eq!((events, stats.entries), (stats.read, 0), "{said}");
    assert_eq!((&manifest["events"], &manifest["lost_events"]), (&events.into(), &0.into()));
    assert_eq!(fs::read_to_string(run.join("streams/ftrace/tracing_thresh")).unwrap(), "1000\n");
    // The kernel keeps long calls of everybody; the command's are shown.
    let output =
        kprism(&["report", "func", "--by-task", "-i", run.to_str().unwrap(), "--json", "--limit", "0"]);
    let tasks: Value = serde_json::from_slice(&output.stdout).unwrap();
    let comms: HashSet<&str> =
        tasks["rows"].as_array().unwrap().iter().map(|row| row["comm"].as_str().unwrap()).collect();
    assert!(comms.contains("sleep") && comms.is_subset(&HashSet::from(["sh", "sleep"])), "{comms:?}");
    // Nothing below it.
    assert!(!exits.is_empty() && exits.iter().all(|(_, _, ns)| ns.unwrap() >= 1_000_000), "{exits:?}");
    // Each sleep is one call, as long as it was asked for and hardly longer.
    let functions = Functions::new(&run);
    let sleeps: Vec<u64> = exits
        .iter()
        .filter(|(_, func, _)| functions.name(*func) == "__x64_sys_clock_nanosleep")
        .map(|(_, _, ns)| ns.unwrap())
        .collect();
    assert_eq!(sleeps.len(), 5, "{sleeps:?}");
    assert!(sleeps.iter().all(|ns| (5_000_000..6_000_000).contains(ns)), "{sleeps:?}");
}

/// With a threshold the kernel keeps calls of everybody. Those of a process, a thread and a control group are told apart
/// as the command's are.
#[test]
fn with_a_threshold_only_those_asked_for_are_shown() {
    // For the control groups' file system.
    let said = in_guest("whose.sh", &["--package", "mount"], &["/test/kprism"]);
    let mut others = 0;
    for scope in said.split("scope ").skip(1).take(3) {
        let comms: Vec<&str> =
            scope.lines().filter_map(|line| line.strip_prefix("comm ")?.split(' ').nth(1)).collect();
        assert_eq!(comms, ["wanted"], "{scope}");
        let of = |line: &str| {
            line.split_once(" of tasks that were not asked for")?.0.split(' ').next()?.parse().ok()
        };
        let counted: u32 = scope.lines().find_map(of).unwrap_or_else(|| panic!("no count: {scope}"));
        others += counted;
    }
    // The test means something.
    assert!(others > 0, "{said}");
    assert!(said.contains("container kprism: this is a PID namespace"), "{said}");
}

/// A report in CSV, of one recording of `options.sh`: calls and the longest one of each function.
fn calls(section: &str) -> HashMap<String, (u64, u64)> {
    let columns =
        section.lines().find_map(|line| line.strip_prefix("columns ")).unwrap_or_else(|| panic!("{section}"));
    let of = |name: &str| {
        columns.split(',').position(|column| column == name).unwrap_or_else(|| panic!("{columns}"))
    };
    let (function, count, longest) = (of("function"), of("count"), of("max_ns"));
    let rows = section.lines().filter_map(|line| line.strip_prefix("call "));
    rows.map(|row| {
        let fields: Vec<&str> = row.split(',').collect();
        let number = |at: usize| fields[at].parse().unwrap_or_else(|_| panic!("{row}"));
        (fields[function].to_owned(), (number(count), number(longest)))
    })
    .collect()
}

/// The recordings of `options.sh`: those of a row are compared with each other.
const OPTIONS: [&[&str]; 7] = [
    &["some", "no-irqs"],
    &["graph-funcs"],
    &["nograph-funcs"],
    &["sleep", "no-sleep-time"],
    &["clock"],
    &["cpu"],
    &["depth"],
];

/// Each option of function_graph does what the kernel's own documentation says of its file. Three of them a day.
#[test]
fn options_are_honoured() {
    let options = of_today(OPTIONS, 3).concat();
    let said = in_guest("options.sh", &["--smp=2"], &[&["/test/kprism"], &options[..]].concat());
    assert!(!said.contains("failed"), "{said}");
    let sections: HashMap<&str, &str> =
        said.split("option ").skip(1).filter_map(|section| section.split_once('\n')).collect();
    let of = |name: &str| calls(sections.get(name).unwrap_or_else(|| panic!("no {name} in {said}")));
    let interrupts =
        |calls: &HashMap<String, (u64, u64)>| calls.keys().filter(|name| name.contains("sysvec")).count();

    let stats =
        |name: &str| sections[name].lines().filter(|line| line.starts_with("stats ")).collect::<Vec<_>>();
    let sleep = "__x64_sys_clock_nanosleep";
    for option in options {
        if option == "cpu" {
            // Of functions it may have seen none.
            assert_eq!(stats(option), ["stats cpu1"]);
            continue;
        }
        let calls = of(option);
        let has = |name: &str| calls.contains_key(name);
        match option {
            "some" => {
                assert!(has("vfs_read") && has("vfs_open") && interrupts(&calls) > 0, "{calls:?}");
            }
            "no-irqs" => assert!(has("vfs_read") && interrupts(&calls) == 0, "{calls:?}"),
            "graph-funcs" => {
                assert!(has("vfs_read") && has("seq_read_iter"), "{calls:?}");
                assert!(!has("vfs_open") && !has("x64_sys_call"), "{calls:?}");
            }
            "nograph-funcs" => assert!(!has("vfs_read") && has("vfs_open"), "{calls:?}"),
            "sleep" => assert!(calls[sleep].0 == 3 && calls[sleep].1 > 20_000_000, "{calls:?}"),
            "no-sleep-time" => assert!(calls[sleep].0 == 3 && calls[sleep].1 < 1_000_000, "{calls:?}"),
            "clock" => {
                assert!(sections[option].contains(r#""name": "boot""#), "{}", sections[option]);
                assert!(has("vfs_read"), "{calls:?}");
                assert_eq!(stats(option), ["stats cpu0", "stats cpu1"]);
            }
            "depth" => assert!(has("vfs_read") && !has("seq_read_iter"), "{calls:?}"),
            _ => panic!("no such recording: {option}"),
        }
    }
}

/// With all functions traced, a task has events after its switch: those of its way out. The switches alone say how long
/// it was away, but for that way, which is counted here.
#[test]
fn off_the_cpu_is_what_the_switches_say() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let said = record(&run, &["--", "sh", "-c", "for i in 1 2 3 4 5 6; do sleep 0.007; done"]);
    // When a task left and came, and what it, or who left for it, did on the way out.
    let (mut out, mut away, mut leaving) = (HashMap::new(), HashMap::new(), None);
    let mut calls = Vec::new();
    let mut window = (u64::MAX, 0);
    each(&run, 0, |event| {
        window = (window.0.min(event.ns), window.1.max(event.ns));
        if let Data::Exit(Exit { func: Some(Func::Address(func)), call_ns, ret_ns, .. }) = event.data {
            calls.push((event.pid, func, call_ns.unwrap(), ret_ns.unwrap_or(event.ns)));
        }
        match (&event.data, &mut leaving) {
            (Data::Switch { prev_pid, next_pid, .. }, _) => {
                if let Some((from, way)) = out.remove(next_pid) {
                    away.entry(*next_pid).or_insert_with(Vec::new).push((from, event.ns, way));
                }
                out.insert(*prev_pid, (event.ns, 0));
                leaving = Some((*prev_pid, *next_pid, event.ns));
            }
            (_, Some((pid, _, ns))) if *pid == event.pid => {
                if let Some((_, way)) = out.get_mut(pid) {
                    *way = event.ns - *ns;
                }
            }
            (_, Some((prev, next, _))) => {
                let way = out.get(prev).map_or(0, |(_, way)| *way);
                if let Some((_, _, last)) = away.get_mut(next).and_then(|all| all.last_mut()) {
                    *last += way;
                }
                leaving = None;
            }
            _ => {}
        }
    });
    let report = |args: &[&str]| -> Value {
        let mut all = vec!["report", "func", "-i", run.to_str().unwrap(), "--json", "--limit", "0"];
        all.extend(args);
        let output = kprism(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let tasks = report(&["--by-task"]);
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let rows = tasks["rows"].as_array().unwrap();
    let sleeps: Vec<&Value> =
        rows.iter().filter(|row| row["function"] == "__x64_sys_clock_nanosleep").collect();
    assert_eq!(sleeps.len(), 6, "{said}");
    let functions = Functions::new(&run);
    let addresses: HashSet<u64> = calls.iter().map(|call| call.1).collect();
    let is_sleep = |func: &&u64| functions.name(**func) == "__x64_sys_clock_nanosleep";
    let nanosleep = *addresses.iter().find(is_sleep).unwrap();
    for row in sleeps {
        let pid = u32::try_from(number(row, "pid")).unwrap();
        let (_, _, begin, end) = *calls.iter().find(|call| (call.0, call.1) == (pid, nanosleep)).unwrap();
        let within = away[&pid].iter().filter(|(from, to, _)| begin < *from && *to < end);
        let (ns, ways) = within.fold((0, 0), |(ns, ways), (from, to, way)| (ns + to - from, ways + way));
        assert!(ns > 6_500_000 && ways < 100_000, "{ns} {ways}");
        let off = number(row, "off_cpu_ns");
        assert!(off.abs_diff(ns) <= ways, "{off} off the CPU, {ns} by the switches: {row}");
    }
    // One CPU cannot have worked for longer than it was watched.
    let all = report(&[]);
    let worked: u64 = all["rows"].as_array().unwrap().iter().map(|row| number(row, "self_ns")).sum();
    assert!(worked <= window.1 - window.0, "{worked} of {}", window.1 - window.0);
}

#[test]
fn events_are_what_the_kernel_counted() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // So small a buffer overflows in the time it takes to be read.
    let args = ["--buffer-size", "64K", "-T", "*", "-N", "*rcu*", "-a", "--", "ls", "/bin"];
    let said = record(&run, &args);
    let (exits, events, stats) = read(&run, 0);
    let manifest: Value = serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
    let lost = stats.overrun + stats.commit_overrun + stats.dropped;
    assert_eq!((events, stats.entries), (stats.read, 0), "{said}");
    assert_eq!((&manifest["events"], &manifest["lost_events"]), (&events.into(), &lost.into()));
    assert!(lost > 0 && said.contains("for fewer losses"), "{said}");
    // One number of lost events, whoever says it.
    let account = manifest["accounts"]["durations"].as_array().expect("an account");
    let of = |unit: &str| account.iter().find(|e| e["unit"] == unit && e["fate"] == "lost").expect("a count");
    assert_eq!(of("events")["count"], lost);
    assert_eq!(manifest["options"]["durations"]["lost"], lost);
    let info = kprism(&["info", "--strict", "-i", run.to_str().unwrap()]);
    let text = String::from_utf8(info.stdout).unwrap();
    assert!(text.contains(&format!("lost events   {}\n", grouped(lost))), "{text}");
    assert_eq!(info.status.code(), Some(4));
    let functions = Functions::new(&run);
    let mut seen: Vec<u64> = exits.iter().map(|(_, func, _)| *func).collect();
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() > 50 && seen.iter().all(|func| !functions.name(*func).contains("rcu")));
}

/// Of several names at one address the kernel's list has one, and a report another.
#[test]
fn a_function_is_found_by_any_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    for backend in ["ftrace", "bpf-kprobe"] {
        let run = dir.path().join(backend);
        let functions = ["-T", "__x64_sys_getppid", "-T", "__x64_sys_getcwd", "--backend", backend];
        record(&run, &[&functions[..], &["--no-events", "--", "sh", "-c", "pwd -P > /dev/null"]].concat());
        let output = kprism(&["report", "func", "-i", run.to_str().unwrap(), "--json"]);
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        let names: HashSet<&str> =
            rows["rows"].as_array().unwrap().iter().map(|row| row["function"].as_str().unwrap()).collect();
        assert!(names.iter().any(|name| name.ends_with("_sys_getppid")), "{backend}: {names:?}");
        assert!(names.iter().any(|name| name.ends_with("_sys_getcwd")), "{backend}: {names:?}");
    }
}

#[test]
fn what_cannot_be_recorded_is_refused_early() {
    let refused = |args: &[&str], words: &str| {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let mut all = vec!["record", "func", "-o", run.to_str().unwrap()];
        all.extend(args);
        let output = kprism(&all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(!run.exists(), "{args:?}: a run was begun");
    };
    refused(&["--", "no-such-program"], "no-such-program: entity not found");
    refused(&["--", "/etc/passwd"], "/etc/passwd: permission denied");
    refused(&["--longer-than", "1h", "--", "true"], "expected a time");
    refused(&["--guest", "-p", "1", "--", "true"], "cannot be used with");
    refused(&[], "required");
    // What a backend would ignore.
    refused(&["--aggregate", "--backend", "ftrace", "--", "true"], "--aggregate is done by BPF");
    let bpf = |option: &[&str], word: &str| {
        refused(&[&["--backend", "bpf-kprobe", "-T", "vfs_read"], option, &["--", "true"]].concat(), word);
    };
    bpf(&["--clock", "mono"], "has no --clock");
    bpf(&["--top-level"], "has no --top-level");
    bpf(&["--cgroup", "x"], "has no --cgroup");
}

#[test]
fn ctrl_c_keeps_what_was_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // When it says so, some of it is recorded.
    let script = "ls /bin > /dev/null; echo begun; while :; do ls /bin > /dev/null; done";
    let mut child = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["record", "func", "--guest", "-o", run.to_str().unwrap(), "-T", "vfs_*", "--"])
        .args(["sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kprism runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("stopped early: interrupted") && said.contains("recorded in"), "{said}");
    let (exits, events, stats) = read(&run, 0);
    let manifest: Value = serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
    assert_eq!((events, stats.entries), (stats.read, 0), "{said}");
    assert_eq!((&manifest["events"], &manifest["stopped"]), (&events.into(), &"interrupted".into()));
    let functions = Functions::new(&run);
    assert!(exits.iter().any(|(_, func, _)| functions.name(*func) == "vfs_open"), "{said}");
}

#[test]
fn what_was_found_is_measured_again() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let script = "for i in 1 2 3 4 5; do sleep 0.005; done; ls -R /sys/kernel > /dev/null";
    let said = record(&run, &["--longer-than", "1ms", "--remeasure", "--", "sh", "-c", script]);
    assert!(said.contains("functions again, every call"), "{said}");
    let report = |args: &[&str]| -> Value {
        let mut all = vec!["report", "func", "-i", run.to_str().unwrap(), "--json", "--limit", "0"];
        all.extend(args);
        let output = kprism(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (passes, first) = (report(&["--remeasured"]), report(&[]));
    let row = |table: &Value, name: &str| {
        let rows = table["rows"].as_array().unwrap();
        rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{name}: {table}")).clone()
    };
    // Both passes saw the five sleeps; they took as long, however much is traced.
    let sleep = row(&passes, "__x64_sys_clock_nanosleep");
    assert_eq!(
        (&sleep["count"], &sleep["again_count"], &sleep["again_long"]),
        (&5.into(), &5.into(), &5.into())
    );
    let first = row(&first, "__x64_sys_clock_nanosleep");
    assert_eq!((&sleep["total_ns"], &sleep["count"]), (&first["total_ns"], &first["count"]));
    for key in ["average_ns", "again_average_ns"] {
        assert!((5_000_000..6_000_000).contains(&sleep[key].as_u64().unwrap()), "{sleep}");
    }
    // What works rather than waits took longer while everything was traced, and more calls of it are seen again.
    let rows = passes["rows"].as_array().unwrap();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or(0);
    let found = rows.iter().filter(|row| number(row, "again_count") > 0);
    assert!(found.clone().count() >= 5, "{passes}");
    let shorter = found.filter(|row| number(row, "again_average_ns") < number(row, "average_ns")).count();
    assert!(shorter * 2 > rows.len(), "{shorter}: {passes}");
    let read = row(&passes, "x64_sys_call");
    assert!(number(&read, "again_count") > 2 * number(&read, "count"), "{read}");
}
