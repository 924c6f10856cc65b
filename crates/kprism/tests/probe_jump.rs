// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jumps in place of traps (`record probe --jump`), in a program of several threads: the same hits and values as with uprobes, under
//! signals and forks, and the program's code as it was when the recorder ends, however it does.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kprism_test::{BPF, ROOT, UPROBES, needs, test, until};
use serde_json::Value;

/// A place whose first instruction is long, one that takes several, one in a function with locals on the stack.
const PROBES: [&str; 3] =
    ["single if n % 1000 == 1", "several if m == 1 && n < 50", "jump.c:46 if a + b > 39990"];

struct Case {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Case {
    fn new() -> Self {
        Self::built(&[])
    }

    fn built(options: &[&str]) -> Self {
        needs(&[ROOT, BPF, UPROBES]);
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("jump");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/jump.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-g", "-O2", "-pthread"]).args(options).arg("-o").arg(&program).arg(source);
        assert!(gcc.status().expect("gcc runs").success());
        Self { dir, program }
    }

    fn recorder(&self, jump: &str, probes: &[&str], then: &[&str]) -> Command {
        let values = ["--collect", "n,m,total,$pc - $pc, $rsp - $rsp"];
        self.plain(jump, &[probes, &values].concat(), then)
    }

    fn plain(&self, jump: &str, probes: &[&str], then: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(["record", "probe", "-o", "run", "--jump", jump, "--exec"]).arg(&self.program);
        command.args(probes).args(then);
        command.current_dir(self.dir.path());
        command
    }

    fn record(&self, jump: &str, probes: &[&str], then: &[&str]) -> (String, String, Option<i32>) {
        let Output { stdout, stderr, status } = self.recorder(jump, probes, then).output().expect("it runs");
        (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
    }

    /// Without values.
    fn record_plain(&self, jump: &str, probes: &[&str], then: &[&str]) -> (String, String, Option<i32>) {
        let Output { stdout, stderr, status } = self.plain(jump, probes, then).output().expect("it runs");
        (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), status.code())
    }

    fn report(&self) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(["report", "probe", "--json", "--limit", "0", "-i", "run"])
            .current_dir(self.dir.path())
            .output()
            .expect("kprism runs");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Hits and true conditions of each probe; and what each record has, in an order of its own.
    fn found(&self) -> (Vec<(u64, u64)>, Vec<String>) {
        let report = self.report();
        let counts = report["counts"].as_array().unwrap().iter();
        let counts = counts.map(|c| (c["hits"].as_u64().unwrap(), c["passed"].as_u64().unwrap())).collect();
        let text = |record: &Value| format!("{} {}", record["place"], record["values"]);
        let mut records: Vec<String> = report["rows"].as_array().unwrap().iter().map(text).collect();
        records.sort();
        (counts, records)
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let child = Command::new(&self.program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let running = Running(child);
        std::thread::sleep(Duration::from_millis(200));
        running
    }
}

/// The program, which runs until it is ended.
struct Running(Child);

impl Running {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Its code, as a debugger would read it.
    fn code(&self) -> Vec<u8> {
        code(self.0.id())
    }

    /// Ends it as it ends by itself, and returns the sums that it printed.
    fn end(mut self) -> Vec<String> {
        let mut said = String::new();
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGTERM) };
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
        said.lines().map(str::to_owned).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The executable mappings of the program's own file.
fn code(pid: u32) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" r-xp ") && line.ends_with("/jump")) {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let at = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; (at(to) - at(from)) as usize];
        memory.read_exact_at(&mut bytes, at(from)).unwrap();
        all.extend(bytes);
    }
    assert!(!all.is_empty(), "{maps}");
    all
}

/// Longest time that anything waited for may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the program prints when nobody watches.
fn alone(case: &Case, arguments: &[&str]) -> String {
    let output = Command::new(&case.program).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn hits_and_values_are_those_of_uprobes() {
    for options in [&[][..], &["-no-pie"]] {
        let case = Case::built(options);
        let program = case.program.to_str().unwrap().to_owned();
        let command = ["--", &program, "3", "20000"];
        let sums = alone(&case, &command[2..]);
        let (said, _, code) = case.record("never", &PROBES, &command);
        assert_eq!((said.as_str(), code), (sums.as_str(), Some(0)));
        let by_trap = case.found();
        assert_eq!(by_trap.0, [(60000, 60), (60000, 50), (60000, 4 + 5 + 5)], "{options:?}");
        let (said, notes, code) = case.record("only", &PROBES, &command);
        assert_eq!((said.as_str(), code), (sums.as_str(), Some(0)), "{notes}");
        assert_eq!(notes.matches(": a jump\n").count(), 3, "{notes}");
        assert_eq!(case.found(), by_trap, "{options:?}: {notes}");
        let manifest = std::fs::read_to_string(case.dir.path().join("run/manifest.json")).unwrap();
        assert_eq!(manifest.matches(": a jump\"").count(), 3, "{manifest}");
    }
}

/// A timer's signals interrupt threads in trampolines and at the places. In the end the code is what it was, and the sums are right.
#[test]
fn a_running_program_under_signals() {
    let case = Case::new();
    let sums = alone(&case, &["3", "20000"]);
    let running = case.start(&["3", "20000", "signals", "forever"]);
    let before = running.code();
    for round in 0..4 {
        let then = ["-p", &running.pid(), "--duration", "300ms"];
        let (_, notes, code) = case.record("auto", &PROBES, &then);
        assert_eq!(code, Some(0), "round {round}: {notes}");
        assert!(notes.contains("single at"), "{notes}");
        assert!(notes.matches(": a jump\n").count() >= 2, "round {round}: {notes}");
        assert!(case.found().0.iter().all(|(hits, _)| *hits > 1000), "{notes}");
        assert!(running.code() == before, "round {round}: the code is another: {notes}");
    }
    assert_eq!(running.end(), [sums.trim()]);
}

/// A child that is forked has its parent's jumps: its hits count, and its code is put back too.
#[test]
fn children_have_the_jumps() {
    let case = Case::new();
    let program = case.program.to_str().unwrap().to_owned();
    let command = ["--", &program, "2", "20000", "fork"];
    let sums = alone(&case, &command[2..]);
    let (said, notes, code) = case.record("only", &PROBES, &command);
    assert_eq!((said.as_str(), code), (sums.as_str(), Some(0)), "{notes}");
    assert_eq!(case.found().0, [(80000, 80), (80000, 100), (80000, 2 * (4 + 5))], "{notes}");
    let hooks =
        case.report()["probes"].as_array().unwrap().iter().map(|p| p["hook"].clone()).collect::<Vec<_>>();
    assert_eq!(hooks, ["jump"; 3], "{notes}");
}

/// The program that its recorder left in the middle goes on, with its own code; so it does after Ctrl-C.
#[test]
fn a_killed_recorder_leaves_the_code_as_it_was() {
    let case = Case::new();
    let sums = alone(&case, &["3", "20000"]);
    let running = case.start(&["3", "20000", "signals", "forever"]);
    let before = running.code();
    for signal in [libc::SIGKILL, libc::SIGINT] {
        let mut recorder = case.recorder("auto", &PROBES, &["-p", &running.pid()]);
        let mut recorder = recorder.stderr(Stdio::null()).spawn().unwrap();
        until(PATIENCE, "all jumps are there", || jumps(&before, &running.code()) >= PROBES.len());
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(recorder.id().cast_signed(), signal) };
        recorder.wait().unwrap();
        until(PATIENCE, "the code is put back", || running.code() == before);
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(running.end(), [sums.trim()]);
}

/// A recorder is killed while threads are stopped for its jumps, each time a little later: they go on as they were. A thread with another's registers, or
/// in a single step that nobody waits for, would end the program.
#[test]
fn a_recorder_killed_while_it_writes_jumps_harms_nobody() {
    /// At least, and at most: a stop is short where nothing else runs.
    const ROUNDS: (u32, u32) = (40, 400);
    let case = Case::new();
    let sums = alone(&case, &["3", "20000"]);
    let running = case.start(&["3", "20000", "signals", "forever"]);
    let before = running.code();
    let is_stopped = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap().flatten();
        let mut states =
            tasks.map(|task| std::fs::read_to_string(task.path().join("status")).unwrap_or_default());
        states.any(|status| status.contains("TracerPid:") && !status.contains("TracerPid:\t0\n"))
    };
    let (mut met, mut round) = (0, 0);
    while round < ROUNDS.0 || met == 0 && round < ROUNDS.1 {
        let mut recorder = case.recorder("auto", &PROBES, &["-p", &running.pid()]);
        let mut recorder = recorder.stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        // Not from the first breakpoint on: the kernel leaves one behind that is being set when its recorder is killed (docs/probe.md).
        while !is_stopped() && jumps(&before, &running.code()) == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no jump is written");
        }
        std::thread::sleep(Duration::from_micros(u64::from(round % 10) * 300));
        round += 1;
        met += u32::from(is_stopped());
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        until(PATIENCE, "the code is put back", || running.code() == before && !is_stopped());
    }
    assert!(met > 0, "no recorder was killed while a thread was stopped, in {round} rounds");
    assert_eq!(running.end(), [sums.trim()]);
}

/// Jumps are where the code differs, and no breakpoint.
fn jumps(before: &[u8], now: &[u8]) -> usize {
    before.iter().zip(now).filter(|(before, now)| before != now && **now == 0xe9).count()
}

#[test]
fn what_takes_no_jump_is_said_or_refused() {
    let case = Case::new();
    let program = case.program.to_str().unwrap().to_owned();
    let command = ["--", &program, "1", "100"];
    for (probe, why) in [
        ("single", "without a condition"),
        ("single%return if n > 5", "a function's return"),
        ("single if $tid > 5", "which the kernel knows"),
    ] {
        let (_, notes, code) = case.record_plain("auto", &[probe], &command);
        assert!(notes.contains("no jump: ") && notes.contains(why), "{code:?}: {notes}");
        assert_eq!(case.found().0[0].0, 100, "{notes}");
        let (said, notes, code) = case.record_plain("only", &[probe], &command);
        assert_eq!(code, Some(2), "{notes}");
        assert!(notes.contains("--jump only") && notes.contains(why) && said.is_empty(), "{notes}");
    }
    let (_, notes, code) = case.record("only", &["single if n > 5"], &["-a", "--duration", "1s"]);
    assert!(code == Some(2) && notes.contains("-p PID"), "{notes}");
    let (_, notes, _) = case.record("auto", &["single if n > 5"], &["-a", "--duration", "100ms"]);
    assert!(notes.contains("everybody's hits count"), "{notes}");
}

/// Processes that cannot be stopped, or could be ended for a system call, keep their traps.
#[test]
fn processes_that_take_no_jump() {
    let case = Case::new();
    let sums = alone(&case, &["1", "20000"]);
    let refused = |running: Running, why: &str| {
        let before = running.code();
        let then = ["-p", &running.pid(), "--duration", "200ms"];
        let (_, notes, _) = case.record("auto", &["single if n == 5"], &then);
        assert!(notes.contains("a trap, no jump: ") && notes.contains(why), "{notes}");
        let (_, notes, code) = case.record("only", &["single if n == 5"], &then);
        assert!(code == Some(2) && notes.contains(why), "{notes}");
        assert!(running.code() == before);
        running
    };
    assert_eq!(refused(case.start(&["1", "20000", "seccomp", "forever"]), "seccomp").end(), [sums.trim()]);
    let stopped = case.start(&["1", "20000", "forever"]);
    // SAFETY: the child has not been waited for.
    unsafe { libc::kill(stopped.0.id().cast_signed(), libc::SIGSTOP) };
    std::thread::sleep(Duration::from_millis(50));
    let stopped = refused(stopped, "SIGSTOP");
    // SAFETY: as above.
    unsafe { libc::kill(stopped.0.id().cast_signed(), libc::SIGCONT) };
    assert_eq!(stopped.end(), [sums.trim()]);
}

kprism_test::main!();
