// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampled misses, by the real perf: page faults, which every kernel samples with their addresses through the same records
//! as a processor's TLB misses. What they are is known in advance: a page is faulted in once.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kprism_test::{NO_PMU, PERF_FAULTS, needs, test};
use serde_json::Value;

const PAGES: u64 = 4000;

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn ok(args: &[&str]) -> String {
    let output = kprism(args);
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn stride(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb/stride.c");
    let program = dir.join("stride");
    let status = Command::new("cc").args(["-O2", "-g", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("a C compiler").success());
    program
}

fn view(run: &str, name: &str) -> Value {
    serde_json::from_str(&ok(&["report", "tlb", name, "-i", run, "--json", "--limit", "0"])).expect("JSON")
}

#[test]
fn page_faults_are_sampled_with_their_addresses() {
    let dir = tempfile::tempdir().expect("a folder");
    needs(&[PERF_FAULTS]);
    let program = stride(dir.path());
    let program = program.to_str().expect("UTF-8");
    for period in [1u64, 7] {
        let run = dir.path().join(format!("every-{period}"));
        let run = run.to_str().expect("UTF-8");
        let every = period.to_string();
        let printed = ok(&[
            "-q",
            "record",
            "tlb",
            "--method",
            "perf",
            "--event",
            "page-faults",
            "--period",
            &every,
            "-o",
            run,
            "--",
            program,
            &PAGES.to_string(),
            "2",
        ]);
        let begin =
            printed.split(' ').next().and_then(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
        let begin = begin.expect("an address");
        let json = view(run, "objects");
        assert_eq!((json["source"].as_str(), json["complete"].as_bool()), (Some("samples"), Some(false)));
        let top = &json["rows"][0];
        let number = |key: &str| top[key].as_u64().expect(key);
        assert_eq!((number("start"), number("bytes")), (begin, PAGES * 4096), "{top}");
        if period == 1 {
            assert_eq!(number("misses"), PAGES, "each page's fault: {top}");
        }
        assert!(number("misses") % period == 0 && number("misses").abs_diff(PAGES) <= period, "{top}");
        let (low, high) = (number("misses_low"), number("misses_high"));
        assert!((low..=high).contains(&PAGES), "{low} to {high}: {top}");
        // Of n samples, the interval is about two roots of n wide on both sides.
        let width = (high - low) as f64 / (3.92 * ((PAGES * period) as f64).sqrt());
        assert!((0.95..1.1).contains(&width), "{low} to {high}");
        let functions = view(run, "functions");
        assert_eq!(functions["rows"][0]["function"].as_str(), Some("main"), "{functions}");
        // Hits were not sampled: what larger pages would do cannot be told.
        let advice = kprism(&["report", "tlb", "advice", "-i", run]);
        assert!(!advice.status.success());
    }
    // perf's own file, imported, gives the same.
    let data = dir.path().join("perf.data");
    let recorded = Command::new("perf")
        .args(["record", "-q", "-e", "page-faults", "-d", "-c", "1", "-o"])
        .arg(&data)
        .args(["--", program, &PAGES.to_string(), "2"])
        .output()
        .expect("perf");
    assert!(recorded.status.success());
    let run = dir.path().join("imported");
    let run = run.to_str().expect("UTF-8");
    ok(&["-q", "import", data.to_str().expect("UTF-8"), "-o", run]);
    let top = view(run, "objects")["rows"][0].clone();
    assert_eq!(top["misses"].as_u64(), Some(PAGES), "{top}");
    // One that was cut off gives what is there, and says that it is not all.
    let (bytes, cut) = (std::fs::read(&data).expect("perf.data"), dir.path().join("cut.data"));
    std::fs::write(&cut, &bytes[..bytes.len() * 3 / 5]).expect("a file");
    ok(&["-q", "import", cut.to_str().expect("UTF-8"), "-o", run]);
    let json = view(run, "objects");
    let damaged = |e: &&Value| e["fate"] == "not_understood" && e["count"].as_u64() > Some(0);
    assert!(json["run"]["account"].as_array().is_some_and(|all| all.iter().any(|e| damaged(&e))), "{json}");
    assert!(json["rows"][0]["misses"].as_u64().is_some_and(|n| n > 0 && n < PAGES), "{json}");
    // What has no misses is refused, and what it has is named.
    let data = dir.path().join("clock.data");
    let clock = ["record", "-q", "-e", "cpu-clock:u", "-d", "-o"];
    assert!(
        Command::new("perf")
            .args(clock)
            .arg(&data)
            .args(["--", "true"])
            .output()
            .expect("perf")
            .status
            .success()
    );
    let refused = kprism(&["import", data.to_str().expect("UTF-8"), "-o", run]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("none of its samples is a TLB miss"), "{said}");
}

#[test]
fn without_an_event_it_is_refused_with_what_helps() {
    needs(&[NO_PMU]);
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let output =
        kprism(&["record", "tlb", "--method", "perf", "-o", run.to_str().expect("UTF-8"), "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--method model, user or ptat"), "{said}");
    assert!(!run.exists());
}

kprism_test::main!();
