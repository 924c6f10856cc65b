// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of `samples/t.c` in the formats of other tools.
//!
//! LLVM's JSON is read as LLVM does it. A line's count follows the rule of `LineCoverageStats`: the highest count of the
//! regions that begin on the line and of the one that continues from the line before.

use std::path::Path;

use kprism_cover::Cover;
use kprism_cover::counters::{Collector, Object};
use kprism_export::cover::{json, llvm};
use kprism_gcov::{UnitCounter, data, notes};
use serde_json::Value;

fn read(file: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../format/gcov/tests/samples");
    std::fs::read(folder.join(file)).unwrap()
}

/// Coverage of the sample that this version of GCC compiled.
fn sample(version: u32) -> Cover {
    let (notes, data) = (read(&format!("gcc{version}/t.gcno")), read(&format!("gcc{version}/t.gcda")));
    let collector = Collector::default();
    let (notes, data) = (notes::read(&notes).unwrap(), data::read(&data).unwrap());
    collector.add(&mut UnitCounter::default(), Object::default(), &notes, &data).unwrap();
    collector.finish()
}

#[derive(Clone, Copy)]
struct Segment {
    line: u64,
    count: i64,
    has_count: bool,
    begins: bool,
}

fn count_of(segments: &[Segment], line: u64) -> Option<i64> {
    let before = segments.iter().rfind(|segment| segment.line < line);
    let wrapped = before.filter(|segment| segment.has_count).map(|segment| segment.count);
    let begin = segments.iter().filter(|s| s.line == line && s.begins && s.has_count).map(|s| s.count);
    wrapped.into_iter().chain(begin).max()
}

#[test]
fn llvms_rule_gives_the_counts_back() {
    let cover = sample(12);
    let mut text = Vec::new();
    llvm::write(&cover, &mut text).unwrap();
    let value: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((&value["type"], &value["version"]), (&"llvm.coverage.json.export".into(), &"2.0.1".into()));
    let file = &value["data"][0]["files"][0];
    let segments: Vec<Segment> = file["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|segment| Segment {
            line: segment[0].as_u64().unwrap(),
            count: segment[2].as_i64().unwrap(),
            has_count: segment[3].as_bool().unwrap(),
            begins: segment[4].as_bool().unwrap() && !segment[5].as_bool().unwrap(),
        })
        .collect();
    let source = &cover.sources[0];
    for number in 1..=10 {
        let ours = source.lines.iter().find(|line| line.line == number).map(|line| line.count);
        assert_eq!(count_of(&segments, number.into()), ours, "line {number}");
    }
    // The two outcomes of each jump are one branch with both counts.
    let totals = source.totals();
    let branches = file["branches"].as_array().unwrap();
    assert_eq!(branches.len() as u64 * 2, totals.branches.all);
    let taken = branches.iter().flat_map(|branch| [&branch[4], &branch[5]]);
    assert_eq!(taken.filter(|count| count.as_i64() != Some(0)).count() as u64, totals.taken);
    for part in ["branches", "functions", "instantiations", "lines", "regions"] {
        for key in ["count", "covered", "percent"] {
            assert!(file["summary"][part][key].is_number(), "{part} {key}");
            assert_eq!(value["data"][0]["totals"][part][key], file["summary"][part][key]);
        }
    }
    let functions = value["data"][0]["functions"].as_array().unwrap();
    let main = functions.iter().find(|function| function["name"] == "main").unwrap();
    assert_eq!((main["count"].as_i64(), main["regions"][0][0].as_u64()), (Some(1), Some(4)));
}

/// Returns the names and types of values, with each type of list item once.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
        Value::Array(items) => {
            let mut kinds: Vec<Value> = Vec::new();
            for kind in items.iter().map(shape) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            kinds.into()
        }
        Value::Null => "null".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
    }
}

/// `samples/llvm14/t.json` is llvm-cov 14's export of the same source, compiled by clang.
#[test]
fn it_has_the_form_that_llvm_cov_gives_it() {
    let mut text = Vec::new();
    llvm::write(&sample(12), &mut text).unwrap();
    let ours: Value = serde_json::from_slice(&text).unwrap();
    let theirs: Value = serde_json::from_slice(&read("llvm14/t.json")).unwrap();
    assert_eq!((&ours["type"], &ours["version"]), (&theirs["type"], &theirs["version"]));
    let (mut ours, mut theirs) = (ours["data"][0].clone(), theirs["data"][0].clone());
    let length = |value: &Value, list: &str| value["files"][0][list][0].as_array().unwrap().len();
    for list in ["segments", "branches"] {
        assert_eq!(length(&ours, list), length(&theirs, list), "numbers of each of the {list}");
    }
    let region = |value: &Value| value["functions"][0]["regions"][0].as_array().unwrap().len();
    assert_eq!(region(&ours), region(&theirs), "numbers of each region");
    // gcov records branches by line, not by function.
    for value in [&mut ours, &mut theirs] {
        for function in value["functions"].as_array_mut().unwrap() {
            function["branches"] = Value::Array(Vec::new());
        }
    }
    assert_eq!(shape(&ours), shape(&theirs));
}

/// `c` of line 4 belongs to another decision once `f` is inlined; of `a` and `b`, the second was never true.
#[test]
fn conditions_are_written_as_gcov_14_does() {
    for version in 14..=16 {
        let mut text = Vec::new();
        json::write(&sample(version), &mut text).unwrap();
        let lines: Value = serde_json::from_slice(&text).unwrap();
        let line = lines["files"][0]["lines"].as_array().unwrap().iter().find(|l| l["line_number"] == 4);
        let inlined =
            serde_json::json!({"count": 4, "covered": 3, "not_covered_true": [1], "not_covered_false": []});
        assert_eq!(line.unwrap()["conditions"][0], inlined);
    }
}
