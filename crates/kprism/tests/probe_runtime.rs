// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies between a hit and its record, at real programs: PID namespaces, many probes that begin and end at one moment,
//! memory that a process has not touched, calls that the kernel gives up on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use kprism_test::{BPF, MOUNTS, ROOT, UPROBES, needs, test};
use serde_json::Value;

struct Case {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Case {
    /// uprobes need root, and a kernel that has them.
    fn new() -> Self {
        needs(&[ROOT, BPF, UPROBES]);
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("runtime");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/runtime.c");
        let status = Command::new("gcc").args(["-g", "-O1", "-o"]).arg(&program).arg(source).status();
        assert!(status.expect("gcc runs").success());
        Self { dir, program }
    }

    /// `kprism record probe`, in front of which something else may stand; what it said, and its exit code.
    fn record(&self, before: &[&str], options: &[&str], then: &[&str]) -> (String, Option<i32>) {
        let mut words: Vec<&str> = before.to_vec();
        words.extend([env!("CARGO_BIN_EXE_kprism"), "record", "probe", "-o", "run"]);
        words.extend(["--exec", self.program.to_str().unwrap()]);
        words.extend(options);
        words.extend(then);
        let Output { stderr, status, .. } =
            Command::new(words[0]).args(&words[1..]).current_dir(self.dir.path()).output().expect("it runs");
        (String::from_utf8(stderr).unwrap(), status.code())
    }

    fn report(&self) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(["report", "probe", "--json", "--limit", "0", "-i", "run"])
            .current_dir(self.dir.path())
            .output()
            .expect("kprism runs");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn hits(&self) -> Vec<u64> {
        let report = self.report();
        report["counts"].as_array().unwrap().iter().map(|c| c["hits"].as_u64().unwrap()).collect()
    }
}

/// A program that calls `tick` for ever, ended when dropped.
struct Ticking(Child);

impl Ticking {
    fn start(program: &Path) -> Self {
        Self(Command::new(program).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// In a namespace of its own a process has another number than the programs see.
#[test]
fn in_a_pid_namespace() {
    needs(&[MOUNTS]);
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let own = ["unshare", "--pid", "--fork", "--mount-proc"];
    let (said, code) = case.record(&own, &["deep", "--collect", "n"], &["--", program, "deep", "5"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(case.hits(), [5], "{said}");
    assert!(said.contains("PID namespace"), "{said}");
    // One that runs already, by its number there; the command that is started beside it does not count.
    let script = format!(
        "{program} & pid=$!; {} record probe -o run --exec {program} tick -p $pid --stop-after 50 --collect n \
         --duration 20s; code=$?; kill $pid; exit $code",
        env!("CARGO_BIN_EXE_kprism")
    );
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script])
        .current_dir(case.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(case.report()["rows"].as_array().unwrap().len(), 50, "{said}");
    // Everybody's but the recorder's, of a process outside of the namespace too.
    let _outside = Ticking::start(&case.program);
    let (said, code) =
        case.record(&own, &["tick", "-a", "--stop-after", "50", "--collect", "n", "--duration", "20s"], &[]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(case.report()["rows"].as_array().unwrap().len(), 50, "{said}");
    let (said, code) = case.record(&own, &["tick", "-p", "4000000"], &[]);
    assert_eq!(code, Some(2), "{said}");
}

/// Twenty probes at one place count the same: all begin at one moment, and end at one other, however long it takes to attach
/// and detach them.
#[test]
fn equal_probes_count_equally() {
    let case = Case::new();
    let ticking = Ticking::start(&case.program);
    let pid = ticking.0.id().to_string();
    let probes = ["tick"; 20];
    let (said, code) =
        case.record(&[], &[&probes[..], &["--by", "0", "-p", &pid, "--duration", "300ms"]].concat(), &[]);
    assert_eq!(code, Some(0), "{said}");
    let hits = case.hits();
    let (least, most) = (hits.iter().min().unwrap(), hits.iter().max().unwrap());
    // A hit that was half way through the probes at the moment counts for some of them.
    assert!(hits.len() == 20 && *least > 100 && most - least <= 2, "{hits:?}");
}

/// The kernel gives up on returns of calls that lie more than 64 deep in each other.
#[test]
fn returns_that_the_kernel_gives_up_on_are_counted() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    for (depth, seen) in [("101", 64), ("64", 64)] {
        for collect in ["$retval", "$retval,n"] {
            let (said, code) =
                case.record(&[], &["deep%return", "--collect", collect], &["--", program, "deep", depth]);
            assert_eq!(code, Some(0), "{said}");
            assert_eq!(case.hits(), [seen], "{said}");
            let unreturned = case.report()["counts"][0]["unreturned"].as_u64().unwrap();
            assert_eq!(seen + unreturned, depth.parse::<u64>().unwrap(), "{said}");
            assert_eq!(said.contains("not seen to return"), unreturned > 0, "{said}");
        }
    }
}

/// What a file holds is not in a forked child's memory before the child touches it.
#[test]
fn children_that_have_touched_nothing() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let probe = "child if pair->two == 22";
    let (said, code) = case.record(&[], &[probe, "--collect", "text,*pair"], &["--", program, "fork", "100"]);
    assert_eq!(code, Some(0), "{said}");
    let report = case.report();
    let records = report["rows"].as_array().unwrap();
    assert_eq!(records.len(), 100, "{said}");
    for record in records {
        assert_eq!(record["values"]["text"], "a string of the file", "{record}");
        assert_eq!(record["values"]["*pair"], serde_json::json!({"one": 11, "two": 22}), "{record}");
    }
    // What a condition compares is brought in too.
    let probe = "child if text == \"a string of the file\"";
    let (said, code) = case.record(&[], &[probe, "--collect", "*pair"], &["--", program, "fork", "100"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(case.report()["rows"].as_array().unwrap().len(), 100, "{said}");
    assert!(!said.contains("bad read"), "{said}");
    // As a key too.
    let (said, code) = case.record(&[], &["child", "--by", "text"], &["--", program, "fork", "100"]);
    assert_eq!(code, Some(0), "{said}");
    let report = case.report();
    assert_eq!(report["counts"][0]["keys_failed"], 0, "{report}");
    assert_eq!(report["counts"][0]["passed"], 100, "{report}");
}

/// One probe that cannot be attached leaves the others; what is said of the last records is true.
#[test]
fn what_could_not_be_done_is_said() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    // `runtime` is compiled into a file, which then names a place that is none.
    let kprism = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).current_dir(case.dir.path()).output().unwrap()
    };
    let output = kprism(&["compile", "deep", "child", "--exec", program, "--collect", "-n", "-o", "two"]);
    assert!(!output.status.success(), "child has no n");
    let output = kprism(&["compile", "deep", "tick", "--exec", program, "--collect", "-n,n", "-o", "two"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // At another place.
    let moved = case.dir.path().join("moved");
    std::fs::copy(program, &moved).unwrap();
    let moved = moved.to_str().unwrap();
    let args =
        ["record", "probe", "--program", "two", "--exec", moved, "-o", "run", "--", moved, "deep", "3"];
    let output = kprism(&args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(case.hits(), [3, 0], "{said}");
    let values: Vec<Value> =
        case.report()["rows"].as_array().unwrap().iter().map(|r| r["values"]["-n"].clone()).collect();
    assert_eq!(values, [-2, -1, 0].map(Value::from), "{said}");
    // One of the two is outside of the file.
    let mut compiled: Value =
        serde_json::from_slice(&std::fs::read(case.dir.path().join("two")).unwrap()).expect("JSON");
    let plans = compiled["plans"].as_array_mut().unwrap();
    let site = plans[0]["site"].as_object_mut().unwrap().values_mut().next().unwrap();
    site["offset"] = 0x7fff_0000_u64.into();
    std::fs::write(case.dir.path().join("two"), compiled.to_string()).unwrap();
    let output = kprism(&["record", "probe", "--program", "two", "-o", "run", "--", program, "deep", "3"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not attached: deep: ") && said.contains("tick: 0 hits"), "{said}");
    // A ring that is too small for what comes before the recorder looks.
    let (said, code) = case.record(
        &[],
        &["tick", "--collect", "n,$regs", "--buffer-size", "64K", "--last", "10", "--stop-after", "200000"],
        &["--duration", "2s", "--", program],
    );
    let _ = code;
    let lost = case.report()["counts"][0]["lost"].as_u64().unwrap();
    assert_eq!(said.contains("may not be the last"), lost > 0, "{said}");
}

/// A command that a signal ends, one that is not there, and names and options that would mean nothing.
#[test]
fn what_becomes_of_the_command_is_said() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let (said, code) = case.record(&[], &["tick", "--collect", "n"], &["--", program, "crash", "3"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ended by signal 11 (SIGSEGV)") && case.hits() == [3], "{said}");
    let manifest = std::fs::read(case.dir.path().join("run/manifest.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&manifest).unwrap()["exit_code"], 139);
    // What was recorded before stays.
    let (said, code) = case.record(&[], &["tick", "--collect", "n"], &["--", "./nowhere"]);
    assert!(code == Some(2) && said.contains("nowhere"), "{said}");
    assert_eq!(case.hits(), [3]);
    let refused: [(&[&str], &str); 6] = [
        (&["tick", "--var", "pid=3"], "has a meaning already"),
        (&["tick", "--var", "rax"], "has a meaning already"),
        (&["tick", "--var", "n=1", "--var", "n=2"], "there twice"),
        (&["tick", "--keys", "5", "--collect", "n"], "--by"),
        (&["tick", "--collect", "n", "-p", "999999999"], "process 999999999"),
        (&["tick", "--collect", "n", "--skip", "5000000000000000000"], "--skip"),
    ];
    for (options, why) in refused {
        let (said, code) = case.record(&[], options, &["--", program, "crash", "1"]);
        assert!(code == Some(2) && said.contains(why), "{options:?}: {said}");
    }
    let ticking = Ticking::start(&case.program);
    let pid = ticking.0.id().to_string();
    let (said, _) = case.record(&[], &["tick", "--stop-after", "10", "-p", &pid], &["--", "sleep", "0.2"]);
    assert!(said.contains("not those of the command"), "{said}");
}

/// A full disk ends the recording: its records up to there are whole, and the rest is counted.
#[test]
fn a_full_disk_is_accounted_for() {
    needs(&[MOUNTS]);
    let case = Case::new();
    let full = case.dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    let script = r#"mount -t tmpfs -o size=1M none full
        "$1" record probe tick --collect 'n,$regs' -o full/run --exec "$2" --duration 6s -- "$2" 2> said; code=$?
        "$1" report probe --json --limit 1 -i full/run > report.json || code=99
        exit $code"#;
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_kprism"), case.program.to_str().unwrap()])
        .current_dir(case.dir.path())
        .status()
        .expect("unshare");
    let read = |name: &str| std::fs::read_to_string(case.dir.path().join(name)).unwrap_or_default();
    let said = read("said");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("No space left on device") && said.contains("is kept"), "{said}");
    let report: Value = serde_json::from_str(&read("report.json")).expect("JSON");
    let count = |unit: &str| {
        let mut all = report["run"]["account"].as_array().unwrap().iter();
        all.find(|entry| entry["unit"] == unit).unwrap()["count"].as_u64().unwrap()
    };
    assert!(count("records") > 1000 && count("records missing from the file") > 0, "{report}");
    assert_eq!(count("damaged records"), 0, "{report}");
}

/// A command that has given enough goes on, but not for longer than it may.
#[test]
fn the_time_of_a_command_ends_after_enough_too() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let options = ["tick", "--collect", "n", "--stop-after", "3", "--duration", "1s"];
    let (said, code) = case.record(&["timeout", "-s", "KILL", "60"], &options, &["--", program]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(case.report()["rows"].as_array().unwrap().len(), 3, "{said}");
}

/// The last record of a recorder that was killed may be half of one.
#[test]
fn records_before_damage_are_shown() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let (said, code) = case.record(&[], &["deep", "--collect", "n"], &["--", program, "deep", "4"]);
    assert_eq!(code, Some(0), "{said}");
    let hits = case.dir.path().join("run/streams/probe/hits.bin");
    let bytes = std::fs::read(&hits).unwrap();
    std::fs::write(&hits, &bytes[..bytes.len() - 3]).unwrap();
    let report = case.report();
    assert_eq!(report["rows"].as_array().unwrap().len(), 3, "{report}");
    assert!(report["run"]["account"].to_string().contains("expected a record of"), "{report}");
    for args in [&["script", "probe", "-i", "run"][..], &["export", "-i", "run", "-o", "-.csv"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).current_dir(case.dir.path()).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("records end there"), "{args:?}: {said}");
        assert!(String::from_utf8_lossy(&output.stdout).lines().count() >= 3, "{args:?}");
    }
}

/// Options that records of probes, or a recording of this machine, have no use for are refused, not ignored.
#[test]
fn no_option_is_ignored() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let (said, code) = case.record(&[], &["deep", "--collect", "n"], &["--", program, "deep", "4"]);
    assert_eq!(code, Some(0), "{said}");
    let run = case.dir.path().join("run");
    let run = run.to_str().unwrap();
    let kprism = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(args)
            .current_dir(case.dir.path())
            .output()
            .unwrap();
        let all = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(all).unwrap())
    };
    let refused: [&[&str]; 13] = [
        &["report", "probe", "-i", run, "--comm", "x"],
        &["report", "probe", "-i", run, "--sort", "n"],
        &["report", "probe", "-i", run, "--syscall", "read"],
        &["report", "probe", "name", "-i", run],
        &["script", "probe", "-i", run, "--comm", "x"],
        &["script", "probe", "-i", run, "--func", "x"],
        &["export", "-i", run, "-o", "x.csv", "--comm", "x"],
        &["export", "-i", run, "-o", "x.parquet", "--syscall", "read"],
        &["record", "probe", "deep", "--timeout", "3", "--", program, "deep", "1"],
        &["record", "probe", "deep", "--env", "A=1", "--", program, "deep", "1"],
        &["record", "probe", "deep", "--smp", "2", "--", program, "deep", "1"],
        &["record", "func", "--cwd", "/", "--", "true"],
        &["record", "func", "--before", "true", "--", "true"],
    ];
    for args in refused {
        let (code, said) = kprism(args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        let reasons = ["does not go with", "add --guest", "unexpected argument"];
        assert!(reasons.iter().any(|reason| said.contains(reason)), "{args:?}: {said}");
    }
    // Tasks are chosen in every export; without a subject it is the probes that are shown; no lines are no lines.
    let (code, said) = kprism(&["export", "-i", run, "-o", "-.csv"]);
    assert_eq!((code, said.lines().count()), (Some(0), 5), "{said}");
    let (_, said) = kprism(&["export", "-i", run, "-o", "-.csv", "--task", "4000000"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    let (code, said) = kprism(&["report", "-i", run]);
    assert!(code == Some(0) && said.contains("4 hits, 4 records"), "{said}");
    let (code, said) = kprism(&["script", "-i", run]);
    assert_eq!((code, said.lines().count()), (Some(0), 4), "{said}");
    assert_eq!(kprism(&["script", "probe", "-i", run, "--limit", "0"]), (Some(0), String::new()));
}

kprism_test::main!();
