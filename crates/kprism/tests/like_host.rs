// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--like-host`: the guest has the recording machine's modes of huge pages, limits, locale and time zone, and a run says which, and
//! which it could not have.

mod guest;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use guest::{alone, json, kprism, number, ok, text};
use kprism_test::{APT, GDB, QEMU, needs, test};
use serde_json::Value;

/// The kernel's file by a pattern: of a command that names it nobody knows whether it changes the mode.
const TOLD: &str =
    "cat /sys/kernel/mm/transp*/enabled; echo \"lang=$LANG time=$LC_TIME tz=$TZ\"; ulimit -Sn; ulimit -Ss";

/// Runs kprism from a shell with a limit of open files, and in this environment.
fn from_a_shell(environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 777 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kprism")]);
    command.args(arguments).env_remove("LC_ALL").env_remove("TZ").envs(environment.iter().copied());
    let output = command.output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The value in brackets.
fn mode(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).expect("a mode in brackets").0
}

fn info(run: &Path) -> Value {
    json(&["info", "--json", "-i", text(run)])
}

#[test]
fn the_guest_has_this_machines_values() {
    needs(&[QEMU, APT]);
    let here = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let Ok(here) = here else { kprism_test::skip("this machine's kernel has no transparent huge pages") };
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let environment = [("LANG", "C.UTF-8"), ("LC_TIME", "xx_XX.UTF-8"), ("TZ", "CET-1CEST")];
    let lab = ["lab", "run", "-o", text(&run), "--like-host", "--", "sh", "-c", TOLD];
    let output = from_a_shell(&environment, &lab);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(mode(&said), mode(&here), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[1], "lang=C.UTF-8 time=xx_XX.UTF-8 tz=CET-1CEST");
    assert_eq!(lines[2], "777");

    // The manifest has the values, the environment too, and they are told.
    let manifest = info(&run);
    let like = &manifest["options"]["like_host"];
    assert_eq!(like["huge_pages"]["enabled"], mode(&here), "{like}");
    assert!(like["limits"]["nofile"].as_str().unwrap().starts_with("777:"), "{like}");
    assert_eq!(like["variables"]["LC_TIME"], "xx_XX.UTF-8", "{like}");
    assert_eq!(manifest["huge_pages"]["guest"], mode(&here), "{}", manifest["huge_pages"]);
    assert!(manifest["environment"]["parts"].to_string().contains("option --like-host"));
    let shown = String::from_utf8(ok(&["info", "-i", text(&run)])).unwrap();
    assert!(shown.contains("values of the recording machine: "), "{shown}");
    assert!(shown.contains("like host     limits: ") && shown.contains("nofile=777:"), "{shown}");
    let head = String::from_utf8(ok(&["report", "syscalls", "-i", text(&run)])).unwrap();
    assert!(head.contains("values of the recording machine: "), "{head}");
    assert!(!head.contains("huge pages: `"), "the modes are the same: {head}");

    // No Debian has this locale.
    let notes = manifest["notes"].to_string();
    let told = "LC_TIME=xx_XX.UTF-8 (the guest has no such locale)";
    assert!(notes.contains("--like-host: not taken over: ") && notes.contains(told), "{notes}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(told), "{said}");
}

/// Values of a run are those of its machine, whatever this machine has: here each mode that is not the guest's own.
#[test]
fn values_of_a_run_are_taken_over_again() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str| dir.path().join(name);
    let record = |name: &str, options: &[&str]| {
        let folder = run(name);
        let lab = ["lab", "run", "-q", "-o", text(&folder)];
        String::from_utf8(ok(&[&lab[..], options, &["--", "sh", "-c", TOLD]].concat())).unwrap()
    };
    let own = record("own", &[]);
    assert!(info(&run("own"))["options"]["like_host"].is_null());
    let from = text(&run("own")).to_owned();
    let refused = kprism(&["lab", "run", &format!("--like-host={from}"), "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("recorded without --like-host"), "{said}");

    let file = run("own").join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let other = if mode(&own) == "never" { "madvise" } else { "never" };
    manifest["options"]["like_host"] = serde_json::json!({
        "huge_pages": {"enabled": other},
        "limits": {"nofile": "555:4096", "stack": "4194304:unlimited"},
        "variables": {"LANG": "", "TZ": "UTC"},
    });
    fs::write(&file, manifest.to_string()).unwrap();
    // What the user gives goes before.
    let like = format!("--like-host={from}");
    let said = record("like", &[&like, "--env", "TZ=GMT"]);
    assert_eq!(mode(&said), other);
    assert_eq!(said.lines().skip(1).collect::<Vec<_>>(), ["lang= time= tz=GMT", "555", "4096"]);
    let told = info(&run("like"));
    assert_eq!(told["huge_pages"]["guest"], other);
    assert!(told["options"]["like_host"]["variables"]["TZ"].is_null(), "{told}");
    assert!(!told["notes"].to_string().contains("--like-host"), "{}", told["notes"]);

    // It is as exact as any run.
    record("again", &[&like, "--env", "TZ=GMT"]);
    let again = info(&run("again"));
    assert_eq!(number(&again, "instructions"), number(&told, "instructions"));
    assert_eq!(again["environment"]["id"], told["environment"]["id"]);
    assert_ne!(info(&run("own"))["environment"]["id"], told["environment"]["id"]);
}

/// The replay has the values of the run, though this shell has others.
#[test]
fn goto_has_the_values_of_the_run() {
    needs(&[QEMU, APT, GDB]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let lab = ["lab", "run", "-q", "-o", text(&run), "--like-host", "--", "sh", "-c", TOLD];
    from_a_shell(&[("LANG", "C.UTF-8"), ("LC_TIME", "C"), ("TZ", "CET-1CEST")], &lab);
    let what = ["script", "insns", "--json", "--limit", "1", "--fields", "time,ip", "--from"];
    let first_from = |from: &str| -> Value {
        serde_json::from_slice(&ok(&[&what[..], &[from, "-i", text(&run)]].concat())).unwrap()
    };
    let begin = number(&first_from("0"), "time_ns");
    let there = first_from(&format!("{}ns", begin + 300_000));
    let place = format!("{}ns", number(&there, "time_ns"));
    let go = ["lab", "goto", "-q", text(&run), "--run-gdb", "--at", &place];
    let said = ok(&[&go[..], &["--", "-nx", "-batch", "-ex", "p/x $pc"]].concat());
    let (said, ip) = (String::from_utf8(said).unwrap(), there["ip"].as_str().unwrap());
    assert!(said.contains(&format!("$1 = {ip}\n")), "{ip}: {said}");
}

kprism_test::main!();
