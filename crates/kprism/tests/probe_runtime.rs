// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies between a hit and its record, at real programs: PID namespaces, many probes that begin and end at one moment,
//! memory that a process has not touched, calls that the kernel gives up on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use kprism_test::{BPF, ROOT, UPROBES, needs, test};
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
    assert_eq!(case.report()["records"].as_array().unwrap().len(), 50, "{said}");
    // Everybody's but the recorder's, of a process outside of the namespace too.
    let _outside = Ticking::start(&case.program);
    let (said, code) =
        case.record(&own, &["tick", "-a", "--stop-after", "50", "--collect", "n", "--duration", "20s"], &[]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(case.report()["records"].as_array().unwrap().len(), 50, "{said}");
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
    let records = report["records"].as_array().unwrap();
    assert_eq!(records.len(), 100, "{said}");
    for record in records {
        assert_eq!(record["values"]["text"], "a string of the file", "{record}");
        assert_eq!(record["values"]["*pair"], serde_json::json!({"one": 11, "two": 22}), "{record}");
    }
    // As a key too.
    let (said, code) = case.record(&[], &["child", "--by", "text"], &["--", program, "fork", "100"]);
    assert_eq!(code, Some(0), "{said}");
    let report = case.report();
    assert_eq!(report["counts"][0]["keys_failed"], 0, "{report}");
    assert_eq!(report["counts"][0]["passed"], 100, "{report}");
}

kprism_test::main!();
