// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program with one more instruction in one function, recorded in the guest: the gate counts it and names the function.
//! And the script that the action and the GitLab template run, as their runners run it.

mod guest;

use std::fs;
use std::path::Path;
use std::process::Command;

use guest::{alone, json, kprism, ok, planted, text};
use kprism_test::{APT, GCC, QEMU, needs, test};
use serde_json::Value;

/// Calls of `work`, and so executions of the planted instruction.
const CALLS: u64 = 1000;

#[test]
fn one_instruction_more_is_counted_and_named() {
    needs(&[QEMU, APT, GCC]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let old = planted(dir.path(), "old", "", CALLS);
    let new = planted(dir.path(), "new", "nop", CALLS);
    let (baseline, rule) = (dir.path().join("baseline.json"), format!("self_insns[work] > +{}", CALLS - 1));
    ok(&["gate", text(&old), "--save", text(&baseline)]);
    for against in [&old, &baseline] {
        let output = kprism(&[
            "gate",
            text(&new),
            "--baseline",
            text(against),
            "--fail-if",
            &rule,
            "--fail-if",
            "user_insns > +5k",
            "--same-environment",
            "--json",
        ]);
        assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
        let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(verdict["rules"][0]["change"], CALLS as f64);
        assert_eq!(verdict["rules"][1]["state"], "passed");
        assert_eq!(verdict["environment"]["same"], true);
        assert_eq!(verdict["notes"], Value::Array(Vec::new()));
        let blamed = verdict["functions"].as_array().unwrap();
        let work = blamed.iter().find(|function| function["function"] == "work").unwrap();
        assert_eq!(work["calls"], serde_json::json!([CALLS, CALLS]));
        let insns = |side: usize| work["instructions"][side].as_u64().unwrap();
        assert_eq!(insns(1) - insns(0), CALLS);
    }
    let same =
        json(&["gate", text(&old), "--baseline", text(&baseline), "--fail-if", "insns != +0", "--json"]);
    assert_eq!((&same["failed"], &same["rules"][0]["change"]), (&false.into(), &0.0.into()));
}

/// A stored run of the lab, with these options of its recorder.
fn stored(dir: &Path, name: &str, options: &Value) -> std::path::PathBuf {
    let (from, to) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/diff.in/plain.data"), dir.join(name));
    fs::create_dir_all(to.join("tables")).unwrap();
    for table in fs::read_dir(from.join("tables")).unwrap() {
        let table = table.unwrap();
        fs::copy(table.path(), to.join("tables").join(table.file_name())).unwrap();
    }
    let mut manifest: Value = serde_json::from_slice(&fs::read(from.join("manifest.json")).unwrap()).unwrap();
    for (name, value) in options.as_object().unwrap() {
        manifest["options"][name] = value.clone();
    }
    fs::write(to.join("manifest.json"), manifest.to_string()).unwrap();
    to
}

/// What `diff` tells of a pair of runs, the gate does not pass over.
#[test]
fn runs_that_did_not_record_the_same_have_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let old = stored(dir.path(), "old", &serde_json::json!({}));
    let baseline = dir.path().join("baseline.json");
    ok(&["gate", text(&old), "--save", text(&baseline)]);
    let window = stored(dir.path(), "window", &serde_json::json!({"from": "__x64_sys_mmap"}));
    // Their streams are not stored.
    let rule = ["--fail-if", "insns > +0", "--fail-if", "insns > 1G", "--json", "--allow-loss"];
    for against in [&old, &baseline] {
        let judged = |new: &Path| {
            let output = kprism(&[&["gate", text(new), "--baseline", text(against)], &rule[..]].concat());
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let verdict: Value = serde_json::from_slice(&output.stdout).expect(&said);
            (output.status.code(), verdict)
        };
        assert_eq!(judged(&old).0, Some(0));
        let (code, verdict) = judged(&window);
        assert_eq!(code, Some(3), "{verdict:#}");
        let states: Vec<&str> =
            (0..2).map(|rule| verdict["rules"][rule]["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["no verdict", "passed"]);
        assert_eq!(verdict["rules"][0]["why"], "not the same was recorded: from: none → __x64_sys_mmap");
        assert!(verdict["rules"][0]["change"].is_null());
    }
    let shown = json(&["diff", text(&old), text(&window), "--json"]);
    assert_eq!(shown["environment"]["recorded"][0]["part"], "from");
}

#[test]
fn lines_that_a_patch_adds_must_have_run() {
    needs(&[QEMU, APT, GCC]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = planted(dir.path(), "new", "", CALLS);
    let patch = dir.path().join("patch");
    let added = |first: u32, count: u32| {
        let lines = "+\n".repeat(count as usize);
        fs::write(&patch, format!("--- a/program.c\n+++ b/program.c\n@@ -1,0 +{first},{count} @@\n{lines}"))
            .unwrap();
    };
    let gate = |rules: &[&str]| {
        let mut args = vec!["gate", text(&run), "--patch", text(&patch), "--json"];
        args.extend(rules.iter().flat_map(|rule| ["--fail-if", rule]));
        let output = kprism(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default(), said)
    };
    // `work`, `main` and `never`.
    added(2, 3);
    let (code, verdict, said) =
        gate(&["patch_coverage < 80%", "cover.lines(program.c) < 2", "cover.lines == 0"]);
    assert_eq!(code, Some(3), "{said}");
    assert!((verdict["rules"][0]["new"].as_f64().unwrap() - 200.0 / 3.0).abs() < 1e-9, "{verdict}");
    let states: Vec<&str> = (0..3).map(|rule| verdict["rules"][rule]["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["failed", "passed", "passed"]);
    assert_eq!(verdict["notes"], serde_json::json!(["lines added that did not run: program.c: 4"]));
    added(1, 1);
    let (code, verdict, _) = gate(&["patch_coverage < 100%"]);
    assert_eq!(code, Some(0), "a declaration has no code");
    assert!(verdict["notes"][0].as_str().unwrap().contains("none has code"), "{verdict}");
    let (code, _, said) = gate(&["insns > 0"]);
    assert!(code == Some(2) && said.contains("no rule is about patch_coverage"), "{said}");
}

#[test]
fn the_script_of_pipelines_judges_as_the_command_does() {
    needs(&[QEMU, APT, GCC]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/gate.sh");
    let run = |rules: &str, baseline: &str| {
        let mut command = Command::new("bash");
        command.arg(&script).current_dir(dir.path()).env_remove("GITHUB_ACTIONS");
        command
            .env("KPRISM", env!("CARGO_BIN_EXE_kprism"))
            .env("GATE_COMMAND", "cat /etc/passwd > /dev/null");
        command.env("GATE_FAIL_IF", rules).env("GATE_BASELINE", baseline);
        command.env("GITHUB_OUTPUT", dir.path().join("outputs"));
        command.env("GITHUB_STEP_SUMMARY", dir.path().join("summary.md"));
        let output = command.output().expect("bash is installed");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run("insns > 1k\nsyscalls > 1M\n", "").0, Some(3));
    let (code, said) = run("insns != +0", "kprism-baseline.json");
    assert_eq!(code, Some(0), "{said}");
    let outputs = fs::read_to_string(dir.path().join("outputs")).unwrap();
    assert_eq!(outputs, "failed=true\nfailed=false\n");
    let summary = fs::read_to_string(dir.path().join("summary.md")).unwrap();
    assert!(summary.contains("kprism gate: failed") && summary.contains("kprism gate: passed"), "{summary}");
    for file in ["gate.xml", "gate.sarif", "gate.md"] {
        assert!(dir.path().join("kprism-gate").join(file).is_file(), "{file}");
    }
    assert_ne!(run("insns >", "").0, Some(3), "a rule that is none is an error, not a verdict");
}

kprism_test::main!();
