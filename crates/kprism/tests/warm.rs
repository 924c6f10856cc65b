// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--warm`: a command that goes another way when it has run before, recorded cold and warm. What it prints says which turn was
//! recorded, and its input whether each turn got it anew.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};

use guest::{alone, json, kprism, number, ok, script, text};
use kprism_test::{APT, GDB, QEMU, needs, test};
use serde_json::Value;

/// Leaves a file in its working folder, and finds it the next time. Then it copies its input.
const MARKED: &str = "if [ -e been ]; then echo warm $NAME; else : > been; echo cold $NAME; fi; cat";

/// The surroundings that a command in the guest finds, with turns before it.
fn surroundings<'a>(warm: &'a str, input: &'a str) -> [&'a str; 8] {
    ["--warm", warm, "--cwd", "/tmp", "--env", "NAME=value", "--stdin", input]
}

fn file(dir: &Path, contents: &str) -> PathBuf {
    let path = dir.join("input");
    fs::write(&path, contents).unwrap();
    path
}

#[test]
fn the_recorded_turn_finds_what_the_turns_before_it_left() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "input\n");
    let record = |name: &str, warm: &str| {
        let run = dir.path().join(name);
        let lab = ["lab", "run", "-q", "-o", text(&run)];
        let said = ok(&[&lab[..], &surroundings(warm, text(&input)), &["--", "sh", "-c", MARKED]].concat());
        (String::from_utf8(said).unwrap(), json(&["info", "--json", "-i", text(&run)]))
    };
    let (said, cold) = record("cold", "0");
    assert_eq!(said, "cold value\ninput\n");
    let (said, warm) = record("warm", "2");
    assert_eq!(said, "warm value\ninput\n", "the output of one turn, with all of the input");
    let kept = fs::read_to_string(dir.path().join("warm/stdout")).unwrap();
    assert_eq!(kept, said, "and so in the run");

    // The number is an option, a part of the environment, and told.
    assert_eq!((number(&cold["options"], "warm"), number(&warm["options"], "warm")), (0, 2));
    assert_ne!(cold["environment"]["id"], warm["environment"]["id"]);
    let parts = warm["environment"]["parts"].to_string();
    assert!(parts.contains("option --warm"), "{parts}");
    assert!(!cold["environment"]["parts"].to_string().contains("--warm"));
    let info = String::from_utf8(ok(&["info", "-i", text(&dir.path().join("warm"))])).unwrap();
    assert!(info.contains("2 turns of the command before the recorded one"), "{info}");
    let info = String::from_utf8(ok(&["info", "-i", text(&dir.path().join("cold"))])).unwrap();
    assert!(!info.contains("warm-up"), "{info}");

    // One turn is recorded, and it is the same each time.
    let (_, again) = record("again", "2");
    let instructions = |run: &Value| number(run, "instructions");
    assert_eq!(instructions(&again), instructions(&warm));
    assert_eq!(again["environment"]["id"], warm["environment"]["id"]);
    assert!(instructions(&warm) < instructions(&cold) * 3 / 2, "{warm}\n{cold}");
}

#[test]
fn a_turn_that_fails_is_told_and_the_command_is_recorded() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let record = |options: &[&str], script: &str| {
        let command = ["--", "sh", "-c", script];
        let output = kprism(&[&["lab", "run", "-o", text(&run)], options, &command].concat());
        let notes = json(&["info", "--json", "-i", text(&run)])["notes"].to_string();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), notes)
    };
    let killed = "[ -e /tmp/been ] || { : > /tmp/been; kill -KILL $$; }; exit 4";
    let (code, said, notes) = record(&["--warm", "1"], killed);
    let told = "1 of 1 warm-up turns failed: turn 1 with exit code 137";
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains(told) && notes.contains(told), "{said}{notes}");

    // Each turn has the time that the command has. Nothing was recorded, so there is nothing to decode.
    let limited = ["--warm", "2", "--timeout", "5", "--no-decode"];
    let (code, said, notes) = record(&limited, "while :; do :; done");
    let told = "the run ended after 0 of 2 warm-up turns";
    assert_eq!(code, Some(124), "{said}");
    assert!(said.contains(told) && notes.contains(told), "{said}{notes}");

    // Nothing is noted of turns that did not fail.
    let (code, _, notes) = record(&["--warm", "1"], "true");
    assert_eq!((code, notes.contains("warm-up")), (Some(0), false), "{notes}");
}

/// Commands that record one command several times tell it too, once, with the recordings.
#[test]
fn a_turn_that_fails_is_told_by_what_compares_recordings() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let script = "[ -e /tmp/been ] || { : > /tmp/been; exit 3; }";
    let (folder, of_recordings) =
        (dir.path().join("impact"), "1 of 1 warm-up turns failed: turn 1 with exit code 3 (in each of");
    let commands: [(&[&str], &str); 2] = [
        (&["flow-cost", "--sweep", "psb", "--psb", "2048,16384"], "2 recordings)"),
        (&["impact", "--with", "nothing=:", "-o", text(&folder)], "4 recordings)"),
    ];
    for (command, recordings) in commands {
        let output = kprism(&[command, &["--warm", "1", "--", "sh", "-c", script]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("warm-up turns failed").count(), 1, "{said}");
        assert!(said.contains(&format!("{of_recordings} {recordings}")), "{said}");
    }
}

#[test]
fn recorders_in_the_guest_see_the_recorded_turn_alone() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "input\n");
    let around = surroundings("1", text(&input));
    let recorders: [(&str, &[&str]); 3] = [
        ("tlb", &["record", "tlb", "-q"]),
        ("durations", &["record", "durations", "-q", "--guest"]),
        ("chosen", &["record", "durations", "-q", "--guest", "-T", "vfs_*"]),
    ];
    for (name, recorder) in recorders {
        let run = dir.path().join(name);
        ok(&[recorder, &["-o", text(&run)], &around, &["--", "sh", "-c", MARKED]].concat());
        let kept = fs::read_to_string(run.join("stdout")).unwrap();
        assert_eq!(kept, "warm value\ninput\n", "{name}");
        assert_eq!(number(&json(&["info", "--json", "-i", text(&run)])["options"], "warm"), 1, "{name}");
    }
    // The tracer of events is switched on after the turns.
    let run = dir.path().join("events");
    let lab = ["lab", "run", "-q", "--warm", "2", "-e", "sched:sched_process_exec", "-o", text(&run)];
    ok(&[&lab[..], &["--", "ls", "/"]].concat());
    let events = script(&run, &["all", "--only", "event"]);
    let ours = events.iter().filter(|event| event["args"].to_string().contains("bin/ls")).count();
    assert_eq!(ours, 1, "{events:?}");
}

#[test]
fn goto_runs_the_turns_again() {
    needs(&[QEMU, APT, GDB]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (run, input) = (dir.path().join("run"), file(dir.path(), "input\n"));
    let lab = ["lab", "run", "-q", "-o", text(&run)];
    ok(&[&lab[..], &surroundings("1", text(&input)), &["--", "sh", "-c", MARKED]].concat());
    let first_from = |from: &str| -> Value {
        let what = ["script", "insns", "--json", "--limit", "1", "--fields", "time,ip", "--from", from];
        serde_json::from_slice(&ok(&[&what[..], &["-i", text(&run)]].concat())).unwrap()
    };
    let begin = number(&first_from("0"), "time_ns");
    let there = first_from(&format!("{}ns", begin + 300_000));
    let place = format!("{}ns", number(&there, "time_ns"));
    let go = ["lab", "goto", "-q", text(&run), "--run-gdb", "--at", &place];
    let said =
        String::from_utf8(ok(&[&go[..], &["--", "-nx", "-batch", "-ex", "p/x $pc"]].concat())).unwrap();
    let ip = there["ip"].as_str().unwrap();
    assert!(said.contains(&format!("$1 = {ip}\n")), "{ip}: {said}");
}

#[test]
fn turns_that_have_no_meaning_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let cases: [(&[&str], &str); 6] = [
        (&["lab", "run", "--boot", "--warm", "1", "--", "true"], "--boot"),
        (&["lab", "kunit", "--warm", "1"], "a list of tests"),
        (&["lab", "gcov-kernel", "--empty", "--warm", "1"], "--empty"),
        (&["lab", "boot", "--warm", "1"], "--warm"),
        (&["record", "durations", "--warm", "1", "--", "true"], "--warm is about a guest"),
        (&["record", "probe", "--warm", "1", "work", "--", "true"], "--warm is about a guest"),
    ];
    for (arguments, expected) in cases {
        let command = kprism(&[&arguments[..2], &["-o", text(&run)], &arguments[2..]].concat());
        let said = String::from_utf8_lossy(&command.stderr).into_owned();
        assert!(!command.status.success() && said.contains(expected), "{arguments:?}: {said}");
        assert!(!run.exists(), "{arguments:?}");
    }
}

kprism_test::main!();
