// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record tlb --method user`: the same predictions as in the guest, of programs under QEMU's user mode. Needs what
//! `scripts/setup.sh test` installs, and the plugin built beside the tests.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kprism_test::{USER_PLUGINS, needs, test};
use kprism_tlb::Access;
use kprism_tlb::stream::{Event, Miss, Reader};
use serde_json::Value;

fn ok(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        needs(&[USER_PLUGINS]);
        let dir = tempfile::tempdir().expect("a folder");
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb/build.sh");
        assert!(Command::new("sh").arg(build).arg(dir.path()).status().expect("sh").success());
        Bench(dir)
    }

    /// Adds a program.
    fn build(&self, name: &str, source: &str) {
        let file = self.0.path().join(format!("{name}.c"));
        std::fs::write(&file, source).expect("a file");
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../bench/tlb");
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-O1", "-g", "-static", "-pthread", include, "-o"])
            .arg(self.0.path().join(name))
            .arg(file);
        assert!(compiler.status().expect("gcc").success());
    }

    fn run_of(&self, words: &[&str]) -> PathBuf {
        self.0.path().join(format!("{}.run", words.join("-")))
    }

    fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(["-q", "record", "tlb", "--method", "user", "-o"]).arg(self.run_of(words)).args(options);
        command.arg("--").arg(self.0.path().join(words[0])).args(&words[1..]);
        command
    }

    /// Records a program that does not end well.
    fn end(&self, options: &[&str], words: &[&str]) -> (PathBuf, Output) {
        (self.run_of(words), self.command(options, words).output().expect("kprism runs"))
    }

    /// Records a workload; gives the run and what it printed.
    fn record(&self, options: &[&str], words: &[&str]) -> (PathBuf, String) {
        let run = self.0.path().join(format!("{}.run", words.join("-")));
        let program = self.0.path().join(words[0]).display().to_string();
        let mut args = vec!["-q", "record", "tlb", "--method", "user", "-o", run.to_str().expect("UTF-8")];
        args.extend(options);
        args.extend(["--", &program]);
        args.extend(&words[1..]);
        let printed = ok(&args);
        (run, printed)
    }
}

/// The numbers in hex that a program printed.
fn addresses(printed: &str) -> Vec<u64> {
    let words = printed.split(|c: char| c != 'x' && !c.is_ascii_hexdigit());
    words.filter_map(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok()).collect()
}

fn stream(run: &Path, cpu: u32) -> (Option<(u32, u32)>, Vec<Miss>) {
    let bytes = std::fs::read(run.join(format!("streams/tlb/cpu{cpu}.miss"))).expect("the stream");
    let mut task = None;
    let mut misses = Vec::new();
    for event in Reader::new(&bytes).expect("a header") {
        match event.expect("an event") {
            Event::Miss(m) if m.last & 1 == 1 => misses.push(m),
            Event::Task { pid, tgid } => task = Some((pid, tgid)),
            _ => {}
        }
    }
    (task, misses)
}

fn counts(run: &Path) -> Value {
    let text = std::fs::read(run.join("streams/tlb/counts.json")).expect("counts");
    serde_json::from_slice(&text).expect("JSON")
}

fn objects(run: &Path) -> Vec<Value> {
    let text =
        ok(&["report", "tlb", "objects", "-i", run.to_str().expect("UTF-8"), "--json", "--limit", "0"]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    json["rows"].as_array().expect("objects").clone()
}

#[test]
fn a_stride_misses_in_the_predicted_sequence() {
    let bench = Bench::new();
    let (run, printed) = bench.record(&["-g", "ivybridge-ep", "-g", "zen4"], &["stride", "2048", "3"]);
    let [begin, end] = addresses(&printed)[..] else { panic!("{printed}") };
    let (_, misses) = stream(&run, 0);
    let got: Vec<_> =
        misses.iter().filter(|m| (begin..end).contains(&m.va)).map(|m| (m.va, m.access)).collect();
    let round = |access| (begin..end).step_by(4096).map(move |va| (va, access));
    let mut expected: Vec<_> = round(Access::Store).collect();
    (0..3).for_each(|_| expected.extend(round(Access::Load)));
    assert!(got == expected, "{} and {}", got.len(), expected.len());
    assert!(misses.is_sorted_by_key(|m| m.ns), "times run on");
    // 2048 pages fit Zen 4's 3072 entries: each misses once.
    let zen = misses.iter().filter(|m| m.last & 2 != 0 && (begin..end).contains(&m.va)).count();
    assert_eq!(zen, 2048);
    // The array is an object of its own.
    let all = objects(&run);
    let array = all.iter().find(|o| o["start"].as_u64() == Some(begin)).expect("the array");
    assert_eq!((array["misses"].as_u64(), array["bytes"].as_u64()), (Some(4 * 2048), Some(2048 * 4096)));
    // What the account says is what the stream holds.
    let account = &counts(&run)["vcpus"][0]["models"][0]["misses"];
    let told = |access: &str| account[access].as_u64().expect("a number");
    assert_eq!(
        told("load") + told("store") + told("fetch"),
        misses.iter().filter(|m| m.last & 1 == 1).count() as u64
    );
}

#[test]
fn misses_belong_to_the_arrays_that_programs_print() {
    let bench = Bench::new();
    let cases: [(&[&str], u64); 4] = [
        (&["stride", "4096", "4"], 99),
        (&["gups", "16M", "200K"], 99),
        // Of the generated edges and the queue only the search's own arrays are printed.
        (&["bfs", "15", "8"], 90),
        (&["chase", "16M", "200K"], 30),
    ];
    for (words, percent) in cases {
        let (run, printed) = bench.record(&[], words);
        let rows = objects(&run);
        let misses = |o: &Value| o["misses"].as_u64().expect("a number");
        let all: u64 = rows.iter().map(misses).sum();
        let unknown: u64 = rows.iter().filter(|o| o["kind"] == "unknown").map(misses).sum();
        let known = addresses(&printed);
        let named: u64 =
            rows.iter().filter(|o| known.iter().any(|&at| o["start"].as_u64() == Some(at))).map(misses).sum();
        println!("{words:?}: {unknown} of {all} misses are nobody's, {named} of printed arrays");
        assert!(unknown * 100 <= all, "{words:?}: {unknown} of {all} are nobody's");
        assert!(named * 100 >= all * percent, "{words:?}: {named} of {all}: {rows:?}");
    }
}

/// Misses of the last level, by thread: of all streams, as QEMU gives a thread's number to another one when it has ended.
fn by_thread(run: &Path) -> HashMap<u32, Vec<Miss>> {
    let mut all: HashMap<u32, Vec<Miss>> = HashMap::new();
    let streams = counts(run)["vcpus"].as_array().expect("streams").len();
    for cpu in 0..streams {
        let bytes = std::fs::read(run.join(format!("streams/tlb/cpu{cpu}.miss"))).expect("the stream");
        let mut task = 0;
        for event in Reader::new(&bytes).expect("a header") {
            match event.expect("an event") {
                Event::Miss(m) if m.last & 1 == 1 => all.entry(task).or_default().push(m),
                Event::Task { pid, .. } => task = pid,
                _ => {}
            }
        }
    }
    all
}

/// Threads have TLBs of their own: each misses what it would alone.
#[test]
fn threads_miss_each_for_itself() {
    let bench = Bench::new();
    let (run, printed) = bench.record(&["-g", "ivybridge-ep"], &["threads", "3", "stride", "24M", "10240"]);
    let begin = addresses(&printed)[0];
    assert_eq!(counts(&run)["threads"], 4, "main and three");
    let part = 8 << 20;
    let mut parts = Vec::new();
    for misses in by_thread(&run).into_values() {
        // 2048 pages in order, written once, then read in order, five times over: more than there are entries.
        let own: Vec<_> = misses.iter().filter(|m| (begin..begin + 3 * part).contains(&m.va)).collect();
        let Some(first) = own.first().map(|m| m.va) else { continue };
        assert!(own.iter().all(|m| m.va >= first && m.va < first + part), "of its own part only");
        let stores = own.iter().filter(|m| m.access == Access::Store).count();
        let loads = own.iter().filter(|m| m.access == Access::Load).count();
        assert_eq!((stores, loads), (2048, 10240));
        parts.push(first);
    }
    parts.sort_unstable();
    assert_eq!(parts, [begin, begin + part, begin + 2 * part]);
}

/// A thread whose number another one had before: that one's misses stay.
#[test]
fn threads_one_after_another_are_all_there() {
    let bench = Bench::new();
    bench.build("serial", SERIAL);
    let (run, printed) = bench.record(&["-g", "ivybridge-ep"], &["serial", "200", "1024"]);
    let begin = addresses(&printed)[0];
    let array = begin..begin + (1024 << 12);
    let of_array = |misses: &[Miss]| misses.iter().filter(|m| array.contains(&m.va)).count();
    let threads = by_thread(&run);
    let each: Vec<usize> = threads.values().map(|misses| of_array(misses)).filter(|n| *n > 0).collect();
    // Twice as many pages in each set as it has ways: nothing is found again, and TLBs are empty at a thread's begin.
    assert_eq!(each, [2 * 1024; 200]);
    let counts = counts(&run);
    assert_eq!((counts["threads"].as_u64(), counts["threads_not_followed"].as_u64()), (Some(201), Some(0)));
    // The counts are what the streams hold.
    let sum = |v: &Value| {
        v["models"][0]["misses"].as_object().expect("kinds").values().filter_map(Value::as_u64).sum::<u64>()
    };
    let counted: u64 = counts["vcpus"].as_array().expect("streams").iter().map(sum).sum();
    assert_eq!(counted, threads.values().map(|misses| misses.len() as u64).sum::<u64>());
}

/// However a program ends, its misses are there, and the report says that it did.
#[test]
fn a_program_that_is_ended_leaves_its_misses() {
    let bench = Bench::new();
    bench.build("ends", ENDS);
    // A fault is no system call: of what QEMU noted last, at most a batch of accesses is not looked up.
    for (how, code, at_least) in
        [("abort", 134, 2048), ("kill", 137, 2048), ("execve", 0, 2048), ("fault", 139, 2048 - 512)]
    {
        let (run, output) = bench.end(&[], &["ends", how, "2048"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{how}: {said}");
        let begin = addresses(&String::from_utf8_lossy(&output.stdout))[0];
        let array = begin..begin + (2048 << 12);
        let all = by_thread(&run).into_values().flatten().filter(|m| array.contains(&m.va)).count();
        assert!((at_least..=2048).contains(&all), "{how}: {all}");
        let text = ok(&["report", "tlb", "-i", run.to_str().expect("UTF-8")]);
        assert!(text.contains("ended early"), "{how}: {text}");
        assert!(text.contains(if how == "execve" { "execve" } else { "by signal" }), "{how}: {text}");
    }
    let (run, output) = bench.end(&["--timeout", "1"], &["ends", "never", "2048"]);
    assert_eq!(output.status.code(), Some(124));
    let begin = addresses(&String::from_utf8_lossy(&output.stdout))[0];
    let array = begin..begin + (2048 << 12);
    let all = by_thread(&run).into_values().flatten().filter(|m| array.contains(&m.va)).count();
    assert!(all >= 2048 - 512, "{all}");
    let text = ok(&["report", "tlb", "-i", run.to_str().expect("UTF-8")]);
    assert!(text.contains("ended early") && text.contains("--timeout"), "{text}");
}

/// Who ends kprism the hard way ends the program too.
#[test]
fn nothing_runs_on_when_kprism_is_killed() {
    let bench = Bench::new();
    bench.build("ends", ENDS);
    let mut kprism =
        bench.command(&[], &["ends", "never", "16"]).stdout(Stdio::piped()).spawn().expect("kprism");
    let mut line = String::new();
    BufReader::new(kprism.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    let pid: u32 = line.split(' ').nth(1).and_then(|n| n.trim().parse().ok()).expect("its number");
    let is_there = || Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
    assert!(is_there());
    kprism.kill().expect("a signal");
    kprism.wait().expect("its end");
    let begun = Instant::now();
    while is_there() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{pid} runs on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `serial THREADS PAGES`: threads one after another, each of which reads the pages of one array twice, in order.
const SERIAL: &str = r#"
#include "tlb.h"
#include <pthread.h>
static volatile char *all;
static uint64_t pages;
static void *run(void *nothing)
{
	for (int round = 0; round < 2; round++)
		for (uint64_t i = 0; i < pages; i++)
			all[i << 12];
	return nothing;
}
int main(int argc, char **argv)
{
	uint64_t threads = argument(argc, argv, 1, 200);
	pages = argument(argc, argv, 2, 1024);
	all = array(pages << 12, 0);
	for (uint64_t i = 0; i < threads; i++) {
		pthread_t one;
		if (pthread_create(&one, NULL, run, NULL) || pthread_join(one, NULL))
			return 1;
	}
	printf("%#lx\n", (unsigned long)all);
	return 0;
}
"#;

/// `ends HOW PAGES`: prints where its array is and who it is, writes its pages once, and ends so.
const ENDS: &str = r#"
#include "tlb.h"
#include <signal.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	uint64_t pages = argument(argc, argv, 2, 16);
	volatile char *a = array(pages << 12, 0);
	printf("%#lx %d\n", (unsigned long)a, (int)getpid());
	fflush(stdout);
	for (uint64_t i = 0; i < pages; i++)
		a[i << 12] = 1;
	switch (argv[1][0]) {
	case 'a': abort();
	case 'k': return kill(getpid(), SIGKILL);
	case 'e': return execl("/bin/true", "true", (char *)NULL);
	case 'f': return *(volatile int *)8;
	}
	for (volatile uint64_t i = 0;; i++)
		a[i % pages << 12]++;
}
"#;

/// What a TLB model counts does not depend on how its accesses came: one geometry, or several at once.
#[test]
fn geometries_in_one_pass_count_as_each_alone() {
    let bench = Bench::new();
    let words = ["chase", "4M", "50K", "malloc"];
    let names = kprism_tlb::presets::NAMES;
    let mut options = Vec::new();
    names.iter().for_each(|name| options.extend(["-g", name]));
    let (run, _) = bench.record(&options, &words);
    let together = counts(&run)["vcpus"][0].clone();
    // Loads and stores are told apart where Sapphire Rapids is among them, which alone may look up more, not other misses.
    for (at, name) in names.iter().enumerate() {
        let (run, _) = bench.record(&["-g", name], &words);
        let alone = counts(&run)["vcpus"][0].clone();
        let (a, b) = (&together["models"][at]["misses"], &alone["models"][0]["misses"]);
        for kind in ["load", "store", "fetch"] {
            let (a, b) = (a[kind].as_u64().expect("a number"), b[kind].as_u64().expect("a number"));
            // Stacks and environments lie elsewhere in each run.
            assert!(a.abs_diff(b) * 1000 <= a.max(b) + 20_000, "{name} {kind}: {a} together, {b} alone");
        }
    }
}

/// Each access of a stride misses: the lines of source that make them have exactly so many misses, and no other line of the
/// program has more than a few.
#[test]
fn misses_belong_to_lines_of_source() {
    let bench = Bench::new();
    let (run, _) = bench.record(&["-g", "ivybridge-ep"], &["stride", "2048", "3"]);
    let run = run.to_str().expect("UTF-8");
    let json: Value = serde_json::from_str(&ok(&["annotate", "main", "-i", run, "--json"])).expect("JSON");
    let source =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb/stride.c"));
    let source = source.expect("the source");
    let line = |text: &str| (1..).zip(source.lines()).find(|(_, l)| l.contains(text)).expect("a line").0;
    let misses = |number: u64| {
        let all = json["source_lines"].as_array().expect("lines").iter();
        all.filter(|l| l["line"].as_u64() == Some(number))
            .map(|l| l["misses"].as_u64().expect("a number"))
            .sum::<u64>()
    };
    assert_eq!((misses(line("a[i * bytes] = 1")), misses(line("sum += a"))), (2048, 3 * 2048), "{json}");
    assert!(json["misses"].as_u64().is_some_and(|all| (4 * 2048..4 * 2048 + 20).contains(&all)), "{json}");
    let load =
        json["lines"].as_array().expect("lines").iter().find(|l| l["misses"].as_u64() == Some(3 * 2048));
    assert!(
        load.is_some_and(|l| l["insn"].as_str().is_some_and(|text| text.starts_with("movsbq"))),
        "{json}"
    );
    let text = ok(&["annotate", "main", "-i", run]);
    assert!(text.contains("stride.c:") && text.contains("6,144"), "{text}");
}

/// Counters, of this processor as far as perf has them here, beside the run's counts, with the PTAT paper's relative error.
#[test]
fn counters_of_perf_are_compared() {
    let bench = Bench::new();
    let (run, _) = bench.record(&["-g", "ivybridge-ep"], &["stride", "2048", "3"]);
    let compare = |file: &Path| {
        let (run, file) = (run.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
        let text = ok(&["report", "tlb", "counters", "--counters", file, "-i", run, "--json"]);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        json["rows"].as_array().expect("rows").clone()
    };
    let real = bench.0.path().join("stat");
    let events = "dTLB-load-misses:u,dTLB-store-misses:u,page-faults";
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x,", "-e", events, "-o"]).arg(&real).args(["--", "true"]);
    assert!(perf.status().expect("perf").success());
    let rows = compare(&real);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let loads = rows[0]["misses"].as_u64().expect("a number");
    // Of what it cannot count, perf leaves the modifier away.
    assert!(rows[0]["event"].as_str().is_some_and(|e| e.starts_with("dTLB-load-misses")), "{rows:?}");
    assert!((3 * 2048..3 * 2048 + 200).contains(&loads), "{rows:?}");
    // Counts as a processor that has such counters would have given them.
    let text = std::fs::read_to_string(&real).expect("text");
    let counted = text.lines().map(|line| match line.split_once(",,dTLB-load-misses") {
        Some((_, rest)) => format!("{},,dTLB-load-misses{rest}\n", loads * 4),
        None => format!("{line}\n"),
    });
    let made = bench.0.path().join("made");
    std::fs::write(&made, counted.collect::<String>()).expect("a file");
    let rows = compare(&made);
    assert_eq!(rows[0]["counted"].as_u64(), Some(loads * 4));
    assert_eq!(rows[0]["relative_error_percent"].as_f64(), Some(75.0), "{rows:?}");
}

/// `signals ROUNDS`: handles SIGALRM that many times, while it calls functions and writes to pages of an array in turn.
const SIGNALS: &str = r#"
#include "tlb.h"
#include <signal.h>
#include <sys/time.h>
static volatile uint64_t handled;
static void handle(int number)
{
	handled += number == SIGALRM;
}
static __attribute__((noinline)) uint64_t next(uint64_t n)
{
	__asm__ volatile("");
	return n + 1;
}
int main(int argc, char **argv)
{
	uint64_t rounds = argument(argc, argv, 1, 100), n = 0;
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
	uint64_t (*volatile by_pointer)(uint64_t) = next;
	signal(SIGALRM, handle);
	setitimer(ITIMER_REAL, &often, NULL);
	while (handled < rounds)
		n = next(by_pointer(n));
	printf("%d\n", n > 0);
	return 0;
}
"#;

/// A signal's frame is no access of the program's: QEMU tells of it under the last block's name, which must change nothing.
#[test]
fn programs_that_handle_signals_run_on() {
    let bench = Bench::new();
    bench.build("signals", SIGNALS);
    let (run, printed) = bench.record(&[], &["signals", "300"]);
    assert_eq!(printed, "1\n");
    let run_text = run.to_str().expect("UTF-8");
    let report = ok(&["report", "tlb", "functions", "-i", run_text, "--json", "--limit", "0"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    // `next` touches its stack alone, which is always there: it does not miss anew at each signal.
    let of_next = rows
        .iter()
        .find(|row| row["function"] == "next")
        .map_or(0, |row| row["misses"].as_u64().expect("a number"));
    assert!(rows.len() > 1 && of_next < 300, "{report}");
    assert_eq!(counts(&run)["ended"], true);
}

/// Programs by whatever way they are named: with spaces, in a folder that is called as a library is, by a script, below --cwd,
/// by PATH. Functions and objects have their names.
#[test]
fn programs_are_found_and_named() {
    let bench = Bench::new();
    let folder = bench.0.path().join("my solver.so 1");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::copy(bench.0.path().join("stride"), folder.join("a stride")).expect("a copy");
    let script = folder.join("script");
    let text = format!("#! {} 64\n", bench.0.path().join("stride").display());
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    let place = folder.to_str().expect("UTF-8");
    let path = format!("PATH={place}");
    let named = format!("{place}/a stride");
    let cases: [(&[&str], &str, &str); 5] = [
        (&[], &named, "a stride"),
        (&["--cwd", place], "./a stride", "a stride"),
        (&["--env", &path], "a stride", "a stride"),
        (&["--cwd", place], "./script", "script"),
        (&[], "/bin/true", "true"),
    ];
    for (at, (options, program, comm)) in cases.into_iter().enumerate() {
        let run = bench.0.path().join(format!("{at}.run"));
        let run = run.to_str().expect("UTF-8");
        let mut args = vec!["-q", "record", "tlb", "--method", "user", "-o", run];
        args.extend(options);
        args.extend(["--", program, "64", "1"]);
        ok(&args);
        let view = |name| -> Value {
            serde_json::from_str(&ok(&["report", "tlb", name, "-i", run, "--json", "--limit", "0"]))
                .expect("JSON")
        };
        let functions = view("functions");
        let misses = |o: &Value| o["misses"].as_u64().expect("a number");
        let rows = functions["rows"].as_array().expect("rows");
        let all: u64 = rows.iter().map(misses).sum();
        // The loader of a program that has one is known too; what is left is the vDSO and code before any mapping is told.
        let unknown: u64 = rows.iter().filter(|row| row["function"] == "[unknown]").map(misses).sum();
        assert!(unknown * 20 <= all, "{program}: {unknown} of {all} by unknown functions: {functions}");
        assert_eq!(view("processes")["rows"][0]["comm"], comm, "{program}");
    }
    // What QEMU cannot run is refused before a run is made of it.
    let text = folder.join("text");
    std::fs::write(&text, "no program").expect("a file");
    std::fs::set_permissions(&text, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    for (program, says) in [
        (text.to_str().expect("UTF-8"), "is no program"),
        ("/nonexistent/program", "no such program"),
        ("/etc/passwd", "is not executable"),
        ("no-program-has-this-name", "no such program in PATH"),
    ] {
        let run = bench.0.path().join("refused");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        command.args(["record", "tlb", "--method", "user", "-o"]).arg(&run).args(["--", program]);
        let output = command.output().expect("kprism runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{program}: {said}");
        assert!(!run.exists(), "{program}");
    }
}

/// `limited WHAT PAGES ROUNDS`: takes its files away (`n`) or lets them not grow (`f`), then writes to its pages in turn.
const LIMITED: &str = r#"
#include "tlb.h"
#include <sys/resource.h>
int main(int argc, char **argv)
{
	uint64_t pages = argument(argc, argv, 2, 16), rounds = argument(argc, argv, 3, 1);
	struct rlimit limit = { 3, 3 };
	if (argv[1][0] == 'f')
		limit.rlim_cur = limit.rlim_max = 100000;
	setrlimit(argv[1][0] == 'f' ? RLIMIT_FSIZE : RLIMIT_NOFILE, &limit);
	volatile char *a = array(pages << 12, 0);
	for (uint64_t r = 0; r < rounds; r++)
		for (uint64_t i = 0; i < pages; i++)
			a[i << 12] = 1;
	return 7;
}
"#;

/// A program's own limits are the recorder's too: it runs on, and what could not be written is counted.
#[test]
fn a_programs_limits_do_not_end_it() {
    let bench = Bench::new();
    bench.build("limited", LIMITED);
    for what in ["f", "n"] {
        let (run, output) = bench.end(&[], &["limited", what, "8192", "4"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The recording is not whole, so the code is kprism's; the program's own says that it came to its end.
        assert_eq!(output.status.code(), Some(125), "{what}: {said}");
        let manifest: Value =
            serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap();
        assert_eq!(manifest["exit_code"], 7, "{what}");
        assert_eq!(manifest["stopped"], "not all misses could be written", "{what}");
        let counts = counts(&run);
        assert!(counts["unwritten_bytes"].as_u64() > Some(0), "{what}: {counts}");
        assert_eq!(counts["unwritten_mappings"].as_u64() > Some(0), what == "n", "{what}: {counts}");
        assert_eq!(said.matches("sideband.jsonl").count(), usize::from(what == "n"), "{said}");
    }
}

kprism_test::main!();

/// Of the accesses of one program: a condition leaves out what it does not hold for, and counts it.
#[test]
fn a_condition_keeps_some_misses() {
    let bench = Bench::new();
    let stride = ["stride", "512", "3", "4K"];
    let (all, _) = bench.record(&[], &stride);
    let kinds = |run: &Path| {
        let bytes = std::fs::read(run.join("streams/tlb/cpu0.miss")).unwrap();
        let mut kinds = [0u64; 3];
        let mut touched = 0;
        for event in Reader::new(&bytes).unwrap() {
            match event.unwrap() {
                Event::Miss(Miss { access, last, .. }) => kinds[access as usize] += u64::from(last & 1),
                Event::Touch { .. } => touched += 1,
                _ => {}
            }
        }
        (kinds, touched)
    };
    let ([loads, stores, fetches], _) = kinds(&all);
    assert!(loads > 0 && stores > 0 && fetches > 0);
    std::fs::rename(&all, all.with_extension("all")).unwrap();
    let (run, _) = bench.record(&["--if", "access == store && $pid > 1 && $tid == $pid"], &stride);
    assert_eq!(kinds(&run), ([0, stores, 0], 0));
    let report: Value =
        serde_json::from_str(&ok(&["report", "tlb", "--json", "--strict", "-i", run.to_str().unwrap()]))
            .unwrap();
    let units: HashMap<&str, u64> = report["run"]["account"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["fate"] == "seen")
        .map(|entry| (entry["unit"].as_str().unwrap(), entry["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(units["misses"], loads + stores + fetches);
    assert_eq!(units["misses that do not meet the condition, left out"], loads + fetches);
    // What one program without its kernel does not tell is refused.
    for (condition, expected) in
        [("$comm == \"stride\"", "$comm"), ("$cpu == 0", "$cpu"), ("x == 1", "no `x`")]
    {
        let (_, output) = bench.end(&["--if", condition], &stride);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{condition}: {said}");
    }
}
