// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of machines where kprism does not run, recorded in QEMU: those that `scripts/collect-ftrace.sh` collects of ARM kernels of
//! 64 and 32 bits and of a big-endian one (Debian's 6.1 `cloud-arm64`, `armmp` and `s390x`, a busybox as the only program) and of the
//! guest, and runs that `kprism-recorder` for 64-bit ARM made. These are read with every number of their pages turned round, too.
//!
//! The kernel's own text of the same buffers is the judge: the same calls of the same functions, as long. Of a boot it is the
//! kernel's log.

mod guest;
mod kernel_text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, ok, text};
use kernel_text::{accounts_for_all, measured, same_as_log, same_as_text};
use kprism_ftrace::format::{Format, PageLayout};

/// The traces of an architecture, unpacked: `long` (calls of 100 µs and more), `read` (all calls in `ksys_read`), `boot`. Those of the
/// recorder have `own` too: calls of 100 µs and more of a command alone.
fn samples(architecture: &str, to: &Path) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/arm/{architecture}.tar.xz"));
    let status = Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(to).status().expect("tar runs");
    assert!(status.success());
    to.join(architecture)
}

/// The pages of a folder tell what the text in it tells. Returns the number of calls.
fn same_as_the_text(folder: &Path, kernel: &str) -> u64 {
    let (judge, run) = (folder.with_extension("txt"), folder.with_extension("run"));
    fs::rename(folder.join("trace.txt"), &judge).unwrap();
    ok(&["import", "-q", text(folder), "-o", text(&run)]);
    let (calls, report) = same_as_text(&run, &judge);
    assert_eq!(report["run"]["kernel"], kernel);
    accounts_for_all(&report, &folder.join("stats"));
    calls
}

fn architecture(name: &str, kernel: &str) {
    let dir = tempfile::tempdir().unwrap();
    let samples = samples(name, dir.path());
    let long = same_as_the_text(&samples.join("long"), kernel);
    let read = same_as_the_text(&samples.join("read"), kernel);
    assert!(long > 500 && read > 200, "{long} {read}");

    let run = dir.path().join("boot");
    ok(&["import", "-q", text(&samples.join("boot")), "-o", text(&run)]);
    same_as_log(&run, &samples.join("boot/dmesg"));
}

#[test]
fn a_kernel_of_arm64() {
    architecture("arm64", "6.1.0-50-cloud-arm64");
}

#[test]
fn a_kernel_of_32_bit_arm() {
    architecture("armhf", "6.1.0-50-armmp");
}

/// A big-endian machine, whose kernel has an address space of its own.
#[test]
fn a_kernel_of_s390x() {
    architecture("s390x", "6.1.0-50-s390x");
}

/// Runs that the recorder made are read as they are.
#[test]
fn runs_of_the_recorder_on_arm64() {
    let dir = tempfile::tempdir().unwrap();
    let samples = samples("arm64-recorder", dir.path());
    let mut all = Vec::new();
    for (name, code) in [("long", 7), ("read", 0)] {
        let (run, judge) = (samples.join(name), samples.join(format!("{name}.txt")));
        fs::rename(run.join("trace.txt"), &judge).unwrap();
        let (calls, report) = same_as_text(&run, &judge);
        let of = &report["run"];
        assert_eq!((&of["kernel"], &of["exit_code"]), (&"6.1.0-50-cloud-arm64".into(), &code.into()));
        assert!(of["stopped"].is_null() && of["command"].as_str().unwrap().starts_with("sh -c"), "{of}");
        accounts_for_all(&report, &run.join("streams/ftrace/stats"));
        all.push(calls);
    }
    assert!(all[0] > 1000 && all[1] > 200, "{all:?}");
    // Calls of others were left out, and those of the command's children were not.
    let (_, report) = measured(&samples.join("own"));
    let left_out = report["run"]["account"].as_array().unwrap();
    assert!(left_out.iter().any(|entry| entry["fate"] == "seen" && entry["count"].as_u64() > Some(1000)));
    same_as_log(&samples.join("boot"), &samples.join("boot/streams/ftrace/dmesg"));
}

/// A run as a big-endian machine would have made it.
fn turn_round(run: &Path) {
    let streams = run.join("streams/ftrace");
    let layout = PageLayout::parse(&fs::read(streams.join("header_page")).unwrap()).unwrap();
    let mut formats = Vec::new();
    for system in fs::read_dir(streams.join("events")).unwrap().flatten() {
        for event in fs::read_dir(system.path()).unwrap().flatten() {
            let text = fs::read(event.path().join("format")).unwrap();
            formats.push(Format::parse(&system.file_name().to_string_lossy(), &text).unwrap());
        }
    }
    let record = |bytes: &mut [u8]| {
        let id = u16::from_le_bytes([bytes[0], bytes[1]]);
        let format = formats.iter().find(|format| format.id == id).expect("every event has a format");
        for field in &format.fields {
            // An array of characters is no number.
            let is_number = matches!(field.size, 2 | 4 | 8) && !field.kind.starts_with("char");
            if let Some(number) = bytes.get_mut(field.offset..field.offset + field.size).filter(|_| is_number)
            {
                number.reverse();
            }
        }
    };
    let word = |page: &[u8], at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    let mut events = 0;
    for cpu in 0..2 {
        let path = streams.join(format!("cpu{cpu}.raw"));
        let mut pages = fs::read(&path).unwrap();
        for page in pages.chunks_mut(layout.page_size()) {
            let commit = word(page, layout.commit_at);
            assert_eq!(commit >> 30, 0, "nothing was lost");
            page[..8].reverse();
            page[layout.commit_at..][..8].reverse();
            let (mut at, end) = (layout.data_at, layout.data_at + commit as usize);
            while at < end {
                let head = word(page, at);
                let (kind, delta) = (head & 31, head >> 5);
                page[at..at + 4].copy_from_slice(&(kind << 27 | delta).to_be_bytes());
                at += 4;
                match kind {
                    29 if delta == 0 => break,
                    30 | 31 => {
                        page[at..at + 4].reverse();
                        at += 4;
                    }
                    0 | 29 => {
                        let length = word(page, at) as usize;
                        page[at..at + 4].reverse();
                        if kind == 0 {
                            record(&mut page[at + 4..at + length]);
                            events += 1;
                        }
                        at += length.next_multiple_of(4);
                    }
                    words => {
                        record(&mut page[at..at + words as usize * 4]);
                        events += 1;
                        at += words as usize * 4;
                    }
                }
            }
        }
        fs::write(path, pages).unwrap();
    }
    assert!(events > 500, "{events}");
}

/// All of a run is the same to the nanosecond in the other byte order, children of the command among it.
#[test]
fn either_byte_order_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let samples = samples("arm64-recorder", dir.path());
    for name in ["long", "read", "own"] {
        let (run, turned) = (samples.join(name), samples.join(format!("{name}-turned")));
        assert!(Command::new("cp").arg("-r").args([&run, &turned]).status().unwrap().success());
        turn_round(&turned);
        let ((ours, report), (theirs, of_theirs)) = (measured(&turned), measured(&run));
        assert!(ours == theirs && ours.len() > 50, "{name}: {ours:?}");
        assert_eq!(report["run"]["account"], of_theirs["run"]["account"], "{name}");
        assert_eq!(report["run"]["durations"], of_theirs["run"]["durations"], "{name}");
    }
    let boot = samples.join("boot");
    let report = |run: &Path| json(&["report", "boot", "-q", "--json", "--limit", "0", "-i", text(run)]);
    let little = report(&boot);
    turn_round(&boot);
    assert_eq!(report(&boot)["initcalls"], little["initcalls"]);
    same_as_log(&boot, &boot.join("streams/ftrace/dmesg"));
    // Of an import, too.
    let run = dir.path().join("imported");
    ok(&["import", "-q", text(&samples.join("read-turned/streams/ftrace")), "-o", text(&run)]);
    let calls = |run: &Path| -> u64 { measured(run).0.values().map(|(calls, _)| calls).sum() };
    assert_eq!(calls(&run), calls(&samples.join("read")));
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
