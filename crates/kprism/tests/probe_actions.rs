// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `record probe` does at a hit besides keeping it, at programs whose every call is known: counts by keys, histograms,
//! hits that are left out, variables, probes that start and stop the recording.

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_test::{BABELTRACE, BPF, GDB, ROOT, UPROBES, needs, test};
use serde_json::{Value, json};

const CASE: &str = include_str!("probe/case.c");

struct Case {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Case {
    /// uprobes need root, and a kernel that has them.
    fn new() -> Self {
        Self::of("case.c")
    }

    fn of(source: &str) -> Self {
        needs(&[ROOT, BPF, UPROBES]);
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("case");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe").join(source);
        let flags = ["-g", "-O0", "-pthread", "-o"];
        let status = Command::new("gcc").args(flags).arg(&program).arg(source).status();
        assert!(status.expect("gcc runs").success());
        Self { dir, program }
    }

    fn kprism(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(args)
            .current_dir(self.dir.path())
            .output()
            .expect("kprism runs");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Records a command, whose program is the case's unless it begins with another; what it printed, and the report.
    fn recorded(&self, options: &[&str], command: &[&str]) -> (String, Value) {
        let program = self.program.to_str().unwrap();
        let mut args = vec!["record", "probe", "-o", "run", "--exec", program];
        args.extend(options);
        args.push("--");
        if command.first() != Some(&"sh") {
            args.push(program);
        }
        args.extend(command);
        let printed = self.kprism(&args);
        let report = self.kprism(&["report", "probe", "-i", "run", "--json", "--limit", "0"]);
        (printed, serde_json::from_str(&report).expect("JSON"))
    }
}

fn place() -> String {
    let line = CASE.lines().position(|line| line.contains("// PROBE")).expect("a line");
    format!("case.c:{line}")
}

fn values(report: &Value, name: &str) -> Vec<i64> {
    let records = report["rows"].as_array().unwrap();
    records.iter().filter_map(|record| record["values"][name].as_i64()).collect()
}

/// Of a histogram in a report: how many values are in the slot with this one.
fn in_slot(histogram: &Value, value: i64) -> u64 {
    let holds = |slot: &&Value| {
        slot["from"].as_i64().is_none_or(|from| from <= value)
            && slot["to"].as_i64().is_none_or(|to| value <= to)
    };
    let slots = histogram["slots"].as_array().unwrap();
    slots.iter().find(holds).map_or(0, |slot| slot["count"].as_u64().unwrap())
}

/// Keys of every kind, histograms of both kinds, negative values: against what the program prints.
#[test]
fn counts_and_histograms_are_those_of_what_is_printed() {
    let case = Case::new();
    let probe = format!("{} if n != 50", place());
    let (printed, report) = case.recorded(
        &[
            &probe,
            "--by",
            "item->colour,$comm,who[7],n % 3 == 0",
            "--hist",
            "a",
            "--hist",
            "total",
            "--linear",
            "b,-3,10,4",
            "--hist",
            "100 / (n - 2)",
        ],
        &[],
    );
    let calls: Vec<Vec<i64>> = printed
        .lines()
        .map(|line| line.split(' ').map(|word| word.parse().unwrap_or(0)).collect())
        .filter(|words: &Vec<i64>| words[0] != 50)
        .collect();
    assert_eq!(calls.len(), 99);
    assert_eq!(report["counts"][0]["passed"], 99);
    assert_eq!(report["rows"], json!([]));
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>(), 99);
    let counts: Vec<u64> = rows.iter().map(|row| row["count"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted_by(|a, b| a >= b), "{counts:?}");
    for row in rows {
        let key = &row["key"];
        assert_eq!(key["$comm"], "case");
        let mine: Vec<&Vec<i64>> = calls
            .iter()
            .filter(|call| {
                let colour = if call[9] == 5 { "GREEN" } else { "BLUE" };
                let digit = call[0].to_string().chars().next().unwrap();
                // "caller 12": the digit that follows.
                key["item->colour"] == colour
                    && key["who[7]"] == digit.to_string()
                    && key["n % 3 == 0"] == json!(i64::from(call[0] % 3 == 0))
            })
            .collect();
        assert_eq!(row["count"], mine.len(), "{row}");
        for (of, histogram) in row["histograms"].as_array().unwrap().iter().enumerate() {
            let value = |call: &&Vec<i64>| match of {
                0 => Some(call[1]),
                1 => Some(call[3]),
                2 => (call[0] != 2).then(|| 100 / (call[0] - 2)),
                _ => Some(call[2]),
            };
            let all: Vec<i64> = mine.iter().filter_map(value).collect();
            assert_eq!(histogram["count"], all.len(), "{histogram}");
            assert_eq!(histogram["failed"], mine.len() - all.len(), "{histogram}");
            assert_eq!(histogram["sum"], all.iter().sum::<i64>(), "{histogram}");
            for slot in histogram["slots"].as_array().unwrap() {
                let within = |v: &&i64| {
                    slot["from"].as_i64().is_none_or(|from| from <= **v)
                        && slot["to"].as_i64().is_none_or(|to| **v <= to)
                };
                assert_eq!(slot["count"], all.iter().filter(within).count(), "{slot} of {all:?}");
            }
            if let Some(first) = all.first() {
                assert!(in_slot(histogram, *first) > 0);
            }
        }
    }
    let text = case.kprism(&["report", "probe", "-i", "run", "--limit", "0"]);
    assert!(text.contains("99 hits, 99 counted") || text.contains("100 hits, 99 counted"), "{text}");
    let csv = case.kprism(&["export", "-i", "run", "-o", "-.csv"]);
    let sum: u64 = csv
        .lines()
        .filter(|line| line.contains(",,,"))
        .map(|line| line.rsplit(',').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum, 99, "{csv}");
}

/// Two processes at once, on whatever CPUs there are: nothing is lost, with keys and without.
#[test]
fn totals_are_exact() {
    let case = Case::new();
    let program = case.program.to_str().unwrap();
    let both = format!("{program} 30000 b & {program} 30000 b; wait");
    let (_, report) = case.recorded(&["busy", "--by", "n % 10,$pid", "--hist", "n"], &["sh", "-c", &both]);
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20);
    assert!(rows.iter().all(|row| row["count"] == 3000 && row["histograms"][0]["count"] == 3000), "{rows:?}");
    let (_, report) = case.recorded(&["busy", "--by", "n % 10"], &["sh", "-c", &both]);
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|row| row["count"] == 6000), "{rows:?}");
    let (_, report) =
        case.recorded(&["busy", "--linear", "n,0,30000,10000", "--collect", "n"], &["30000", "b"]);
    let row = &report["totals"][0]["rows"][0];
    assert_eq!(row["count"], 30000);
    assert!([5, 10_005, 20_005].iter().all(|n| in_slot(&row["histograms"][0], *n) == 10_000), "{row}");
    assert_eq!(row["histograms"][0]["sum"], 29_999 * 15_000);
    // Records were asked for as well.
    assert_eq!(values(&report, "n").len() as u64 + report["counts"][0]["lost"].as_u64().unwrap(), 30_000);
    // More keys than there is room for are counted, though not by key.
    let (_, report) = case.recorded(&["busy", "--by", "n % 1000", "--keys", "100"], &["10000", "b"]);
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    let counted: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert!(rows.len() <= 100 && rows.len() > 10, "{}", rows.len());
    assert_eq!(counted + report["counts"][0]["keys_lost"].as_u64().unwrap(), 10_000);
}

#[test]
fn some_hits_are_left_out() {
    let case = Case::new();
    let (_, report) =
        case.recorded(&["busy if n % 2", "--skip", "3", "--pass", "5", "--collect", "n"], &["1000", "b"]);
    assert_eq!(values(&report, "n"), [7, 9, 11, 13, 15]);
    let counts = &report["counts"][0];
    assert_eq!((&counts["passed"], &counts["lost"]), (&json!(5), &json!(0)));
    assert!(counts["left_out"].as_u64().unwrap() >= 3);
    // Each probe has its own turn.
    let places = ["busy if n % 2", "busy if n % 2 == 0"];
    let (_, report) = case.recorded(&[places[0], places[1], "--pass", "2", "--collect", "n"], &["1000", "b"]);
    let mut all = values(&report, "n");
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
    let (_, report) = case.recorded(&["busy", "--skip", "998", "--collect", "n"], &["1000", "b"]);
    assert_eq!(values(&report, "n"), [998, 999]);
    assert_eq!(report["counts"][0]["left_out"], 998);
}

#[test]
fn variables_are_set_by_hits() {
    let case = Case::new();
    let (_, report) = case.recorded(
        &[
            "busy if n % 10 == 0",
            "--var",
            "sum=1000",
            "--var",
            "calls",
            "--set",
            "$sum += n",
            "--set",
            "$calls++",
            "--collect",
            "n,$sum,$calls",
        ],
        &["100", "b"],
    );
    let mut sum = 1000;
    for (number, record) in report["rows"].as_array().unwrap().iter().enumerate() {
        let n = 10 * number as i64;
        sum += n;
        assert_eq!(record["values"], json!({"n": n, "$sum": sum, "$calls": number + 1}));
    }
    assert_eq!(report["variables"], json!({"sum": 1450, "calls": 10}));
    let refused = |args: &[&str]| {
        let all =
            [&["record", "probe", "busy", "--exec", case.program.to_str().unwrap()], args, &["--", "true"]];
        let output =
            Command::new(env!("CARGO_BIN_EXE_kprism")).args(all.concat()).output().expect("kprism runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--set", "$sum = 1"]).contains("no `$sum`"));
    assert!(refused(&["--var", "sum", "--set", "$sum == 1"]).contains("sets nothing"));
    assert!(refused(&["--linear", "n,3,1,1"]).contains("MIN must be below MAX"));
    assert!(refused(&["--by", "nn"]).contains("no `nn`"));
    assert!(refused(&["--pause-when", "busy"]).contains("--start-when"));
}

/// Between two calls of one thread the other thread makes its own, so a variable of all would have the other's value.
#[test]
fn threads_have_variables_of_their_own() {
    let case = Case::of("threads.c");
    let file = "thread $token\nthread $count\nbegan set $token = token\n by token % 1000\nended if $token == token\n set $count++\n collect token,$count,$tid";
    std::fs::write(case.dir.path().join("after.kp"), file).unwrap();
    let tokens = |first: i64| (0..90).filter(|i| i % 3 > 0).map(move |i| first + i);
    let checked = |report: &Value| {
        for first in [1000, 2000, 3000, 4000] {
            let of_thread =
                |record: &&Value| record["values"]["token"].as_i64().unwrap() / 1000 == first / 1000;
            let records: Vec<&Value> = report["rows"].as_array().unwrap().iter().filter(of_thread).collect();
            let expected: Vec<(i64, i64)> = tokens(first).zip(1..).collect();
            let found: Vec<(i64, i64)> = records
                .iter()
                .map(|record| (&record["values"]["token"], &record["values"]["$count"]))
                .map(|(token, count)| (token.as_i64().unwrap(), count.as_i64().unwrap()))
                .collect();
            assert_eq!(found, expected);
        }
        assert_eq!(report["rows"].as_array().unwrap().len(), 240);
        assert_eq!(report["counts"].as_array().unwrap().last().unwrap()["hits"], 360);
        // They end with their threads, so there is none to tell of at the end.
        assert_eq!(report["variables"], Value::Null);
    };
    checked(&case.recorded(&["-f", "after.kp"], &[]).1);
    case.kprism(&[
        "compile",
        "-f",
        "after.kp",
        "--exec",
        case.program.to_str().unwrap(),
        "-o",
        "after.kprobe",
    ]);
    let program = case.program.to_str().unwrap();
    case.kprism(&["record", "probe", "--program", "after.kprobe", "-o", "again", "--", program]);
    let report = case.kprism(&["report", "probe", "-i", "again", "--json", "--limit", "0"]);
    checked(&serde_json::from_str(&report).unwrap());

    // As options, beside a variable of all threads.
    let set = ["--thread-var", "n", "--var", "all=5", "--set", "$n++", "--set", "$all += $n"];
    let (_, report) = case.recorded(&[&["began"][..], &set, &["--collect", "$n,$all"]].concat(), &[]);
    let records = report["rows"].as_array().unwrap();
    let counts: i64 = records.iter().map(|record| record["values"]["$n"].as_i64().unwrap()).sum();
    assert_eq!((records.len(), counts), (240, 4 * 60 * 61 / 2));
    assert_eq!(report["variables"], json!({"all": 5 + counts}));

    for (args, said) in [
        (&["--thread-var", "n", "--var", "n"][..], "all threads share `$n`"),
        (&["--thread-var", "n", "--thread-var", "n"], "there twice"),
        (&["--thread-var", "tid"], "has a meaning already"),
        (&["--thread-var", "n=1"], "no name"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(["record", "probe", "began", "--exec", program]).args(args).args(["--", "true"]);
        let output = command.output().expect("kprism runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(said), "{args:?}: {text}");
    }
}

/// Windows of a recording, and what led to its end.
#[test]
fn hits_switch_the_recording() {
    let case = Case::new();
    // Which of several probes at one instruction is first is the kernel's choice, so no two count the same hit.
    let switches = ["--start-when", "busy if n % 100 == 50", "--pause-when", "busy if n % 100 == 54"];
    let (_, report) = case.recorded(
        &[&["busy if n % 2", "--collect", "n"][..], &switches, &["--stop-when", "busy if n == 56"]].concat(),
        &["1000", "b"],
    );
    let windows: Vec<i64> = (0..10).flat_map(|n| [100 * n + 51, 100 * n + 53]).collect();
    assert_eq!(values(&report, "n"), windows);
    let passed = |report: &Value, number: usize| report["counts"][number]["passed"].as_u64().unwrap();
    // What would stop it comes in a pause.
    assert_eq!([1, 2, 3].map(|number| passed(&report, number)), [10, 10, 0]);
    // What led to the end: the last records, the end's own among them.
    let (_, report) = case.recorded(
        &["busy if n % 2", "--collect", "n", "--stop-when", "busy if n == 300", "--last", "6"],
        &["1000", "b"],
    );
    assert_eq!(values(&report, "n"), [291, 293, 295, 297, 299]);
    let records = report["rows"].as_array().unwrap();
    assert_eq!(records[5]["values"], json!({}));
    assert_eq!((passed(&report, 0), passed(&report, 1)), (150, 1));
}

/// By babeltrace2, if it is installed: events and values are those of `script`.
#[test]
fn ctf_is_read_by_babeltrace() {
    needs(&[BABELTRACE]);
    let case = Case::new();
    let collect = "$args,$locals,*item,total,$comm,item->weight,n / (n - 2),$ustack,item->name[1]";
    case.recorded(&[&place(), "--collect", collect], &[]);
    case.kprism(&["export", "-i", "run", "-o", "run.ctf"]);
    let read = Command::new("babeltrace2")
        .args(["--clock-seconds", "run.ctf"])
        .current_dir(case.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success() && said.is_empty(), "{said}");
    let text = String::from_utf8(read.stdout).unwrap();
    let records = case.kprism(&["script", "probe", "-i", "run", "--json"]);
    assert_eq!((text.lines().count(), records.lines().count()), (100, 100), "{text}");
    for (line, record) in text.lines().zip(records.lines()) {
        let record: Value = serde_json::from_str(record).unwrap();
        let (values, item) = (&record["values"], &record["values"]["*item"]);
        let colour = if item["colour"] == "GREEN" {
            "( \"GREEN\" : container = 5 )"
        } else {
            "( \"BLUE\" : container = 6 )"
        };
        let number = |value: &Value| {
            let text = value.to_string();
            text.strip_suffix(".0").unwrap_or(&text).to_owned()
        };
        let ns = record["time_ns"].as_u64().unwrap();
        let wanted = [
            format!("[{}.{:09}] (", ns / 1_000_000_000, ns % 1_000_000_000),
            format!("cpu_id = {} }}, {{ pid = {}, tid = {} }}", record["cpu"], record["pid"], record["tid"]),
            format!(" n = {}, who = {}, item = 0x", values["n"], values["who"]),
            format!("a = {}, b = {}, item_2 = {{ id = {}", values["a"], values["b"], item["id"]),
            format!(
                "flags = {}, kind = {}, colour = {colour}, name = \"first\"",
                item["flags"], item["kind"]
            ),
            format!("weight = {} }}, total = {}, comm = \"case\"", number(&item["weight"]), values["total"]),
            format!("item_weight = {}", number(&values["item->weight"])),
            format!("ustack = [ [0] = {}", values["$ustack"][0]),
            format!("item_name_1 = {}", values["item->name[1]"]),
        ];
        for wanted in wanted {
            assert!(line.contains(&wanted), "{wanted}: {line}");
        }
        let (failed, value) = match values["n"].as_i64() {
            Some(2) => ("unreadable = [ [0] = \"n / (n - 2)\" ]", "n_n_2 = 0".to_owned()),
            _ => ("unreadable = [ ]", format!("n_n_2 = {}", values["n / (n - 2)"])),
        };
        assert!(line.contains(failed) && line.contains(&value), "{line}");
    }
}

/// By GDB: each frame's `tdump` has the values that `script` has.
#[test]
fn gdb_finds_the_same_values() {
    needs(&[GDB]);
    let case = Case::new();
    let collect = "$args,$locals,*item,total,item->kind,n > 50 ? item->id : a,who[8],$comm";
    case.recorded(
        &[
            &format!("{} if 2*a + 3*b < 0", place()),
            "work",
            "--for-gdb",
            "--collect",
            "n,*item",
            "--stop-after",
            "60",
        ],
        &[],
    );
    let (_, report) =
        case.recorded(&[&format!("{} if n % 3 == 0", place()), "--for-gdb", "--collect", collect], &[]);
    let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["export", "-i", "run", "-o", "run.tf"])
        .current_dir(case.dir.path())
        .output()
        .expect("kprism runs");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    // A program that can be loaded anywhere.
    let symbols =
        said.lines().find_map(|line| line.find("symbol-file").map(|at| &line[at..])).expect("an offset");
    let records = report["rows"].as_array().unwrap();
    let mut script = format!("set pagination off\nset print null-stop on\n{symbols}\ntarget tfile run.tf\n");
    for number in 0..records.len() {
        script += &format!("tfind {number}\necho == {number}\\n\ntdump\nprint $trace_timestamp\n");
    }
    std::fs::write(case.dir.path().join("script"), script).unwrap();
    let gdb =
        Command::new("gdb").args(["-nx", "-batch", "-x", "script"]).current_dir(case.dir.path()).output();
    let gdb = gdb.unwrap();
    let text = String::from_utf8_lossy(&gdb.stdout).into_owned();
    let told = format!("{text}{}", String::from_utf8_lossy(&gdb.stderr));
    let mut sections = text.split("\n== ").skip(1);
    for (number, record) in records.iter().enumerate() {
        let section = sections.next().unwrap_or_else(|| panic!("no {number}: {told}"));
        let (values, item) = (&record["values"], &record["values"]["*item"]);
        let pointer = values["item"].as_str().unwrap();
        let weight = item["weight"].to_string();
        let wanted = [
            format!("{number}\nData collected at tracepoint 1, trace frame {number}:\n"),
            format!("\nn = {}\n", values["n"]),
            format!(" {}\n", values["who"]),
            format!("\nitem = (struct item *) {pointer}\n"),
            format!("\na = {}\nb = {}\n", values["a"], values["b"]),
            format!(
                "\n*item = {{id = {}, flags = {}, kind = {}, colour = {}, name = \"first\", weight = {}}}\n",
                item["id"],
                item["flags"],
                item["kind"],
                item["colour"].as_str().unwrap(),
                weight.strip_suffix(".0").unwrap_or(&weight),
            ),
            format!("\ntotal = {}\nitem->kind = {}\n", values["total"], values["item->kind"]),
            format!("\nn > 50 ? item->id : a = {}\n", values["n > 50 ? item->id : a"]),
            format!(" = {}\n", record["time_ns"].as_u64().unwrap() / 1000),
        ];
        for wanted in wanted {
            assert!(section.contains(&wanted), "{wanted}: {section}");
        }
        assert!(!section.contains("Cannot access") && !section.contains("unavailable"), "{section}");
    }
    assert_eq!(records.len(), 34);
    let bare = case.kprism(&[
        "record",
        "probe",
        "work",
        "--collect",
        "n",
        "-o",
        "bare",
        "--",
        case.program.to_str().unwrap(),
    ]);
    assert!(bare.contains("caller"));
    let refused = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["export", "-i", "bare", "-o", "bare.tf"])
        .current_dir(case.dir.path())
        .output()
        .expect("kprism runs");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("--for-gdb"), "{said}");
}

kprism_test::main!();
