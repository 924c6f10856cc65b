// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions on who called a place, and in which container: programs that call a known number of times, the kernel of the
//! guest judged by its own counts of system calls, a cgroup with a container's name.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kprism_test::{APT, BPF, QEMU, ROOT, UPROBES, needs, skip, test};
use serde_json::{Value, json};

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn built(dir: &Path, flags: &[&str]) -> PathBuf {
    let program = dir.join("callers");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/callers.c");
    let status = Command::new("gcc").args(["-g", "-o"]).arg(&program).args(flags).arg(source).status();
    assert!(status.expect("gcc runs").success());
    program
}

fn report(run: &Path) -> Value {
    let output = kprism(&["report", "probe", "--json", "--limit", "0", "-i", run.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Records these probes of the program at once; how often each condition held.
fn passed(program: &Path, dir: &Path, probes: &[&str], command: &[&str]) -> (Vec<u64>, Value) {
    let run = dir.join("run");
    let mut args = vec!["record", "probe", "--collect", "n", "-o", run.to_str().unwrap()];
    args.extend(["--exec", program.to_str().unwrap()]);
    args.extend(probes);
    args.extend(["--", program.to_str().unwrap()]);
    args.extend(command);
    let output = kprism(&args);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report = report(&run);
    let counts = report["counts"].as_array().unwrap().iter();
    (counts.map(|count| count["passed"].as_u64().unwrap()).collect(), report)
}

#[test]
fn callers_in_programs() {
    needs(&[ROOT, BPF, UPROBES]);
    let dir = tempfile::tempdir().unwrap();
    let probes = [
        "leaf if called_by(\"first\")",
        "leaf if called_by(\"second\")",
        "leaf if called_by(\"outer\")",
        "leaf if called_by(\"main\")",
        "leaf if !called_by(\"first\")",
        "leaf if called_by(\"leaf\")",
        "leaf if called_by(\"first\", 1)",
        "leaf if called_by(\"outer\", 1)",
        "leaf if called_by(\"outer\", 2)",
        "leaf if called_by(\"main\", 2)",
        "leaf if called_by(\"second\") && n == 99",
    ];
    for flags in [&["-O1", "-fno-omit-frame-pointer"][..], &["-O0", "-no-pie"]] {
        let program = built(dir.path(), flags);
        let (found, _) = passed(&program, dir.path(), &probes, &[]);
        assert_eq!(found, [3, 5, 2, 8, 5, 1, 3, 0, 2, 5, 1], "{flags:?}");
    }
    // Without frame pointers the direct caller is certain.
    let program = built(dir.path(), &["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]);
    let direct = [probes[6], "leaf if called_by(\"second\", 1)"];
    assert_eq!(passed(&program, dir.path(), &direct, &[]).0, [3, 4]);
    // Deeper than is looked at: not false, but not known.
    let program = built(dir.path(), &["-O0", "-no-pie"]);
    let deep =
        ["leaf if called_by(\"main\")", "leaf if called_by(\"down\")", "leaf if called_by(\"main\", 32)"];
    let (found, report) = passed(&program, dir.path(), &deep, &["deep"]);
    assert_eq!(found, [0, 1, 0]);
    assert_eq!(report["counts"][0]["condition_errors"], json!({"more callers than are looked at": 1}));
    assert_eq!(report["counts"][2]["condition_errors"], json!({}));
    for (condition, why) in [
        ("called_by(\"frist\")", "did you mean `first`?"),
        ("called_by(first)", "a function's name in double quotes is expected"),
        ("called_by(\"first\", 33)", "of the nearest 1 to 32 callers"),
        ("called_by(\"first\", 0)", "of the nearest 1 to 32 callers"),
    ] {
        let probe = format!("leaf if {condition}");
        let output = kprism(&["record", "probe", &probe, "--exec", program.to_str().unwrap(), "--", "true"]);
        assert!(!output.status.success() && said(&output).contains(why), "{condition}: {}", said(&output));
    }
}

#[test]
fn callers_in_the_kernel() {
    needs(&[QEMU, APT]);
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("callers.kp"));
    std::fs::write(
        &file,
        r#"
vfs_read if called_by("__x64_sys_pread64")
    by 1
syscalls:sys_enter_pread64
    by 1
vfs_read if called_by("ksys_read")
    by 1
syscalls:sys_enter_read
    by 1
vfs_read if called_by("ksys_read", 1)
    by 1
vfs_read if called_by("vfs_read")
    by 1
vfs_read%return if called_by("ksys_read", 1)
    by 1
sysfs_emit if called_by("vfs_read")
    collect $callers
sysfs_emit%return if called_by("uevent_seqnum_show", 1)
    collect $callers
sched:sched_process_exit if called_by("do_exit")
    by 1
vfs_read if called_by("ksys_read")
    collect $callers
vfs_read if called_by("no_such_function")
    by 1
"#,
    )
    .unwrap();
    let (file, at) = (file.to_str().unwrap(), run.to_str().unwrap());
    let command = ["--", "sh", "-c", "cat /sys/kernel/uevent_seqnum; cat /proc/version"];
    let output = kprism(&[&["record", "probe", "-f", file, "--guest", "-o", at][..], &command].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("this kernel has no function `no_such_function`"), "{text}");
    let report = report(&run);
    let passed: Vec<u64> =
        report["counts"].as_array().unwrap().iter().map(|c| c["passed"].as_u64().unwrap()).collect();
    assert!(passed[0] > 0 && passed[0] == passed[1], "{passed:?}");
    assert!(passed[2] > 0 && passed[2] == passed[3], "{passed:?}");
    assert_eq!((passed[4], passed[5], passed[6]), (passed[2], 0, passed[2]), "{passed:?}");
    assert_eq!((passed[7], passed[8]), (1, 1), "{passed:?}");
    assert!(passed[9] >= 3, "{passed:?}");
    let names = |probe: usize| -> Vec<String> {
        let probe = &report["probes"][probe]["place"];
        let record = report["rows"].as_array().unwrap().iter().find(|r| &r["probe"] == probe).unwrap();
        let frames = record["values"]["$callers"].as_array().unwrap();
        frames.iter().map(|frame| frame.as_str().unwrap().to_owned()).collect()
    };
    for probe in [7, 8] {
        assert_eq!(names(probe)[0], "uevent_seqnum_show", "{:?}", names(probe));
        assert!(names(probe).contains(&"do_syscall_64".to_owned()));
    }
    assert_eq!(names(10)[0], "ksys_read", "{:?}", names(10));
}

/// A cgroup with a container's name, removed when dropped.
struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.0.join("inner"));
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn containers() {
    needs(&[ROOT, BPF, UPROBES]);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let root = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let Some(root) = root.and_then(|line| line.split(' ').nth(1)) else { skip("no cgroups of version 2") };
    let id = format!("{:016x}", std::process::id()).repeat(4);
    let folder = Path::new(root).join(format!("docker-{id}.scope"));
    if let Err(why) = std::fs::create_dir(&folder) {
        skip(format!("no cgroup can be made: {why}"));
    }
    let group = Cgroup(folder);
    std::fs::create_dir(group.0.join("inner")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &["-O0"]);
    let run = dir.path().join("run");
    let script = format!(
        "{0}; echo $$ > {1}/cgroup.procs; {0}; echo $$ > {1}/inner/cgroup.procs; {0}; {0}; echo $$ > {2}/cgroup.procs",
        program.display(),
        group.0.display(),
        root
    );
    let record = |probes: &[&str], options: &[&str]| {
        let mut args =
            vec!["record", "probe", "-o", run.to_str().unwrap(), "--exec", program.to_str().unwrap()];
        args.extend(options);
        args.extend(probes);
        args.extend(["--", "sh", "-c", &script]);
        kprism(&args)
    };
    let short = format!("outer if $container == \"{}\"", &id[..20]);
    let other = format!("outer if $container != \"{id}\"");
    let output = record(&[&short, &other], &["--by", "$container"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let counted = report(&run);
    let rows = |n: usize| counted["totals"][n]["rows"].clone();
    assert_eq!(rows(0)[0]["key"], json!({"$container": id}));
    assert_eq!((&rows(1)[0]["key"], &rows(1)[0]["count"]), (&json!({"$container": "none"}), &json!(2)));
    assert_eq!(
        (counted["counts"][0]["passed"].as_u64(), counted["counts"][1]["passed"].as_u64()),
        (Some(6), Some(2))
    );
    let output = record(&["outer"], &["--collect", "$container", "--printf", r#""in %s",$container"#]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let found = report(&run);
    let found: Vec<&Value> =
        found["rows"].as_array().unwrap().iter().map(|r| &r["values"]["$container"]).collect();
    assert_eq!(found.iter().filter(|value| ***value == json!(id)).count(), 6, "{found:?}");
    let lines = kprism(&["script", "probe", "-i", run.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&lines.stdout).contains(&format!("in {id}\n")), "{lines:?}");
    // One that is not there now is not waited for.
    let output = record(&["outer if $container == \"nosuch\""], &[]);
    assert!(!output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("one that starts later is not seen"), "{}", said(&output));
    let output = record(&["outer if $container > 3"], &[]);
    assert!(said(&output).contains("`$container` is an id"), "{}", said(&output));
}

kprism_test::main!();
