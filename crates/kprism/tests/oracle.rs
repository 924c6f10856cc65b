// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorder's whole stream through Intel's own decoder: from every PSB, libipt must read the same
//! instructions as kprism, without an error, and all of them must add up to the recorder's own count. The
//! guest does what is hard to follow: two CPUs, interrupts, page faults, signals, fork and exec, a module
//! coming and going, code patched while it runs. Needs what `scripts/setup.sh test` installs.

mod guest;
mod judge;

use std::fs;
use std::path::Path;
use std::process::Command;

use guest::{ok, text};
use judge::{compare, oracle};
use kprism_test::of_today;

/// All that the recorder must get right, in one guest.
const HARD: &str = "/share/truth; ls /bin | sed s/a/z/g | sort | wc -l
    modprobe dummy; modprobe -r dummy; sh -c 'kill -TERM $$'
    cd /sys/kernel/tracing; echo function > current_tracer; ls /proc > /dev/null; echo nop > current_tracer; true";

/// Which functions the tracer patches. Before the recording: the kernel compares names for more instructions than all the rest has.
const PATCHED: &str = "echo 'vfs_*' > /sys/kernel/tracing/set_ftrace_filter";

/// Records [`HARD`] by `command`, which says what else and where to.
fn record(share: &Path, command: &[&str]) {
    fs::create_dir_all(share).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/truth.c");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(share.join("truth")).arg(source).status();
    assert!(built.expect("a C compiler is installed").success());
    let guest = ["-q", "--share", text(share), "--with-module", "dummy", "--before", PATCHED];
    let options = [&guest[..], &["--", "sh", "-c", HARD]].concat();
    ok(&[command, &options].concat());
}

/// One way to record a day.
#[test]
fn libipt_reads_the_same_from_every_psb() {
    let oracle = oracle();
    let modes: [&[&str]; 3] =
        [&["--smp", "2"], &["--retc", "off", "--mtc", "off", "--cyc", "off"], &["--fast", "--smp", "2"]];
    for options in of_today(modes, 1) {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let command = [&["lab", "run", "--no-decode", "-o", text(&run)], options].concat();
        record(&dir.path().join("share"), &command);
        compare(&run, &oracle);
    }
}

/// Packets as rare as they can be, with the kernel's flow and without it. One way a day.
#[test]
fn libipt_reads_every_kind_of_packets() {
    let oracle = oracle();
    let modes: [&[&str]; 3] = [
        &["--sweep", "cyc", "--cyc", "16,16384"],
        &["--sweep", "mtc", "--mtc", "0,15", "--user"],
        &["--sweep", "cyc", "--cyc", "256", "--user", "--smp", "2"],
    ];
    for options in of_today(modes, 1) {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        record(&dir.path().join("share"), &[&["flow-cost", "--keep", text(&runs)], options].concat());
        for run in fs::read_dir(&runs).unwrap() {
            compare(&run.unwrap().path(), &oracle);
        }
    }
}
