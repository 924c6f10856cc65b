// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of probes, lines by `printf`, sums and other aggregates, counts while a recording goes on: of programs whose every
//! call is known, against what they print themselves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kprism_test::{BPF, ROOT, UPROBES, needs, test};
use serde_json::{Value, json};

const CASE: &str = include_str!("probe/case.c");

/// Four threads call `seen` with known values: keys 0 to 2, both signs, the greatest unsigned numbers.
const THREADS: &str = r#"
#include <pthread.h>
__attribute__((noinline)) void seen(int key, long value, unsigned long big, int *bad)
{
	asm volatile("" :: "r"(key), "r"(value), "r"(big), "r"(bad) : "memory");
}
static void *run(void *first)
{
	for (long n = 0; n < 5000; n++)
		seen(n % 3, (long)first * 5000 + n - 10000, ~0ul - n, n % 2 ? (int *)8 : &(int){7});
	return 0;
}
int main(void)
{
	pthread_t threads[4];
	for (long n = 0; n < 4; n++)
		pthread_create(threads + n, 0, run, (void *)n);
	for (int n = 0; n < 4; n++)
		pthread_join(threads[n], 0);
}
"#;

struct Case {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Case {
    fn of(source: &str) -> Self {
        needs(&[ROOT, BPF, UPROBES]);
        let dir = tempfile::tempdir().unwrap();
        let (program, file) = (dir.path().join("case"), dir.path().join("case.c"));
        std::fs::write(&file, source).unwrap();
        let status =
            Command::new("gcc").args(["-g", "-O0", "-pthread", "-o"]).arg(&program).arg(file).status();
        assert!(status.expect("gcc runs").success());
        Self { dir, program }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(args).current_dir(self.dir.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("kprism runs")
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        said
    }

    /// Records the case's program with these options and arguments; what it printed, and the report.
    fn recorded(&self, options: &[&str], arguments: &[&str]) -> (String, Value) {
        let program = self.program.to_str().unwrap();
        let args = [&["record", "probe", "-o", "run"][..], options, &["--", program], arguments].concat();
        let printed = self.ok(&args);
        (printed, self.report())
    }

    fn report(&self) -> Value {
        let report = self.ok(&["report", "probe", "-i", "run", "--json", "--limit", "0"]);
        serde_json::from_str(&report).expect("JSON")
    }
}

fn place() -> String {
    let line = CASE.lines().position(|line| line.contains("// PROBE")).expect("a line");
    format!("case.c:{line}")
}

/// The program prints each call with C's printf; the same format with the same expressions gives the same lines.
#[test]
fn lines_are_those_that_the_program_prints() {
    let case = Case::of(CASE);
    let format = r#""%d %d %ld %ld %s %d %u %u %d %s %.2f\n", n, a, b, total, who, item->id, item->flags, item->kind, item->colour, item->name, item->weight"#;
    let (printed, report) = case.recorded(&[&place(), "--printf", format], &[]);
    assert_eq!(printed.lines().count(), 100);
    assert_eq!(case.ok(&["script", "probe", "-i", "run"]), printed);
    // In a report behind time and place; in JSON whole.
    let first = printed.lines().next().unwrap();
    let shown = case.ok(&["report", "probe", "-i", "run", "--limit", "1"]);
    assert!(shown.contains(&format!(" {}: {first}\n", place())), "{shown}");
    assert_eq!(report["rows"][0]["text"], format!("{first}\n"));
    assert_eq!(report["rows"][3]["values"]["n"], 3);
    // Flags, widths, precisions; a name for an enumerator; what cannot be read.
    let format = r#""%-5d|%+05d|%#lx|%c|%s|%8s|%.3s|%p|%d%%\n", n, a, total, 'a' + n % 26, item->colour, $comm, who, item, 100 / (n - 2)"#;
    let (_, report) = case.recorded(&[&place(), "--printf", format], &[]);
    let records = report["rows"].as_array().unwrap();
    for record in records {
        let (values, n) = (&record["values"], record["values"]["n"].as_i64().unwrap());
        let a = format!("{}{:04}", if n < 50 { '-' } else { '+' }, (n - 50).abs());
        let total = values["total"].as_i64().unwrap();
        let total = if total == 0 { "0".to_owned() } else { format!("{total:#x}") };
        let letter = char::from(b'a' + (n % 26) as u8);
        let percent = if n == 2 { "?".to_owned() } else { (100 / (n - 2)).to_string() };
        let colour = values["item->colour"].as_str().unwrap();
        let item = values["item"].as_str().unwrap();
        let wanted = format!("{n:<5}|{a}|{total}|{letter}|{colour}|    case|cal|{item}|{percent}%\n");
        assert_eq!(record["text"], wanted);
    }
    assert_eq!(records.len(), 100);
    let program = case.program.to_str().unwrap();
    for (format, remedy) in [
        (r#""%d", total"#, "write `%ld`"),
        (r#""%s", n"#, "write `%d`"),
        (r#""%p", who"#, "(void *)"),
        (r#""%d", *item"#, "name a member"),
        (r#""%d %d", n"#, "add expressions"),
        ("%d, n", "double quotes"),
        (r#""%d", $locals"#, "no single value"),
    ] {
        let said =
            case.refused(&["record", "probe", &place(), "--printf", format, "-o", "no", "--", program]);
        assert!(said.contains(remedy), "{format}: {said}");
    }
    // The remedy for an address of a text.
    case.recorded(&[&place(), "--printf", r#""%p", (void *)who"#], &[]);
}

/// Sums beyond 64 bits, extremes of both signs, means, values that cannot be read; by key, and without.
#[test]
fn aggregates_are_exact_with_several_threads() {
    let case = Case::of(THREADS);
    let options =
        ["seen", "--sum", "value,big,*bad", "--min", "value,big", "--max", "value,big", "--avg", "value,big"];
    let calls: Vec<(i64, i128, i128)> = (0..4)
        .flat_map(|first| {
            (0..5000)
                .map(move |n| (n % 3, i128::from(first * 5000 + n - 10000), i128::from(u64::MAX - n as u64)))
        })
        .collect();
    let number = |n: i128| {
        let short = i64::try_from(n).map(Value::from).ok().or_else(|| u64::try_from(n).ok().map(Value::from));
        short.unwrap_or_else(|| n.to_string().into())
    };
    let check = |row: &Value, calls: &[(i64, i128, i128)]| {
        let count = calls.len();
        assert_eq!(row["count"], count);
        let found = |function: &str, of: &str| {
            let all = row["aggregates"].as_array().unwrap();
            all.iter().find(|one| one["function"] == function && one["of"] == of).cloned().unwrap()
        };
        type Call = (i64, i128, i128);
        for (of, get) in [("value", (|call| call.1) as fn(&Call) -> i128), ("big", |call| call.2)] {
            let all: Vec<i128> = calls.iter().map(get).collect();
            let sum: i128 = all.iter().sum();
            assert_eq!(found("sum", of)["value"], number(sum));
            assert_eq!(found("min", of)["value"], number(*all.iter().min().unwrap()));
            assert_eq!(found("max", of)["value"], number(*all.iter().max().unwrap()));
            assert_eq!(found("avg", of)["value"], json!(sum as f64 / count as f64));
            assert_eq!((&found("avg", of)["count"], &found("avg", of)["failed"]), (&json!(count), &json!(0)));
        }
        let bad = found("sum", "*bad");
        let good = bad["count"].as_i64().unwrap();
        assert_eq!((&bad["value"], &bad["failed"]), (&json!(7 * good), &json!(count as i64 - good)));
        good
    };
    let (_, report) = case.recorded(&options, &[]);
    // Every second address is bad.
    assert_eq!(check(&report["totals"][0]["rows"][0], &calls), 10_000);
    assert_eq!(report["rows"], json!([]));
    // Per key: with the latest value all CPUs have one cell.
    for latest in [false, true] {
        let more: &[&str] = if latest { &["--latest", "big,value"] } else { &[] };
        let (_, report) = case.recorded(&[&options[..], &["--by", "key"], more].concat(), &[]);
        let rows = report["totals"][0]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        for row in rows {
            let key = row["key"]["key"].as_i64().unwrap();
            let own: Vec<_> = calls.iter().copied().filter(|call| call.0 == key).collect();
            check(row, &own);
            if latest {
                // Of which thread is open, of which call is not: the last of its key.
                let value =
                    row["aggregates"].as_array().unwrap().iter().find(|one| one["function"] == "latest");
                let last = (4994..5000).rev().find(|n| n % 3 == key).unwrap() as u64;
                assert_eq!(value.unwrap()["value"], json!(u64::MAX - last));
            }
        }
    }
    // The table and CSV have the same.
    let text = case.ok(&["report", "probe", "-i", "run"]);
    assert!(
        text.contains("sum(value)") && text.contains("latest(big)") && text.contains("could not be computed"),
        "{text}"
    );
    let csv = case.ok(&["report", "probe", "-i", "run", "--csv"]);
    let mut lines = csv.lines();
    assert_eq!(
        lines.next().unwrap(),
        "probe,key,histogram,from,to,values,count,sum(value),sum(big),sum(*bad),min(value),min(big),max(value),max(big),avg(value),avg(big),latest(big),latest(value)"
    );
    let sum: i128 = calls.iter().filter(|call| call.0 == 0).map(|call| call.2).sum();
    let zero = lines.find(|line| line.starts_with("seen,0,")).unwrap();
    assert_eq!(zero.split(',').nth(8), Some(&*sum.to_string()), "{zero}");
    let file = case.ok(&["export", "-i", "run", "-o", "counts.csv"]);
    assert_eq!(std::fs::read_to_string(case.dir.path().join("counts.csv")).unwrap(), csv, "{file}");
    // Other formats have records alone: a file without any would be taken for a recording without hits.
    for name in ["counts.pftrace", "counts.ctf", "counts.parquet"] {
        let said = case.refused(&["export", "-i", "run", "-o", name]);
        assert!(said.contains("no records were kept") && said.contains(".csv"), "{name}: {said}");
        assert!(!case.dir.path().join(name).exists(), "{name}");
    }
}

/// A file says what command lines say, with values of its own for each probe.
#[test]
fn a_file_of_probes() {
    let case = Case::of(CASE);
    let file = "# calls of busy\n\
                var $odd = 100\n\
                busy if n % 2      // odd ones\n\
                \x20   by n % 3  sum n\n\
                \x20   set $odd++\n\
                busy if n >= 290\n\
                \x20   collect n, $odd\n\
                \x20   printf \"%d, %ld\\n\", n, $odd\n\
                busy if n == 300 stop\n";
    case.write("busy.kp", file);
    let checked = |report: &Value, first: i64| {
        assert_eq!(report["counts"][0]["passed"], 150, "{report}");
        let sums = report["totals"][0]["rows"].as_array().unwrap();
        let sums: i64 = sums.iter().map(|row| row["aggregates"][0]["value"].as_i64().unwrap()).sum();
        assert_eq!(sums, 150 * 150);
        assert_eq!(report["variables"]["odd"], first + 150);
        let texts = report["rows"].as_array().unwrap().iter().filter_map(|record| record["text"].as_str());
        let texts: Vec<&str> = texts.collect();
        // The kernel chooses the order of probes at one instruction: an odd call is counted before the line, or after it.
        for (n, text) in (290..300).zip(&texts) {
            let either = [n / 2, (n + 1) / 2].map(|odd| format!("{n}, {}\n", first + odd));
            assert!(either.contains(&(*text).to_owned()), "{text} is none of {either:?}");
        }
        assert!(texts.len() >= 10, "{texts:?}");
        // Whether the hit that ends the recording is still kept depends on that order too.
        assert!(texts.len() <= 11, "{texts:?}");
    };
    let (_, report) = case.recorded(&["-f", "busy.kp"], &["1000", "b"]);
    checked(&report, 100);
    // An option sets a variable; options of the whole recording hold.
    let (_, report) = case.recorded(&["-f", "busy.kp", "--var", "odd=7", "--keys", "9"], &["1000", "b"]);
    checked(&report, 7);
    let program = case.program.to_str().unwrap();
    // Compiled, and from standard input.
    let mut child = case
        .command(&["compile", "-f", "-", "--exec", program, "-o", "busy.kprobe"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("kprism runs");
    child.stdin.take().unwrap().write_all(file.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let (_, report) = case.recorded(&["--program", "busy.kprobe"], &["1000", "b"]);
    checked(&report, 100);
    // With a probe of the command line, whose options are its own.
    let (_, report) = case.recorded(&["work", "--collect", "n", "-f", "busy.kp"], &["1000", "b"]);
    assert_eq!(report["probes"].as_array().unwrap().len(), 4);
    assert_eq!(report["probes"][3]["items"][0]["name"], "n");
    for (text, said) in [
        ("busy if m > 3", "no.kp:1:9: no `m`"),
        ("\n# x\nbusy if n >\n   n + colour", "no.kp:4:8: no `colour`"),
        ("busy if n\n  collect n, n +", "no.kp:2:17: "),
        ("nowhere", "no.kp:1:1: "),
        ("busy\n\tprintf \"%s\\n\", n", "no.kp:2:9: `%s` does not fit `n` (int): write `%d`"),
        ("busy colect n", "no.kp:1:6: expected one of if, collect"),
        ("busy set n", "no.kp:1:1: `n` sets nothing"),
        ("busy stop", "which probes?"),
        ("busy pause\nbusy", "--start-when"),
        ("var $pid\nbusy", "`$pid` has a meaning already"),
    ] {
        case.write("no.kp", text);
        let told = case.refused(&["record", "probe", "-f", "no.kp", "-o", "no", "--", program]);
        assert!(told.contains(said), "{text}: {told}");
    }
    let told =
        case.refused(&["record", "probe", "-f", "busy.kp", "--collect", "n", "-o", "no", "--", program]);
    assert!(told.contains("--collect is for probes of the command line"), "{told}");
    let told = case.refused(&["record", "probe", "-f", "none.kp", "-o", "no", "--", program]);
    assert!(told.contains("none.kp"), "{told}");
}

/// Counts come while it records; Ctrl-C ends it, and the run has the totals.
#[test]
fn counts_while_it_records() {
    let case = Case::of(CASE);
    let program = case.program.to_str().unwrap();
    let args = [
        "record",
        "probe",
        "work",
        "--by",
        "n % 2",
        "--sum",
        "n",
        "--interval",
        "50ms",
        "-o",
        "run",
        "--",
        program,
        "200",
    ];
    let mut child =
        case.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kprism runs");
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let (mut blocks, mut hits) = (0, Vec::new());
    for line in told.by_ref() {
        blocks += u32::from(line.ends_with(" s: counts so far"));
        if let Some(n) = line.strip_suffix(" counted").and_then(|line| line.trim().split(' ').next()) {
            hits.push(n.replace(',', "").parse::<u64>().unwrap());
        }
        if hits.len() == 4 {
            break;
        }
    }
    assert_eq!((blocks, hits.len()), (4, 4));
    assert!(hits.is_sorted() && hits[0] < hits[3], "{hits:?}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let rest: Vec<String> = told.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let report = case.report();
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    let (count, sum) = rows.iter().fold((0, 0), |(count, sum), row| {
        (count + row["count"].as_i64().unwrap(), sum + row["aggregates"][0]["value"].as_i64().unwrap())
    });
    assert!(count as u64 >= hits[3]);
    // The calls have the numbers from 0 on.
    assert_eq!(sum, count * (count - 1) / 2);
    let said = case.refused(&["record", "probe", "work", "--interval", "1ms", "--", program]);
    assert!(said.contains("every 10ms"), "{said}");
    assert!(Path::new(program).is_file());
}

kprism_test::main!();
