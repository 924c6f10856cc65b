// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of the kernel between two conditions (`lab gcov-kernel --from --until`): what a program does before, in and after its
//! windows is known, gcov itself reads the sum, and the flow of the same windows beside it agrees.
//!
//! The kernel is that of `cover_kernel.rs`. Conditions on values need its types: `KPRISM_GCOV_TYPES` says that the small one with
//! types is there.

mod gcov_data;
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use guest::{alone, json, kprism, number, ok, text};
use kprism_gcov::Data;
use kprism_test::{GCOV_KERNEL, GCOV_TYPES_KERNEL, needs, test};
use serde_json::Value;

/// Runs `command` on the gcov kernel.
fn lab(run: &Path, options: &[&str], command: &[&str]) -> Output {
    let which = std::env::var("KPRISM_GCOV_ARGS").unwrap_or_default();
    let which: Vec<&str> = which.split_whitespace().collect();
    kprism(&[&["lab", "gcov-kernel", "-o", text(run)], &which[..], options, &["--"], command].concat())
}

/// The same, which must end with this code. Returns what kprism said.
fn said(run: &Path, options: &[&str], command: &[&str], code: i32) -> String {
    let output = lab(run, options, command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
    said
}

/// A program's source, built for the guest. Returns the folder to share.
fn built(dir: &Path, source: &str) -> PathBuf {
    let share = dir.join("share");
    fs::create_dir(&share).unwrap();
    fs::write(share.join("program.c"), source).unwrap();
    let cc = ["-O1", "-static", "-o", "program", "program.c"];
    assert!(Command::new("cc").args(cc).current_dir(&share).status().unwrap().success());
    share
}

/// Calls of `getppid` before, in and after two windows, of which `sched_yield` is the begin and `getsid` the end.
const BEFORE: u64 = 5;
const IN: [u64; 2] = [7, 2];
const AFTER: [u64; 2] = [11, 3];
/// The program's exit code.
const CODE: i32 = 3;

fn program() -> String {
    format!(
        "#include <sched.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
         static void calls(int n) {{ while (n--) syscall(SYS_getppid); }}\n\
         int main(void) {{\n\
         calls({BEFORE}); sched_yield(); calls({}); getsid(0); calls({});\n\
         sched_yield(); calls({}); getsid(0); calls({});\n\
         return {CODE}; }}\n",
        IN[0], AFTER[0], IN[1], AFTER[1]
    )
}

/// Times that a function of a source file was called.
fn called(run: &Path, file: &str, function: &str, more: &[&str]) -> u64 {
    let report = ["report", "cover", "-q", "--json", "--each", "function", "-i", text(run), file];
    let report = json(&[&report[..], more].concat());
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["function"] == function);
    number(row.unwrap_or_else(|| panic!("{function}: {report}")), "called")
}

fn getppids(run: &Path) -> u64 {
    called(run, "kernel/sys.c", "__do_sys_getppid", &[])
}

fn archive(run: &Path, name: &str) -> BTreeMap<String, Data> {
    gcov_data::archive(&fs::read(run.join("streams/gcov").join(name)).unwrap())
}

fn counts(data: &Data) -> Vec<i64> {
    let values = data.functions.iter().flat_map(|function| &function.values);
    values.flat_map(|(_, values)| (0..values.len()).map(|index| values.get(index))).collect()
}

/// Number of calls of a function by gcov, from the sum of the windows as kprism wrote it.
fn gcov_says(run: &Path, scratch: &Path, object: &str, function: &str) -> u64 {
    let (name, data) =
        archive(run, "windows.cpio").into_iter().find(|(name, _)| name.ends_with(object)).unwrap();
    fs::create_dir_all(scratch).unwrap();
    fs::write(scratch.join("one.gcda"), data.to_bytes()).unwrap();
    fs::copy(Path::new("/").join(&name).with_extension("gcno"), scratch.join("one.gcno")).unwrap();
    let output = Command::new("gcov")
        .args(["--stdout", "--json-format", "one.gcda"])
        .current_dir(scratch)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = told["files"].as_array().unwrap();
    let all = files.iter().flat_map(|file| file["functions"].as_array().unwrap());
    number(all.clone().find(|found| found["name"] == function).expect("the function"), "execution_count")
}

/// Only what ran in windows counts: to the call, in all windows together.
#[test]
fn calls_in_windows_count_and_no_others() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let share = built(dir.path(), &program());
    let share = ["--share", text(&share)];
    let place = |name: &str| dir.path().join(name);
    let command = ["/share/program"];
    let record = |name: &str, conditions: &[&str]| {
        let run = place(name);
        let said = said(&run, &[&share[..], conditions].concat(), &command, CODE);
        (run, said)
    };
    let in_windows = IN.iter().sum::<u64>();

    let (run, told) = record("both", &["--from", "__x64_sys_sched_yield", "--until", "__x64_sys_getsid"]);
    let words = "2 windows from `__x64_sys_sched_yield` until `__x64_sys_getsid`";
    assert!(told.contains(words), "{told}");
    assert_eq!(getppids(&run), in_windows);
    assert_eq!(gcov_says(&run, &place("gcov"), "kernel/sys.gcda", "__do_sys_getppid"), in_windows);
    // A window has the call at which it opens, and not the one at which it closes.
    assert_eq!(called(&run, "kernel/sched", "__do_sys_sched_yield", &[]), 2);
    assert_eq!(called(&run, "kernel/sys.c", "__x64_sys_getsid", &[]), 0);
    let info = json(&["info", "--json", "-i", text(&run)]);
    assert_eq!(
        (&info["options"]["from"], &info["options"]["until"], &info["options"]["windows"]),
        (&"__x64_sys_sched_yield".into(), &"__x64_sys_getsid".into(), &2.into()),
        "{info:#}"
    );
    let spans = info["options"]["coverage_windows"]["spans"].as_array().unwrap().clone();
    assert_eq!(spans.len(), 2);
    let edges: Vec<u64> =
        spans.iter().flat_map(|s| [s[0].as_u64().unwrap(), s[1].as_u64().unwrap()]).collect();
    assert!(edges.is_sorted() && edges[0] < edges[1], "{edges:?}");
    let report = ok(&["report", "cover", "-i", text(&run), "kernel/sys.c"]);
    assert!(String::from_utf8_lossy(&report).starts_with(words));
    let report = json(&["report", "cover", "--json", "-i", text(&run), "kernel/sys.c"]);
    assert_eq!((&report["windows"][0]["windows"], &report["windows"][0]["run"]), (&2.into(), &Value::Null));
    let page = place("page.html");
    ok(&["report", "cover", "-q", "-i", text(&run), "kernel/sys.c", "--html", text(&page)]);
    assert!(fs::read_to_string(&page).unwrap().contains("2 windows from"));
    // The streams that the observer needs for conditions are none of the run's.
    assert!(!run.join("streams/cpu0.pt").exists());
    let since_boot = called(&run, "kernel/sys.c", "__do_sys_getppid", &["--since-boot"]);
    assert!(since_boot >= BEFORE + in_windows + AFTER.iter().sum::<u64>(), "{since_boot}");

    // After its return, a call is before the window.
    let (run, _) =
        record("return", &["--from", "__x64_sys_sched_yield%return", "--until", "__x64_sys_getsid%return"]);
    assert_eq!(getppids(&run), in_windows);
    assert_eq!(called(&run, "kernel/sched", "__do_sys_sched_yield", &[]), 0);
    assert_eq!(called(&run, "kernel/sys.c", "__x64_sys_getsid", &[]), 2);

    // What ran until the first, and what ran after it, are together all that ran: each counter of the kernel.
    let (until, _) = record("until", &["--until", "__x64_sys_getsid"]);
    let (from, told) = record("from", &["--from", "__x64_sys_getsid"]);
    assert!(told.contains("1 window from `__x64_sys_getsid`"), "{told}");
    assert_eq!(getppids(&until), BEFORE + IN[0]);
    assert_eq!(getppids(&from), AFTER[0] + IN[1] + AFTER[1]);
    let (first, second) = (archive(&until, "windows.cpio"), archive(&from, "windows.cpio"));
    let (before, after) = (archive(&until, "before.cpio"), archive(&until, "counters.cpio"));
    let mut grown = 0;
    for (name, after) in &after {
        let parts = [&first, &second, &before].map(|part| counts(&part[name]));
        for (index, after) in counts(after).into_iter().enumerate() {
            let [first, second, before] = [&parts[0], &parts[1], &parts[2]].map(|part| part[index]);
            assert_eq!(first + second, after - before, "{name}: counter {index}");
            grown += usize::from(first > 0 && second > 0);
        }
    }
    println!("{grown} counters grew in both parts, and no count is in none or in both");
    assert!(grown > 500, "{grown}");

    // No window: said, and shown as nothing.
    let (never, told) = record("never", &["--from", "panic", "--until", "__x64_sys_getsid"]);
    assert!(told.contains("the condition was never met, so nothing was counted"), "{told}");
    let report = kprism(&["report", "cover", "--json", "--limit", "1", "-i", text(&never)]);
    assert!(String::from_utf8_lossy(&report.stderr).contains("never met"), "{report:?}");
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(number(&report["totals"], "lines_hit"), 0, "{}", report["totals"]);
    assert!(number(&report["totals"], "lines") > 10_000);

    // A run that lost the sum does not show the whole command in its place.
    fs::remove_file(never.join("streams/gcov/windows.cpio")).unwrap();
    let report = kprism(&["report", "cover", "-i", text(&never)]);
    assert_eq!(report.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&report.stderr).contains("windows.cpio"), "{report:?}");
}

/// Two CPUs that take turns: what the other one counted meanwhile is in the window, and the guest is held for the reading.
#[test]
fn counters_of_all_cpus_are_in_the_window() {
    needs(&[GCOV_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // The child on the other CPU calls until the parent has seen its window: n[1] calls were begun, n[0] have ended. One may be
    // under way when a window opens or closes, so those are in it for sure that were begun and ended between.
    let source = "#define _GNU_SOURCE\n#include <sched.h>\n#include <signal.h>\n#include <stdio.h>\n#include <sys/mman.h>\n\
        #include <sys/syscall.h>\n#include <unistd.h>\n\
        static void on(int cpu) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(cpu, &set); sched_setaffinity(0, sizeof set, &set); }\n\
        int main(void) {\n\
        volatile long *n = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);\n\
        on(0);\n\
        int child = fork();\n\
        if (child == 0) { on(1); for (;;) { n[1]++; syscall(SYS_getppid); n[0]++; } }\n\
        while (n[0] < 1000) usleep(1000);\n\
        sched_yield(); long from = n[1]; while (n[0] < from + 1000) usleep(1000); long until = n[0]; getsid(0);\n\
        kill(child, SIGKILL); printf(\"%ld %ld\\n\", until - from, n[1]); return 0; }\n";
    let share = built(dir.path(), source);
    let run = dir.path().join("run");
    let conditions = ["--from", "__x64_sys_sched_yield", "--until", "__x64_sys_getsid"];
    let output =
        lab(&run, &[&["--smp", "2", "--share", text(&share)], &conditions[..]].concat(), &["/share/program"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (seen, all) = said.trim().split_once(' ').expect("two numbers");
    let (seen, all): (u64, u64) = (seen.parse().unwrap(), all.parse().unwrap());
    let counted = getppids(&run);
    println!("{counted} of {all} calls by the other CPU are counted; the program saw {seen} in its window");
    assert!(seen >= 1000 && counted >= seen && counted + 1000 <= all, "{counted} {seen} {all}");
}

/// A window that cannot be counted at an instruction is refused, with what to do instead.
#[test]
fn what_is_not_at_an_instruction_is_refused() {
    let refused = |args: &[&str], words: &str| {
        let output = kprism(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    };
    for option in ["--from", "--until"] {
        refused(&["record", "cover", option, "vfs_read", "--", "true"], "kprism lab gcov-kernel --from");
        for (other, words) in
            [("--in-place", "--in-place"), ("--fast", "--fast"), ("--uncounted", "--uncounted")]
        {
            refused(&["lab", "gcov-kernel", option, "vfs_read", other, "--", "true"], words);
        }
        refused(&["lab", "gcov-kernel", option, "vfs_read"], "CMD");
        refused(&["lab", "gcov-kernel", option, "vfs_read", "--empty"], "--empty");
    }
}

/// Writes of 8 KiB among smaller ones, each a window by a condition on a parameter; the flow of the same windows beside it.
#[test]
fn a_condition_on_values_opens_a_window() {
    needs(&[GCOV_KERNEL, GCOV_TYPES_KERNEL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <fcntl.h>\n#include <unistd.h>\n\
        static char bytes[8192];\n\
        int main(void) { int f = open(\"/tmp/f\", O_CREAT | O_WRONLY, 0600);\n\
        for (int i = 0; i < 20; i++) write(f, bytes, i % 4 == 0 ? 8192 : 100);\n\
        return 0; }\n";
    let share = built(dir.path(), source);
    let run = dir.path().join("run");
    let from = r#"vfs_write if count > 4096 && $comm == "program""#;
    let until = "vfs_write%return if count > 4096";
    let options = ["--share", text(&share), "--flow", "--from", from, "--until", until];
    let told = said(&run, &options, &["/share/program"], 0);
    assert!(told.contains("5 windows from"), "{told}");
    assert_eq!(called(&run, "fs/read_write.c", "vfs_write", &[]), 5);
    assert_eq!(gcov_says(&run, &dir.path().join("gcov"), "fs/read_write.gcda", "vfs_write"), 5);
    let flow = json(&["report", "functions", "-q", "--json", "--limit", "0", "-i", text(&run)]);
    let row = flow["rows"].as_array().unwrap().iter().find(|row| row["function"] == "vfs_write").cloned();
    assert_eq!(number(&row.expect("vfs_write"), "calls"), 5);
    let info = json(&["info", "--json", "-i", text(&run)]);
    assert_eq!(info["options"]["windows"], 5, "{info:#}");
    // Line by line, over the lines that ran.
    for path in ["fs", "mm", "kernel"] {
        let report = json(&["report", "cover", "-q", "--json", "--compare", "-i", text(&run), path]);
        let percent = |key: &str| report[key].as_f64().unwrap();
        println!(
            "{path}: of {} lines that ran by gcov: recall {:.2} %, precision {:.2} %, same count {:.2} %",
            report["executed"],
            percent("recall_percent"),
            percent("precision_percent"),
            percent("same_count_percent")
        );
        assert!(
            percent("recall_percent") >= 95.0 && percent("precision_percent") >= 95.0,
            "{path}: {report}"
        );
    }
    // The timeline has the windows of the counters where the recorder held the guest.
    let moments = guest::script(&run, &["all", "--only", "coverage"]);
    assert_eq!(moments.iter().filter(|moment| moment["name"] == "coverage window").count(), 5);
    // A condition that is no such is told before anything runs.
    let output = lab(&run, &["--from", "vfs_write if cuont > 1"], &["true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `count`?"), "{output:?}");
}

kprism_test::main!();
