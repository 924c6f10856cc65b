// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--on ssh:…`, with a real server on the loopback: recordings, errors, and what is left on the target after each.
//!
//! Here, target and this machine are one, so files of the run can be compared.

mod sshd;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};

use kprism_test::{BPF, MOUNTS, ROOT, SSHD, UPROBES, needs, test, turn, until};
use sshd::{Keys, PATIENCE, Sshd, kprism, left, processes};

/// What is left on the target can be told only if one test at a time uses it.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails if anything is left on the target. sshd needs a moment to end a session's shell.
fn nothing_left(mark: &str) {
    let mut found = Vec::new();
    until(PATIENCE, &format!("nothing left of {mark}"), || {
        found = left(mark);
        found.is_empty()
    });
}

/// Words that a shell on the way would change.
const HOSTILE: [&str; 8] = ["a b", "'", "\"", "$HOME", "`id`", "line\nline", "\\", "; exit 9 #*"];

#[test]
fn a_command_is_probed_as_if_it_ran_here() {
    needs(&[ROOT, BPF, UPROBES, SSHD]);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let run = keys.path("run");
    let program = keys.program();
    let script = format!(r#"cat; {} 5; printf '<%s>' "$@"; echo bad >&2; exit 7"#, program.display());
    let mut command = kprism(&keys.client(""));
    command.args(["record", "probe", &server.on(), "-o"]).arg(&run);
    command.args(["work", "--collect", "n,$comm", "--exec"]).arg(&program);
    command.args(["--", "sh", "-c", &script, "sh"]).args(HOSTILE);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = vec![b'x'; 300_000];
    let mut stdin = child.stdin.take().unwrap();
    let sent = input.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let stderr = said(&output);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let printed: String = HOSTILE.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(output.stdout, [&input[..], printed.as_bytes()].concat());
    assert!(stderr.contains("bad\n"), "{stderr}");
    let place = run.display().to_string();
    assert!(stderr.contains(&format!("recorded in {place}; see: kprism report probe")), "{stderr}");
    assert!(stderr.contains(&format!("brought back from root@127.0.0.1 to {place}: ")), "{stderr}");

    let info = kprism(&keys.client("")).args(["info", "-i"]).arg(&run).output().unwrap();
    let info = String::from_utf8(info.stdout).unwrap();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(info.contains(&format!("kernel        {}", release.trim())), "{info}");
    let on = format!("recorded on   {} (", server.on().trim_start_matches("--on="));
    assert!(info.contains(&on) && info.contains(", through ssh)"), "{info}");
    assert!(info.contains("exit code     7"), "{info}");
    let report = kprism(&keys.client("")).args(["script", "probe", "-i"]).arg(&run).output().unwrap();
    let report = String::from_utf8(report.stdout).unwrap();
    assert_eq!(report.lines().filter(|line| line.contains("work")).count(), 5, "{report}");
    nothing_left("exit 9 #");
}

#[test]
fn what_a_recorder_there_cannot_do_is_told_here() {
    needs(&[ROOT, SSHD]);
    turn(2, 0);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let run = keys.path("run");
    let told = |words: &[&str]| {
        let mut command = kprism(&keys.client(""));
        let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        command.args(&words[..end]).arg(server.on()).args(&words[end..]);
        let output = command.current_dir(keys.dir.path()).output().unwrap();
        nothing_left("serve-through-ssh");
        output
    };
    let here = |words: &[&str]| kprism(&keys.client("")).args(words).current_dir(&keys.dir).output().unwrap();

    let words = ["record", "boot", "--words", "--longer-than", "1ms"];
    let (there, local) = (told(&words), here(&words));
    assert_eq!((there.status.code(), &there.stdout), (Some(0), &local.stdout), "{}", said(&there));
    assert!(!local.stdout.is_empty() && !run.exists());

    // This machine's kernel has no counters, or else the error would be another one.
    if !fs::exists("/sys/kernel/debug/gcov").unwrap() {
        let output = told(&["record", "cover", "--duration", "1"]);
        let (there, local) = (said(&output), said(&here(&["record", "cover", "--duration", "1"])));
        assert_eq!(output.status.code(), Some(2), "{there}");
        assert!(
            there.contains(local.trim()) && there.contains("CONFIG_GCOV_KERNEL"),
            "{there}, here {local}"
        );
    }

    let (there, local) = (told(&["check", "--json"]), here(&["check", "--json"]));
    // Without the lab's parts, which are not copied.
    let names = |output: &Output| -> Vec<String> {
        let items: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        items.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let (there, local) = (names(&there), names(&local));
    assert!(
        there.iter().all(|name| local.contains(name)) && there.contains(&"function tracer".into()),
        "{there:?}"
    );

    let (there, local) =
        (told(&["list", "events", "sched:sched_switch"]), here(&["list", "events", "sched:sched_switch"]));
    assert_eq!((there.status.code(), there.stdout), (local.status.code(), local.stdout));

    let output = told(&["record", "durations", "--", "/no/such/program"]);
    assert!(
        said(&output).contains("/no/such/program") && output.status.code() == Some(2),
        "{}",
        said(&output)
    );
}

#[test]
fn probes_compiled_here_are_sent_along() {
    needs(&[ROOT, BPF, UPROBES, SSHD]);
    turn(2, 1);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let client = keys.client("");
    let (file, program) = (keys.path("my probes"), keys.program());
    let output = kprism(&client)
        .args(["compile", "work", "--exec"])
        .arg(&program)
        .arg("-o")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let run = keys.path("run");
    let mut command = kprism(&client);
    command.args(["record", "probe", &server.on(), "--program"]).arg(&file).arg("-o").arg(&run);
    let output = command.arg("--").arg(&program).arg("3").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("3 hits"), "{}", said(&output));
    assert!(run.join("streams/probe").is_dir());

    // A file of probes goes there too, and standard input. Errors name the file as it is here.
    let text = "work by 1 sum 2\n";
    std::fs::write(&file, text).unwrap();
    for named in [file.as_path(), Path::new("-")] {
        let mut command = kprism(&client);
        command.args(["record", "probe", &server.on(), "-f"]).arg(named).args(["--exec"]).arg(&program);
        command.arg("-o").arg(&run).arg("--").arg(&program).arg("3");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("3 counted"), "{}", said(&output));
    }
    std::fs::write(&file, "work colect n\n").unwrap();
    let mut command = kprism(&client);
    command.args(["record", "probe", &server.on(), "-f"]).arg(&file).arg("--").arg(&program);
    let output = command.output().unwrap();
    let wanted = format!("{}:1:6: expected one of", file.display());
    assert!(said(&output).contains(&wanted), "{}", said(&output));

    let mut command = kprism(&client);
    let output = command
        .args(["record", "probe", &server.on(), "--program", "/no/such", "--", "true"])
        .output()
        .unwrap();
    assert!(said(&output).contains("/no/such: No such file"), "{}", said(&output));
    nothing_left("serve-through-ssh");
}

#[test]
fn command_lines_that_are_refused() {
    needs(&[ROOT, SSHD]);
    let keys = Keys::new();
    let client = keys.client("");
    let occupied = keys.dir.path().display().to_string();
    let cases: [(&[&str], &str); 5] = [
        (
            &["record", "probe", "--on", "ssh:-oProxyCommand=touch x", "f", "--", "ls"],
            "the host begins with '-'",
        ),
        (&["record", "durations", "--on", "box", "--", "ls"], "expected ssh:HOST"),
        (
            &["record", "tlb", "--on", "ssh:box", "-g", "zen4", "--", "ls"],
            "--on does not go with `record tlb`",
        ),
        (&["record", "durations", "--guest", "--on", "ssh:box", "--", "ls"], "--on does not go with --guest"),
        (&["record", "durations", "--on", "ssh:box", "-o", &occupied, "--", "ls"], "is not a run of kprism"),
    ];
    for (words, expected) in cases {
        let output = kprism(&client).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(said(&output).contains(expected), "{words:?}: {}", said(&output));
    }
    // A port where nobody listens.
    let on = format!("ssh:root@127.0.0.1:{}", sshd::free_port());
    let output = kprism(&client).args(["record", "durations", "--on", &on, "--", "ls"]).output().unwrap();
    assert!(said(&output).contains("ssh could not connect"), "{}", said(&output));
    assert!(said(&output).contains("Connection refused"), "{}", said(&output));
}

/// The configuration that has each session begin with these commands, in which `sh -c "$SSH_ORIGINAL_COMMAND"` follows.
fn forced(commands: &str) -> String {
    format!("ForceCommand {commands}")
}

#[test]
fn targets_of_another_kind() {
    needs(&[ROOT, SSHD]);
    let _alone = alone();
    let keys = Keys::new();
    let client = keys.client("");
    let ask = |commands: &str| {
        let server = Sshd::start(&keys, &forced(commands));
        let output = kprism(&client).args(["check", &server.on()]).output().unwrap();
        nothing_left("serve-through-ssh");
        (output.status.code(), said(&output), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // A processor of 32 bits, as far as uname tells.
    let (code, error, _) = ask(r#"setarch i686 sh -c "$SSH_ORIGINAL_COMMAND""#);
    assert!(code == Some(2) && error.contains("its processor is i686"), "{error}");
    // An account that runs no commands.
    let (code, error, _) = ask("false");
    assert!(code == Some(2) && error.contains("ended with 1 and did not run"), "{error}");
    // Start files that print.
    let (code, error, text) = ask(r#"echo Welcome; echo kprism-00 send; sh -c "$SSH_ORIGINAL_COMMAND""#);
    assert!(code != Some(2) && text.contains("function tracer"), "{error}{text}");
}

#[test]
fn folders_that_do_not_take_the_program() {
    needs(&[ROOT, SSHD, MOUNTS]);
    turn(2, 1);
    let _alone = alone();
    let keys = Keys::new();
    let ask = |mounts: &str| {
        // In a mount namespace of the session's own.
        let commands = format!(r#"unshare -m sh -c '{mounts}; exec sh -c "$SSH_ORIGINAL_COMMAND"'"#);
        let server = Sshd::start(&keys, &forced(&commands));
        let output = kprism(&keys.client("")).args(["check", "-v", &server.on()]).output().unwrap();
        nothing_left("serve-through-ssh");
        (output.status.code(), said(&output))
    };
    let mount = |options: &str, folder: &str| format!("mount -t tmpfs -o {options} none {folder}");
    // Not executable, read-only, too small: the next is taken.
    let mounts = [
        mount("noexec", "/tmp"),
        mount("ro", "/var/tmp"),
        mount("size=1m", "/dev/shm"),
        "mkdir -p /run/kprism-test-home".into(),
        "export HOME=/run/kprism-test-home XDG_RUNTIME_DIR=/dev/shm".into(),
    ];
    let (code, error) = ask(&mounts.join(" && "));
    assert!(code != Some(2) && error.contains("in /run/kprism-test-home/.kprism-"), "{error}");
    assert!(fs::read_dir("/run/kprism-test-home").unwrap().next().is_none());
    fs::remove_dir("/run/kprism-test-home").unwrap();
    // None.
    let none = [&mounts[..3], &["export HOME=/proc XDG_RUNTIME_DIR=".to_owned()][..]].concat();
    let (code, error) = ask(&none.join(" && "));
    let expected = [
        "no folder there takes kprism",
        "does not execute programs (noexec): /tmp",
        "cannot be written to: /var/tmp",
        "has no space for it: /dev/shm",
        "cannot be written to: /proc",
        "set TMPDIR there",
    ];
    assert_eq!(code, Some(2), "{error}");
    expected.iter().for_each(|text| assert!(error.contains(text), "{text}: {error}"));
}

#[test]
fn busybox_is_enough() {
    needs(&[ROOT, SSHD]);
    let busybox = kprism_test::program(&["busybox"], "busybox-static");
    let _alone = alone();
    let keys = Keys::new();
    let tools = keys.path("tools");
    fs::create_dir(&tools).unwrap();
    let busybox = Command::new("sh").args(["-c", &format!("command -v {busybox}")]).output().unwrap().stdout;
    let busybox = String::from_utf8(busybox).unwrap().trim().to_owned();
    for tool in ["sh", "cat", "chmod", "mkdir", "rm", "uname", "head"] {
        std::os::unix::fs::symlink(&busybox, tools.join(tool)).unwrap();
    }
    let place = tools.display();
    let commands = format!(r#"PATH={place}; export PATH; {place}/sh -c "$SSH_ORIGINAL_COMMAND""#);
    let server = Sshd::start(&keys, &forced(&commands));
    let output = kprism(&keys.client("")).args(["check", "--json", &server.on()]).output().unwrap();
    let items: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(items.as_array().unwrap().len() >= 5, "{items} {}", said(&output));
    nothing_left("serve-through-ssh");
}

/// Starts a recording of a command that would go on for long, and waits until it runs.
fn long(keys: &Keys, server: &Sshd, mark: &str) -> std::process::Child {
    let mut command = kprism(&keys.client(""));
    command.args(["record", "probe", &server.on(), "-o"]).arg(keys.path("run"));
    // A command that ignores Ctrl-C, with a child that does not.
    let program = keys.program();
    command.args(["work", "--exec"]).arg(&program);
    command.args([
        "--",
        "sh",
        "-c",
        &format!("trap '' INT TERM; {} 1; sleep {mark}; sleep {mark}", program.display()),
    ]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(PATIENCE, "the command runs", || {
        processes().iter().any(|p| p.line.trim() == format!("sleep {mark}"))
    });
    child
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: kill touches no memory of ours.
    unsafe { libc::kill(pid as i32, signal) };
}

#[test]
fn after_kill_9_here_nothing_is_left_there() {
    needs(&[ROOT, BPF, UPROBES, SSHD]);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let mut child = long(&keys, &server, "4711.25");
    assert!(!left("4711.25").is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_left("4711.25");
    assert!(!keys.path("run").exists());
}

#[test]
fn after_a_broken_connection_nothing_is_left_there() {
    needs(&[ROOT, BPF, UPROBES, SSHD]);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let child = long(&keys, &server, "4712.25");
    // The processes of sshd for this session, and nothing that they started.
    let is_sshd = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sshd"))
    };
    server.sessions().iter().filter(|pid| is_sshd(pid)).for_each(|&pid| signal(pid, libc::SIGKILL));
    let output = child.wait_with_output().unwrap();
    let error = said(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the connection broke before the end of the command"), "{error}");
    nothing_left("4712.25");
}

#[test]
fn ctrl_c_ends_the_recording_there_and_keeps_it() {
    needs(&[ROOT, BPF, UPROBES, SSHD]);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let mut command = kprism(&keys.client(""));
    command.args(["record", "probe", &server.on(), "-o"]).arg(keys.path("run"));
    let program = keys.program();
    command.args(["work", "--exec"]).arg(&program);
    command.args(["--", "sh", "-c", &format!("{} 1; exec sleep 4713.25", program.display())]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(PATIENCE, "the command runs", || processes().iter().any(|p| p.line.trim() == "sleep 4713.25"));
    signal(child.id(), libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(keys.path("run/manifest.json").exists(), "{}", said(&output));
    nothing_left("4713.25");
}

#[test]
fn a_connection_that_breaks_while_the_run_comes_back() {
    needs(&[ROOT, BPF, UPROBES, SSHD]);
    let _alone = alone();
    let keys = Keys::new();
    let server = Sshd::start(&keys, "");
    let run = keys.path("run");
    // Of the run only a part comes through. dd passes each byte on at once.
    let program = keys.program().display().to_string();
    let command = ["work", "--collect", "n,$regs", "--exec", &program, "--", &program, "3000"];
    let whole = keys.path("whole");
    let output = kprism(&keys.client(""))
        .args(["record", "probe", &server.on(), "-o"])
        .arg(&whole)
        .args(command)
        .output();
    assert!(output.as_ref().unwrap().status.success(), "{}", said(&output.unwrap()));
    let size = fs::metadata(whole.join("streams/probe/hits.bin")).unwrap().len();
    assert!(size > 50_000, "{size}");
    let cut = keys.client(&format!("dd bs=1 count={} 2>/dev/null", size / 2));
    let output =
        kprism(&cut).args(["record", "probe", &server.on(), "-o"]).arg(&run).args(command).output().unwrap();
    let error = said(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("broke after the recording, while the run was brought back"), "{error}");
    let info = kprism(&cut).args(["info", "-i"]).arg(&run).output().unwrap();
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    assert!(info.contains("stopped       the connection broke while the run was brought back"), "{info}");
    nothing_left("serve-through-ssh");
}

kprism_test::main!();
