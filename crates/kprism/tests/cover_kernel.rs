// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel with gcov in the guest: windows with nothing in them, counters from memory beside those of debugfs, modules
//! that come and go, recording as on a machine, and the flow beside gcov.
//!
//! `KPRISM_GCOV_KERNEL` says that the kernel of `kprism lab gcov-kernel` is there: the whole one (`make test-gcov-kernel` sees
//! to it), or, with the arguments in `KPRISM_GCOV_ARGS`, a smaller one (`make test`, `scripts/gcov-small.sh`). Without it there
//! is nothing to test. `KPRISM_GCOV_DEBUG` says it of the whole one with debug information.

mod gcov_data;
mod guest;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use gcov_data::archive;
use guest::{alone, json, kprism, ok, text};
use kprism_gcov::Data;
use kprism_test::{GCOV_DEBUG_KERNEL, GCOV_KERNEL, SQL, needs, test};

/// Which kernel it is: nothing for the whole one.
fn which() -> String {
    std::env::var("KPRISM_GCOV_ARGS").unwrap_or_default()
}

/// A number that the whole kernel must have, and one for a smaller one.
fn of_size(whole: usize, small: usize) -> usize {
    if which().is_empty() { whole } else { small }
}

/// The folder the kernel was built in.
fn built() -> String {
    let which = which();
    let args: Vec<&str> = ["lab", "gcov-kernel"].into_iter().chain(which.split_whitespace()).collect();
    let said = String::from_utf8(kprism(&args).stderr).unwrap();
    let place = said.trim().rsplit(" in ").next().expect("where it is");
    place.split(", ").next().expect("its folder").to_owned()
}

/// Runs on the gcov kernel.
fn lab(run: &Path, args: &[&str]) -> std::process::Output {
    let which = which();
    let which: Vec<&str> = which.split_whitespace().collect();
    let output = kprism(&[&["lab", "gcov-kernel", "-o", text(run)], &which[..], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn totals(run: &Path) -> serde_json::Value {
    json(&["report", "cover", "-q", "--json", "--limit", "1", "-i", text(run)])["totals"].clone()
}

fn lines_hit(run: &Path) -> u64 {
    totals(run)["lines_hit"].as_u64().unwrap()
}

fn counts(data: &Data) -> impl Iterator<Item = i64> {
    let values = data.functions.iter().flat_map(|function| &function.values);
    values.flat_map(|(_, values)| (0..values.len()).map(|index| values.get(index)))
}

/// Read from memory, an empty window is empty. Read in place, what is left of the reading is little, and is told.
#[test]
fn two_empty_windows_differ_by_what_is_told() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (from_memory, in_place) = (dir.path().join("memory"), dir.path().join("place"));
    lab(&from_memory, &["--empty"]);
    let nothing = totals(&from_memory);
    assert!(nothing["lines"].as_u64().unwrap() > of_size(300_000, 100_000) as u64);
    for key in ["lines_hit", "functions_hit", "branches_executed", "calls_executed"] {
        assert!(nothing[key].as_u64().is_none_or(|n| n == 0), "{key}: {nothing}");
    }
    let said = lab(&in_place, &["--in-place", "--empty"]);
    let said = String::from_utf8(said.stderr).unwrap();
    let left = lines_hit(&in_place);
    println!("an empty window, read in place: {left} lines left; {said}");
    assert!(said.contains("reading the counters changes"), "{said}");
    // A reading without anything taken out: some 2,500 lines of the kernel.
    let folder = in_place.join("streams/gcov");
    for name in ["idle-1.cpio", "idle-2.cpio", "idle-3.cpio", "idle-4.cpio"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    let whole = lines_hit(&in_place);
    println!("with the reading's own: {whole}");
    assert!(whole > 1000 && left * 5 < whole, "{left} of {whole} lines are left");

    // A window has what it is about: `true` is the exec of a program and its end, and no reading.
    let run = dir.path().join("true");
    lab(&run, &["--", "true"]);
    let of = |path: &str| {
        let report = json(&["report", "cover", "-q", "--json", "--each", "file", "-i", text(&run), path]);
        report["totals"]["lines_hit"].as_u64().unwrap()
    };
    assert!(of("fs/exec.c") > 100);
    assert_eq!((of("kernel/gcov"), of("fs/debugfs")), (0, 0), "reading is not in the window");
}

/// The same command counts the same each time, however busy the machine is: all counters, before it and after it.
#[test]
fn a_window_is_the_same_each_time() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // Load until it is dropped.
    let load = Arc::new(());
    for _ in 0..4 {
        let load = Arc::downgrade(&load);
        std::thread::spawn(move || {
            while load.strong_count() > 0 {
                std::hint::spin_loop();
            }
        });
    }
    let window = |n| {
        let run = dir.path().join(format!("run-{n}"));
        lab(&run, &["--", "sh", "-c", "ls -l /; cat /proc/[0-9]/stat; sleep 0.01"]);
        ["before.cpio", "counters.cpio"].map(|name| fs::read(run.join("streams/gcov").join(name)).unwrap())
    };
    let windows: Vec<_> = (0..4).map(window).collect();
    drop(load);
    assert_ne!(windows[0][0], windows[0][1]);
    for (n, window) in windows.iter().enumerate() {
        assert!(*window == windows[0], "run {n} counts otherwise than run 0");
    }
}

/// Memory says what debugfs does: of what did not run between, the very counters; of what did, nothing below the one
/// before and above the one after.
/// Many runs as rows: the lines of each, and the run that executed a line.
#[test]
fn lines_are_rows_of_a_lake() {
    needs(&[GCOV_KERNEL, SQL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (run, lake) = (dir.path().join("g.data"), dir.path().join("lake"));
    lab(&run, &["--", "ls", "/"]);
    ok(&["lake", "add", "-q", text(&run), "--to", text(&lake), "--suite", "s", "--label", "test=ls"]);
    let ask = |query: &str| json(&["lake", "sql", text(&lake), query, "--json"])[0].clone();
    let lines = ask("SELECT COUNT(*) AS lines, COUNT(*) FILTER (WHERE executions > 0) AS hit, \
         COUNT(*) FILTER (WHERE source_file LIKE '/%') AS absolute FROM cover_lines");
    let totals = totals(&run);
    assert_eq!((&lines["lines"], &lines["hit"]), (&totals["lines"], &totals["lines_hit"]), "{totals}");
    assert_eq!(lines["absolute"], 0);
    let never = ask("SELECT COUNT(*) AS n FROM never_covered")["n"].as_u64().unwrap();
    assert_eq!(never, totals["lines"].as_u64().unwrap() - totals["lines_hit"].as_u64().unwrap());
    let by = ask(
        "SELECT label_value, executions > 0 AS ran FROM which_test_covers WHERE source_file = 'fs/readdir.c'",
    );
    assert_eq!((&by["label_value"], &by["ran"]), (&"ls".into(), &true.into()));
}

#[test]
fn counters_from_memory_are_those_of_debugfs() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = lab(&run, &["--", "sh", "-c", "/init gcov | gzip -1 | base64 -w0"]);
    let encoded = dir.path().join("encoded");
    fs::write(&encoded, output.stdout).unwrap();
    let script = format!("base64 -d {} | gunzip", text(&encoded));
    let read = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
    let read = archive(&read);
    let memory = |name: &str| archive(&fs::read(run.join("streams/gcov").join(name)).unwrap());
    let (before, after) = (memory("before.cpio"), memory("counters.cpio"));
    assert!(read.len() > of_size(1000, 300));
    assert_eq!(read.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    let (mut same, mut between, mut grown) = (0, 0, 0);
    for (name, read) in &read {
        let (before, after) = (&before[name], &after[name]);
        if before == after {
            assert_eq!(read, before, "{name}");
            same += 1;
            continue;
        }
        let shape = |data: &Data| -> Vec<_> {
            data.functions
                .iter()
                .map(|f| (f.ident, f.lineno_checksum, f.cfg_checksum, f.values.len()))
                .collect()
        };
        assert_eq!((shape(read), read.header), (shape(before), before.header), "{name}");
        for ((low, middle), high) in counts(before).zip(counts(read)).zip(counts(after)) {
            assert!(low <= middle && middle <= high, "{name}: {low} {middle} {high}");
            grown += usize::from(high > low);
        }
        between += 1;
    }
    println!("{same} objects are the same, {between} have {grown} counters that grew, none out of order");
    assert!(same > of_size(800, 200) && between > 100);
}

/// What a module counted stays when it goes, and what it counted in the window is in the window.
#[test]
fn modules_that_come_and_go_are_in_the_window() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let built = built();
    let share = format!("{built}/fs/minix/minix.ko");
    let twice = "insmod /share; rmmod minix; insmod /share; rmmod minix";
    for (name, append, called) in [("kept", "gcov_persist=1", Some(2)), ("lost", "gcov_persist=0", None)] {
        let run = dir.path().join(name);
        lab(&run, &["--share", &share, "--append", append, "--", "sh", "-c", twice]);
        let report =
            ["report", "cover", "-q", "--json", "--each", "function", "-i", text(&run), "fs/minix/inode.c"];
        let report: serde_json::Value = serde_json::from_slice(&kprism(&report).stdout).unwrap_or_default();
        let rows = report["rows"].as_array().cloned().unwrap_or_default();
        let row = rows.iter().find(|row| row["function"] == "init_minix_fs");
        assert_eq!(row.and_then(|row| row["called"].as_u64()), called, "{append}: {report}");
    }
}

/// `record cover` as on a machine, in the guest: by debugfs, and by /proc/kcore.
#[test]
fn a_machine_s_own_kernel_is_recorded() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let program = format!("{}:/kprism", env!("CARGO_BIN_EXE_kprism"));
    for (name, more) in [("files", ""), ("kcore", "--memory /proc/kcore")] {
        let run = dir.path().join(name);
        let script = format!(
            "/kprism record cover -q -o /run/r {more} -- cat /proc/version && \
             tar -C /run/r -cz streams manifest.json | base64 -w0"
        );
        let output = lab(&run, &["--mem", "1024", "--share", &program, "--", "sh", "-c", &script]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (version, encoded) = said.split_once('\n').expect("what cat printed");
        assert!(version.starts_with("Linux version"), "{version}");
        // Back from the target, as a user would bring it.
        let brought = dir.path().join(format!("{name}-brought"));
        fs::create_dir_all(&brought).unwrap();
        fs::write(dir.path().join("encoded"), encoded).unwrap();
        let script = format!("base64 -d {} | tar -xz", text(&dir.path().join("encoded")));
        let unpacked = Command::new("sh").args(["-c", &script]).current_dir(&brought).output().unwrap();
        assert!(unpacked.status.success(), "{unpacked:?}");
        let of = |path: &str| {
            let report = [
                "report",
                "cover",
                "-q",
                "--json",
                "--each",
                "function",
                "--limit",
                "0",
                "-i",
                text(&brought),
                path,
            ];
            json(&report)
        };
        let report = of("fs/proc/version.c");
        let row =
            report["rows"].as_array().unwrap().iter().find(|row| row["function"] == "version_proc_show");
        assert_eq!(row.expect("cat ran it")["called"], 1, "{name}");
        println!("{name}: {}", report["totals"]);
        // The kernel runs on while its memory is read, if only to read it; debugfs copies what it shows.
        let manifest: serde_json::Value =
            serde_json::from_slice(&fs::read(brought.join("manifest.json")).unwrap()).unwrap();
        let unsettled = &manifest["options"]["unsettled"];
        println!("{name}: {unsettled}");
        let number = |key: &str| unsettled[key].as_u64();
        assert_eq!(number("functions").is_some(), name == "kcore");
        if name == "kcore" {
            assert!(
                number("reading").unwrap() > 0 && number("functions") >= number("reading"),
                "{unsettled}"
            );
            // What never stands still is read again as often as that is tried.
            assert!(number("again").unwrap() >= 8 * number("reading").unwrap(), "{unsettled}");
        }
    }
}

/// Ended when the test does, however it does.
struct Guest(std::process::Child);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What a kernel had executed when it panicked, from QEMU's dump of its memory.
#[test]
fn a_crashed_kernel_s_dump_has_its_counters() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let built = built();
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-m", "256M", "-cpu", "max,-la57", "-nodefaults", "-display", "none"]);
    qemu.args(["-kernel", &format!("{built}/arch/x86/boot/bzImage"), "-append", "console=ttyS0"]);
    qemu.args(["-serial", &format!("file:{}", text(&place("console")))]);
    qemu.args(["-qmp", &format!("unix:{},server=on,wait=off", text(&place("qmp")))]);
    let _guest = Guest(qemu.spawn().expect("QEMU is installed"));
    // It has no root file system.
    let start = std::time::Instant::now();
    while !fs::read(place("console"))
        .is_ok_and(|said| String::from_utf8_lossy(&said).contains("end Kernel panic"))
    {
        assert!(start.elapsed().as_secs() < 300, "no panic");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let mut qmp = std::os::unix::net::UnixStream::connect(place("qmp")).unwrap();
    let mut answers = BufReader::new(qmp.try_clone().unwrap()).lines();
    let dump = format!(
        "{{\"execute\":\"dump-guest-memory\",\"arguments\":{{\"paging\":false,\"protocol\":\"file:{}\"}}}}",
        text(&place("vmcore"))
    );
    for request in ["{\"execute\":\"qmp_capabilities\"}", &dump] {
        writeln!(qmp, "{request}").unwrap();
        let answer = answers.find(|line| line.as_ref().is_ok_and(|line| line.contains("\"return\"")));
        assert!(answer.is_some(), "{request}");
    }
    let run = place("run");
    let map = format!("{built}/System.map");
    ok(&["record", "cover", "-q", "--memory", text(&place("vmcore")), "--symbols", &map, "-o", text(&run)]);
    let report = ["report", "cover", "-q", "--json", "--each", "function", "--limit", "0", "-i", text(&run)];
    for (file, function) in [("kernel/panic.c", "panic"), ("init/do_mounts.c", "mount_root_generic")] {
        let report = json(&[&report[..], &[file]].concat());
        let row = report["rows"].as_array().unwrap().iter().find(|row| row["function"] == function);
        assert_eq!(row.expect(function)["called"], 1, "{function}");
    }
}

/// Percent of the lines that ran by gcov which ran by the flow, at least; see docs/measurements/cover.md.
const RECALL: f64 = 98.2;
/// Percent of the lines that ran by the flow which ran by gcov.
const PRECISION: f64 = 98.4;
/// Percent of the lines that ran by gcov which have the same count in the flow.
const SAME_COUNT: f64 = 95.3;

/// The flow of the same run, through debug information, against gcov's counters.
#[test]
fn the_flow_tells_what_gcov_tells() {
    needs(&[GCOV_DEBUG_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let load = "ls -l /bin >/dev/null; cat /proc/self/stat /proc/version | wc -c; (echo b; echo a) | sort";
    lab(&run, &["--flow", "--", "sh", "-c", load]);
    // One window, from the mark at which the command begins to the one at which it ends.
    let told = ok(&["script", "all", "-q", "--json", "--only", "coverage,mark", "-i", text(&run)]);
    let told = String::from_utf8(told).unwrap();
    let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let time = |name: &str| {
        let moment = told.iter().find(|moment| moment["name"] == name).unwrap_or_else(|| panic!("{name}"));
        (moment["time_ns"].as_u64().unwrap(), moment["length_ns"].as_u64())
    };
    let (begin, (end, length)) = (time("begin").0, time("coverage window"));
    assert_eq!((end, length), (time("end").0, Some(end - begin)));
    for path in ["kernel/sched", "mm", "fs", "kernel"] {
        let report = json(&["report", "cover", "-q", "--json", "--compare", "-i", text(&run), path]);
        let number = |key: &str| report[key].as_u64().unwrap();
        let percent = |key: &str| report[key].as_f64().unwrap();
        println!(
            "{path}: of {} lines that ran by gcov: recall {:.2}%, precision {:.2}%, same count {:.2}%; of all {}: both {}, \
             alike {}, same count {}; differ {}; ran and absent {}; without code {}, alike {}, executed to the flow only {}; \
             only gcov's {}",
            number("executed"),
            percent("recall_percent"),
            percent("precision_percent"),
            percent("same_count_percent"),
            number("lines"),
            number("both"),
            number("alike"),
            number("equal"),
            report["differ"],
            report["executed_absent"],
            number("inferred"),
            number("inferred_alike"),
            number("inferred_wrongly"),
            report["only_gcov"]
        );
        // Of lines that ran, which say what the flow is worth: those that ran in neither are many.
        assert!(percent("recall_percent") >= RECALL, "{path}");
        assert!(percent("precision_percent") >= PRECISION, "{path}");
        assert!(percent("same_count_percent") >= SAME_COUNT, "{path}");
        // Every executed line is the same, or in one of the classes of difference.
        let sum = |key: &str| {
            report[key].as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum::<u64>()
        };
        // Of some, gcov's own blocks say what the flow says.
        let by_rule = |kind: &str| report["differ_by_rule"][kind].as_u64().unwrap();
        for kind in ["gcov_only", "flow_only", "fewer", "more"] {
            assert!(by_rule(kind) <= report["differ"][kind].as_u64().unwrap(), "{path}: {kind}");
        }
        assert!(by_rule("flow_only") > 0 && by_rule("more") > 0, "{path}");
        let only_flow = report["differ"]["flow_only"].as_u64().unwrap();
        let explained = sum("differ") - only_flow + sum("executed_absent");
        assert_eq!(number("executed") - number("executed_equal"), explained, "{path}");
        assert_eq!(number("executed_by_flow") - number("executed_both"), only_flow, "{path}");
        // Of all lines that gcov has, not only of those that code has.
        assert!(number("alike") * 100 >= number("lines") * 99, "{path}");
        // Where gcov counts a label with the code before it, or not what it inlined.
        assert!(number("inferred_wrongly") * 50 <= number("inferred"), "{path}");
        // Each line that only gcov has is in one of the reasons.
        let reasons =
            report["only_gcov"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum::<u64>();
        assert_eq!(reasons, number("lines") - number("both"));
    }
}

kprism_test::main!();
