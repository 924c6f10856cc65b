// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts of ftrace that are not whole or not of functions' calls: what is there is shown.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const TEXTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../format/ftrace/tests/data/text");

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
    assert_eq!(report["run"]["account"][0]["count"], 4, "{report}");
    let (text, _) = ok(&["report", "-v", "-i", run, "--comm", "cat"]);
    assert!(text.contains("account\n  seen            4 events"), "{text}");
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
        assert!(said.contains(option[0]), "{said}");
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

/// An end without a name or a beginning is in the account.
#[test]
fn an_end_without_a_call_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let text = "# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n\
                # |     |   |                     |   |   |   |\n \
                0)               |  }\n \
                0)   0.500 us    |  once();\n \
                0)               |  outer() {\n \
                0)   0.250 us    |    inner();\n \
                0)   1.500 us    |  }\n";
    let (run, _) = import(dir.path(), "orphan", text);
    let (shown, _) = ok(&["report", "func", "-v", "-i", run.to_str().unwrap()]);
    assert!(shown.contains("kept            3 calls") && shown.contains("1 end without a call"), "{shown}");
    let (account, _) = ok(&["report", "func", "-i", run.to_str().unwrap(), "--json"]);
    let strict = kprism(&["info", "--strict", "-i", run.to_str().unwrap()]);
    assert_eq!(strict.status.code(), Some(4), "{account}");
}

/// A duration that the text does not have is not 0.
#[test]
fn durations_that_a_text_lacks_are_not_known() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("{TEXTS}/fg_noduration_proc.txt")).unwrap();
    let (run, said) = import(dir.path(), "bare", &text);
    assert!(said.contains("what is shown as 0 is not known"), "{said}");
    let (shown, _) = ok(&["report", "func", "-i", run.to_str().unwrap(), "--limit", "2"]);
    assert!(shown.contains("durations of calls not known"), "{shown}");
}

/// What counts instructions has nothing to say of durations; what exports calls, nothing of events.
#[test]
fn views_that_would_be_zeros_or_empty_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("{TEXTS}/fg_abstime_proc.txt")).unwrap();
    let (calls, _) = import(dir.path(), "calls", &text);
    let (events, _) = import(dir.path(), "events", FUNCTIONS);
    let (calls, events) = (calls.to_str().unwrap(), events.to_str().unwrap());
    let refused = |args: &[&str], word: &str| {
        let output = kprism(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    };
    for subject in ["functions", "syscalls", "tree", "tasks", "errors", "delta"] {
        refused(&["report", subject, "-i", calls], "see: kprism report durations");
    }
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for subject in ["syscalls", "tasks"] {
        refused(&["export", subject, "-i", calls, "-o", &file("x.csv")], "see: kprism report durations");
    }
    for name in ["x.folded", "x.perfetto-trace", "x.pprof", "x.csv"] {
        refused(&["export", "-i", events, "-o", &file(name)], "kprism script");
        assert!(!Path::new(&file(name)).exists(), "{name}");
    }
    // What is exported as a table is what `report durations` shows.
    ok(&["export", "-i", calls, "-o", &file("all.csv")]);
    let (shown, _) = ok(&["report", "func", "-i", calls, "--csv"]);
    let exported = std::fs::read_to_string(file("all.csv")).unwrap();
    assert!(exported.starts_with("count,total_ns,average_ns"), "{exported}");
    assert_eq!(exported.lines().count(), shown.lines().count());
    // A file is whole unless told otherwise.
    let (two, _) = ok(&["report", "func", "-i", calls, "--csv", "--limit", "2"]);
    assert!(two.lines().count() == 3 && shown.lines().count() > 10, "{two} {shown}");
    refused(&["report", "func", "-i", calls, "--tree", "--csv"], "`report durations --tree`");
}

/// Two recordings are compared by the time that they have.
#[test]
fn durations_are_compared_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("{TEXTS}/fg_abstime_proc.txt")).unwrap();
    let fewer: String = text.lines().take(25).map(|line| format!("{line}\n")).collect();
    let (old, _) = import(dir.path(), "old", &text);
    let (new, _) = import(dir.path(), "new", &fewer);
    let [old, new] = [&old, &new].map(|run| run.to_str().unwrap());
    let (shown, _) = ok(&["diff", old, new, "--limit", "3"]);
    assert!(shown.contains(" on CPU") && !shown.contains("instruction"), "{shown}");
    assert!(shown.contains("calls of 11 functions") && shown.contains("self diff"), "{shown}");
    assert!(!shown.contains("no function differs"), "{shown}");
    let output = kprism(&["diff", old, new, "--by", "instructions"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let (same, _) = ok(&["diff", old, old]);
    assert!(same.contains("no function differs"), "{same}");
}
