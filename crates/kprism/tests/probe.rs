// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record probe`: natively at a program that prints what is collected of it, so that each value is known; and at the
//! kernel in the guest.

use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kprism_test::{BPF, ROOT, UPROBES, needs, python_with, test, until};
use serde_json::{Value, json};

const CASE: &str = include_str!("probe/case.c");

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn built(dir: &Path, flags: &[&str]) -> PathBuf {
    let program = dir.join("case");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/case.c");
    let status = Command::new("gcc").args(["-g", "-o"]).arg(&program).args(flags).arg(source).status();
    assert!(status.expect("gcc runs").success());
    program
}

/// uprobes need root, and a kernel that has them.
fn allowed() {
    needs(&[ROOT, BPF, UPROBES]);
}

fn line() -> usize {
    CASE.lines().position(|line| line.contains("// PROBE")).expect("a line")
}

fn records(run: &Path) -> Vec<Value> {
    let output = kprism(&["script", "probe", "--json", "-i", run.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn manifest(run: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap()
}

#[test]
fn values_are_those_that_the_program_prints() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    for flags in [&["-O0"][..], &["-O0", "-no-pie"], &["-O0", "-gdwarf-4"]] {
        let program = built(dir.path(), flags);
        let output = kprism(&[
            "record",
            "probe",
            &format!("case.c:{} if 2*a + 3*b < 0", line()),
            "--collect",
            "n,a,b,total,who,*item,item->kind,$comm,n / (n - 2)",
            "--collect",
            "$args,$locals,$regs,*(int *)8",
            "-o",
            run.to_str().unwrap(),
            "--",
            program.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut wanted = Vec::new();
        for line in printed.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<i64>().unwrap();
            if 2 * number(1) + 3 * number(2) < 0 {
                let colour = if number(9) == 5 { "GREEN" } else { "BLUE" };
                wanted.push(json!({
                    "n": number(0), "a": number(1), "b": number(2), "total": number(3),
                    "who": format!("{} {}", words[4], words[5]),
                    "*item": {
                        "id": number(6), "flags": number(7), "kind": number(8), "colour": colour,
                        "name": words[10], "weight": words[11].parse::<f64>().unwrap(),
                    },
                    "item->kind": number(8), "$comm": "case",
                }));
            }
        }
        assert_eq!(wanted.len(), 38);
        let found = records(&run);
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(&wanted) {
            let values = &found["values"];
            for (name, value) in wanted.as_object().unwrap() {
                assert_eq!(&values[name], value, "{flags:?}: {name} of {found}");
            }
            let n = wanted["n"].as_i64().unwrap();
            match n {
                2 => assert_eq!(found["errors"]["n / (n - 2)"], "could not be read"),
                _ => assert_eq!(values["n / (n - 2)"], json!(n / (n - 2))),
            }
            assert_eq!(found["errors"]["*(int *)8"], "could not be read");
            assert!(values["item"].as_str().unwrap().starts_with("0x"), "{values}");
            let registers = values["$regs"].as_object().unwrap();
            assert_eq!(registers.len(), 21);
            let frame = u64::from_str_radix(&registers["rbp"].as_str().unwrap()[2..], 16).unwrap();
            assert!(frame > 0x1000, "{registers:?}");
        }
        let manifest = manifest(&run);
        assert_eq!(manifest["exit_code"], 3);
        let counts = &counted(&run);
        assert_eq!(
            (&counts["hits"], &counts["passed"], &counts["lost"]),
            (&json!(100), &json!(38), &json!(0))
        );
        assert_eq!(counts["value_errors"], json!({"bad read": 38, "division by zero": 1}));
        assert_eq!(counts["condition_errors"], json!({}));
        // What could not be read is in the account, and the result is not whole.
        assert_eq!(accounted(&manifest, "values that could not be read"), Some(39));
        assert_eq!((strict(&run), accounted(&manifest, "records")), (Some(4), Some(38)));
    }
}

/// The counts of the first probe.
fn counted(run: &Path) -> Value {
    let text = std::fs::read(run.join("streams/probe/probes.json")).expect("probes.json");
    serde_json::from_slice::<Value>(&text).expect("JSON")["counts"][0].clone()
}

/// A count of the account of probes.
fn accounted(manifest: &Value, unit: &str) -> Option<u64> {
    let entries = manifest["accounts"]["probe"].as_array().expect("an account");
    entries.iter().find(|entry| entry["unit"] == unit).expect(unit)["count"].as_u64()
}

/// How `report probe --strict` ends, which says so at its head.
fn strict(run: &Path) -> Option<i32> {
    let output = kprism(&["report", "probe", "--strict", "--limit", "1", "-i", run.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let whole = text.starts_with("whole: nothing lost, guessed or not understood\n");
    assert!(whole || text.starts_with("not whole\n"), "{text}");
    output.status.code()
}

#[test]
fn entry_return_and_counts() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (built(dir.path(), &["-O2"]), dir.path().join("run"));
    let record = |probe: &str, options: &[&str], command: &[&str]| {
        let mut args = vec!["record", "probe", probe, "-o", run.to_str().unwrap()];
        args.extend(options);
        args.extend(["--", program.to_str().unwrap()]);
        args.extend(command);
        let output = kprism(&args);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    };
    record("busy%return if $retval == n % 3", &["--collect", "$retval,n,$duration"], &["1000", "busy"]);
    let found = records(&run);
    assert_eq!(found.len(), 1000);
    for (n, record) in found.iter().enumerate() {
        assert_eq!(record["values"]["n"], json!(n), "{record}");
        assert_eq!(record["values"]["$retval"], json!(n % 3), "{record}");
        let took = record["values"]["$duration"].as_u64().unwrap();
        assert!(took > 0 && took < 60_000_000_000, "{record}");
    }
    assert_eq!(strict(&run), Some(0));
    // Every hit is accounted for, whether the ring had room for all or not.
    record("busy if n % 2", &["--collect", "$regs,n", "--buffer-size", "64K"], &["200000", "busy"]);
    let manifest_of = manifest(&run);
    let counts = &counted(&run);
    let lost = counts["lost"].as_u64().unwrap();
    assert_eq!((&counts["hits"], &counts["passed"]), (&json!(200_000), &json!(100_000)));
    let found = records(&run);
    assert_eq!(found.len() as u64 + lost, 100_000);
    assert_eq!(accounted(&manifest_of, "records for which a ring had no room"), Some(lost));
    assert_eq!(accounted(&manifest_of, "records missing from the file"), Some(0));
    assert_eq!(strict(&run), Some(if lost > 0 { 4 } else { 0 }));
    assert!(found.iter().all(|record| record["values"]["n"].as_u64().unwrap() % 2 == 1));
    // A variable counts, and stops.
    record(
        "busy if $seen++ % 10 == 9",
        &["--var", "seen", "--collect", "n", "--stop-after", "5"],
        &["1000", "busy"],
    );
    let found: Vec<u64> =
        records(&run).iter().map(|record| record["values"]["n"].as_u64().unwrap()).collect();
    assert_eq!(found, [9, 19, 29, 39, 49]);
    assert_eq!(strict(&run), Some(0));
}

/// A run, and its records as tables beside it.
fn tables(dir: &Path) -> PathBuf {
    let (program, run) = (built(dir, &["-O0"]), dir.join("run"));
    let place = format!("case.c:{}", line());
    let (run_at, command) = (run.to_str().unwrap(), program.to_str().unwrap());
    let collect = "n,total,who,*item,item->weight,item->flags,n / (n - 2),n > 50";
    let output = kprism(&["record", "probe", &place, "--collect", collect, "-o", run_at, "--", command]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["records.parquet", "records.csv", "records.json"] {
        let file = dir.join(name);
        let output = kprism(&["export", "-i", run_at, "-o", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    run
}

#[test]
fn tables_for_other_tools() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    tables(dir.path());
    let csv = std::fs::read_to_string(dir.path().join("records.csv")).unwrap();
    assert_eq!(csv.lines().count(), 101);
    let all: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("records.json")).unwrap()).unwrap();
    assert_eq!(all["rows"].as_array().unwrap().len(), 100);
}

/// What was collected as Parquet is what it is as text, by Arrow's own reader.
#[test]
fn arrow_reads_the_same() {
    allowed();
    let mut python = python_with(&["pyarrow.parquet"]);
    let dir = tempfile::tempdir().unwrap();
    let run = tables(dir.path());
    let script = "import sys, json, pyarrow.parquet as p\n\
                  for row in p.read_table(sys.argv[1]).to_pylist(): print(json.dumps(row))";
    let read =
        python.args(["-c", script]).arg(dir.path().join("records.parquet")).output().expect("python3 runs");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let rows: Vec<Value> =
        String::from_utf8(read.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let found = records(&run);
    assert_eq!(rows.len(), found.len());
    for (row, record) in rows.iter().zip(&found) {
        for name in ["time_ns", "cpu", "pid", "tid", "probe"] {
            assert_eq!(row[name], record[name], "{row}");
        }
        for name in ["n", "total", "who", "item->weight", "item->flags", "n > 50"] {
            assert_eq!(row[name], record["values"][name], "{name} of {row}");
        }
        let item: Value = serde_json::from_str(row["*item"].as_str().unwrap()).unwrap();
        assert_eq!(item, record["values"]["*item"]);
        assert_eq!(row["n / (n - 2)"].is_null(), row["n"] == 2, "{row}");
    }
}

/// The first byte of `work` in the memory of a process.
fn first_byte(pid: u32, program: &Path) -> u8 {
    let symbols = Command::new("nm").arg(program).output().expect("nm runs");
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with(" T work")).expect("work");
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    memory.seek(std::io::SeekFrom::Start(address)).unwrap();
    let mut byte = [0];
    memory.read_exact(&mut byte).unwrap();
    byte[0]
}

/// Longest time that anything waited for may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_killed_recorder_leaves_nothing() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (built(dir.path(), &["-O1", "-no-pie"]), dir.path().join("run"));
    let mut target = Command::new(&program).arg("100").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // Kept open: the target ends if nobody reads.
    let mut stdout = BufReader::new(target.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let before = first_byte(target.id(), &program);
    let pid = target.id().to_string();
    let args = ["record", "probe", "work", "--collect", "n", "-p", &pid, "-o", run.to_str().unwrap()];
    let mut recorder =
        Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).stderr(Stdio::null()).spawn().unwrap();
    until(PATIENCE, "no breakpoint", || first_byte(target.id(), &program) != before);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    until(PATIENCE, "the breakpoint stays", || first_byte(target.id(), &program) == before);
    target.kill().unwrap();
    target.wait().unwrap();
    drop(stdout);
}

#[test]
fn what_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &["-O0"]);
    let said = |args: &[&str]| {
        let mut all = vec!["record", "probe"];
        all.extend(args);
        all.extend(["--exec", program.to_str().unwrap(), "--", "true"]);
        let output = kprism(&all);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["wokr"]).contains("did you mean `work`?"));
    assert!(said(&["work if item->flag"]).contains("did you mean `flags`?"));
    assert!(said(&["work", "--collect", "itm"]).contains("did you mean `item`?"));
    assert!(said(&["work%return if total"]).contains("globals"));
}

/// A stack of the program: its own frames, the innermost first.
#[test]
fn user_stacks() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (built(dir.path(), &["-O0", "-no-pie"]), dir.path().join("run"));
    let place = format!("case.c:{}", line());
    let (run_at, command) = (run.to_str().unwrap(), program.to_str().unwrap());
    let output = kprism(&["record", "probe", &place, "--collect", "$ustack", "-o", run_at, "--", command]);
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
    let symbols = Command::new("nm").arg("-S").arg(&program).output().expect("nm runs");
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let range = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" T {name}"))).expect("a function");
        let mut words = line.split(' ').map(|word| u64::from_str_radix(word, 16).unwrap_or(0));
        let start = words.next().unwrap();
        start..start + words.next().unwrap()
    };
    let found = records(&run);
    assert!(!found.is_empty());
    for record in found {
        let frames = record["values"]["$ustack"].as_array().unwrap();
        let frame = |n: usize| u64::from_str_radix(&frames[n].as_str().unwrap()[2..], 16).unwrap();
        assert!(range("work").contains(&frame(0)) && range("main").contains(&frame(1)), "{record}");
    }
}

/// Probes compiled for one build of a program are refused for another; a program without debug information, and a
/// process that is gone, are named.
#[test]
fn other_builds_stripped_programs_and_processes_that_are_gone() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &["-O0"]);
    let (command, file) = (program.to_str().unwrap(), dir.path().join("work.kprobe"));
    let (file, run) = (file.to_str().unwrap(), dir.path().join("run"));
    let run = run.to_str().unwrap();
    let output = kprism(&["compile", "work", "--collect", "n", "--exec", command, "-o", file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = |args: &[&str]| {
        let mut all = vec!["record", "probe", "-o", run];
        all.extend(args);
        let output = kprism(&all);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = said(&["--program", file, "--", command]);
    assert!(code != Some(2), "{text}");
    built(dir.path(), &["-O1"]);
    let (code, text) = said(&["--program", file, "--", command]);
    assert!(code == Some(2) && text.contains("made for another file") && text.contains("build id"), "{text}");
    assert!(Command::new("strip").arg(&program).status().unwrap().success());
    let (code, text) = said(&["work", "--exec", command, "--", command]);
    assert!(code == Some(2) && text.contains("no debug information"), "{text}");
    built(dir.path(), &["-O0"]);
    // It ends while it is recorded: so does the recorder.
    let mut short = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = short.id().to_string();
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["record", "probe", "work", "--exec", command, "-p", &pid, "-o", run])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(recorder.stderr.take().unwrap()).lines().map_while(Result::ok);
    let recording = lines.any(|line| line.starts_with("recording"));
    short.kill().unwrap();
    short.wait().unwrap();
    assert!(recording, "it ended before");
    let text: Vec<String> = lines.collect();
    assert_eq!(recorder.wait().unwrap().code(), Some(1), "{text:?}");
    let (code, text) = said(&["work", "--exec", command, "-p", &pid]);
    assert!(code == Some(2) && text.contains(&pid), "{text}");
}

/// dd wrote 7 bytes 20 times.
fn counted_in_the_guest(report: &dyn Fn(&str) -> Value) {
    let counts = report("counts");
    let rows = &counts["totals"][0]["rows"];
    let name = "file->f_path.dentry->d_name.name";
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    assert_eq!(rows[0]["key"], json!({"$comm": "dd", name: "null"}));
    assert_eq!(rows[0]["count"], 20);
    let slots = |n: usize| &rows[0]["histograms"][n]["slots"];
    assert_eq!(slots(0), &json!([{"from": 4, "to": 7, "count": 20}]));
    assert_eq!(slots(1), &json!([{"from": 0, "to": 7, "count": 20}]));
    assert_eq!((&rows[0]["histograms"][0]["sum"], &counts["rows"]), (&json!(140), &json!([])));
    let counted = report("counted");
    assert_eq!(counted["totals"][0]["rows"], json!([{"key": {"$retval": 7}, "count": 20, "histograms": []}]));
    assert_eq!(counted["variables"], json!({"sum": 141}));
    let values = |report: &Value, name: &str| -> Vec<Value> {
        report["rows"].as_array().unwrap().iter().map(|r| r["values"][name].clone()).collect()
    };
    let turn = report("turn");
    assert_eq!(values(&turn, "$n"), [1, 2, 3]);
    let sums = report("sums");
    let row = &sums["totals"][0]["rows"][0];
    assert_eq!((&row["key"]["$comm"], &row["count"]), (&json!("dd"), &json!(20)));
    let found: Vec<(&str, &Value)> = row["aggregates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["function"].as_str().unwrap(), &one["value"]))
        .collect();
    // `count` is unsigned, and so is `-count`.
    let minus = (u128::from(u64::MAX - 6) * 20).to_string();
    let wanted = [
        ("sum", &json!(140)),
        ("sum", &json!(minus)),
        ("min", &json!(7)),
        ("max", &json!(7)),
        ("avg", &json!(7.0)),
        ("latest", &json!(7)),
    ];
    assert_eq!(found, wanted);
    let lines: Vec<&Value> = sums["rows"].as_array().unwrap().iter().map(|one| &one["text"]).collect();
    assert_eq!(lines, vec![&json!("dd: 7 of null\n"); 20]);
    let last = report("last");
    // The end's own record has no values.
    assert_eq!(values(&last, "count"), [json!(7), json!(7), json!(7), Value::Null]);
    assert_eq!(last["counts"][2]["passed"], 1);
}

#[test]
fn kernel_functions_in_the_guest() {
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    let run = dir.path().join("run");
    std::fs::create_dir(&share).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_kprism"), share.join("kprism")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/guest.sh");
    std::fs::copy(script, share.join("guest.sh")).unwrap();
    let output = kprism(&[
        "lab",
        "run",
        "-q",
        "--unobserved",
        "--with-module",
        "dummy",
        "-o",
        run.to_str().unwrap(),
        "--share",
        &format!("{}:/test", share.display()),
        "--",
        "sh",
        "/test/guest.sh",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let section = |name: &str| {
        let (_, rest) =
            text.split_once(&format!("== {name}\n")).unwrap_or_else(|| panic!("no {name}: {text}"));
        rest.split("\n== ").next().unwrap().to_owned()
    };
    let found = |run: &str| -> Vec<Value> {
        let manifest: Value = serde_json::from_str(&section(&format!("{run} manifest"))).unwrap();
        assert_eq!(manifest["lost_records"], 0, "{manifest}");
        let lines = section(&format!("{run} script"));
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let entries = found("entry");
    assert_eq!(entries.len(), 20);
    for record in &entries {
        assert_eq!(
            record["values"],
            json!({
                "count": 7, "file->f_path.dentry->d_name.name": "null", "$comm": "dd", "*pos": 0,
                "file->f_inode->i_mode & 0777": 0o666,
            })
        );
    }
    let returns = found("return");
    assert_eq!(returns.len(), 20);
    for record in &returns {
        assert_eq!((&record["values"]["$retval"], &record["values"]["count"]), (&json!(7), &json!(7)));
        assert!(record["values"]["$duration"].as_u64().unwrap() > 0);
    }
    let opens = found("open");
    assert!(opens.iter().any(|record| record["values"]["filename"] == "/etc/hostname"), "{opens:?}");
    assert!(opens.iter().all(|record| record["errors"]["*(int *)8"] == "could not be read"), "{opens:?}");
    let variadic = found("variadic");
    assert_eq!(variadic.len(), 1);
    assert_eq!(variadic[0]["values"]["$retval"], json!(section("seqnum").len() + 1));
    assert_eq!(variadic[0]["values"]["fmt"], "%llu\n");
    assert!(variadic[0]["values"]["$duration"].as_u64().unwrap() > 0);
    let said = section("variadic.said");
    assert!(said.contains("by kretprobe") && said.contains("have no fentry"), "{said}");
    let said = section("excluded.said");
    assert!(said.contains("note: a kprobe, as the kernel refuses another"), "{said}");
    let said = section("nowhere.said");
    assert!(said.contains("the kernel excludes it from tracing") && said.ends_with('2'), "{said}");
    let module = found("module");
    assert_eq!(module.len(), 1);
    assert_eq!(module[0]["values"], json!({"dev->name": "dummy0", "$comm": "cat"}));
    let said = section("explained");
    assert!(said.contains("note: a function of the module dummy"), "{said}");
    assert!(said.contains("at dummy_get_stats64, at entry, by BTF\n"), "{said}");
    assert!(said.contains("dev  parameter  struct net_device *  argument 0"), "{said}");
    let said = section("module.out");
    assert!(said.contains("is in use") && said.ends_with('1'), "{said}");
    let said = section("unloaded.said");
    assert!(said.contains("no function `dummy_get_stats64`") && said.ends_with('2'), "{said}");
    let stacks = found("stack");
    assert_eq!(stacks.len(), 20);
    for record in &stacks {
        let frames: Vec<&str> =
            record["values"]["$stack"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let at =
            |name| frames.iter().position(|f| *f == name).unwrap_or_else(|| panic!("{name}: {frames:?}"));
        assert!(at("ksys_write") < at("do_syscall_64"), "{frames:?}");
        // Without the probe's own program and what calls it.
        assert_eq!(frames[0], "vfs_write", "{frames:?}");
    }
    let report = |run: &str| -> Value { serde_json::from_str(&section(&format!("{run} report"))).unwrap() };
    counted_in_the_guest(&report);
    let dup = report("dup");
    let values: Vec<&Value> =
        dup["rows"].as_array().unwrap().iter().map(|row| &row["values"]["newfd"]).collect();
    assert!(!values.is_empty() && values.iter().all(|value| **value == 7), "{dup}");
    let at = report("at");
    assert!(at["counts"][0]["passed"].as_u64().unwrap() > 0, "{at}");
    let said = section("array.said");
    assert!(said.contains("an array is no number") && said.ends_with('2'), "{said}");
    let crowd = report("crowd");
    let count = |name: &str| crowd["counts"][0][name].as_u64().unwrap_or_else(|| panic!("{name}: {crowd}"));
    let (hits, missed) = (count("hits"), count("kernel_missed"));
    assert_eq!(hits + missed, 40, "{crowd}");
    assert!(missed > 0, "{crowd}");
    let inode: u64 = section("inode").trim().parse().unwrap();
    assert_eq!(report("cgroup")["totals"][0]["rows"][0]["key"], json!({"$cgroup": inode}));
    assert!(section("during").contains("vfs_read"));
    assert!(!section("after").contains("vfs_read"));
}

kprism_test::main!();
