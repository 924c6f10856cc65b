// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Perfetto export, opened in Perfetto's own trace processor.
//!
//! Its engine (WebAssembly, run by Node) comes from `perfetto/fetch.sh FOLDER`; `KPRISM_PERFETTO` names the
//! folder, else `kprism/perfetto` in the user's cache folder.

mod sample;

use kprism_profile::{Ending, Slice};
use kprism_report::perfetto::{self, Moment, Switch};
use kprism_test::test;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

fn switches() -> Vec<Switch> {
    let text = r#"{"k":"mark","t":1,"cpu":0,"what":"begin","pid":301}
{"k":"switch","t":40000,"cpu":0,"ip":1,"prev_pid":0,"prev_tgid":0,"prev_comm":"swapper/0","pid":301,"tgid":301,"comm":"sh"}
{"k":"switch","t":290000,"cpu":0,"ip":1,"prev_pid":301,"prev_tgid":301,"prev_comm":"sh","pid":302,"tgid":302,"comm":"ls"}
{"k":"switch","t":950000,"cpu":0,"ip":1,"prev_pid":302,"prev_tgid":302,"prev_comm":"ls","pid":0,"tgid":0,"comm":"swapper/0"}
{"k":"switch","t":300000,"cpu":1,"ip":1,"prev_pid":0,"prev_tgid":0,"prev_comm":"swapper/1","pid":303,"tgid":303,"comm":"sed"}
{"k":"switch","t":9000"#;
    perfetto::read_switches(text.as_bytes()).unwrap()
}

fn ask(engine: &PathBuf, trace: &[u8], queries: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.perfetto-trace");
    std::fs::write(&path, trace).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/perfetto/query.mjs");
    let out = Command::new("node").arg(script).arg(engine).arg(&path).args(queries).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn switches_are_read_past_other_and_broken_lines() {
    let switches = switches();
    assert_eq!(switches.len(), 4);
    assert_eq!(
        (switches[1].cpu, switches[1].ns, switches[1].pid, &*switches[1].comm),
        (0, 290_000, 302, "ls")
    );
}

/// Events of packets are points, the core's clock is a counter.
#[test]
fn moments_are_points_and_a_counter() {
    let engine = kprism_test::perfetto();
    let moment = |cpu, ns, kind, text: &str, ip, ratio| Moment {
        cpu,
        ns,
        pid: 301,
        kind,
        text: text.to_owned(),
        ip,
        ratio,
    };
    let moments = [
        moment(0, 100, "cbr", "24 times the bus clock", None, Some(24)),
        moment(0, 150, "ptwrite", "0xabcd (4 bytes)", Some(0x40_1001), None),
        moment(0, 400, "cbr", "12 times the bus clock", None, Some(12)),
        moment(1, 300, "pwre", "C6.0", None, None),
    ];
    let mut trace = Vec::new();
    perfetto::write(&sample::profile(), &switches(), &moments, &mut trace).unwrap();
    let answers = ask(
        &engine,
        &trace,
        &[
            "select s.name, s.ts, s.dur, k.name as track, extract_arg(s.arg_set_id, 'debug.says') as says from slice s join track k on s.track_id = k.id where s.category = 'event' order by s.ts",
            "select c.ts, c.value, t.name from counter c join counter_track t on c.track_id = t.id order by c.ts",
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        ],
    );
    assert_eq!(answers[2], json!([]), "the trace processor complains");
    assert_eq!(
        answers[0],
        json!([
            {"name": "ptwrite", "ts": 150, "dur": 0, "track": "Trace events CPU 0", "says": "0xabcd (4 bytes)"},
            {"name": "pwre", "ts": 300, "dur": 0, "track": "Trace events CPU 1", "says": "C6.0"},
        ])
    );
    let clock = "Core clock CPU 0";
    assert_eq!(
        answers[1],
        json!([{"ts": 100, "value": 24, "name": clock}, {"ts": 400, "value": 12, "name": clock}])
    );
}

#[test]
fn the_trace_opens_in_perfettos_trace_processor() {
    let engine = kprism_test::perfetto();
    let profile = sample::profile();
    let mut trace = Vec::new();
    perfetto::write(&profile, &switches(), &[], &mut trace).unwrap();
    let answers = ask(
        &engine,
        &trace,
        &[
            "select count(*) as slices, sum(dur) as ns, min(dur) as least, max(depth) as deepest from slice where category != 'error'",
            "select t.tid, t.name, p.pid, count(*) as slices from slice s join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid) group by t.tid order by t.tid",
            "select s.name, s.ts, s.dur, s.category, extract_arg(s.arg_set_id, 'debug.instructions') as insns, extract_arg(s.arg_set_id, 'debug.module') as module from slice s join thread_track k on s.track_id = k.id join thread t using (utid) where t.tid = 302 and s.name = 'getdents64' order by s.ts",
            "select s.name, s.ts, k.name as track, extract_arg(s.arg_set_id, 'debug.error') as error, extract_arg(s.arg_set_id, 'debug.stream_offset') as offset from slice s join track k on s.track_id = k.id where s.category = 'error'",
            "select cpu, ts, dur, tid from sched join thread using (utid) where tid > 0 order by cpu, ts",
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        ],
    );
    assert_eq!(answers[5], json!([]), "the trace processor complains");

    // As many slices as in the profile, as long in all as there.
    let whole = &answers[0][0];
    assert_eq!(whole["slices"], profile.slices.len());
    assert_eq!(whole["ns"], profile.slices.iter().map(|s| s.end_ns - s.start_ns).sum::<u64>());
    assert!(whole["least"].as_i64() >= Some(0) && whole["deepest"] == 1, "{whole}");

    for (row, pid) in answers[1].as_array().unwrap().iter().zip(301..) {
        let task = profile.tasks.iter().position(|t| t.pid == pid).unwrap();
        let slices = profile.slices.iter().filter(|s| s.task == task as u32).count();
        let expected = json!({"tid": pid, "name": profile.tasks[task].comm, "pid": pid, "slices": slices});
        assert_eq!(row, &expected);
    }

    let is_getdents =
        |s: &&Slice| s.task == 1 && profile.funcs[s.func as usize].name == "__x64_sys_getdents64";
    let expected: Vec<Value> = profile.slices.iter().filter(is_getdents).map(|s| {
        json!({"name": "getdents64", "ts": s.start_ns, "dur": s.end_ns - s.start_ns, "category": "syscall", "insns": s.insns, "module": "[kernel]"})
    }).collect();
    assert_eq!(expected.len(), 2);
    assert_eq!(answers[2], Value::Array(expected));

    let error = &profile.errors[0];
    assert_eq!(
        answers[3],
        json!([{"name": "decode error", "ts": error.ns, "track": "Decode errors CPU 1", "error": error.kind, "offset": error.offset}])
    );
    let sched = json!([
        {"cpu": 0, "ts": 40_000, "dur": 250_000, "tid": 301},
        {"cpu": 0, "ts": 290_000, "dur": 660_000, "tid": 302},
        {"cpu": 1, "ts": 300_000, "dur": answers[4][2]["dur"], "tid": 303},
    ]);
    assert_eq!(answers[4], sched);
}

/// A slice that is no whole call says why; of one that ended nothing is said.
#[test]
fn calls_without_an_end_are_told_apart() {
    let mut b = sample::Builder::new();
    let task = b.task(7, "t");
    let func = b.func("f", "m");
    let said = |b: &sample::Builder, text: &str| {
        let mut trace = Vec::new();
        perfetto::write(&b.profile, &[], &[], &mut trace).unwrap();
        trace.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    };
    for (ending, text) in [
        (Some(Ending::Seen), None),
        (Some(Ending::Left), Some("it left its stack")),
        (Some(Ending::Untraced), Some("its end was not traced")),
        (Some(Ending::Open), Some("the recording ended in it")),
        (None, Some("did not record whether it ended")),
    ] {
        b.profile.slices = vec![Slice { task, func, start_ns: 1, end_ns: 9, ending, ..Slice::default() }];
        for remark in
            ["it left its stack", "its end was not traced", "the recording ended in it", "did not record"]
        {
            assert_eq!(
                said(&b, remark),
                text.is_some_and(|text| text.starts_with(remark)),
                "{ending:?}: {remark}"
            );
        }
    }
}

/// Calls that outlive their caller, last no time, begin together, or begin before the call before them ended still nest;
/// the last keep their length.
#[test]
fn odd_slices_still_nest() {
    let engine = kprism_test::perfetto();
    let mut b = sample::Builder::new();
    let task = b.task(7, "t");
    let func = b.func(sample::HOSTILE, "m");
    for (depth, start_ns, end_ns) in [
        (0, 10, 100),
        (1, 10, 10),
        (1, 50, 200),
        (2, 50, 60),
        (0, 150, 150),
        (0, 300, 250),
        (0, 400, 410),
        (0, 405, 900),
    ] {
        let kind = kprism_profile::FrameKind::Call;
        b.profile.slices.push(Slice {
            task,
            cpu: 0,
            func,
            depth,
            start_ns,
            end_ns,
            insns: 1,
            kind,
            ending: Some(Ending::Seen),
        });
    }
    let mut trace = Vec::new();
    perfetto::write(&b.profile, &[], &[], &mut trace).unwrap();
    let answers = ask(&engine, &trace, &["select ts, dur, depth, name from slice order by ts, depth"]);
    let row = |ts: u64, dur: u64, depth: u64| json!({"ts": ts, "dur": dur, "depth": depth, "name": sample::HOSTILE});
    let expected = [
        row(10, 90, 0),
        row(10, 0, 1),
        row(50, 50, 1),
        row(50, 10, 2),
        row(150, 0, 0),
        row(300, 0, 0),
        row(400, 5, 0),
        row(405, 495, 0),
    ];
    assert_eq!(answers[0], Value::Array(expected.to_vec()));
}

kprism_test::main!();
