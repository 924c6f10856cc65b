// SPDX-License-Identifier: MIT OR Apache-2.0
//! JUnit and SARIF files against the schemas of those who read them, by validators of other hands.

use std::fs;
use std::path::Path;

use kprism_gate::render::{junit, sarif};
use kprism_gate::summary::{Flow, Function, Summary, Syscall};
use kprism_gate::{Rule, Side, Verdict, judge};
use kprism_store::{Environment, Recorded};
use kprism_test::{python_with, schema, test};

/// Names with markup, quotes, control characters and characters that XML does not have.
const HOSTILE: &str = "op<int>&\"x'\u{1b}[31m\u{7}\u{0}\u{ffff}]]>\u{2028}é";

fn side(insns: u64, vary: bool) -> Side {
    let function = |name: &str, self_insns| Function {
        name: name.into(),
        module: "[kernel]".into(),
        kernel: true,
        calls: 3,
        self_insns,
        total_insns: self_insns,
    };
    let flow = Flow {
        kernel_insns: insns,
        functions: vec![function("work", insns), function(HOSTILE, 2 * insns)],
        syscalls: vec![Syscall { name: "mmap".into(), insns, ..Syscall::default() }],
        ..Flow::default()
    };
    let environment = (!vary).then(|| Environment::new([("qemu".to_owned(), "10".to_owned())]));
    let summary = |n: u64| Summary {
        environment: environment.clone(),
        command: vec!["prog".into(), HOSTILE.into()],
        flow: Some(Flow { kernel_insns: insns + n, ..flow.clone() }),
        ..Summary::default()
    };
    Side { summaries: (0..if vary { 5 } else { 1 }).map(|n| summary(n * 7)).collect(), profile: None }
}

/// A side with a window that begins there.
fn recorded(from: &str) -> Side {
    let mut side = side(100, false);
    let mut recorded = Recorded::default();
    recorded.add("from", from);
    side.summaries[0].recorded = Some(recorded);
    side
}

/// Verdicts of every kind: all passed, some fired, a difference that is noise, one that cannot be judged, a hostile name in a rule.
fn verdicts() -> Vec<(&'static str, Verdict)> {
    let rules = |texts: &[&str]| -> Vec<Rule> {
        texts.iter().map(|text| Rule::parse(text).expect("a rule")).collect()
    };
    let of = |texts: &[&str], old: &Side, new: &Side| {
        judge(&rules(texts), Some(old), new, kprism_gate::Damage::Fails).expect("a verdict")
    };
    let hostile = format!("self_insns[{}] > 0", HOSTILE.replace(']', ""));
    vec![
        ("passed", of(&["insns > +0"], &side(100, false), &side(100, false))),
        (
            "fired",
            of(&["insns > +0", "kernel_insns[mmap] > +1%", &hostile], &side(100, false), &side(200, false)),
        ),
        ("noise", of(&["insns > +0"], &side(100, true), &side(101, true))),
        ("unjudged", of(&["insns > +0"], &recorded("a"), &recorded(HOSTILE))),
    ]
}

fn validated(script: &str, module: &str, schema: &Path, file: &Path) {
    let output =
        python_with(&[module]).args(["-c", script]).args([schema, file]).output().expect("Python runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", file.display());
}

#[test]
fn junit_is_as_its_schema_has_it() {
    let schema = schema("junit.xsd");
    let dir = tempfile::tempdir().unwrap();
    for (name, verdict) in verdicts() {
        let file = dir.path().join(format!("{name}.xml"));
        let text = junit::write(&verdict);
        fs::write(&file, &text).unwrap();
        let script = "import sys, xmlschema; xmlschema.XMLSchema(sys.argv[1]).validate(sys.argv[2])";
        validated(script, "xmlschema", &schema, &file);
        assert_eq!(text.contains("<failure "), name == "fired", "{text}");
        assert_eq!(text.contains("<skipped "), name == "noise", "{text}");
        assert_eq!(text.contains("<error "), name == "unjudged", "{text}");
    }
}

#[test]
fn sarif_is_as_its_schema_has_it() {
    let schema = schema("sarif.json");
    let dir = tempfile::tempdir().unwrap();
    for (name, verdict) in verdicts() {
        let file = dir.path().join(format!("{name}.sarif"));
        let text = sarif::write(&verdict);
        fs::write(&file, &text).unwrap();
        let script = "import json, sys, jsonschema\n\
                      load = lambda path: json.load(open(path, encoding='utf-8'))\n\
                      jsonschema.Draft7Validator(load(sys.argv[1])).validate(load(sys.argv[2]))";
        validated(script, "jsonschema", &schema, &file);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let results = value["runs"][0]["results"].as_array().unwrap().len();
        assert_eq!(results > 0, ["fired", "unjudged"].contains(&name), "{text}");
    }
}

kprism_test::main!();
