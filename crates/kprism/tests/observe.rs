// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism observe`: QEMU with a command line of the user's, Debian's kernel at a random address, and one program of
//! which all system calls are known. Nothing in the guest knows of kprism.

mod guest;
mod judge;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guest::{alone, json, kprism, ok, text};
use kprism_test::{APT, GCC, PTORACLE, QEMU, cache, needs, test, turn};
use serde_json::Value;

/// Turns of the worker, in `init.c`.
const TURNS: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(240);

/// A guest's files: a kernel, an initramfs, the folder with its programs.
struct Guest {
    dir: tempfile::TempDir,
    kernel: PathBuf,
}

impl Guest {
    fn new() -> Self {
        needs(&[QEMU, APT, GCC]);
        ok(&["lab", "prepare", "-q"]);
        let kernels = cache().join("kernel");
        let newest = fs::read_to_string(kernels.join("debian.current")).unwrap();
        let guest =
            Self { dir: tempfile::tempdir().unwrap(), kernel: kernels.join(newest.trim()).join("vmlinuz") };
        let (root, source) = (guest.root(), Path::new("tests/observe/init.c"));
        fs::create_dir(&root).unwrap();
        let init = root.join("init");
        let built = Command::new("gcc").args(["-O1", "-static", "-o"]).args([&init, source]).status();
        assert!(built.unwrap().success());
        fs::copy(&init, root.join("worker")).unwrap();
        let mut archive = fs::File::create(guest.path("initrd")).unwrap();
        for name in ["init", "worker"] {
            let bytes = fs::read(root.join(name)).unwrap();
            let entry = cpio::newc::Builder::new(name).mode(0o100_755);
            let mut writer = entry.write(&mut archive, bytes.len() as u32);
            std::io::Write::write_all(&mut writer, &bytes).unwrap();
            writer.finish().unwrap();
        }
        cpio::newc::trailer(&mut archive).unwrap();
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn root(&self) -> PathBuf {
        self.path("root")
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("console")).unwrap_or_default()).into_owned()
    }

    /// A command line that asks for KVM, as people's do.
    fn observe(&self, options: &[&str], ends: &str, qemu: &[&str]) -> Command {
        self.behind(&[], options, ends, qemu)
    }

    /// The same behind other words.
    fn behind(&self, words: &[&str], options: &[&str], ends: &str, qemu: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(words).arg("observe").arg("-o").arg(self.path("run")).args(options).arg("--");
        command.args(["qemu-system-x86_64", "-enable-kvm", "-m", "512", "-nodefaults", "-display", "none"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(self.path("initrd"));
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 ends={ends}")]);
        command.arg("-serial").arg(format!("file:{}", self.path("console").display())).args(qemu);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts it, and waits until the guest's console has this word.
    fn start_until(&self, word: &str, options: &[&str], ends: &str, qemu: &[&str]) -> Child {
        let child = self.observe(options, ends, qemu).spawn().unwrap();
        let start = Instant::now();
        while !self.console().contains(word) {
            assert!(start.elapsed() < PATIENCE, "no `{word}` in: {}", self.console());
            std::thread::sleep(Duration::from_millis(50));
        }
        child
    }

    fn mark(&self, what: &str) -> String {
        let output = kprism(&["mark", what, "-i", text(&self.path("run"))]);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    fn manifest(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("run/manifest.json")).unwrap()).unwrap()
    }

    fn report(&self, words: &[&str]) -> Value {
        json(&[&["report"], words, &["-q", "--json", "--limit", "0", "-i", text(&self.path("run"))]].concat())
    }
}

/// Sends a signal, and waits for the end: the exit code, if there is one, and standard error.
fn end(child: Child, signal: i32) -> (Option<i32>, String) {
    // SAFETY: the process is a child that nobody has waited for yet, so the number is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Calls of each system call by the worker.
fn syscalls(report: &Value) -> Vec<(String, u64)> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["syscall"].as_str().unwrap().to_owned(), number(&row["count"]))).collect()
}

/// A window for each of two processes, by their name; the kernel's place is random, and none of it was told to kprism.
#[test]
fn a_process_by_its_name() {
    let guest = Guest::new();
    let _alone = alone();
    let root = guest.root();
    let options = ["--process", "worker", "--sysroot", text(&root)];
    let output = guest.observe(&options, "now", &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{}", guest.console());
    assert!(said.contains("-enable-kvm: the guest is translated"), "{said}");
    let manifest = guest.manifest();
    assert_eq!((&manifest["kind"], &manifest["exit_code"]), (&"machine".into(), &0.into()));
    let release = manifest["kernel"]["release"].as_str().unwrap();
    assert!(guest.console().contains(&format!("release {release}")), "{release}: {}", guest.console());
    assert_eq!((&manifest["options"]["windows"], &manifest["decode_errors"]), (&2.into(), &0.into()));
    let syscalls = syscalls(&guest.report(&["syscalls", "--comm", "worker"]));
    for (name, calls) in [("openat", TURNS), ("read", TURNS), ("close", TURNS), ("getppid", TURNS)] {
        let found = syscalls.iter().find(|(known, _)| known == name).map(|(_, calls)| *calls);
        assert!(
            found.is_some_and(|found| found >= 2 * calls && found < 2 * calls + 20),
            "{name}: {syscalls:?}"
        );
    }
    let functions = guest.report(&["functions", "--comm", "worker"]);
    let rows = functions["rows"].as_array().unwrap();
    let calls = |name: &str| rows.iter().find(|row| row["function"] == name).map(|row| number(&row["calls"]));
    assert_eq!(calls("turn"), Some(2 * TURNS), "by its file in --sysroot");
    assert_eq!(
        calls("__do_sys_getppid").or(calls("__x64_sys_getppid")),
        Some(2 * TURNS),
        "by its address in memory"
    );
}

/// From another terminal: begin, pause, go on, two CPUs; Intel's decoder reads the same.
#[test]
fn marks_begin_and_pause() {
    needs(&[PTORACLE]);
    turn(2, 0);
    let guest = Guest::new();
    let _alone = alone();
    let child = guest.start_until("worked", &["--no-decode"], "never", &["-smp", "2"]);
    assert_eq!(guest.mark("stop"), "nothing is recorded\n");
    assert_eq!(guest.mark("start"), "recording\n");
    assert_eq!(guest.mark("start"), "recording already\n");
    std::thread::sleep(Duration::from_secs(1));
    assert!(guest.mark("stop").starts_with("stopped"));
    let size = || fs::metadata(guest.path("run/streams/cpu0.pt")).unwrap().len();
    std::thread::sleep(Duration::from_millis(500));
    let paused = size();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(size(), paused, "nothing is written while it is paused");
    assert_eq!(guest.mark("start"), "recording again\n");
    std::thread::sleep(Duration::from_millis(500));
    let (code, said) = end(child, libc::SIGINT);
    assert_eq!(code, Some(0), "{said}");
    assert!(guest.mark("start").contains("no `kprism observe` is writing this run"));
    judge::compare(&guest.path("run"), &judge::oracle());
    let tasks = guest.report(&["tasks"]);
    let names: Vec<&str> =
        tasks["rows"].as_array().unwrap().iter().filter_map(|row| row["comm"].as_str()).collect();
    assert!(names.contains(&"worker") && names.contains(&"init"), "{names:?}");
    let manifest = guest.manifest();
    assert_eq!((&manifest["decode_errors"], &manifest["lost_bytes"]), (&0.into(), &0.into()));
}

/// Under `top` it is seen while it grows, and the same folder has the same numbers at the end.
#[test]
fn top_watches_a_machine() {
    turn(2, 1);
    let guest = Guest::new();
    let _alone = alone();
    let top = ["top", "--batch", "--interval", "200ms", "--limit", "100000"];
    let root = guest.root();
    let mut command = guest.behind(&top, &["--process", "worker", "--sysroot", text(&root)], "never", &[]);
    let child = command.stdout(fs::File::create(guest.path("blocks")).unwrap()).spawn().unwrap();
    let blocks = || fs::read_to_string(guest.path("blocks")).unwrap();
    let start = Instant::now();
    // A block of a machine that runs, with what the worker did.
    while !(blocks().contains("bytes decoded") && blocks().contains("\ngetppid ")) {
        assert!(start.elapsed() < PATIENCE, "{}\n{}", blocks(), guest.console());
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, said) = end(child, libc::SIGINT);
    assert_eq!(code, Some(0), "{said}");
    let text = blocks();
    let last = text.split("--- ").last().unwrap();
    assert!(last.starts_with("ended with 0"), "{last}");
    // Each function with its calls, each system call and each task is in the last block as the report has it.
    let rows = |section: &str| -> Vec<Vec<String>> {
        let (_, rest) =
            last.split_once(&format!("\n{section}\n")).unwrap_or_else(|| panic!("{section}: {last}"));
        let lines = rest.split("\n\n").next().unwrap().lines().skip(1);
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let calls = rows("syscalls");
    let report = guest.report(&["syscalls"]);
    let told = syscalls(&report);
    assert_eq!(calls.len(), told.len());
    for (name, count) in &told {
        let row = calls.iter().find(|row| row[0] == *name).unwrap_or_else(|| panic!("{name}: {calls:?}"));
        assert_eq!(row[1].replace(',', ""), count.to_string(), "{row:?}");
    }
    assert!(told.iter().any(|(name, count)| name == "getppid" && *count > 0), "{told:?}");
    let functions = guest.report(&["functions"]);
    assert_eq!(rows("functions").len(), functions["rows"].as_array().unwrap().len());
    assert_eq!(guest.manifest()["kind"], "machine");
}

/// After kill -9 no QEMU stays, and what was recorded can be read.
#[test]
fn a_recorder_that_is_killed() {
    let guest = Guest::new();
    let _alone = alone();
    let child = guest.start_until("worked", &[], "never", &[]);
    assert_eq!(guest.mark("start"), "recording\n");
    std::thread::sleep(Duration::from_secs(1));
    let run = guest.path("run");
    assert_eq!(end(child, libc::SIGKILL).0, None);
    let qemus = || {
        let mut all = Command::new("pgrep");
        all.args(["-f", "--", text(&guest.path("initrd"))]);
        String::from_utf8_lossy(&all.output().unwrap().stdout).lines().count()
    };
    let start = Instant::now();
    while qemus() > 0 {
        assert!(start.elapsed() < PATIENCE, "QEMU runs on");
        std::thread::sleep(Duration::from_millis(50));
    }
    let report = guest.report(&["tasks"]);
    assert!(!report["rows"].as_array().unwrap().is_empty(), "{report}");
    assert!(guest.manifest()["stopped"].as_str().unwrap().contains("not ended properly"));
    let strict = kprism(&["report", "tasks", "--strict", "-i", text(&run)]);
    assert_eq!(strict.status.code(), Some(4));
}

/// A kernel that starts anew has other addresses.
#[test]
fn the_recording_ends_where_the_guest_restarts() {
    let guest = Guest::new();
    let _alone = alone();
    let child = guest.start_until("worked", &[], "restart", &[]);
    assert_eq!(guest.mark("start"), "recording\n");
    let start = Instant::now();
    while guest.console().matches("worked").count() < 2 {
        assert!(start.elapsed() < PATIENCE, "{}", guest.console());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(guest.mark("start").contains("restarted"));
    let (code, said) = end(child, libc::SIGTERM);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(guest.manifest()["stopped"], "the guest restarted");
}

/// At its limit the recording ends, and the machine does not.
#[test]
fn the_recording_ends_at_its_limit() {
    let guest = Guest::new();
    let _alone = alone();
    let child = guest.start_until("worked", &["--max-size", "4M"], "never", &[]);
    assert_eq!(guest.mark("start"), "recording\n");
    let why = "the recording reached --max-size, 4.0 MiB";
    let start = Instant::now();
    while !guest.mark("start").contains(why) {
        assert!(start.elapsed() < PATIENCE, "{}", guest.console());
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, said) = end(child, libc::SIGTERM);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the machine runs on"), "{said}");
    assert_eq!(guest.manifest()["stopped"], why);
    let report = guest.report(&["tasks"]);
    assert!(!report["rows"].as_array().unwrap().is_empty(), "{report}");
}

/// Firmware alone: no kernel, 16-bit and 32-bit code. Every instruction is in the tables or in the account.
#[test]
fn a_guest_without_linux() {
    needs(&[QEMU]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args([
        "observe",
        "-o",
        text(&run),
        "--",
        "qemu-system-x86_64",
        "-nodefaults",
        "-display",
        "none",
    ]);
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mark = || {
        let output = kprism(&["mark", "start", "-i", text(&run)]);
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let start = Instant::now();
    let said = loop {
        let (done, said) = mark();
        if done {
            break said;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(said.contains("no Linux kernel was found"), "{said}");
    std::thread::sleep(Duration::from_secs(3));
    let (code, said) = end(child, libc::SIGINT);
    assert_eq!(code, Some(0), "{said}");
    let info = json(&["info", "--json", "-i", text(&run)]);
    assert_eq!(info["decode_errors"], 0, "{said}");
    let (decoded, recorded) = (number(&info["instructions"]), number(&info["instructions_recorded"]));
    assert!(recorded > 1000 && decoded <= recorded && decoded * 10 > recorded * 9, "{decoded} of {recorded}");
    let functions = json(&["report", "functions", "-q", "--json", "--limit", "0", "-i", text(&run)]);
    let names = functions["rows"].as_array().unwrap().iter().filter_map(|row| row["function"].as_str());
    assert!(
        names.filter(|name| name.starts_with("0x")).count() > 3,
        "functions by their addresses: {functions}"
    );
    let notes = info["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("no Linux kernel")), "{info}");
}

/// What cannot be observed is refused, before anything runs.
#[test]
fn command_lines_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    for (words, why) in [
        (&["qemu-system-aarch64", "-M", "virt"][..], "not aarch64"),
        (&["qemu-system-x86_64", "-device", "vfio-pci,host=01:00.0"], "needs KVM"),
        (&["qemu-system-x86_64", "-icount", "auto"], "shift=0"),
        (&["qemu-system-x86_64", "-daemonize"], "child"),
        (&["/no/such/qemu-system-x86_64"], "not found"),
    ] {
        let output = kprism(&[&["observe", "-o", text(&run), "--"], words].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!run.exists(), "no run is made");
    }
    let both = kprism(&["observe", "--all", "--process", "sh", "--", "qemu-system-x86_64"]);
    assert_eq!(both.status.code(), Some(2));
}

kprism_test::main!();
