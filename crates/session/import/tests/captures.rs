// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures of real processors, decoded by kprism-flow and compared with libipt.
//!
//! If the environment variable `KPRISM_PTORACLE` names the program of `tests/oracle`, every PSB segment is compared
//! with it, instruction by instruction (by hash). Otherwise whole captures are compared by their counts.

mod common;

use std::path::Path;
use std::process::Command;

use common::{capture, data, image, segments, unpack};
use kprism_flow::clock::ClockConfig;
use kprism_flow::event::Null;
use kprism_flow::{Decoder, Setup};
use kprism_flow::{Options, profile};
use kprism_image::resolve::Regions;
use kprism_import::Capture;
use kprism_test::{ptoracle, test};

/// `oracle.tsv` lists libipt's number of instructions and errors for each capture.
#[test]
fn instruction_counts_are_those_of_libipt() {
    let data = data();
    let dir = unpack(&data, "arcus-user-traces.tar.xz");
    let oracle = std::fs::read_to_string(data.join("oracle.tsv")).expect("oracle.tsv");
    let mut rows = 0;
    for row in oracle.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        let capture = capture(&dir.path().join(columns[0]));
        let segments = segments(&capture, &capture.streams[0]);
        let errors: u64 = segments.iter().map(|s| s.stats.errors).sum();
        let instructions: u64 = segments.iter().map(|s| s.stats.instructions).sum();
        let told: u64 = segments.iter().map(|s| s.hash.count).sum();
        for fault in segments.iter().flat_map(|s| &s.stats.faults) {
            println!("{}: {:#x}: at {:#x}: {}", columns[0], fault.offset, fault.ip, fault.kind);
        }
        assert_eq!(instructions.to_string(), columns[3], "instructions of {}", columns[0]);
        assert_eq!(errors.to_string(), columns[4], "errors of {}", columns[0]);
        assert_eq!(told, instructions, "addresses of {}", columns[0]);
        assert_eq!(whole(&capture), (instructions, errors), "{} in one go", columns[0]);
        rows += 1;
    }
    assert_eq!(rows, 6);
}

/// A single decode from end to end, where blocks outlive segments and no sink needs addresses.
fn whole(capture: &Capture) -> (u64, u64) {
    let image = image(capture, &capture.streams[0]);
    let resolver = Regions::default();
    let setup = Setup {
        image: &image,
        resolver: &resolver,
        clock: ClockConfig::default(),
        watch: None,
        errata: Default::default(),
    };
    let bytes = &capture.streams[0].pt;
    let stats = Decoder::new(bytes, setup, false).run(0, bytes.len(), &mut Null);
    (stats.instructions, stats.errors)
}

/// The profile is the same for any number of threads and accounts for every instruction.
#[test]
fn profiles_do_not_depend_on_threads() {
    let data = data();
    let dir = unpack(&data, "arcus-user-traces.tar.xz");
    for (place, instructions) in [("arcus-x/last", 1_873_231), ("arcus-x/cve-2018-12327-poc", 1_763_873)] {
        let capture = capture(&dir.path().join(place));
        let image = image(&capture, &capture.streams[0]);
        let streams = [kprism_flow::Stream { cpu: 0, bytes: &capture.streams[0].pt, image: &image }];
        let with = |threads| {
            let options = Options { threads, ..Options::default() };
            profile(&streams, &Regions::default(), &[], &options, &|_| {})
        };
        let one = with(1);
        assert_eq!(one.totals.instructions(), instructions, "{place}");
        assert_eq!(one.nodes.iter().map(|n| n.insns).sum::<u64>(), instructions, "{place}");
        assert_eq!(one, with(3), "{place}");
    }
}

#[test]
fn segments_are_those_of_libipt() {
    let data = data();
    let oracle = ptoracle();
    let captures = [
        ("arcus-user-traces.tar.xz", "arcus-x/hello"),
        ("arcus-user-traces.tar.xz", "arcus-x/last"),
        ("arcus-user-traces.tar.xz", "arcus-x/cve-2018-12327-poc"),
        ("arcus-user-traces.tar.xz", "arcus-x/uaf-05-poc"),
        ("arcus-user-traces.tar.xz", "arcus-x/ovf-07-ben"),
        ("arcus-user-traces.tar.xz", "arcus-x/df-01-poc"),
        ("dynamorio-test-simple.tar.xz", "dynamorio/test_simple.raw"),
        ("lldb-traces.tar.xz", "lldb/intelpt-trace"),
        ("lldb-traces.tar.xz", "lldb/intelpt-trace-multi-file/multi-file-no-ld.json"),
        ("lldb-traces.tar.xz", "lldb/intelpt-multi-core-trace"),
    ];
    let mut wrong = Vec::new();
    for (archive, place) in captures {
        let dir = unpack(&data, archive);
        let capture = capture(&dir.path().join(place));
        wrong.extend(compare(&oracle, &capture).into_iter().map(|line| format!("{place}: {line}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Differences, one line each. If libipt gave up, its result up to there is not compared, because the two need not stop
/// at the same instruction.
fn compare(oracle: &Path, capture: &Capture) -> Vec<String> {
    let run = tempfile::tempdir().expect("a temporary folder");
    kprism_import::write(capture, run.path(), &run.path().join("symbols")).expect("streams");
    let cpu = capture.cpu.map_or("6/94/3".to_owned(), |c| format!("{}/{}/{}", c.family, c.model, c.stepping));
    let mut wrong = Vec::new();
    for (i, stream) in capture.streams.iter().enumerate() {
        let output = Command::new(oracle).args(["--cpu", &cpu]).arg(run.path()).arg(i.to_string()).output();
        let text = String::from_utf8(output.expect("ptoracle").stdout).expect("text");
        let rows: Vec<Vec<&str>> =
            text.lines().filter(|l| !l.starts_with("total")).map(|l| l.split(' ').collect()).collect();
        let ours = segments(capture, stream);
        if rows.len() != ours.len() {
            wrong.push(format!("cpu{i}: {} segments, libipt finds {}", ours.len(), rows.len()));
        }
        for (row, s) in rows.iter().zip(&ours) {
            let line = format!("{} {} {:016x} {}", s.offset, s.hash.count, s.hash.fnv, s.stats.errors);
            println!("cpu{i}: {line} (libipt: {})", row.join(" "));
            let failed = row[3] != "0";
            if failed != (s.stats.errors > 0) || !failed && line != row.join(" ") {
                wrong.push(format!("cpu{i}: {line}, libipt: {}; {:?}", row.join(" "), s.stats.faults));
            }
        }
    }
    wrong
}

kprism_test::main!();
