// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intel's own decoder, libipt, as the judge of a recorder's streams.

use std::fs;
use std::path::Path;
use std::process::Command;

use kprism_flow::digest::segment_digests;
use kprism_image::maps::{self, Dict};
use serde_json::Value;

/// Builds the program around libipt; its page says what it prints.
pub fn oracle() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new("make").arg("-sC").arg(root.join("tests/oracle")).status().expect("make runs");
    assert!(made.success(), "libipt-dev is installed by scripts/setup.sh test");
    root.join("target/ptoracle").to_str().expect("a path in UTF-8").to_owned()
}

/// Compares the decoders on every stream of the run, and both with the recorder.
pub fn compare(run: &Path, oracle: &str) {
    let streams = run.join("streams");
    let counts: Value = serde_json::from_slice(&fs::read(streams.join("counts.json")).unwrap()).unwrap();
    let dict_bytes = fs::read(streams.join("code.dict")).unwrap();
    let (dict, None) = Dict::parse(&dict_bytes) else { panic!("a damaged dictionary") };
    for vcpu in counts["vcpus"].as_array().expect("vCPUs") {
        let cpu = vcpu["cpu"].as_u64().unwrap();
        assert_eq!(vcpu["unexplained"], 0, "CPU {cpu}: every block start is explained");
        let bytes = fs::read(streams.join(format!("cpu{cpu}.pt"))).unwrap();
        let (map, None) = maps::parse_map(&fs::read(streams.join(format!("cpu{cpu}.map"))).unwrap()) else {
            panic!("a damaged map")
        };
        let (image, missing) = maps::image(&dict, &map);
        assert_eq!(missing, 0);
        let ours = segment_digests(&bytes, &image);
        let lines =
            ours.iter().map(|d| format!("{} {} {:016x} {}", d.offset, d.instructions, d.hash, d.errors));
        let mtc_freq = counts["clock"]["mtc_freq"].to_string();
        let output = Command::new(oracle)
            .args(["--mtc-freq", &mtc_freq])
            .arg(&streams)
            .arg(cpu.to_string())
            .output()
            .expect("ptoracle runs");
        let theirs = String::from_utf8(output.stdout).unwrap();
        let mut segments = 0;
        for (ours, theirs) in lines.zip(theirs.lines()) {
            assert_eq!(ours, theirs, "CPU {cpu}: offset, instructions, hash, errors");
            segments += 1;
        }
        assert_eq!(segments, ours.len());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let total: u64 = ours.iter().map(|d| d.instructions).sum();
        assert_eq!(
            Some(total),
            vcpu["instructions"].as_u64(),
            "CPU {cpu}: decoded, and counted by the recorder"
        );
        assert!(total > 1_000_000 && segments > 10, "CPU {cpu} did something: {total} in {segments}");
    }
}
