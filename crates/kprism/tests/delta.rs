// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delta profiling against a kernel module that switches interrupts and preemption off for known numbers of
//! instructions, as often as is known (paper 1, section 4.3, with the answer known beforehand).

mod guest;

use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{json, kprism, ok, text};
use serde_json::Value;

fn record(run: &str, module: &str, cpus: &str, command: &str) {
    ok(&["lab", "run", "-q", "-o", run, "--smp", cpus, "--module", module, "--", "sh", "-c", command]);
}

/// Builds the module for the lab's kernel.
fn built(dir: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let release = release(dir);
    let built = Command::new("sh")
        .arg(here.join("../../scripts/build-module.sh"))
        .arg(&release)
        .arg(dir)
        .arg(here.join("tests/delta/windows.c"))
        .status()
        .expect("sh runs");
    assert!(built.success(), "windows.ko could not be built for {release}");
    dir.join("windows.ko")
}

/// The built-in markers of spinlocks, of waiting for one, and of the FPU: windows of known number and length.
#[test]
fn locks_and_fpu_of_known_length() {
    let dir = tempfile::tempdir().unwrap();
    let module = built(dir.path());
    let run = dir.path().join("run");
    // The command that writes stays on the first CPU.
    record(
        text(&run),
        text(&module),
        "2",
        "for k in 6 7 8; do taskset 1 sh -c \"echo $k > /proc/windows\"; done",
    );
    let site = |name: &str, place: &str| {
        let delta =
            json(&["report", "delta", name, "--json", "--limit", "0", "-i", text(&run)])["delta"].clone();
        let sites = delta["sites"].as_array().unwrap().clone();
        let at = |site: &Value| site["stack"].as_str().unwrap().contains(place);
        sites.into_iter().find(at).unwrap_or_else(|| panic!("no site {place}: {delta:#}"))
    };
    // Beside the no-ops, what prepares the call of the second function, and the call.
    for (name, place, times, instructions) in
        [("spinlock", "locked < windows_write", 30, 402), ("fpu", "floating < windows_write", 20, 701)]
    {
        let site = site(name, place);
        assert_eq!(site["count"], times, "{site}");
        // Interrupts are on: one may strike, and all that is too much is then in one window.
        let (found, longest) = (site["instructions"].as_u64().unwrap(), site["max_ns"].as_u64().unwrap());
        let struck = longest >= instructions + found.saturating_sub(times * instructions);
        assert!(
            found == times * instructions || struck,
            "{name}: not {instructions} instructions each: {site}"
        );
    }
    let waits = site("contention", "_raw_spin_lock < contended <");
    assert_eq!(waits["count"], 5, "{waits}");
    // The other CPU held the lock for 100,000 instructions each time; the wait began soon after.
    let mean = waits["total_ns"].as_u64().unwrap_or_else(|| panic!("{waits}")) / 5;
    assert!((100_000..110_000).contains(&mean), "{mean} ns: {waits}");
}

/// A module that the command itself loads has names, those of its init too, whether or not it is unloaded again.
#[test]
fn functions_of_a_module_that_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let module = built(dir.path());
    let share = dir.path().join("share");
    std::fs::create_dir(&share).unwrap();
    std::fs::copy(&module, share.join("windows.ko")).unwrap();
    let used = "insmod /share/windows.ko && echo 4 > /proc/windows";
    let gone = format!("{used} && rmmod windows");
    // At the second time the kernel may put it elsewhere.
    let twice = format!("{gone} && {gone}");
    for (name, command, times) in [("gone", &gone, 1), ("stays", &used.to_owned(), 1), ("twice", &twice, 2)] {
        let run = dir.path().join(name);
        ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "sh", "-c", command]);
        let report = json(&["report", "functions", "-q", "--limit", "0", "--json", "-i", text(&run)]);
        let rows = report["rows"].as_array().unwrap();
        let of_module: Vec<&Value> = rows.iter().filter(|row| row["module"] == "[windows]").collect();
        let row = |function: &str| {
            let all: Vec<_> = of_module.iter().filter(|row| row["function"] == function).collect();
            assert_eq!(all.len(), 1, "{name}: {function}: {of_module:#?}");
            all[0]["calls"].as_u64().unwrap()
        };
        // Of two names of the init, kallsyms would show the shorter.
        let calls = (row("init_module"), row("windows_write"), row("loop"));
        assert_eq!(calls, (times, times, 7 * times), "{name}");
        if name != "stays" {
            assert_eq!(row("windows_exit"), times, "{name}");
        }
        let nameless = |row: &&Value| row["function"] == "[unknown]" && row["module"] == "[kernel]";
        assert_eq!(rows.iter().find(nameless), None, "{name}");
        let shown = String::from_utf8(ok(&["report", "functions", "-q", "-i", text(&run)])).unwrap();
        assert!(!shown.contains("has no name"), "{shown}");
        // The run keeps the file that was loaded, though the module is gone. By the names, the file finds its place.
        assert_eq!(
            std::fs::read(run.join("symbols/ko/windows.ko")).unwrap(),
            std::fs::read(&module).unwrap()
        );
        let annotated = json(&["annotate", "loop@windows", "--json", "-i", text(&run)]);
        let lines = annotated["lines"].as_array().or_else(|| annotated["instructions"].as_array()).unwrap();
        let in_source =
            |row: &Value| row["source"][0]["file"].as_str().is_some_and(|file| file.ends_with("windows.c"));
        assert!(lines.iter().any(in_source), "{name}: {annotated}");
    }
}

/// A window opens by the parameters and variables of a module's function, which the module's own debug information describes.
#[test]
fn a_condition_on_values_of_a_module() {
    let dir = tempfile::tempdir().unwrap();
    let module = built(dir.path());
    let run = dir.path().join("run");
    let command = "echo 4 > /proc/windows; printf 4 > /proc/windows";
    let (from, until) = ("windows_write if size == 2 && holds == 0", "windows_write%return if $retval == 2");
    let window = ["--from", from, "--until", until];
    let args = [
        &["lab", "run", "-q", "-o", text(&run), "--module", text(&module)],
        window.as_slice(),
        &["--", "sh", "-c", command],
    ];
    ok(&args.concat());
    let report = json(&["report", "functions", "-q", "--limit", "0", "--json", "-i", text(&run)]);
    let rows = report["rows"].as_array().unwrap();
    let calls = |name: &str| rows.iter().find(|row| row["function"] == name).map(|row| row["calls"].clone());
    // The second call has one byte.
    assert_eq!((calls("windows_write"), calls("loop")), (Some(1.into()), Some(7.into())), "{rows:#?}");
    // What the module does not have is refused before the guest runs.
    let refused = kprism(
        &[
            &["lab", "run", "-q", "-o", text(&run), "--module", text(&module)],
            ["--from", "windows_write if nothing > 1", "--", "true"].as_slice(),
        ]
        .concat(),
    );
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("nothing"), "{said}");
}

/// Probes in the guest read the parameters and variables of a module's function, which the module's own debug information describes.
#[test]
fn a_probe_of_values_of_a_module() {
    let dir = tempfile::tempdir().unwrap();
    let module = built(dir.path());
    let run = dir.path().join("run");
    let command = "echo 4 > /proc/windows; printf 4 > /proc/windows";
    let values = |place: &str, collect: &str| {
        let guest = ["record", "probe", "-q", "--guest", "-o", text(&run), "--module", text(&module)];
        let probe = [place, "--collect", collect, "--", "sh", "-c", command];
        ok(&[guest.as_slice(), probe.as_slice()].concat());
        let report = json(&["report", "probe", "-q", "--json", "--limit", "0", "-i", text(&run)]);
        std::fs::remove_dir_all(&run).unwrap();
        let records = report["rows"].as_array().unwrap().iter();
        records.map(|record| record["values"].clone()).collect::<Vec<_>>()
    };
    let entries = values("windows_write if size == 2", "size,holds");
    assert_eq!(entries, [serde_json::json!({"size": 2, "holds": 0})]);
    let returns = values("windows_write%return", "$retval,size");
    let pairs = |n: u64| serde_json::json!({"$retval": n, "size": n});
    assert_eq!(returns, [pairs(2), pairs(1)]);
    // The file alone tells of functions and parameters, and not where the module's variables will be.
    let file = dir.path().join("probes");
    let compile = |condition: &str| {
        let place = format!("windows_write if {condition}");
        kprism(&["compile", &place, "-k", text(&module), "-o", text(&file)])
    };
    let said = |output: std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let compiled = compile("size == 2");
    assert!(compiled.status.success(), "{}", said(compiled));
    let refused = said(compile("holds == 0"));
    assert!(refused.contains("not among the symbols of the loaded module"), "{refused}");
    let explained = ok(&["explain", "windows_write if size == 2", "-k", text(&module)]);
    assert!(String::from_utf8_lossy(&explained).contains("size  parameter"));
}

/// `annotate` shows the source lines of a module's function, with the counts that are known.
#[test]
fn source_lines_of_a_module() {
    let dir = tempfile::tempdir().unwrap();
    let module = built(dir.path());
    let run = dir.path().join("run");
    record(text(&run), text(&module), "1", "echo 4 > /proc/windows");
    let source = std::fs::read_to_string(dir.path().join("windows.c")).unwrap();
    let line = |of: &str| 1 + source.lines().position(|line| line.contains(of)).unwrap() as u64;
    let annotate =
        |func: &str, more: &[&str]| kprism(&[&["annotate", func, "--json", "-i", text(&run)], more].concat());
    let judge = |more: &[&str]| {
        let counted = |func: &str, line: u64, insn: &str| {
            let output = annotate(func, more);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            let value: Value = serde_json::from_slice(&output.stdout).unwrap();
            let rows =
                value["lines"].as_array().or_else(|| value["instructions"].as_array()).unwrap().clone();
            let own = rows.iter().filter(|row| {
                let frame = &row["source"][0];
                frame["line"] == line
                    && frame["file"].as_str().is_some_and(|file| file.ends_with("windows.c"))
            });
            let own = own.filter(|row| row["insn"].as_str().unwrap().starts_with(insn));
            own.map(|row| row["count"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        // 7 times 300 rounds, and the calls of it.
        assert_eq!(counted("loop@windows", line("mov $300"), "dec"), [2100]);
        // The compiler may have unrolled the calls.
        assert_eq!(counted("windows_write", line("loop();"), "call").iter().sum::<u64>(), 7);
    };
    // The file that the lab loaded; the run's copy, when that is gone; the same from elsewhere.
    judge(&[]);
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let moved = elsewhere.join("windows.ko");
    std::fs::rename(&module, &moved).unwrap();
    judge(&[]);
    judge(&["--module-file", text(&moved)]);
    std::fs::remove_file(run.join("symbols/ko/windows.ko")).unwrap();
    judge(&["--module-file", text(&moved)]);
    let said = |output: std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let without = annotate("loop@windows", &[]);
    assert!(without.status.success());
    assert!(said(without).contains("name the run's module with --module-file"));
    // What it cannot honour is refused: another module's file, a function of the kernel, a file without debug information.
    let other = elsewhere.join("other.ko");
    std::fs::copy(&moved, &other).unwrap();
    let stripped = elsewhere.join("stripped");
    std::fs::create_dir(&stripped).unwrap();
    let stripped = stripped.join("windows.ko");
    let objcopy = Command::new("objcopy").arg("--strip-debug").args([&moved, &stripped]).status();
    assert!(objcopy.expect("binutils are installed").success());
    for (func, file, why) in [
        ("loop@windows", &other, "its name is that of [other]"),
        ("ksys_write", &moved, "no function of a module"),
        ("loop@windows", &stripped, "no debug information"),
        ("loop@windows", &elsewhere.join("absent/windows.ko"), "absent"),
    ] {
        let refused = annotate(func, &["--module-file", text(file)]);
        assert_eq!(refused.status.code(), Some(2), "{func} {}", file.display());
        let said = said(refused);
        assert!(said.contains(why), "{said}");
    }
}

/// The release of the lab's kernel.
fn release(dir: &Path) -> String {
    let run = dir.join("release");
    let release = ok(&["lab", "run", "-q", "--unobserved", "-o", text(&run), "--", "uname", "-r"]);
    String::from_utf8(release).unwrap().trim().to_owned()
}

/// Intervals of each length in instructions.
fn lengths(delta: &Value) -> Vec<(u64, u64, u64)> {
    let bins = delta["instructions"]["bins"].as_array().expect("bins");
    bins.iter().map(|b| (b[0].as_u64().unwrap(), b[1].as_u64().unwrap(), b[2].as_u64().unwrap())).collect()
}

/// How many intervals lie in the bin of `length`.
fn of_length(delta: &Value, length: u64) -> u64 {
    lengths(delta).iter().find(|(low, high, _)| (*low..*high).contains(&length)).map_or(0, |bin| bin.2)
}

#[test]
fn windows_of_known_length() {
    let dir = tempfile::tempdir().unwrap();
    let module = built(dir.path());
    let run = dir.path().join("run");
    let run = run.to_str().unwrap();
    let module = module.to_str().unwrap();
    record(run, module, "1", "for k in 1 2 3 4 5; do echo $k > /proc/windows; done");

    let delta =
        |run: &str, name: &str| json(&["report", "delta", name, "--json", "-i", run])["delta"].clone();
    let irqs = delta(run, "irqs");
    // The guest's own windows may have such lengths too.
    for (length, known) in [
        (91, 1000),  // 90 nops and the sti
        (1001, 100), // 1000 nops and the sti
        (602, 7),    // mov, 300 times dec and jnz, sti
    ] {
        assert!(of_length(&irqs, length) >= known, "windows of {length} instructions: {irqs:#}");
    }
    // One instruction is one nanosecond here, unless something made the guest wait in between.
    for bin in irqs["ns"]["bins"].as_array().unwrap().iter().filter(|b| b[0] == 91) {
        assert!(bin[2].as_u64().unwrap() >= 999, "{bin}");
    }
    // The longest ones say where they began, exactly how long they were, and who opened them.
    let longest = irqs["longest"].as_array().unwrap();
    let thousand = longest.iter().find(|i| i["instructions"] == 1001).expect("a window of 1001 instructions");
    assert!(thousand["from"].as_str().unwrap().starts_with("windows_write < "), "{thousand}");
    assert!(thousand["task"].as_str().unwrap().starts_with("sh ["), "{thousand}");
    // All of them, one a row, in order of time; `--limit 0` has as many among the longest.
    let listed = |more: &[&str]| {
        let list = json(&[&["report", "delta", "irqs", "--list", "--json", "-i", run], more].concat());
        list["rows"].as_array().unwrap().clone()
    };
    let (all, count) = (listed(&[]), irqs["ns"]["count"].as_u64().unwrap());
    assert_eq!(all.len() as u64, count);
    assert!(all.is_sorted_by_key(|row| row["start_ns"].as_u64().unwrap()));
    let of_thousand = |rows: &[Value]| rows.iter().filter(|row| row["instructions"] == 1001).count();
    assert!(of_thousand(&all) >= 100, "{}", of_thousand(&all));
    assert_eq!(irqs["not_listed"], count - longest.len() as u64);
    let whole = json(&["report", "delta", "irqs", "--json", "--limit", "0", "-i", run])["delta"].clone();
    assert_eq!(
        (whole["longest"].as_array().unwrap().len() as u64, &whole["not_listed"]),
        (count, &Value::from(0))
    );
    // Of one task, CPU or time.
    let of_sh = listed(&["--comm", "sh", "--sort", "ns"]);
    let is_of_sh = |row: &Value| row["task"].as_str().unwrap().starts_with("sh [");
    assert!(of_thousand(&of_sh) >= 100 && of_sh.iter().all(is_of_sh));
    assert!(of_sh.is_sorted_by_key(|row| std::cmp::Reverse(row["ns"].as_u64().unwrap())));
    assert_eq!(listed(&["--cpu", "0"]).len(), all.len());
    let from = all[all.len() / 2]["start_ns"].as_u64().unwrap();
    let later = listed(&["--since", &format!("{from}ns")]);
    assert_eq!(later, all[all.len() - later.len()..]);
    assert!(later.len() >= all.len() - all.len() / 2 && later.len() < all.len(), "{}", later.len());
    // By where they began, none more and none less. In `saved` pushf, cli, nop, popf, nop, nop, popf: the inner pair
    // neither begins nor ends a window.
    let preempt = delta(run, "preempt");
    let opened = irqs["sites"].as_array().unwrap().iter().find_map(|s| {
        s["stack"].as_str().unwrap().starts_with("windows_write < ").then(|| s["count"].as_u64().unwrap())
    });
    // An interrupt that strikes there begins a window of its own, which is the interrupt's.
    assert!((1100..1110).contains(&opened.unwrap()), "{opened:?}");
    for (delta, place, times, instructions) in [
        (&irqs, "saved < windows_write", 10, 10 * 7),
        (&irqs, "loop < windows_write", 7, 7 * 602),
        (&preempt, "held < windows_write", 50, 50 * 501),
    ] {
        let sites = delta["sites"].as_array().unwrap();
        let site = sites.iter().find(|s| s["stack"].as_str().unwrap().starts_with(place));
        let site = site.unwrap_or_else(|| panic!("no site {place}: {delta:#}"));
        let found = site["instructions"].as_u64().unwrap();
        assert_eq!(site["count"], times, "{place}");
        // Where interrupts are on, one may come in these microseconds. All that is too much is then in one window.
        let longest = site["max_ns"].as_u64().unwrap();
        let struck = place.starts_with("held") && longest >= 501 + found.saturating_sub(instructions);
        assert!(found == instructions || struck, "{place}: not {instructions} instructions: {site}");
    }

    // The same windows by markers that a user writes.
    let user = |args: &[&str]| {
        let mut all = vec!["report", "delta", "--json", "-i", run];
        all.extend(args);
        json(&all)
    };
    let pairs = user(&["--from", "cli; nop", "--to", "nop; sti"]);
    assert_eq!(of_length(&pairs["delta"], 90), 1000); // the first nop is the marker
    assert_eq!(of_length(&pairs["delta"], 1000), 100);
    let calls = user(&["--from", "func:loop", "--to", "ret:loop"]);
    assert_eq!(calls["delta"]["instructions"]["count"], 7);
    assert_eq!(calls["delta"]["scope"], "task");
    let counts = user(&["--count", "pushf; cli; pushf; cli", "--count", "dec ecx"]);
    let count = |pattern: &str, function: &str| {
        let rows = counts["counts"].as_array().unwrap();
        let row = rows.iter().find(|r| r["pattern"] == pattern && r["function"] == function);
        row.map(|r| r["count"].as_u64().unwrap())
    };
    assert_eq!(count("pushf; cli; pushf; cli", "saved"), Some(10));
    assert_eq!(count("dec ecx", "loop"), Some(7 * 300));
    let csv = kprism(&["report", "delta", "irqs", "--csv", "-i", run]);
    assert!(String::from_utf8(csv.stdout).unwrap().contains("\ninstructions,91,92,1000\n"));

    let nothing = kprism(&["report", "delta", "--from", "frobnicate", "--to", "cli", "-i", run]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("no x86 instruction is called \"frobnicate\""));
}
