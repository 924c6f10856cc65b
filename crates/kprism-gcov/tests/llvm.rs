// SPDX-License-Identifier: MIT OR Apache-2.0
//! LLVM's JSON, read as LLVM reads it: a line's count by the rule of its `LineCoverageStats`, which is the highest of the
//! regions that begin on the line and of the one that goes on from the line before.

use std::path::Path;

use kprism_gcov::{Collector, Solver, export};
use serde_json::Value;

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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/gcc12");
    let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
    let collector = Collector::default();
    collector.add_bytes(&mut Solver::default(), &read("t.gcno"), &read("t.gcda")).unwrap();
    let cover = collector.finish();
    let mut text = Vec::new();
    export::llvm(&cover, &mut text).unwrap();
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
    // Each jump's two ways are one branch with both counts.
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
