// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots and suspends recorded elsewhere as texts: ftrace's and the kernel's log, as pm-graph leaves them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const STAMP: &str = "# boot-112226-093000 host boot 6.12.0-test\n# sysinfo | man:a | plat:b | numcpu:2\n\
    # command | bootgraph -f\n# kparams | root=/dev/sda1 initcall_debug ftrace=function_graph\n";

/// As `initcall_debug` words it.
const LOG: &str = include_str!("boot_texts/initcalls.log");

/// What bootgraph's options make of `trace`. The first line's call began before the trace; the last has no end.
const TRACE: &str = "\
# tracer: function_graph
#
# entries-in-buffer/entries-written: 8/20   #P:2
#
#     TIME        CPU  TASK/PID         DURATION                  FUNCTION CALLS
#      |          |     |    |           |   |                     |   |   |   |
     0.400000 |   0)  swapper/-1    |               |  }
     0.500101 |   0)  swapper/-1    |               |  do_one_initcall() {
     0.500110 |   0)  swapper/-1    |   1900.500 us |    first_init();
     0.502110 |   0)  swapper/-1    | # 2009.000 us |  } /* do_one_initcall */
     0.600001 |   1)  modprob-132   |               |  do_one_initcall() {
     0.600002 |   1)  modprob-132   |   800.250 us  |    ext4_init_fs [ext4]();
     0.600999 |   1)  modprob-132   | !  998.000 us |  }
     0.700000 |   0)  swapper/-1    |               |  do_one_initcall() {
";

/// Imports, and gives the boot.
fn boot(path: &Path, run: &Path) -> (Value, String) {
    let output = kprism(&["import", text(path), "-o", text(run)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("kprism report boot -i"), "{said}");
    let output = kprism(&["report", "boot", "-i", text(run), "--json", "--limit", "0"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).expect("JSON"), said)
}

fn initcalls(boot: &Value) -> Vec<(String, u64, u64, String)> {
    let text = |call: &Value, key: &str| call[key].as_str().unwrap_or_default().to_owned();
    let number = |call: &Value, key: &str| call[key].as_u64().unwrap();
    let mut calls: Vec<_> = boot["initcalls"].as_array().unwrap().iter().collect();
    calls.sort_by_key(|call| number(call, "start_ns"));
    let call =
        |c: &&Value| (text(c, "name"), number(c, "start_ns"), number(c, "duration_ns"), text(c, "module"));
    calls.iter().map(call).collect()
}

fn count(account: &Value, fate: &str, unit: &str) -> Value {
    let entries = account.as_array().expect("an account");
    let found = entries.iter().find(|e| e["fate"] == fate && e["unit"].as_str().unwrap().starts_with(unit));
    found.unwrap_or_else(|| panic!("{fate} {unit}: {account}"))["count"].clone()
}

#[test]
fn bootgraphs_pair_is_a_boot() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("boot-112226-093000");
    fs::create_dir(&folder).unwrap();
    let (trace, log) = (folder.join("host_boot_ftrace.txt"), folder.join("host_boot_dmesg.txt"));
    fs::write(&trace, format!("{STAMP}{TRACE}")).unwrap();
    fs::write(&log, format!("{STAMP}{LOG}")).unwrap();
    // Either file, or the folder: the same.
    let mut all = Vec::new();
    for (name, path) in [("folder", &folder), ("trace", &trace), ("log", &log)] {
        let run = dir.path().join(name);
        let (boot, said) = boot(path, &run);
        assert!(!said.contains("expected"), "{said}");
        let manifest: Value = serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
        assert_eq!(manifest["kernel"]["release"], "6.12.0-test");
        assert_eq!(
            manifest["options"]["kernel_command_line"],
            "root=/dev/sda1 initcall_debug ftrace=function_graph"
        );
        all.push(boot);
    }
    assert!(all.windows(2).all(|two| two[0] == two[1]));
    let boot = &all[0];
    let expected = [
        ("first_init".to_owned(), 500_100_000, 2_000_000, String::new()),
        ("ext4_init_fs".to_owned(), 600_000_000, 900_000, "ext4".to_owned()),
    ];
    assert_eq!(initcalls(boot), expected);
    // Calls of functions, with the durations that the text has; one end has no beginning.
    let account = &boot["run"]["account"];
    assert_eq!(count(account, "kept", "long calls"), 4, "{account}");
    assert_eq!(count(account, "lost", "ends without a call"), 1);
    assert_eq!(count(account, "lost", "events"), 12, "written and not there");
    assert_eq!(count(account, "seen", "events"), 10, "a line of a whole call is two");
    let output = kprism(&["report", "boot", "-i", text(&dir.path().join("folder"))]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["2.009 ms      2", "do_one_initcall", "800.250 µs      1", "ext4_init_fs"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Its calls are durations, too.
    let output = kprism(&["report", "func", "-i", text(&dir.path().join("folder")), "--csv"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains(",do_one_initcall,"));
}

#[test]
fn files_of_a_pair_may_be_gzips() {
    let dir = tempfile::tempdir().unwrap();
    for (name, contents) in [("host_boot_ftrace.txt", TRACE), ("host_boot_dmesg.txt", LOG)] {
        fs::write(dir.path().join(name), format!("{STAMP}{contents}")).unwrap();
        assert!(Command::new("gzip").arg(dir.path().join(name)).status().unwrap().success());
    }
    let (found, _) = boot(&dir.path().join("host_boot_dmesg.txt.gz"), &dir.path().join("run"));
    assert_eq!(initcalls(&found).len(), 2);
    assert_eq!(count(&found["run"]["account"], "kept", "long calls"), 4);
}

#[test]
fn a_log_alone_tells_of_the_initcalls() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = (dir.path().join("any.log"), dir.path().join("run"));
    fs::write(&log, LOG).unwrap();
    let (found, _) = boot(&log, &run);
    assert_eq!(initcalls(&found).len(), 2);
    assert_eq!(count(&found["run"]["account"], "guessed", "initcalls with the log's coarse times"), 2);
    assert_eq!(count(&found["run"]["account"], "lost", "events"), Value::Null, "nobody knows");
    let output = kprism(&["report", "func", "-i", text(&run)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("kprism report boot"), "{said}");
}

/// Events of initcalls in a text are as good as those in pages.
#[test]
fn events_of_a_text_have_the_times() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("texts");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("dmesg"), LOG).unwrap();
    let events = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 5/5   #P:2
#
       swapper/0-1       [000] .....     0.500050: initcall_level: level=early
       swapper/0-1       [000] .....     0.500060: initcall_start: func=first_init+0x0/0x10
       swapper/0-1       [000] .....     0.501060: initcall_finish: func=first_init+0x0/0x10 ret=0
        modprobe-132     [001] .....     0.599960: initcall_start: func=used_again+0x0/0x230 [other]
        modprobe-132     [001] .....     0.600800: initcall_finish: func=used_again+0x0/0x230 [other] ret=-19
";
    fs::write(folder.join("trace"), events).unwrap();
    let (found, _) = boot(&folder, &dir.path().join("run"));
    let expected = [
        ("first_init".to_owned(), 500_060_000, 1_000_000, String::new()),
        ("ext4_init_fs".to_owned(), 599_960_000, 840_000, "ext4".to_owned()),
    ];
    assert_eq!(initcalls(&found), expected, "times of the events, names of the log");
    assert_eq!(
        found["initcalls"][0]["level"].as_str().or(found["initcalls"][1]["level"].as_str()),
        Some("early")
    );
    assert_eq!((&found["unnamed"], &found["coarse"]), (&0.into(), &0.into()));
}

#[test]
fn sleepgraphs_trace_is_events_and_its_log_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let stamp = "# suspend-112226-093000 host mem 6.12.0-test\n# sysinfo | man:a\n# command | sleepgraph\n";
    let log = dir.path().join("host_mem_dmesg.txt");
    let devices = "[   77.9] PM: suspend entry\n[   77.91] calling  usb1+ @ 4, parent: 0000:00:14.0\n";
    fs::write(&log, format!("{stamp}{devices}")).unwrap();
    let refused = |path: &Path| {
        let output = kprism(&["import", text(path), "-o", text(&dir.path().join("no"))]);
        assert_eq!(output.status.code(), Some(2));
        assert!(!dir.path().join("no").exists(), "a run was begun");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&log);
    for part in ["host_mem_dmesg.txt", "initcall_debug", "_ftrace.txt"] {
        assert!(said.contains(part), "{said}");
    }
    let events = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 3/3   #P:8\n#\n\
        \x20             sh-2613  [006] ...1    77.795478: tracing_mark_write: SUSPEND START\n\
        \x20 sleepgraph-2475  [000] ....    77.795627: suspend_resume: suspend_enter[2] begin\n\
        \x20 sleepgraph-2475  [000] ....    77.919022: suspend_resume: suspend_enter[2] end\n";
    let trace = dir.path().join("host_mem_ftrace.txt");
    fs::write(&trace, format!("{stamp}{events}")).unwrap();
    let run = dir.path().join("run");
    let output = kprism(&["import", text(&trace), "-o", text(&run)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("tells of no initcalls"), "{said}");
    let output = kprism(&["report", "func", "-v", "-i", text(&run)]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        shown.contains("suspend_resume") && shown.contains("account\n  seen            3 events"),
        "{shown}"
    );
    // Two of one kind: which one is not guessed.
    fs::write(dir.path().join("other_mem_ftrace.txt"), format!("{stamp}{events}")).unwrap();
    let said = refused(dir.path());
    assert!(said.contains("host_mem_ftrace.txt") && said.contains("other_mem_ftrace.txt"), "{said}");
    // A name does not make a trace.
    fs::write(dir.path().join("x_ftrace.txt"), "words\nand more\nwords\n").unwrap();
    assert!(refused(&dir.path().join("x_ftrace.txt")).contains("the text of ftrace's trace"));
}
