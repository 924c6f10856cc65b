// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes beside the flow: each record lies in the call that the observer saw, of the same task, with the same argument, and in the
//! listing, on the page and in Perfetto's timeline are as many as in the report.

mod guest;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use guest::{alone, ask_perfetto, json, kprism, number, ok, script, text, waits};
use kprism_test::{APT, QEMU, needs, test};
use serde_json::Value;

const COMMAND: &str = "cat /etc/passwd /etc/group; ls /usr/bin | wc -l & ls / | sort; wait";
/// One where kprobes are, one of a tracepoint, one at a return.
const PROBES: [&str; 3] =
    ["vfs_read if count > 100", "sched:sched_switch", "vfs_write%return if $retval > 0"];

/// Recorded once for all tests.
fn run() -> &'static Path {
    static RUN: OnceLock<PathBuf> = OnceLock::new();
    RUN.get_or_init(|| {
        let _alone = alone();
        let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join("probe-flow-run");
        let place: &[&str] = &["record", "probe", "-q", "--guest", "--flow", "--smp", "2", "-o", text(&run)];
        ok(&[place, &PROBES, &["--collect", "$comm", "--", "sh", "-c", COMMAND]].concat());
        run
    })
}

fn lines(arguments: &[&str]) -> Vec<Value> {
    script(run(), arguments)
}

fn records() -> Vec<Value> {
    lines(&["all", "--only", "probe"])
}

/// The flow is the second witness: at the time of a record its task is in the function, on the CPU that the record names.
#[test]
fn every_record_is_in_the_call_that_the_flow_has() {
    needs(&[QEMU, APT]);
    let counts = json(&["report", "probe", "-q", "--json", "-i", text(run())])["counts"].clone();
    let records = records();
    let passed: u64 = counts.as_array().unwrap().iter().map(|count| number(count, "passed")).sum();
    assert_eq!(records.len() as u64, passed, "{counts}");
    let manifest = std::fs::read_to_string(run().join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["instruments"], serde_json::json!(["flow", "probe"]));
    assert_eq!(manifest["clock"]["name"], "guest-virtual");
    let summary = kprism(&["script", "all", "-i", text(run()), "--only", "probe"]);
    let said = String::from_utf8_lossy(&summary.stderr).into_owned();
    assert!(!said.contains("not in this list"), "{said}");
    // The places of a clock's readings, as far as they can be wrong: two readings of the TSC with the vDSO's function between.
    const ERROR_NS: u64 = 100;
    for (place, function) in [("vfs_read", "vfs_read"), ("vfs_write%return", "vfs_write")] {
        let calls = lines(&["calls", "--func", function, "--self"]);
        let of_place: Vec<&Value> = records.iter().filter(|record| record["name"] == place).collect();
        assert!(of_place.len() > 5, "{place}: {}", of_place.len());
        let mut within = std::collections::BTreeMap::<u64, u64>::new();
        for record in &of_place {
            let (ns, pid) = (number(record, "time_ns"), number(record, "pid"));
            let call = calls.iter().find(|call| {
                let begin = number(call, "time_ns");
                // A call that is under way at the end has none.
                let end = call["wall_ns"].as_u64().map(|wall| begin + wall);
                let before_end = end.is_none_or(|end| ns <= end + ERROR_NS);
                number(call, "pid") == pid && begin <= ns + ERROR_NS && before_end
            });
            let call =
                call.unwrap_or_else(|| panic!("no call of {function} at {record}; {:?}", calls.first()));
            assert_eq!(record["comm"], record["args"]["$comm"], "{record}");
            *within.entry(number(call, "time_ns")).or_default() += 1;
        }
        // No two records are of one call.
        assert_eq!(within.len(), of_place.len(), "{place}");
    }
    let (switches, waits) = (lines(&["all", "--only", "switch"]), waits(run()));
    let seen = records.iter().filter(|record| record["name"] == "sched:sched_switch");
    for record in seen {
        let from = number(record, "time_ns");
        // The CPU may wait for its turn between them.
        let of_cpu = waits.iter().filter(|wait| record["cpu"] == wait.0);
        let waited = |to: u64| -> u64 {
            let between = of_cpu.clone().filter(|wait| from <= wait.1 && wait.2 <= to);
            between.map(|wait| wait.2 - wait.1).sum()
        };
        let near = |switch: &&Value| {
            let to = number(switch, "time_ns");
            switch["cpu"] == record["cpu"]
                && switch["pid"] == record["pid"]
                && from <= to
                && to - from < 5_000 + waited(to)
        };
        assert!(switches.iter().any(|switch| near(&switch)), "no switch after {record}");
    }
}

/// The flow is that of the command: what the recorder does before and after it is left out.
#[test]
fn the_recorder_is_not_in_the_way() {
    needs(&[QEMU, APT]);
    let marks = lines(&["all", "--only", "mark"]);
    let named: Vec<&str> = marks.iter().filter_map(|mark| mark["name"].as_str()).collect();
    assert_eq!((named.first(), named.last()), (Some(&"begin"), Some(&"end")), "{named:?}");
    let tasks = json(&["report", "tasks", "-q", "--json", "--limit", "0", "-i", text(run())]);
    let rows = tasks["rows"].as_array().unwrap();
    let insns = |own: bool| -> u64 {
        let of = rows.iter().filter(|row| (row["comm"] == "kprism") == own);
        of.map(|row| number(row, "instructions")).sum()
    };
    // It takes records out of its rings meanwhile.
    assert!(insns(true) * 5 < insns(false), "{tasks}");
}

#[test]
fn the_page_and_perfetto_have_every_record() {
    needs(&[QEMU, APT]);
    let records = records();
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let output = kprism(&["export", "tree", "-i", text(run()), "-o", text(&page)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("records of probes before or after"), "{said}");
    let page = std::fs::read_to_string(&page).unwrap();
    let (_, data) = page.split_once("id=\"kprism-data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let timeline = &data["timeline"];
    let lanes = timeline["lanes"].as_array().unwrap();
    let mut shown = 0;
    for cpu in 0..2 {
        let lane = lanes.iter().find(|lane| lane["name"] == format!("probes CPU {cpu}")).expect("a lane");
        let of_cpu: Vec<&Value> = records.iter().filter(|record| record["cpu"] == cpu).collect();
        assert_eq!(number(lane, "count"), of_cpu.len() as u64);
        let mut ns = number(timeline, "from_ns");
        for (at, record) in of_cpu.iter().enumerate() {
            ns += lane["start"][at].as_u64().unwrap();
            assert_eq!(ns, number(record, "time_ns"));
        }
        shown += of_cpu.len();
    }
    assert_eq!(shown, records.len());

    let engine = kprism_test::perfetto();
    let trace = dir.path().join("run.perfetto-trace");
    ok(&["export", "-q", "-i", text(run()), "-o", text(&trace)]);
    let query = "select name, count(*) as n, min(ts) as first from slice where category = 'probe' group by name order by name";
    let answers = ask_perfetto(&engine, &trace, &[query]);
    let rows = answers[0].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{answers:?}");
    for row in rows {
        let of: Vec<&Value> = records.iter().filter(|record| record["name"] == row["name"]).collect();
        assert_eq!((number(row, "n"), number(row, "first")), (of.len() as u64, number(of[0], "time_ns")));
    }
}

/// Structures differ from kernel to kernel, and probes for a guest are compiled outside of it. What the kernel says of the current
/// task is the judge of what a probe reads in its structure.
#[test]
fn types_are_those_of_the_guests_kernel() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let values = |place: &str, collect: &str| -> Vec<Value> {
        let args = ["record", "probe", "-q", "--guest", "-o", text(&run), place, "--collect", collect];
        ok(&[&args[..], &["--", "sh", "-c", "/bin/true; /bin/true | /bin/true"]].concat());
        let report = json(&["report", "probe", "-q", "--json", "--limit", "0", "-i", text(&run)]);
        std::fs::remove_dir_all(&run).unwrap();
        let records = report["rows"].as_array().unwrap().iter();
        records.map(|record| record["values"].clone()).collect()
    };
    // By fentry: the new task has its parent's name yet.
    let new = values("wake_up_new_task", "p->pid,p->comm,p->real_parent->tgid,$pid,$comm");
    // By a raw tracepoint, and by the tracepoint's record, in the format that this kernel has.
    let arguments =
        values("sched:sched_process_fork if parent->pid > 0", "parent->pid,parent->comm,$tid,$comm");
    let record = values("sched:sched_process_fork", "$sdata,$tid,$comm");
    for (found, pairs) in [
        (&new, [("p->comm", "$comm"), ("p->real_parent->tgid", "$pid")]),
        (&arguments, [("parent->comm", "$comm"), ("parent->pid", "$tid")]),
        (&record, [("parent_comm", "$comm"), ("parent_pid", "$tid")]),
    ] {
        assert!(found.len() >= 2, "{found:?}");
        for values in found {
            for (read, judge) in pairs {
                assert!(!values[read].is_null() && values[read] == values[judge], "{read}: {values}");
            }
        }
    }
    assert!(new.iter().all(|values| values["p->pid"].as_i64() > values["$pid"].as_i64()), "{new:?}");
    for (place, said) in [
        ("sched:no_such", "no event `sched:no_such` in this kernel"),
        ("no_such_f", "no function `no_such_f`"),
    ] {
        let refused = kprism(&["record", "probe", "--guest", place, "-o", text(&run), "--", "true"]);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && text.contains(said), "{text}");
    }
}

/// A recording that cannot be placed on the flow's clock is refused, before a guest is started.
#[test]
fn what_cannot_be_placed_is_refused() {
    needs(&[QEMU, APT]);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("run");
    let refused: [(&[&str], &str); 2] =
        [(&["--flow"], "--guest"), (&["--guest", "--fast", "--flow"], "--flow beside --fast")];
    for (options, expected) in refused {
        let args = [&["record", "probe", "vfs_read", "-o", text(&to)], options, &["--", "true"]].concat();
        let output = kprism(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(expected), "{options:?}: {said}");
        assert!(!to.exists());
    }
}

kprism_test::main!();
