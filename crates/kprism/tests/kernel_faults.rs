// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fault that the guest's kernel reports on its console is told after the command's output and in the run, and is no loss: of
//! the kernel, of memory that is used up, and of storage.

mod guest;

use guest::{alone, json, kprism};
use kprism_test::{APT, QEMU, needs, test};
use serde_json::Value;

/// The notes of a run that are reports of its kernel.
fn reports(run: &str) -> Vec<String> {
    let info = json(&["info", "--json", "-i", run]);
    let notes = info["notes"].as_array().cloned().unwrap_or_default();
    let texts = notes.iter().filter_map(Value::as_str).map(str::to_owned);
    texts.filter(|text| text.starts_with("the guest's kernel reported: ")).collect()
}

#[test]
fn a_panic_is_told_with_the_functions_that_led_to_it() {
    needs(&[QEMU, APT]);
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").display().to_string();
    let crash = "echo c > /proc/sysrq-trigger";
    let output = kprism(&["lab", "run", "--unobserved", "-o", &run, "--", "sh", "-c", crash]);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let notes = reports(&run);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let note = &notes[0];
    assert!(note.contains("Kernel panic - not syncing: sysrq triggered crash; call trace: "), "{note}");
    assert!(note.contains("sysrq_handle_crash+0x"), "{note}");
    assert!(told.contains(&format!("note: {note}")), "{told}");
    let info = String::from_utf8(kprism(&["info", "-i", &run]).stdout).unwrap();
    assert!(info.contains(note.as_str()), "{info}");
}

/// The kernel goes on after a warning, and so does the recording. The text comes by /dev/kmsg, in the words of `__warn()`.
#[test]
fn a_warning_is_a_note_and_no_loss() {
    needs(&[QEMU, APT]);
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").display().to_string();
    let warn = "echo '<3>WARNING: CPU: 0 PID: 1 at mm/sample.c:12 sample+0x1/0x20' > /dev/kmsg";
    let output = kprism(&["lab", "run", "-o", &run, "--", "sh", "-c", warn]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let expected = "the guest's kernel reported: WARNING: CPU: 0 PID: 1 at mm/sample.c:12 sample+0x1/0x20";
    assert_eq!(reports(&run), [expected]);
    assert!(told.contains(expected), "{told}");
    let strict = || kprism(&["info", "--strict", "-i", &run]).status.code();
    let with = strict();
    // Of a run without a report, none is told, and it is as whole.
    let output = kprism(&["lab", "run", "-o", &run, "--", "true"]);
    assert!(output.status.success() && reports(&run).is_empty());
    assert_eq!(with, strict());
}

#[test]
fn a_process_that_is_ended_for_lack_of_memory_is_told() {
    needs(&[QEMU, APT]);
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").display().to_string();
    // `tail` keeps the last line, and this one does not end.
    let line = ["lab", "run", "--unobserved", "--mem", "256M", "-o", &run, "--"];
    let output = kprism(&[&line[..], &["tail", "/dev/zero"]].concat());
    assert_eq!(output.status.code(), Some(137), "{}", String::from_utf8_lossy(&output.stderr));
    let notes = reports(&run);
    assert!(
        matches!(&notes[..], [note] if note.contains("Out of memory: Killed process ") && note.contains("(tail)")),
        "{notes:?}"
    );
}

#[test]
fn storage_that_fails_is_told() {
    needs(&[QEMU, APT]);
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run").display().to_string();
    // A second device, of which one block is bad. Older kernels name it by its number.
    let script = "cd /sys/kernel/config/nullb && mkdir bad && cd bad && echo 16 > size && echo +8-15 > badblocks && \
                  echo 1 > power && for d in /dev/bad /dev/nullb$(cat index); do [ ! -b $d ] || exec dd if=$d of=/dev/null bs=4k; done";
    let line = ["lab", "run", "--unobserved", "--storage", "ssd", "-o", &run, "--", "sh", "-c", script];
    let output = kprism(&line);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let notes = reports(&run);
    let is_it = |note: &String| note.contains("I/O error, dev ") && note.contains(", sector 8 ");
    assert!(notes.iter().any(is_it), "{notes:?}");
}

kprism_test::main!();
