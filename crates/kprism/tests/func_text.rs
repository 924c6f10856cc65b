// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts of ftrace that are not whole or not of functions' calls: what is there is shown.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const TEXTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kprism-ftrace/tests/data/text");

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn ok(args: &[&str]) -> (String, String) {
    let output = kprism(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    (String::from_utf8(output.stdout).expect("text"), said)
}

/// Imports a text; the run, and what was said.
fn import(dir: &Path, name: &str, text: &str) -> (PathBuf, String) {
    let (file, run) = (dir.join(name), dir.join(format!("{name}.run")));
    std::fs::write(&file, text).unwrap();
    let said = ok(&["import", file.to_str().unwrap(), "-o", run.to_str().unwrap()]).1;
    (run, said)
}

#[test]
fn a_text_without_a_header_is_measured_as_the_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read_to_string(format!("{TEXTS}/fg_abstime_proc.txt")).unwrap();
    let body: String = whole.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    let (plain, _) = import(dir.path(), "whole", &whole);
    let (piece, said) = import(dir.path(), "piece", &body);
    assert!(said.contains("the text has no header: its columns are told by its lines"), "{said}");
    let (pasted, said) = import(dir.path(), "pasted", &format!("# cat trace\nsome words\n{whole}"));
    assert!(said.contains("trace.txt: line 2: expected a line of function graph"), "{said}");
    let rows = |run: &Path| ok(&["report", "func", "-i", run.to_str().unwrap(), "--csv", "--limit", "0"]).0;
    assert!(rows(&plain).lines().count() > 10);
    assert_eq!(rows(&plain), rows(&piece));
    assert_eq!(rows(&plain), rows(&pasted));
}

/// The function tracer's text (kernel/trace/trace_output.c), with stacks and an event of a kprobe.
const FUNCTIONS: &str = "\
# tracer: function
#
# entries-in-buffer/entries-written: 4/4   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
              ls-162     [001] ...1.    12.345678: vfs_read <-ksys_read
              ls-162     [001] ...1.    12.345680: <stack trace>
 => vfs_read
 => ksys_read
              ls-162     [001] ...1.    12.345690: vfs_read <-ksys_read
             cat-163     [000] ...1.    12.345700: p_vfs_open_0: (vfs_open+0x0/0x30) arg1=0x1
";

#[test]
fn events_without_calls_are_shown_by_name_task_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let (run, said) = import(dir.path(), "functions", FUNCTIONS);
    assert!(said.contains("4 events, 0 calls") && !said.contains("expected"), "{said}");
    let run = run.to_str().unwrap();
    let report: Value = serde_json::from_str(&ok(&["report", "func", "-i", run, "--json"]).0).expect("JSON");
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let number = |key: &str| row[key].as_u64().unwrap();
        (text("event"), number("count"), number("pid"), text("comm"), number("first_ns"), number("last_ns"))
    };
    let rows: Vec<_> = report["rows"].as_array().unwrap().iter().map(row).collect();
    let (ls, cat) = (|| "ls".to_owned(), || "cat".to_owned());
    let expected = [
        ("vfs_read".to_owned(), 2, 162, ls(), 12_345_678_000, 12_345_690_000),
        ("<stack trace>".to_owned(), 1, 162, ls(), 12_345_680_000, 12_345_680_000),
        ("p_vfs_open_0".to_owned(), 1, 163, cat(), 12_345_700_000, 12_345_700_000),
    ];
    assert_eq!(rows, expected);
    let (text, _) = ok(&["report", "-i", run, "--comm", "cat"]);
    assert!(text.contains("p_vfs_open_0") && !text.contains("vfs_read"), "{text}");
    // One by one, with the task's name, and stacks behind their events.
    let (script, _) = ok(&["script", "-i", run]);
    let lines: Vec<&str> = script.lines().collect();
    assert_eq!(lines.len(), 6, "{script}");
    assert!(
        lines[0].contains("ls    162 [001]") && lines[0].contains("/* vfs_read <-ksys_read */"),
        "{script}"
    );
    assert!(lines[2].contains("/* => vfs_read */") && lines[3].contains("/* => ksys_read */"), "{script}");
}

#[test]
fn what_does_not_go_with_func_is_refused_and_html_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("{TEXTS}/fg_abstime_proc.txt")).unwrap();
    let (run, _) = import(dir.path(), "whole", &text);
    let run = run.to_str().unwrap();
    for option in [&["--syscall", "read"][..], &["--parts"], &["--counters", "/nonexistent"]] {
        let output = kprism(&[&["report", "func", "-i", run], option].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("does not go with `report func`"), "{said}");
    }
    let page = dir.path().join("page.html");
    ok(&["report", "func", "-i", run, "--html", page.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
    for option in [&["--tree"][..], &["--json"], &["--csv"], &["--sort", "count"]] {
        let args = [&["report", "func", "-i", run, "--html", page.to_str().unwrap()], option].concat();
        assert_eq!(kprism(&args).status.code(), Some(2), "{option:?}");
    }
}

/// No room for tables: the report is shown all the same. (A limit on the size of files stands for a full disk.)
#[test]
fn a_report_needs_no_room_for_tables() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("{TEXTS}/fg_abstime_proc.txt")).unwrap();
    let (run, _) = import(dir.path(), "whole", &text);
    let rows = |shell: &str| {
        let script = format!("{shell} exec \"$@\"");
        let program = env!("CARGO_BIN_EXE_kprism");
        let run = run.to_str().unwrap();
        Command::new("sh")
            .args(["-c", &script, "sh", program, "report", "func", "-i", run, "--csv"])
            .output()
            .expect("sh")
    };
    let with = rows("");
    std::fs::remove_dir_all(run.join("tables")).unwrap();
    let without = rows("trap '' XFSZ; ulimit -f 0;");
    let said = String::from_utf8_lossy(&without.stderr);
    assert!(without.status.success() && said.contains("the tables are not kept"), "{said}");
    assert_eq!(String::from_utf8_lossy(&with.stdout), String::from_utf8_lossy(&without.stdout));
    assert!(!run.join("tables").exists());
    // With room again, they are written.
    assert!(rows("").status.success() && run.join("tables").is_dir());
}
