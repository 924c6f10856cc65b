// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorder's whole stream through Intel's own decoder: from every PSB, libipt must read the same
//! instructions as kprism, without an error, and all of them must add up to the recorder's own count. The
//! guest does what is hard to follow: two CPUs, interrupts, page faults, signals, fork and exec, a module
//! coming and going, code patched while it runs. Needs what `scripts/setup.sh test` installs.

mod guest;

use std::fs;
use std::path::Path;
use std::process::Command;

use guest::{ok, text};
use kprism_flow::Setup;
use kprism_flow::digest::segment_digests;
use kprism_image::maps::{self, Dict};
use kprism_image::resolve::Regions;
use serde_json::Value;

/// All that the recorder must get right, in one guest.
const HARD: &str = "/share/truth; ls /bin | sed s/a/z/g | sort | wc -l
    modprobe dummy; modprobe -r dummy; sh -c 'kill -TERM $$'
    cd /sys/kernel/tracing; echo 'vfs_*' > set_ftrace_filter; echo function > current_tracer; ls /proc > /dev/null
    echo nop > current_tracer; true";

/// Records [`HARD`] by `command`, which says what else and where to.
fn record(share: &Path, command: &[&str]) {
    fs::create_dir_all(share).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/truth.c");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(share.join("truth")).arg(source).status();
    assert!(built.expect("a C compiler is installed").success());
    let options = ["-q", "--share", text(share), "--with-module", "dummy", "--", "sh", "-c", HARD];
    ok(&[command, &options].concat());
}

/// Builds the program around libipt; its page says what it prints.
fn oracle() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new("make").arg("-sC").arg(root.join("tests/oracle")).status().expect("make runs");
    assert!(made.success(), "libipt-dev is installed by scripts/setup.sh test");
    text(&root.join("target/ptoracle")).to_owned()
}

/// Compares the decoders on every stream of the run, and both with the recorder.
fn compare(run: &Path, oracle: &str) {
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
        let setup =
            Setup { image: &image, resolver: &Regions::default(), clock: Default::default(), watch: None };
        let ours = segment_digests(&bytes, setup);
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

#[test]
fn libipt_reads_the_same_from_every_psb() {
    let oracle = oracle();
    let modes: [&[&str]; 3] =
        [&["--smp", "2"], &["--retc", "off", "--mtc", "off", "--cyc", "off"], &["--fast", "--smp", "2"]];
    for options in modes {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let command = [&["lab", "run", "--no-decode", "-o", text(&run)], options].concat();
        record(&dir.path().join("share"), &command);
        compare(&run, &oracle);
    }
}

/// Packets as rare as they can be, with the kernel's flow and without it.
#[test]
fn libipt_reads_every_kind_of_packets() {
    let oracle = oracle();
    let modes: [&[&str]; 3] = [
        &["--sweep", "cyc", "--cyc", "16,16384"],
        &["--sweep", "mtc", "--mtc", "0,15", "--user"],
        &["--sweep", "cyc", "--cyc", "256", "--user", "--smp", "2"],
    ];
    for options in modes {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        record(&dir.path().join("share"), &[&["flow-cost", "--keep", text(&runs)], options].concat());
        for run in fs::read_dir(&runs).unwrap() {
            compare(&run.unwrap().path(), &oracle);
        }
    }
}
