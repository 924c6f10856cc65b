// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces that `scripts/collect-ftrace.sh` collects where kprism does not run: of ARM kernels of 64 and 32 bits, recorded in QEMU
//! (Debian's 6.1 `cloud-arm64` and `armmp`, a busybox as the only program), and of the guest.
//!
//! The kernel's own text of the same buffers is the judge: the same calls of the same functions, as long. Of a boot it is the
//! kernel's log.

mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, ok, text};

/// The traces of an architecture, unpacked: `long` (calls of 100 µs and more), `read` (all calls in `ksys_read`), `boot`.
fn samples(architecture: &str, to: &Path) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/arm/{architecture}.tar.xz"));
    let status = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(to).status().expect("tar runs");
    assert!(status.success());
    to.join(architecture)
}

/// Calls and nanoseconds of each function, and the report.
fn durations(from: &Path, run: &Path) -> (BTreeMap<String, (u64, u64)>, serde_json::Value) {
    ok(&["import", "-q", text(from), "-o", text(run)]);
    let report = json(&["report", "durations", "-q", "--json", "--limit", "0", "-i", text(run)]);
    let rows = report["rows"].as_array().expect("rows").iter().map(|row| {
        let number = |name: &str| row[name].as_u64().expect("a number");
        (row["function"].as_str().expect("a name").to_owned(), (number("count"), number("total_ns")))
    });
    (rows.collect(), report)
}

/// The pages of a folder tell what the text in it tells. Returns the number of calls.
fn same_as_the_text(folder: &Path, kernel: &str) -> u64 {
    let judge = folder.with_extension("txt");
    fs::rename(folder.join("trace.txt"), &judge).unwrap();
    let (ours, report) = durations(folder, &folder.with_extension("run"));
    let (theirs, _) = durations(&judge, &folder.with_extension("judged"));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (function, (calls, ns)) in &ours {
        let (judged, about) = theirs[function];
        // The text has seven digits of a duration in microseconds.
        assert!(
            *calls == judged && ns.abs_diff(about) <= calls * 1000,
            "{function}: {calls}, {ns} ns; {judged}, {about} ns"
        );
        assert!(!function.starts_with("0x"), "{function} has no name");
    }
    assert_eq!(report["run"]["kernel"], kernel);
    let seen = &report["run"]["account"][0];
    let stats: u64 = fs::read_dir(folder.join("stats"))
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .map(|stats| {
            stats.lines().find_map(|l| l.strip_prefix("read events: ")?.parse::<u64>().ok()).unwrap()
        })
        .sum();
    assert_eq!((&seen["unit"], seen["count"].as_u64()), (&"events".into(), Some(stats)));
    ours.values().map(|(calls, _)| calls).sum()
}

fn architecture(name: &str, kernel: &str) {
    let dir = tempfile::tempdir().unwrap();
    let samples = samples(name, dir.path());
    let long = same_as_the_text(&samples.join("long"), kernel);
    let read = same_as_the_text(&samples.join("read"), kernel);
    assert!(long > 1000 && read > 200, "{long} {read}");

    let run = dir.path().join("boot");
    ok(&["import", "-q", text(&samples.join("boot")), "-o", text(&run)]);
    let report = json(&["report", "boot", "-q", "--json", "--limit", "0", "-i", text(&run)]);
    let initcalls = report["initcalls"].as_array().expect("initcalls");
    let log = fs::read_to_string(samples.join("boot/dmesg")).unwrap();
    let named = |line: &str| Some(line.split_once("] calling  ")?.1.split(['+', ' ']).next()?.to_owned());
    let mut expected: Vec<String> = log.lines().filter_map(named).collect();
    let mut found: Vec<String> =
        initcalls.iter().map(|call| call["name"].as_str().unwrap().to_owned()).collect();
    expected.sort();
    found.sort();
    assert!(expected.len() > 500, "{}", expected.len());
    assert_eq!(found, expected);
    let chart = dir.path().join("boot.html");
    ok(&["export", "-q", "-i", text(&run), "-o", text(&chart)]);
    assert!(fs::read_to_string(chart).unwrap().contains(&expected[0]));
}

#[test]
fn a_kernel_of_arm64() {
    architecture("arm64", "6.1.0-50-cloud-arm64");
}

#[test]
fn a_kernel_of_32_bit_arm() {
    architecture("armhf", "6.1.0-50-armmp");
}

/// Script that the guest runs: it calls the collector with the options of a user, what it refuses, what it puts back however it ends.
const IN_GUEST: &str = r#"
T=/sys/kernel/tracing
cd /tmp
mount -t tracefs none $T 2>/dev/null
state() {
	for f in current_tracer tracing_on tracing_thresh set_ftrace_pid set_graph_function options/function-fork; do
		echo "$f $(cat $T/$f)"
	done
}
state >before
unchanged() { state | cmp -s - before && echo "$1: as before" || { echo "$1: NOT AS BEFORE"; state; }; }
for bad in '-t x true' '-b 12' '-g no_such_function true' 'no-such-command' '-z' '-o /tmp true'; do
	sh /collect.sh $bad 2>/dev/null
	echo "refused $?"
done
unchanged refused
sed "s|^mkdir -p .*|cat $T/trace >/tmp/text; &|" /collect.sh >with-text.sh
echo input | sh with-text.sh -o read -b 4000 -g ksys_read sh -c 'cat; cat /proc/version >/dev/null; exit 7'
echo "exit $?"
unchanged ended
mv text read/trace.txt
sh /collect.sh -o interrupted sleep 60 &
sleep 2; kill $!; wait $!
echo "interrupted $? $(ls interrupted/cpu0.raw)"
unchanged interrupted
sh /collect.sh -o killed sleep 3 &
sleep 1; kill -9 $!
sleep 4
unchanged killed
ls -d killed 2>/dev/null
uname -r
echo == data
tar -c read | gzip | base64
"#;

#[test]
fn the_script_collects_and_puts_everything_back() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/collect-ftrace.sh");
    let share = format!("--share={}:/collect.sh", text(&script));
    let args = ["lab", "run", "-q", "--unobserved", "-o", text(&run), &share, "--", "sh", "-c", IN_GUEST];
    let said = String::from_utf8(ok(&args)).unwrap();
    let (said, data) = said.split_once("== data\n").expect("all of it ran");
    let (said, kernel) = said.trim_end().rsplit_once('\n').expect("lines");
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "refused 2",
        "refused 2",
        "refused 2",
        "refused 2",
        "refused 2",
        "refused 2",
        "refused: as before",
        "input",
        "exit 7",
        "ended: as before",
        "interrupted 130 interrupted/cpu0.raw",
        "interrupted: as before",
        "killed: as before",
    ];
    assert_eq!(lines, expected);
    fs::write(dir.path().join("data"), data).unwrap();
    let unpack = "base64 -di data | tar -xz";
    let status = Command::new("sh").args(["-c", unpack]).current_dir(dir.path()).status().unwrap();
    assert!(status.success());
    let calls = same_as_the_text(&dir.path().join("read"), kernel);
    assert!(calls > 50, "{calls}");
}
