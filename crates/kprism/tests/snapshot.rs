// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots and windows: of a recording only a part is kept. Of two sleeps only the one that meets the condition leaves anything, and what it leaves is the whole
//! truth about its last moments, as the same run recorded in full and Intel's decoder know it.

mod guest;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use guest::{json, kprism, ok};
use kprism_test::{test, turn};
use serde_json::Value;

const SLEEPS: &str = "ls /bin; sleep 0.01; ls /bin; sleep 0.05; ls /bin";

fn record(run: &Path, options: &[&str]) -> Value {
    let run = run.to_str().unwrap();
    ok(&[&["lab", "run", "-q", "-o", run], options, &["--", "sh", "-c", SLEEPS]].concat());
    json(&["info", "--json", "-i", run])
}

/// Instructions per function of one program, as far as both runs must agree: names and totals.
fn instructions_of_ls(run: &Path, syscall: &str) -> u64 {
    let run = run.to_str().unwrap();
    let rows = json(&["report", "syscalls", "--json", "--limit", "0", "--comm", "ls", "-i", run]);
    let rows = rows["rows"].as_array().unwrap();
    rows.iter().find(|r| r["syscall"] == syscall).map_or(0, |r| r["kernel_instructions"].as_u64().unwrap())
}

#[test]
fn only_what_led_to_the_condition_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, long, both, never] = ["whole", "long", "both", "never"].map(|name| dir.path().join(name));
    let full = record(&whole, &[]);
    // Both sleeps are idling, from `hlt` to the interrupt that ends it, and nothing else.
    let idle = json(&["report", "delta", "idle", "--json", "-i", whole.to_str().unwrap()]);
    let idle = idle["delta"]["ns"]["sum"].as_u64().unwrap();
    assert!((55_000_000..65_000_000).contains(&idle), "idle for {idle} ns");

    let condition = |ms: u32| format!("__x64_sys_clock_nanosleep%return if $duration > {ms}ms");

    // The long one only, with room for all before it: the listings up to then.
    let info = record(&long, &["--snapshot-when", &condition(30), "--snapshot-size", "64M"]);
    assert_eq!(
        (&info["options"]["snapshots"], &info["decode_errors"], &info["lost_bytes"]),
        (&1.into(), &0.into(), &0.into())
    );
    assert_eq!(info["instructions_recorded"], Value::Null, "what was not kept is not claimed");
    let kept = info["instructions"].as_u64().unwrap();
    assert!(kept > 1_000_000 && kept < full["instructions"].as_u64().unwrap());
    // Two of the three listings ran before.
    let whole_ls = instructions_of_ls(&whole, "getdents64");
    let kept_ls = instructions_of_ls(&long, "getdents64");
    assert!(kept_ls > whole_ls / 2 && kept_ls < whole_ls, "{kept_ls} of {whole_ls}");

    // A listing that `sh` waited for fits in, or its begin is missing, which is told.
    for (size, fits) in [("64M", true), ("4K", false)] {
        let waited = r#"__x64_sys_wait4%return if $duration > 300us && $comm == "sh""#;
        let info = record(&never, &["--snapshot-when", waited, "--snapshot-size", size]);
        let [all, short] =
            ["snapshots", "short_snapshots"].map(|name| info["options"][name].as_u64().unwrap());
        assert!(all >= 3 && (fits && short == 0 || !fits && (2..=all).contains(&short)), "{info:#}");
        let report = ok(&["report", "functions", "-q", "--limit", "1", "-i", never.to_str().unwrap()]);
        let told = String::from_utf8(report).unwrap().contains("without the beginning of what triggered it");
        assert_eq!(told, !fits, "{size}");
    }

    // Both, with little room: two pieces with a gap between them, tasks and code told right in each.
    let info = record(&both, &["--snapshot-when", &condition(5), "--snapshot-size", "32K"]);
    assert_eq!(
        (&info["options"]["snapshots"], &info["decode_errors"], &info["lost_bytes"]),
        (&2.into(), &0.into(), &0.into())
    );
    let size = std::fs::metadata(both.join("streams/cpu0.pt")).unwrap().len();
    assert!((40_000..100_000).contains(&size), "{size} bytes in two snapshots of 32 KiB");
    // What returns at the end of each is the sleep, called by a task of that name.
    let tree = ok(&["export", "-o", "-.folded", "--comm", "sleep", "-i", both.to_str().unwrap()]);
    assert!(String::from_utf8(tree).unwrap().contains("clock_nanosleep"));
    if let Ok(oracle) = std::env::var("KPRISM_PTORACLE") {
        let judged =
            Command::new(oracle).args(["--quiet", both.join("streams").to_str().unwrap(), "0"]).output();
        let said = String::from_utf8(judged.unwrap().stdout).unwrap();
        assert!(said.contains(&format!("insns {} errors 0", info["instructions"])), "{said}");
    }

    let output =
        kprism(&["lab", "run", "-o", never.to_str().unwrap(), "--snapshot-when", "panic", "--", "true"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("the condition was never met"));
    let output =
        kprism(&["lab", "run", "-o", never.to_str().unwrap(), "--snapshot-when", "vfs_raed", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no function `vfs_raed`; did you mean `vfs_read`?")
    );
}

/// System calls that ended, by process and name: when each began and how long it took, ns.
fn ended(run: &Path) -> BTreeMap<(u64, String), Vec<(u64, u64)>> {
    let text = ok(&["script", "syscalls", "--json", "-i", run.to_str().unwrap()]);
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in String::from_utf8(text).unwrap().lines() {
        let call: Value = serde_json::from_str(call).unwrap();
        let Some(wall) = call["wall_ns"].as_u64() else { continue };
        let key = (call["pid"].as_u64().unwrap(), call["syscall"].as_str().unwrap().to_owned());
        all.entry(key).or_default().push((call["time_ns"].as_u64().unwrap(), wall));
    }
    all
}

/// Which function called which, in any stack, up to so many calls apart.
fn callers(run: &Path, apart: usize) -> BTreeSet<(String, String)> {
    let text = ok(&["export", "-o", "-.folded", "-i", run.to_str().unwrap()]);
    let text = String::from_utf8(text).unwrap();
    let mut pairs = BTreeSet::new();
    for (stack, _) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
        // The first name is the task's.
        let names: Vec<String> = stack.split(';').skip(1).map(str::to_owned).collect();
        for (at, caller) in names.iter().enumerate() {
            pairs.extend(names[at + 1..].iter().take(apart).map(|name| (caller.clone(), name.clone())));
        }
    }
    pairs
}

/// Calls whose beginning and end were seen, by process and function, likewise.
fn whole_calls(run: &Path) -> BTreeMap<(u64, String), Vec<(u64, u64)>> {
    let text = ok(&["script", "calls", "--json", "-i", run.to_str().unwrap()]);
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for call in String::from_utf8(text).unwrap().lines() {
        let call: Value = serde_json::from_str(call).unwrap();
        let Some(wall) = call["wall_ns"].as_u64().filter(|_| call["kind"] != "resumed") else { continue };
        let key = (call["pid"].as_u64().unwrap(), call["symbol"].as_str().unwrap().to_owned());
        all.entry(key).or_default().push((call["time_ns"].as_u64().unwrap(), wall));
    }
    all
}

/// Calls of a part of a run that the whole run does not have, and how many there are in all.
fn not_in(
    whole: &BTreeMap<(u64, String), Vec<(u64, u64)>>,
    part: BTreeMap<(u64, String), Vec<(u64, u64)>>,
) -> (Vec<String>, usize) {
    let (mut others, mut all) = (Vec::new(), 0);
    for (key, calls) in part {
        let known = whole.get(&key).map_or(&[][..], Vec::as_slice);
        for (begin, wall) in calls {
            all += 1;
            let same = |&(at, took): &(u64, u64)| at.abs_diff(begin) < 1_000 && took.abs_diff(wall) < 1_000;
            if !known.iter().any(same) {
                others.push(format!("{key:?} at {begin} for {wall} ns"));
            }
        }
    }
    (others, all)
}

/// Tasks sleep again and again, and one of them goes from CPU to CPU. Most of that is in no snapshot and no window; they begin and end
/// in calls, at functions' first instructions, and where tasks are asleep. Recorded whole, the same run tells which calls and callers
/// there were.
#[test]
fn no_call_goes_on_over_a_gap() {
    turn(2, 1);
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    std::fs::create_dir(&share).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshot/sleeps.c");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(share.join("sleeps")).arg(source).status();
    assert!(built.expect("a C compiler is installed").success());
    let record = |cpus: &str, options: &[&str], apart: usize| {
        let run = dir.path().join("run");
        let place = ["lab", "run", "-q", "--share", share.to_str().unwrap(), "-o", run.to_str().unwrap()];
        ok(&[&place, &["--smp", cpus][..], options, &["--", "/share/sleeps"]].concat());
        let syscalls = ended(&run);
        (syscalls, whole_calls(&run), callers(&run, apart))
    };
    let late = "hrtimer_nanosleep%return if $duration > 1200us";
    let gaps: [&[&str]; 6] = [
        &["--snapshot-when", late, "--snapshot-size", "4K"],
        &["--snapshot-when", late, "--snapshot-size", "16K"],
        &["--snapshot-when", "__vm_munmap", "--snapshot-size", "8K"],
        &["--from", late, "--until", "hrtimer_nanosleep"],
        &["--from", "hrtimer_nanosleep", "--until", "hrtimer_nanosleep%return"],
        &["--from", "__schedule", "--until", "do_nanosleep"],
    ];
    for cpus in ["1", "2"] {
        // A function that another one runs into is between caller and called where a PSB is in it.
        let (syscalls, calls, pairs) = record(cpus, &[], 2);
        for gap in gaps {
            let part = record(cpus, gap, 1);
            let (others, all) = not_in(&syscalls, part.0);
            assert!(others.is_empty(), "{cpus} CPUs, {gap:?}: of {all} system calls {others:#?}");
            // A short piece around another call may have no whole one.
            assert!(all > 0 || !gap.contains(&late), "{cpus} CPUs, {gap:?}: no system call");
            let (others, all) = not_in(&calls, part.1);
            // At the edge of a gap, a jump into a function's middle may be its beginning or not.
            assert!(
                all > 300 && others.len() * 500 < all,
                "{cpus} CPUs, {gap:?}: of {all} calls {others:#?}"
            );
            let invented: Vec<_> = part.2.difference(&pairs).collect();
            assert!(invented.is_empty(), "{cpus} CPUs, {gap:?}: {invented:?}");
        }
    }
}

/// A snapshot on this condition: the manifest, and what was said.
fn told(run: &Path, condition: &str, script: &str) -> (Value, String) {
    let run = run.to_str().unwrap();
    let when = ["--snapshot-when", condition, "--snapshot-size", "4K"];
    let output = kprism(&[&["lab", "run", "-o", run], &when[..], &["--", "sh", "-c", script]].concat());
    (json(&["info", "--json", "-i", run]), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The condition is the probes' own: arguments, what they point to, the result, the task; faults are counted.
#[test]
fn conditions_see_what_a_probe_sees() {
    turn(2, 0);
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let kept = |condition: &str| {
        let info = record(&run, &["--snapshot-when", condition, "--snapshot-size", "64M"]);
        assert_eq!((&info["decode_errors"], &info["lost_bytes"]), (&0.into(), &0.into()), "{condition}");
        ["snapshots", "condition_faults"].map(|name| info["options"][name].as_u64().unwrap())
    };
    // `ls` reads its libraries' heads through the system call that names them.
    let reads = kept("vfs_read");
    assert_eq!(reads[1], 0);
    let of_ls = kept(r#"vfs_read if $comm == "ls" && $pid == $tid && $cpu == 0"#);
    let of_libc = kept(r#"vfs_read if file->f_path.dentry->d_name.name == "libc.so.6""#);
    assert!(
        reads[0] > of_ls[0] && of_ls[0] >= of_libc[0] && of_libc[0] > 0,
        "{reads:?} {of_ls:?} {of_libc:?}"
    );
    // What is asked for, and what comes back: an ELF file's head is 832 bytes to the loader.
    let heads = kept("vfs_read%return if count == 832 && $retval == 832");
    assert_eq!(heads, kept("vfs_read if count == 832"));
    assert!(heads[0] > 0, "{heads:?}");
    assert_eq!(kept("vfs_read if 1 / (count - count)"), [0, reads[0]], "a division by zero each time");

    // A task that ends never returns from there, and a jump leads to the return address on a stack that another one had.
    let ends = "i=0; while [ $i -lt 60 ]; do (:); i=$((i+1)); done";
    let (info, said) = told(&run, "do_exit%return", ends);
    assert!(said.contains("the condition was never met") && !said.contains("not followed"), "{said}");
    assert_eq!(info["options"]["condition_forgotten"], 0, "{info:#}");
    // Of a function's calls, 1,024 may be open.
    let waits =
        "mkfifo /tmp/f; i=0; while [ $i -lt 1050 ]; do (: < /tmp/f) & i=$((i+1)); done; : > /tmp/f; wait";
    let (info, said) = told(&run, "fifo_open%return", waits);
    let forgotten = info["options"]["condition_forgotten"].as_u64().unwrap();
    let snapshots = info["options"]["snapshots"].as_u64().unwrap();
    assert!((20..60).contains(&forgotten) && snapshots + forgotten == 1051, "{info:#}");
    assert!(said.contains(&format!("; {forgotten} calls or intervals were not followed")), "{said}");

    let output =
        kprism(&["lab", "run", "-o", "/x", "--snapshot-when", "vfs_read if cuont > 1", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("  cuont > 1\n  ^^^^^") && said.contains("did you mean `count`?"), "{said}");
}

/// How often a function was called, and its own instructions with those of all it called.
fn calls(run: &Path, function: &str) -> (u64, u64) {
    let all =
        json(&["report", "functions", "--json", "--limit", "0", "--comm", "ls", "-i", run.to_str().unwrap()]);
    let rows = all["rows"].as_array().unwrap();
    let row =
        rows.iter().find(|r| r["function"] == function).unwrap_or_else(|| panic!("{function}: {rows:?}"));
    (row["calls"].as_u64().unwrap(), row["total_instructions"].as_u64().unwrap())
}

/// Of every window all is kept, and nothing else; the recorder's own count says so.
#[test]
fn windows_hold_what_runs_between_two_conditions() {
    const FUNCTION: &str = "iterate_dir";
    let dir = tempfile::tempdir().unwrap();
    let [whole, kept, begin] = ["whole", "kept", "begin"].map(|name| dir.path().join(name));
    record(&whole, &[]);
    let (of_ls, instructions) = calls(&whole, FUNCTION);
    let [from, until] = ["", "%return"].map(|at| format!(r#"{FUNCTION}{at} if $comm == "ls""#));

    let exact = |run: &Path, options: &[&str]| {
        let info = record(run, options);
        let clean = (&info["decode_errors"], &info["lost_bytes"], &info["instructions"]);
        assert_eq!(clean, (&0.into(), &0.into(), &info["instructions_recorded"]), "{options:?}");
        (info["options"]["windows"].as_u64().unwrap(), info["instructions"].as_u64().unwrap())
    };
    let (windows, all) = exact(&kept, &["--from", &from, "--until", &until]);
    assert_eq!(windows, of_ls);
    // The whole of each call, which a window begins with, and no more than what interrupts it.
    let (called, inside) = calls(&kept, FUNCTION);
    assert_eq!((called, inside), (of_ls, instructions));
    assert!(all >= inside && all < inside + inside / 2, "{all} for {inside}");
    if let Ok(oracle) = std::env::var("KPRISM_PTORACLE") {
        let judged =
            Command::new(oracle).args(["--quiet", kept.join("streams").to_str().unwrap(), "0"]).output();
        let said = String::from_utf8(judged.unwrap().stdout).unwrap();
        assert!(said.contains(&format!("insns {all} errors 0")), "{said}");
    }
    // On two CPUs, what the other does meanwhile is there too; the calls themselves are much the same.
    let (windows, both) = exact(&kept, &["--smp", "2", "--from", &from, "--until", &until]);
    assert!(windows == of_ls && both > inside / 2, "{windows} windows, {both} instructions");
    // With one end only: what comes before the first, or all that comes after.
    let (one, before) = exact(&begin, &["--until", &from]);
    let (other, after) = exact(&begin, &["--from", &from]);
    let full = json(&["info", "--json", "-i", whole.to_str().unwrap()])["instructions"].as_u64().unwrap();
    assert_eq!((one, other, before + after), (1, 1, full), "{before} and {after}");

    let output =
        kprism(&["lab", "run", "--from", "vfs_read if cuont", "--until", "vfs_read%return", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(125) && said.contains("--from:\nno `cuont`"), "{said}");
    assert_eq!(kprism(&["lab", "run", "--from", "x", "--snapshot-when", "x", "true"]).status.code(), Some(2));
}

/// Number of intervals of the whole run that are longer than a limit near `ns`, and that limit. The limit is the edge of a bin.
fn longer(run: &Path, interval: &str, ns: u64) -> (u64, u64) {
    let csv = ok(&["report", "delta", interval, "--csv", "-i", run.to_str().unwrap()]);
    let csv = String::from_utf8(csv).unwrap();
    let rows = csv.lines().filter_map(|line| line.strip_prefix("ns,"));
    let bins: Vec<[u64; 3]> = rows
        .map(|row| row.split(',').map(|cell| cell.parse().unwrap()).collect::<Vec<_>>().try_into().unwrap())
        .collect();
    let edge = bins.iter().map(|[low, ..]| *low).find(|low| *low > ns).unwrap();
    (bins.iter().filter(|[low, ..]| *low >= edge).map(|[.., count]| count).sum(), edge - 1)
}

/// An interval that is too long: the recorder, which reads the interrupt flag and the preemption count, and the decoder, which
/// infers them from the flow, find as many of them.
#[test]
fn intervals_are_conditions() {
    turn(2, 1);
    let dir = tempfile::tempdir().unwrap();
    let [whole, run] = ["whole", "run"].map(|name| dir.path().join(name));
    record(&whole, &[]);
    // The sleeps are idle, and nothing that holds others up.
    let longest = |name: &str| {
        let report = json(&["report", "delta", name, "--json", "-i", whole.to_str().unwrap()]);
        (report["delta"]["ns"]["max"].as_u64().unwrap(), report["delta"]["halts"].as_u64())
    };
    let [preempt, irqs, idle] = ["preempt", "irqs", "idle"].map(longest);
    assert!(idle.0 > 5_000_000 && preempt.0.max(irqs.0) < 5_000_000, "{preempt:?}, {irqs:?}, {idle:?}");
    assert!(preempt.1.unwrap() >= 2, "{preempt:?}");
    let snapshots = |condition: &str| {
        let info = record(&run, &["--snapshot-when", condition, "--snapshot-size", "4K"]);
        assert_eq!((&info["decode_errors"], &info["lost_bytes"]), (&0.into(), &0.into()), "{condition}");
        for count in ["condition_faults", "condition_forgotten"] {
            assert_eq!(info["options"][count], 0, "{condition}: {count}");
        }
        info["options"]["snapshots"].as_u64().unwrap()
    };
    for (name, delta) in [("irqs_off", "irqs"), ("preempt_off", "preempt"), ("spinlock", "spinlock")] {
        for ns in [0, 2_000, 10_000] {
            let (count, limit) = longer(&whole, delta, ns);
            assert!(count > 0, "{delta} > {limit}");
            let seen = snapshots(&format!("{name} > {limit}ns"));
            // The recording begins within some: until user code runs, the flow does not know the flag and the count.
            assert!(seen >= count && seen - count <= 3, "{name} > {limit}: {seen}, {count}");
        }
    }
    // Two sleeps of 10 ms and more; each sleeper is woken once.
    assert_eq!(snapshots(r#"syscall > 5ms if $comm == "sleep""#), 2);
    assert_eq!(snapshots(r#"wakeup if $comm == "sleep""#), 2);
    // The same as windows: all before the first interval of this length.
    let (_, limit) = longer(&whole, "irqs", 10_000);
    let info = record(&run, &["--until", &format!("irqs_off > {limit}ns")]);
    assert_eq!(info["instructions"], info["instructions_recorded"]);
    let irqs = json(&["report", "delta", "irqs", "--json", "-i", run.to_str().unwrap()]);
    let longest = irqs["delta"]["longest"][0]["ns"].as_u64().unwrap();
    assert!(longest > limit, "{longest}");
    assert_eq!(longer(&run, "irqs", limit).0, 1, "the window ends with the first of them");

    for (condition, expected) in [
        ("irqs_of > 5us", "did you mean `irqs_off`?"),
        ("irqs_off > 5xs", "irqs_off is `$duration` here:"),
        ("wakeup > $retval", "an interval has no `$retval`"),
        ("syscall if count > 1", "no `count`"),
    ] {
        let output = kprism(&["lab", "run", "-o", "/x", "--snapshot-when", condition, "--", "true"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains(expected), "{condition}: {said}");
    }
}

kprism_test::main!();
