// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism script` of durations, held against the kernel's own text of the same buffer.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use kprism_test::{perfetto, test};
use serde_json::Value;

#[path = "../../format/ftrace/tests/common/samples.rs"]
mod unpacked;

use unpacked::samples;

fn kprism(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn import(from: &Path, run: &Path) {
    kprism(&["import", from.to_str().unwrap(), "-o", run.to_str().unwrap()]);
}

fn gunzip(path: &Path) -> String {
    let out = Command::new("gzip").arg("-dc").arg(path).output().expect("gzip");
    assert!(out.status.success());
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A call that ended, as the kernel prints it: depth, digits of its duration, and its name where it has one.
fn of_kernel(line: &str) -> Option<(u64, &str, Option<&str>)> {
    let (head, body) = line.split_once('|')?;
    let digits = head
        .strip_suffix(" us   ")
        .or(head.strip_suffix(" us    "))
        .or(head.trim_end().strip_suffix(" us"))?;
    let digits = digits.rsplit(' ').next()?;
    let indent = body.len() - body.trim_start().len();
    let body = body.trim();
    let name = body.strip_suffix("();").or(body.strip_prefix("} /* ").and_then(|b| b.strip_suffix(" */")));
    let name = name.map(|name| name.split(" [").next().unwrap());
    Some(((indent as u64 - 2) / 2, digits, name))
}

#[test]
fn calls_are_those_of_the_kernels_text() {
    let dir = samples();
    let run = dir.path().join("run");
    import(&dir.path().join("raw612"), &run);
    let run = run.to_str().unwrap();
    let mut compared = 0;
    for cpu in ["0", "1"] {
        let text = gunzip(&dir.path().join(format!("raw612/cpu{cpu}.trace.txt.gz")));
        let theirs: Vec<_> = text.lines().filter_map(of_kernel).collect();
        let lines = kprism(&["script", "-i", run, "--json", "--cpu", cpu]);
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ours: Vec<&Value> = lines.iter().filter(|line| line["symbol"].is_string()).collect();
        assert_eq!(theirs.len(), ours.len(), "CPU {cpu}");
        for ((depth, digits, name), call) in theirs.iter().zip(&ours) {
            let ns = call["wall_ns"].as_u64().unwrap();
            // The kernel leaves out the last digits of long ones.
            let all = format!("{}.{:03}", ns / 1000, ns % 1000);
            assert!(all.starts_with(digits), "{digits} {call}");
            assert_eq!(*depth, call["depth"].as_u64().unwrap(), "{call}");
            assert!(name.is_none_or(|name| name == call["symbol"].as_str().unwrap()), "{name:?} {call}");
        }
        compared += ours.len();
        let lost: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        assert_eq!(lost, [324_186, 180_214][usize::from(cpu == "1")]);
    }
    assert_eq!(compared, 34_106);
}

/// A line of the graph: task, time in ns, duration, level, body.
fn parts(line: &str) -> (u32, u64, Option<u64>, usize, &str) {
    let (head, rest) = line.split_once(": ").unwrap();
    let mut words = head.split_whitespace().rev();
    let (seconds, ns) = words.next().unwrap().split_once('.').unwrap();
    let cpu = words.next().unwrap().trim_matches(['[', ']']);
    let pid: u32 = words.next().unwrap().parse().unwrap();
    // Idle tasks are told apart by CPU.
    let task = if pid == 0 { u32::MAX - cpu.parse::<u32>().unwrap() } else { pid };
    let ns = seconds.parse::<u64>().unwrap() * 1_000_000_000 + ns.parse::<u64>().unwrap();
    let (duration, body) = rest.split_at(19);
    let took = duration.trim_matches(|c: char| " +!#*@$us".contains(c)).replace('.', "");
    let level = (body.len() - body.trim_start().len()) / 2;
    (task, ns, took.parse().ok(), level, body.trim())
}

#[test]
fn calls_of_a_threshold_nest_as_they_did() {
    let dir = samples();
    let run = dir.path().join("run");
    import(&dir.path().join("dat/v7_thresh1000.dat"), &run);
    let text = kprism(&["script", "-i", run.to_str().unwrap()]);
    let mut open: HashMap<u32, Vec<(u64, usize, String)>> = HashMap::new();
    let (mut last, mut ended) = (0, 0);
    for line in text.lines() {
        let (task, ns, took, level, body) = parts(line);
        assert!(ns >= last, "{line}");
        last = ns;
        let stack = open.entry(task).or_default();
        if let Some(call) = body.strip_suffix(" {") {
            assert!(stack.last().is_none_or(|(_, outer, _)| *outer < level), "{line}");
            stack.push((ns, level, call.split("()").next().unwrap().to_owned()));
            continue;
        }
        let took = took.unwrap_or_else(|| panic!("a duration: {line}"));
        assert!(took >= 1_000_000, "{line}");
        ended += 1;
        match body.strip_prefix("} /* ").and_then(|body| body.strip_suffix(" */")) {
            Some(name) => {
                let (began, outer, begun) = stack.pop().unwrap_or_else(|| panic!("open: {line}"));
                assert_eq!((outer, begun.as_str()), (level, name), "{line}");
                assert_eq!(ns - began, took, "{line}");
            }
            None => assert!(body.contains("()") && body.ends_with(';'), "{line}"),
        }
    }
    assert_eq!(ended, 792);
    assert!(open.values().all(Vec::is_empty), "{open:?}");
}

#[test]
fn the_timeline_has_every_call_and_switch() {
    let dir = samples();
    let engine = perfetto();
    let (run, trace) = (dir.path().join("run"), dir.path().join("run.pftrace"));
    import(&dir.path().join("raw612"), &run);
    let run = run.to_str().unwrap();
    kprism(&["export", "-i", run, "-o", trace.to_str().unwrap()]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../view/report/tests/perfetto/query.mjs");
    let queries = [
        "select count(*) as calls, sum(dur) as ns from slice",
        "select count(*) as bad from slice c join slice p on c.parent_id = p.id where c.ts < p.ts or c.ts + c.dur > p.ts + p.dur",
        "select count(*) as switches from sched",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    ];
    let out = Command::new("node").arg(script).arg(engine).arg(&trace).args(queries).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let answers: Value = serde_json::from_slice(&out.stdout).unwrap();
    let lines = kprism(&["script", "-i", run, "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let calls: Vec<u64> = lines.iter().filter_map(|line| line["wall_ns"].as_u64()).collect();
    let switched: Vec<&Value> =
        lines.iter().filter(|line| line["event"] == "switch").map(|line| &line["cpu"]).collect();
    // Each CPU has a task before its first switch, too, from the start of its stream on.
    let cpus = (0..4u64).filter(|cpu| switched.contains(&&Value::from(*cpu))).count();
    let switches = switched.len() + cpus;
    let expected = serde_json::json!([
        [{"calls": calls.len(), "ns": calls.iter().sum::<u64>()}], [{"bad": 0}], [{"switches": switches}], [],
    ]);
    assert_eq!(answers, expected);
}

kprism_test::main!();
