// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delta profiling against a kernel module that switches interrupts and preemption off for known numbers of
//! instructions, as often as is known (paper 1, section 4.3, with the answer known beforehand).

mod guest;

use std::path::Path;
use std::process::Command;

use guest::{json, kprism, ok, text};
use serde_json::Value;

fn record(run: &str, module: &str, command: &str) {
    ok(&["lab", "run", "-q", "-o", run, "--module", module, "--", "sh", "-c", command]);
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
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let release = release(dir.path());
    let built = Command::new("sh")
        .arg(here.join("../../scripts/build-module.sh"))
        .arg(&release)
        .arg(dir.path())
        .arg(here.join("tests/delta/windows.c"))
        .status()
        .expect("sh runs");
    assert!(built.success(), "windows.ko could not be built for {release}");
    let run = dir.path().join("run");
    let run = run.to_str().unwrap();
    let module = dir.path().join("windows.ko");
    let module = module.to_str().unwrap();
    record(run, module, "for k in 1 2 3 4 5; do echo $k > /proc/windows; done");

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
    // By where they began, none more and none less. In `saved` pushf, cli, nop, popf, nop, nop, popf: the inner pair
    // neither begins nor ends a window.
    let preempt = delta(run, "preempt");
    let opened = irqs["sites"].as_array().unwrap().iter().find_map(|s| {
        s["stack"].as_str().unwrap().starts_with("windows_write < ").then(|| s["count"].as_u64().unwrap())
    });
    // Interrupts that strike there begin windows of their own.
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
