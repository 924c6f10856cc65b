// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests with files of compilers that need not be installed: `samples/t.c` compiled by GCC 9 to 16 with `-O2
//! --coverage` (from 14 on with `-fcondition-coverage`, from 15 on also with `-fpath-coverage`), and their own gcov's
//! JSON.

#[allow(dead_code, reason = "totals are of gcov's text, which is not among the samples")]
mod judge;

use std::path::{Path, PathBuf};

use judge::{compare_json, json_lines};
use kprism_gcov::{Data, UnitCounter, data, notes};
use serde_json::Value;

fn sample(version: u32, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/samples/gcc{version}/{file}"))
}

fn read(version: u32) -> (Vec<u8>, Data) {
    let note_bytes = std::fs::read(sample(version, "t.gcno")).unwrap();
    (note_bytes, data::read(&std::fs::read(sample(version, "t.gcda")).unwrap()).unwrap())
}

#[test]
fn every_number_is_that_of_the_versions_own_gcov() {
    for version in 9..=16 {
        let (note_bytes, data) = read(version);
        let notes = notes::read(&note_bytes).unwrap();
        let unit = UnitCounter::default().unit(&notes, Some(&data)).unwrap();
        let what = format!("GCC {version}");
        assert_eq!(
            notes.header.version.to_string().split('.').next(),
            Some(version.to_string().as_str()),
            "{what}"
        );
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

/// A file cut within a record is an error, and so is one cut between two records that its last function must have.
/// Between two records of lines, nothing in the file tells of a cut; behind a whole function, the data does.
#[test]
fn notes_that_were_cut_are_refused() {
    const FUNCTION: u32 = 0x0100_0000;
    const LINES: u32 = 0x0145_0000;
    for version in 9..=16 {
        let (bytes, _) = read(version);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        // Behind the header (with a checksum since GCC 12) and the working directory comes a flag, then the records. Lengths
        // are in words before GCC 12.
        let (begin, unit) = if version < 12 { (12, 4) } else { (16, 1) };
        let header = begin + 4 + word(begin) as usize * unit + 4;
        let (mut at, mut whole, mut lines) = (header, Vec::new(), 0);
        while at < bytes.len() {
            whole.extend((lines > 0).then_some(at));
            lines = if word(at) == FUNCTION { 0 } else { lines + u32::from(word(at) == LINES) };
            at += 8 + word(at + 4) as usize * unit;
        }
        assert_eq!(at, bytes.len());
        assert!(whole.len() > 2 && lines > 1, "{whole:?}");
        for end in header + 1..bytes.len() {
            let told = notes::read(&bytes[..end]).map(|_| ());
            assert_eq!(told.is_ok(), whole.contains(&end), "GCC {version}, cut at {end}: {told:?}");
        }
    }
}
