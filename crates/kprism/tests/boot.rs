// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's boot, traced: every initcall once, with its name, and a page of it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

#[test]
fn a_guests_boot() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let run = run.to_str().unwrap();
    let output = kprism(&["lab", "boot", "-q", "-o", run]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("; 0 events lost\n") && said.contains("slowest initcalls"), "{said}");
    let output = kprism(&["report", "boot", "-i", run, "--json", "--limit", "0"]);
    let boot: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Each is an event, with a name that the log gave.
    assert_eq!((&boot["unnamed"], &boot["coarse"], &boot["lost_events"]), (&0.into(), &0.into(), &0.into()));
    let initcalls = boot["initcalls"].as_array().unwrap();
    let log = std::fs::read(Path::new(run).join("streams/ftrace/dmesg")).unwrap();
    let called = String::from_utf8_lossy(&log).matches("] calling  ").count();
    assert!(initcalls.len() == called && called > 700, "{} and {called}", initcalls.len());
    let levels: Vec<&str> =
        boot["levels"].as_array().unwrap().iter().filter_map(|l| l["level"].as_str()).collect();
    let expected = ["console", "early", "pure", "core", "postcore", "arch", "subsys", "fs", "device", "late"];
    assert!(levels.starts_with(&expected), "{levels:?}");
    // The same files, brought from elsewhere under other names and without symbols, are the same boot.
    let (streams, copy) = (Path::new(run).join("streams/ftrace"), dir.path().join("copy"));
    std::fs::create_dir(&copy).unwrap();
    let names = [("cpu0.raw", "cpu0.raw"), ("stats/cpu0", "cpu0.stats"), ("dmesg", "dmesg.txt")];
    for (from, to) in names {
        std::fs::copy(streams.join(from), copy.join(to)).unwrap();
    }
    let formats = std::fs::read_dir(streams.join("events")).unwrap().flatten().flat_map(|system| {
        std::fs::read_dir(system.path()).unwrap().flatten().map(|event| event.path().join("format"))
    });
    let formats: Vec<String> = formats.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    std::fs::write(copy.join("formats.txt"), formats.concat()).unwrap();
    let imported = dir.path().join("imported");
    let imported = imported.to_str().unwrap();
    let output = kprism(&["import", copy.to_str().unwrap(), "-o", imported]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("kprism report boot -i"), "{said}");
    let output = kprism(&["report", "boot", "-i", imported, "--json", "--limit", "0"]);
    let again: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(again["initcalls"].as_array().unwrap().len(), called);
    let key = |call: &Value| (call["name"].clone(), call["start_ns"].clone(), call["duration_ns"].clone());
    let keys = |boot: &Value| boot["initcalls"].as_array().unwrap().iter().map(key).collect::<Vec<_>>();
    assert_eq!(keys(&again), keys(&boot));
    assert!(keys(&boot).iter().all(|(_, start, _)| start.is_u64()), "{:?}", keys(&boot)[0]);
    // A boot differs from itself in nothing.
    let output = kprism(&["diff", run, run]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("no initcall differs"));
    let page = dir.path().join("boot.html");
    let output = kprism(&["report", "boot", "-i", run, "--html", page.to_str().unwrap()]);
    assert!(output.status.success());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("trace_eval_init") && page.len() < 500_000);
}

#[test]
fn words_for_a_boot() {
    let output = kprism(&["record", "boot", "--words", "--longer-than", "1ms"]);
    let words = String::from_utf8_lossy(&output.stdout);
    for word in ["trace_event=initcall:*", "initcall_debug", "ftrace=function_graph", "tracing_thresh=1000"] {
        assert!(words.contains(word), "{words}");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("manifest.json"), r#"{"version":1,"kind":"lab","vcpus":1}"#).unwrap();
    let output = kprism(&["report", "boot", "-i", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("kprism lab boot"));
}
