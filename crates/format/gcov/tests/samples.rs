// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests with files of compilers that need not be installed: `samples/t.c` compiled by GCC 12 to 16 with `-O2
//! --coverage` (from 14 on with `-fcondition-coverage`, from 15 on also with `-fpath-coverage`), and their own gcov's
//! JSON.

#[allow(dead_code, reason = "totals are of gcov's text, which is not among the samples")]
mod judge;

use std::path::{Path, PathBuf};

use judge::{compare_json, json_lines};
use kprism_gcov::{Collector, Data, Solver, data, export, notes};
use serde_json::{Value, json};

fn sample(version: u32, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/samples/gcc{version}/{file}"))
}

fn read(version: u32) -> (Vec<u8>, Data) {
    let note_bytes = std::fs::read(sample(version, "t.gcno")).unwrap();
    (note_bytes, data::read(&std::fs::read(sample(version, "t.gcda")).unwrap()).unwrap())
}

#[test]
fn every_number_is_that_of_the_versions_own_gcov() {
    for version in 12..=16 {
        let (note_bytes, data) = read(version);
        let notes = notes::read(&note_bytes).unwrap();
        let unit = Solver::default().unit(&notes, Some(&data)).unwrap();
        let what = format!("GCC {version}");
        assert!(notes.header.version.to_string().starts_with(&version.to_string()), "{what}");
        let said = json_lines(&std::fs::read(sample(version, "t.json")).unwrap());
        compare_json(&said[0], (&notes, &unit), &what);
        // From GCC 14 on, gcov also lists calls, with the number of returns.
        let calls = |line: &Value| line["calls"].as_array().cloned().unwrap_or_default();
        for line in said[0]["files"][0]["lines"].as_array().unwrap() {
            let number = line["line_number"].as_u64().unwrap();
            let theirs: Vec<i64> =
                calls(line).iter().map(|call| call["returned"].as_i64().unwrap()).collect();
            let ours = unit.branches.iter().filter(|b| u64::from(b.line) == number && !b.way.is_branch());
            let ours: Vec<i64> = ours.map(|call| call.taken).collect();
            assert!(version < 14 || ours == theirs, "{what}: line {number}: {ours:?} {theirs:?}");
        }
    }
}

/// The counters, read by hand: `i < 10` was true and false. In `(a && b) || c`, `c` belongs to another decision once
/// `f` is inlined; the first condition was true and false, the second only false.
#[test]
fn conditions_are_told_by_line() {
    for version in 14..=16 {
        let (note_bytes, data) = read(version);
        let mut solver = Solver::default();
        let collector = Collector::default();
        collector.add(&mut solver, &note_bytes, &data).unwrap();
        let cover = collector.finish();
        let source = &cover.sources[0];
        let told = |line: u32| -> Vec<(u32, u64, u64)> {
            let all = source.conditions_of(line).iter();
            all.map(|found| (found.seen.terms, found.seen.yes, found.seen.no)).collect()
        };
        let main = notes::read(&note_bytes).unwrap();
        let main = main.functions.iter().find(|function| function.name == "main").unwrap();
        println!("GCC {version}: {:?}, lines 3, 4: {:?} {:?}", main.conditions, told(3), told(4));
        assert_eq!(told(3), [(2, 0, 0)], "f itself was never called");
        assert_eq!(told(4), [(2, 1, 3), (1, 1, 1)], "GCC {version}");
        let totals = cover.totals().conditions;
        assert_eq!((totals.hit, totals.all), (5, 10), "GCC {version}");
        let mut text = Vec::new();
        export::json(&cover, &mut text).unwrap();
        let lines: Value = serde_json::from_slice(&text).unwrap();
        let line = lines["files"][0]["lines"].as_array().unwrap().iter().find(|l| l["line_number"] == 4);
        let inlined = json!({"count": 4, "covered": 3, "not_covered_true": [1], "not_covered_false": []});
        assert_eq!(line.unwrap()["conditions"][0], inlined);
    }
}
