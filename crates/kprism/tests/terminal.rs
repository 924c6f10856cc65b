// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism tui` and `kprism top` on a terminal: what they show is what `kprism report` prints, and the terminal is as it was
//! before when they end, however they do.

#[path = "terminal/pty.rs"]
mod pty;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use kprism_test::{BPF, QEMU, ROOT, UPROBES, needs, test, turn};
use pty::Pty;
use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args(args).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command
}

fn kprism(args: &[&str]) -> Output {
    command(args).output().expect("kprism runs")
}

fn json(args: &[&str]) -> Value {
    let output = kprism(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A run of `true` in the lab: tables and manifest only.
fn stored() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/report.in/true.data");
    path.to_str().unwrap().to_owned()
}

/// Text of a screen without differences of blanks.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_run_is_browsed_with_the_numbers_of_the_report() {
    let run = stored();
    let rows = json(&["report", "functions", "--json", "--limit", "0", "-i", &run]);
    let rows = rows["rows"].as_array().unwrap();
    let first = &rows[0];
    let name = first["function"].as_str().unwrap();
    let mut pty = Pty::start(command(&["tui", &run]), 24, 80);
    let text = pty.until("the functions", |text| text.contains("q quit") && text.contains(name));
    // The function with the most instructions is the first, and its calls are the report's.
    let line = text.lines().find(|line| line.contains(name)).unwrap();
    assert!(text.contains(&format!("1/{}", rows.len())), "{text}");
    assert!(line.contains(&format!("{:.2}%", first["self_percent"].as_f64().unwrap())), "{line}");

    pty.picture("tui");

    // Sorted by calls, three columns further on from self instructions.
    pty.keys("lllll");
    let calls = first["calls"].to_string();
    pty.until("the calls", |text| text.lines().any(|l| l.contains(name) && squeezed(l).contains(&calls)));
    pty.keys("hhhhh");

    // A filter leaves the rows that the report has of that name.
    let matching = rows.iter().filter(|row| {
        ["function", "module"].iter().any(|key| row[*key].as_str().unwrap().to_lowercase().contains("page"))
    });
    let matching = matching.count();
    assert!(matching > 0 && matching < rows.len());
    pty.keys("/page\r");
    pty.until("the filter", |text| text.contains(&format!("1/{matching} of {}, /page", rows.len())));
    pty.keys("\x7f");
    pty.until("all rows", |text| text.contains(&format!("1/{}", rows.len())));

    // Down into the callees of a function and back.
    pty.keys("\r");
    pty.until("callees", |text| text.contains("callees") && text.contains("callers"));
    pty.keys("\t");
    pty.keys("\x1b");
    pty.until("the functions again", |text| text.contains("syscalls"));

    // The call tree.
    pty.keys("\t");
    let tree = pty.until("the call tree", |text| text.contains("100.00%") || text.contains("total▼"));
    assert!(tree.contains("true"), "{tree}");
    pty.keys("?");
    pty.until("the help", |text| text.contains("turn round"));
    pty.keys(" ");

    // Another size, and a small one.
    pty.resize(50, 140);
    pty.until("more rows", |text| text.lines().count() > 30 || text.contains("q quit"));
    pty.resize(5, 20);
    pty.until("few rows", |text| text.lines().count() <= 5);
    pty.resize(24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
}

#[test]
fn signals_and_ctrl_c_put_the_terminal_back() {
    let run = stored();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut pty = Pty::start(command(&["tui", &run]), 24, 80);
        pty.until("the foot", |text| text.contains("q quit"));
        pty.signal(signal);
        assert_eq!(pty.end().code(), Some(0), "signal {signal}");
    }
    let mut pty = Pty::start(command(&["tui", &run]), 24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    pty.keys("\x03");
    assert_eq!(pty.end().code(), Some(0));
}

#[test]
fn colour_is_left_out_where_none_is_wanted() {
    let run = stored();
    let has_color = |args: &[&str], name: &str, value: &str| {
        let mut command = command(args);
        command.env(name, value);
        let mut pty = Pty::start(command, 24, 80);
        pty.until("the foot", |text| text.contains("q quit"));
        pty.keys("q");
        pty.end();
        // Cyan, in either of its forms.
        let text = String::from_utf8_lossy(&pty.bytes).into_owned();
        text.contains("38;5;6") || text.contains("\x1b[36") || text.contains(";36m")
    };
    assert!(has_color(&["tui", &run], "KPRISM_TEST", "1"));
    assert!(!has_color(&["tui", &run], "NO_COLOR", "1"));
    assert!(!has_color(&["tui", "--color", "never", &run], "KPRISM_TEST", "1"));
}

#[test]
fn without_a_terminal_it_is_refused() {
    let run = stored();
    let refused = kprism(&["tui", &run]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("kprism report"), "{said}");
    let refused = kprism(&["top", "lab", "run", "--", "true"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--batch"), "{said}");
}

/// Coverage by counters: files, functions, lines, with the report's numbers; a name that is hostile to terminals.
#[test]
fn coverage_is_browsed_down_to_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n\
        static int even(int n) { return n % 2 == 0; }\n\
        static int never(int n) { return n + 1; }\n\
        int main(int argc, char **argv)\n{\n\tint sum = 0;\n\tfor (int n = 0; n < 318; n++)\n\t\tsum += even(n);\n\
        \tif (argc > 1)\n\t\tsum = never(sum); /* \x1b]0;title\x07 */\n\tprintf(\"%d\", sum);\n\treturn sum != 159;\n}\n";
    std::fs::write(dir.path().join("count.c"), source).unwrap();
    let made = Command::new("cc")
        .args(["-O0", "--coverage", "-o", "count", "count.c"])
        .current_dir(dir.path())
        .status();
    assert!(made.expect("a C compiler is installed").success());
    let ran = Command::new("./count").current_dir(dir.path()).output().unwrap();
    assert!(ran.status.success());
    let folder = dir.path().to_str().unwrap();
    let each =
        |each: &str| json(&["report", "cover", "--each", each, "--json", "--limit", "0", "-i", folder]);
    let (files, functions) = (each("file"), each("function"));
    let totals = &files["totals"];
    let mut pty = Pty::start(command(&["tui", folder]), 24, 100);
    let text = pty.until("the files", |text| text.contains("count.c"));
    let file = &files["rows"][0];
    let line = squeezed(text.lines().find(|line| line.contains("count.c")).unwrap());
    let wanted =
        format!("{:.2}% {} {}", file["lines_percent"].as_f64().unwrap(), file["lines_hit"], file["lines"]);
    assert!(line.contains(&wanted), "{wanted}: {line}");

    // The lines of the file: with their counts, and text that commands nothing.
    pty.keys("\r");
    let text = pty.until("its lines", |text| text.contains("sum += even(n)"));
    let counted = |text: &str, what: &str| squeezed(text.lines().find(|line| line.contains(what)).unwrap());
    assert!(counted(&text, "sum += even(n)").starts_with("318 8 "), "{text}");
    assert!(counted(&text, "sum = never(sum)").starts_with("##### 10 "), "{text}");
    assert!(text.contains("\\u{1b}]0;title\\u{7}"), "{text}");
    // Its functions, by calls; and the lines of one.
    pty.keys("\tsr");
    pty.keys("r");
    let text = pty.until("its functions", |text| text.contains("count.c:2") && text.contains("1/3"));
    for row in functions["rows"].as_array().unwrap() {
        let name = row["function"].as_str().unwrap();
        let line = squeezed(
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}")),
        );
        assert!(line.starts_with(&format!("{name} {} ", row["called"])), "{row}: {line}");
    }
    pty.keys("/even\r\r");
    let text = pty.until("its line", |text| text.contains("static int even") && text.contains(" › even"));
    assert!(counted(&text, "static int even").starts_with("318 "), "{text}");
    assert!(!text.contains("static int never"), "{text}");
    // Totals and account. Esc goes back, first by the filter.
    pty.keys("\x1b");
    pty.until("the functions", |text| text.contains("/even"));
    pty.keys("\x1b");
    pty.until("all functions", |text| text.contains("never"));
    pty.keys("\x1b");
    pty.until("the files", |text| text.contains("folders"));
    pty.keys("\x1b[Z");
    let text = pty.until("the account", |text| text.contains("executed"));
    assert!(
        squeezed(&text).contains(&format!("{} of {} executed", totals["lines_hit"], totals["lines"])),
        "{text}"
    );
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
    // Without its source the counts are there, and why the text is not.
    std::fs::rename(dir.path().join("count.c"), dir.path().join("elsewhere.c")).unwrap();
    let mut pty = Pty::start(command(&["tui", folder]), 24, 100);
    pty.until("the files", |text| text.contains("count.c"));
    pty.keys("\r");
    pty.until("the remark", |text| text.contains("no source; --source-dir") && text.contains("318"));
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
    let refused = kprism(&["tui", &stored(), "--build-dir", folder]);
    assert_eq!(refused.status.code(), Some(2));
}

/// A recording that `top` cannot watch is refused, with the remedy, before anything is recorded.
#[test]
fn what_top_cannot_watch_is_refused() {
    let lines: [(&[&str], &str); 11] = [
        (&["record", "flow", "--", "true"], "kprism tui"),
        (&["record", "durations", "--", "true"], "--aggregate"),
        (&["record", "probe", "vfs_read", "--interval", "1s", "-a"], "--interval"),
        (&["report"], "goes before"),
        (&["lab", "run", "--unobserved", "--", "true"], "--unobserved"),
        (&["lab", "run", "--no-decode", "--", "true"], "--no-decode"),
        (&["observe", "--no-decode", "--", "qemu-system-x86_64"], "--no-decode"),
        (&["observe"], "behind"),
        (&["-q", "observe", "--", "qemu-system-x86_64"], "behind"),
        (&["-v", "lab", "run", "--", "true"], "behind"),
        (&["record", "--on", "ssh:h", "probe", "vfs_read", "-a"], "behind"),
    ];
    for (line, named) in lines {
        let output = kprism(&[&["top", "--batch"], line].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line:?}: {said}");
        assert!(said.contains(named), "{line:?}: {said}");
    }
}

/// A program whose function is called a known number of times, over some seconds.
fn counted(dir: &Path) -> PathBuf {
    let source = "#include <unistd.h>\n\
        __attribute__((noinline)) int work(int n) { __asm__ volatile(\"\"); return n + 1; }\n\
        int main(void) { int s = 0; for (int n = 0; n < 3000; n++) { s += work(n % 3); usleep(1000); } return s == 0; }\n";
    let (program, file) = (dir.join("counted"), dir.join("counted.c"));
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(["-g", "-O1", "-o"]).arg(&program).arg(&file).status();
    assert!(built.expect("a C compiler is installed").success());
    program
}

#[test]
fn top_shows_counts_as_they_grow_and_ends_with_those_of_the_report() {
    needs(&[ROOT, BPF, UPROBES]);
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (counted(dir.path()), dir.path().join("run"));
    let (program, run) = (program.to_str().unwrap(), run.to_str().unwrap());
    let line = ["record", "probe", "work", "--by", "n", "--hist", "n", "-o", run, "--", program];
    let mut pty = Pty::start(command(&[&["top", "--interval", "200ms"], &line[..]].concat()), 24, 80);
    pty.until("counts that grow", |text| text.contains("recording") && text.contains("counts"));
    pty.until("the end", |text| text.contains("ended with 0"));
    let text = pty.until("the whole counts", |text| text.matches("1,000").count() == 3);
    assert!(text.contains("count"), "{text}");
    pty.picture("top");
    pty.keys("\r");
    pty.until("a histogram", |text| text.contains("1,000 values"));
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
    let report = json(&["report", "probe", "--json", "-i", run]);
    assert_eq!(report["counts"][0]["hits"], 3000);
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    assert!(rows.len() == 3 && rows.iter().all(|row| row["count"] == 1000), "{rows:?}");
}

#[test]
fn quitting_top_ends_the_recording_and_keeps_it() {
    needs(&[ROOT, BPF, UPROBES]);
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (counted(dir.path()), dir.path().join("run"));
    let (program, run) = (program.to_str().unwrap(), run.to_str().unwrap());
    let line =
        ["top", "--interval", "100ms", "record", "probe", "work", "--by", "n", "-o", run, "--", program];
    for signal in [false, true] {
        let mut pty = Pty::start(command(&line), 24, 80);
        pty.until("counts", |text| text.contains("recording") && text.contains("counts"));
        match signal {
            true => pty.signal(libc::SIGTERM),
            false => pty.keys("q"),
        }
        // As without `top`: interrupted.
        assert_eq!(pty.end().code(), Some(130));
        let hits = json(&["report", "probe", "--json", "-i", run])["counts"][0]["hits"].as_u64().unwrap();
        assert!(hits > 0 && hits < 3000, "{hits}");
    }
}

#[test]
fn batch_prints_blocks_and_the_last_one_is_the_report() {
    needs(&[ROOT, BPF, UPROBES]);
    let dir = tempfile::tempdir().unwrap();
    let (program, run) = (counted(dir.path()), dir.path().join("run"));
    let (program, run) = (program.to_str().unwrap(), run.to_str().unwrap());
    let line = ["record", "probe", "work", "--by", "n", "-o", run, "--", program];
    let output = kprism(&[&["top", "--batch", "--interval", "300ms"], &line[..]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let blocks: Vec<&str> = text.split("--- ").skip(1).collect();
    assert!(blocks.len() > 2 && blocks[0].starts_with("recording"), "{text}");
    let last = blocks.last().unwrap();
    assert!(last.starts_with("ended with 0") && last.matches("1,000").count() == 3, "{last}");
}

/// The streams of a guest are decoded while they grow; at the end the numbers are those of the report.
#[test]
fn a_guest_is_watched() {
    needs(&[QEMU]);
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let run = run.to_str().unwrap();
    let script = "for n in 1 2 3 4 5 6 7 8; do ls -lR /usr/lib /etc > /dev/null; done";
    let line = ["top", "--batch", "--interval", "200ms", "lab", "run", "-o", run, "--", "sh", "-c", script];
    let output = kprism(&line);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let blocks: Vec<&str> = text.split("--- ").skip(1).collect();
    assert!(
        blocks.iter().any(|block| block.contains("bytes decoded") && block.contains("\nfunctions")),
        "{text}"
    );
    let first = &json(&["report", "functions", "--json", "-i", run])["rows"][0];
    let last = blocks.last().unwrap();
    assert!(last.starts_with("ended with 0") && last.contains(first["function"].as_str().unwrap()), "{last}");
}

/// Aggregated durations, in the guest, where root, BPF and tracefs are at hand: they grow, and the last block is the report.
#[test]
fn durations_are_watched_as_they_are_counted() {
    needs(&[QEMU]);
    turn(2, 0);
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    std::fs::create_dir(&share).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_kprism"), share.join("kprism")).unwrap();
    let top = "/test/kprism top --batch --interval 200ms --limit 100 record durations --backend bpf-fentry --no-events \
               --aggregate -T vfs_write -T ksys_write -o";
    let copy = "dd if=/dev/zero of=/dev/null bs=1 count=400 status=none";
    let script = format!(
        "{top} /tmp/run -- sh -c 'for n in 1 2 3 4 5; do {copy}; sleep 10; done'\n\
         echo \"== $?\"\n/test/kprism report durations --json --limit 0 -i /tmp/run\n\
         {top} /tmp/ended -- sh -c '{copy}; sleep 100' >/tmp/blocks 2>/dev/null &\n\
         for n in $(seq 300); do grep -q '^ksys_write' /tmp/blocks && break; sleep 0.1; done\n\
         kill -TERM $!; wait $!\necho \"== $?\"\n/test/kprism report durations --json --limit 0 -i /tmp/ended\n"
    );
    std::fs::write(share.join("script"), script).unwrap();
    let run = dir.path().join("run");
    let shared = format!("{}:/test", share.display());
    let output = kprism(&[
        "lab",
        "run",
        "-q",
        "--unobserved",
        "-o",
        run.to_str().unwrap(),
        "--share",
        &shared,
        "--",
        "sh",
        "/test/script",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{said}");
    let parts: Vec<&str> = text.split("== ").collect();
    let [blocks, whole, ended] = parts[..] else { panic!("{text}{said}") };
    let judged = |part: &str, code: &str| -> Value {
        let (first, report) = part.split_once('\n').unwrap();
        assert_eq!(first, code, "{text}{said}");
        serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {report}{said}"))
    };
    let (whole, ended) = (judged(whole, "0"), judged(ended, "130"));
    let calls = |report: &Value, name: &str| {
        let rows = report["rows"].as_array().unwrap();
        let row =
            rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
        row["calls"].as_u64().or_else(|| row["count"].as_u64()).unwrap_or_else(|| panic!("{row}"))
    };
    // A row of a block: the function, then its numbers.
    let shown = |block: &str| -> Option<u64> {
        let row = block.lines().find(|line| line.starts_with("ksys_write"))?;
        row.split_whitespace().nth(1)?.replace(',', "").parse().ok()
    };
    let blocks: Vec<&str> = blocks.split("--- ").skip(1).collect();
    let (last, before) = blocks.split_last().unwrap();
    assert!(last.starts_with("ended with 0"), "{last}");
    let count = calls(&whole, "ksys_write");
    assert_eq!((shown(last), count >= 2000), (Some(count), true), "{last}");
    let grown: Vec<u64> = before.iter().filter_map(|block| shown(block)).collect();
    assert!(grown.is_sorted() && grown.iter().any(|&n| n > 0 && n < count), "{grown:?} of {count}");
    // One that was ended has been kept.
    assert!((400..2000).contains(&calls(&ended, "ksys_write")), "{ended}");
}

/// A run of tests: suites, tests, the end of each and what it printed, as `report tests` has them. The flow is a guest's; the results
/// beside it are written here, as `lab kselftest` writes them.
#[test]
fn tests_of_a_kernel_are_browsed() {
    needs(&[QEMU]);
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let path = run.to_str().unwrap();
    let script = "ls /bin >/dev/null; sort /etc/passwd >/dev/null; wc /etc/passwd >/dev/null";
    let made = kprism(&["lab", "run", "-q", "-o", path, "--", "sh", "-c", script]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let manifest = run.join("manifest.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    value["tests"] = "kselftest".into();
    std::fs::write(&manifest, value.to_string()).unwrap();
    let tasks = json(&["report", "tasks", "--json", "--limit", "0", "-i", path]);
    let pid = |comm: &str| {
        let row = tasks["rows"].as_array().unwrap().iter().find(|row| row["comm"] == comm);
        row.unwrap_or_else(|| panic!("{comm}: {tasks}"))["pid"].to_string()
    };
    std::fs::create_dir(run.join("tests")).unwrap();
    let hostile = "\x1b]0;t\x07\x1b[2Jno such clock\n";
    for (n, (name, comm, code, out)) in [
        ("timers:posix_timers", "ls", "0", "TAP version 13\n1..2\nok 1 one\nok 2 two\n"),
        ("timers:\x1b[31mnanosleep", "sort", "1", hostile),
        ("futex:run.sh", "wc", "4", "not here\n"),
    ]
    .iter()
    .enumerate()
    {
        let put = |ending: &str, text: &str| {
            std::fs::write(run.join(format!("tests/{}.{ending}", n + 1)), text).unwrap();
        };
        put("name", name);
        put("pid", &pid(comm));
        put("code", code);
        put("out", out);
    }
    let report = json(&["report", "tests", "--json", "--limit", "0", "-i", path]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    // The same cells in each row; the test's name comes first on the screen.
    let printed = kprism(&["report", "tests", "--limit", "0", "-i", path]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let cells = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        let mut cells: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        cells.sort();
        cells
    };
    let mut pty = Pty::start(command(&["tui", path]), 24, 120);
    let text = pty.until("the tests", |text| text.contains("posix_timers") && text.contains("run.sh"));
    for name in ["posix_timers", "nanosleep", "run.sh"] {
        assert_eq!(cells(&text, name), cells(&printed, name));
    }
    // The test that failed, and what it printed.
    pty.keys("j\r");
    let text = pty.until("its output", |text| text.contains("no such clock"));
    assert!(text.contains("failed") && text.contains("exit code 1") && text.contains("\\u{1b}[2J"), "{text}");
    pty.keys("\x7f\t");
    // Suites: how many of each end; behind one its tests.
    let text = pty.until("suites", |text| text.contains("skipped or known to fail"));
    let line = |suite: &str| squeezed(text.lines().find(|line| line.starts_with(suite)).unwrap());
    assert!(line("timers").starts_with("timers 2 1 1 0 "), "{text}");
    assert!(line("futex").starts_with("futex 1 0 0 1 "), "{text}");
    pty.keys("\r");
    let text = pty.until("a suite", |text| text.contains(" › timers") && text.contains("1/2"));
    assert!(text.contains("posix_timers") && !text.contains("run.sh"), "{text}");
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
    let text = String::from_utf8_lossy(&pty.bytes).into_owned();
    assert!(!text.contains("\x1b]") && !text.contains("\x1b[31m"));
}

/// A size that is back before the program has looked: the terminal has lost what it showed, and is drawn anew.
#[test]
fn a_size_that_comes_back_is_drawn_anew() {
    let mut pty = Pty::start(command(&["tui", &stored()]), 24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    for _ in 0..20 {
        pty.stop();
        pty.resize(3, 10);
        pty.resize(24, 80);
        pty.go_on();
        pty.until("the foot and the tabs", |text| text.contains("q quit") && text.contains("syscalls"));
    }
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
}

/// Any size, from nothing on, and many of them; keys meanwhile.
#[test]
fn sizes_of_all_kinds() {
    let run = stored();
    for (rows, columns) in [(1, 1), (1, 200), (200, 1), (2, 3), (3, 2), (4, 10)] {
        let mut pty = Pty::start(command(&["tui", &run]), rows, columns);
        pty.until_taken();
        for key in ["j", "G", "\t", "\r", "l", "/", "x", "\r", "\x7f", "?", " ", "s", "\x1b[Z", "h", "k"] {
            pty.keys(key);
        }
        pty.resize(24, 80);
        pty.until("the foot", |text| text.contains("q quit"));
        pty.keys("q");
        assert_eq!(pty.end().code(), Some(0), "{rows} x {columns}");
    }
    let mut pty = Pty::start(command(&["tui", &run]), 24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    for n in 0..300_u16 {
        pty.resize(1 + n * 7 % 60, 1 + n * 13 % 200);
        if n % 10 == 0 {
            pty.keys("\tj");
        }
    }
    pty.resize(24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
}

/// A key that comes with a change of size is read: both may wait for the program at the same moment.
#[test]
fn a_key_beside_a_change_of_size_is_read() {
    let run = stored();
    let mut pty = Pty::start(command(&["tui", &run]), 24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    for n in 0..200 {
        // The program draws this; what follows is there when it is done.
        pty.resize(100, 300);
        std::thread::sleep(Duration::from_micros(20 * n));
        pty.resize(99, 300);
        pty.keys("?");
        pty.until("the help", |text| text.contains("arrows, h j k l"));
        pty.keys("?");
        pty.until("no help", |text| !text.contains("arrows, h j k l"));
    }
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
}

/// A terminal that has no cursor to move is refused; there, the escapes would be text.
#[test]
fn a_dumb_terminal_is_refused() {
    let run = stored();
    for (line, remedy) in
        [(&["tui", run.as_str()][..], "kprism report"), (&["top", "lab", "run", "--", "true"], "--batch")]
    {
        let mut dumb = command(line);
        dumb.env("TERM", "dumb");
        let mut pty = Pty::start(dumb, 24, 80);
        assert_eq!(pty.end().code(), Some(2), "{line:?}");
        let text = pty.text();
        assert!(text.contains("TERM=dumb") && text.contains(remedy), "{text}");
        assert!(!pty.bytes.contains(&0x1b), "no escape is written");
    }
}

fn copied(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copied(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// A run that goes, or changes, under its viewer; and one whose names are commands to a terminal.
#[test]
fn a_run_that_goes_and_one_that_is_hostile() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    copied(Path::new(&stored()), &run);
    let mut pty = Pty::start(command(&["tui", run.to_str().unwrap()]), 24, 80);
    pty.until("the foot", |text| text.contains("q quit"));
    std::fs::remove_dir_all(&run).unwrap();
    pty.keys("\r");
    pty.until("callees", |text| text.contains("callees"));
    pty.keys("\x7f\t\t\t");
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
    // The command, the kernel and the outputs are what the guest made of them.
    copied(Path::new(&stored()), &run);
    let manifest = run.join("manifest.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    value["command"] = serde_json::json!(["\u{1b}]0;owned\u{7}\u{1b}[2J", "\u{9b}31m", "\u{202e}x"]);
    value["kernel"]["release"] = "\u{1b}[?1049l6.1".into();
    value["notes"] = serde_json::json!(["\u{1b}[31mred\n\rx"]);
    std::fs::write(&manifest, value.to_string()).unwrap();
    std::fs::write(run.join("stdout"), b"\x1b[2J\x1b]52;c;aGk=\x07\xff\xfe\r\x08\x00\n").unwrap();
    let mut pty = Pty::start(command(&["tui", run.to_str().unwrap()]), 24, 80);
    pty.until("the title", |text| text.contains("owned") && text.contains("q quit"));
    for _ in 0..8 {
        pty.keys("\t");
    }
    pty.keys("q");
    assert_eq!(pty.end().code(), Some(0));
    let text = String::from_utf8_lossy(&pty.bytes).into_owned();
    for command in ["\x1b]", "\u{9b}", "\u{202e}", "\x1b[31m", "\x08"] {
        assert!(!text.contains(command), "{command:?}");
    }
    // A run that is no run any more is an error, and the terminal is not taken for it.
    std::fs::write(&manifest, "{").unwrap();
    let mut pty = Pty::start(command(&["tui", run.to_str().unwrap()]), 24, 80);
    assert_eq!(pty.end().code(), Some(2));
    assert!(pty.text().contains("manifest.json"), "{}", pty.text());
}

/// A recording of a guest that is ended from the screens, by keys or by a signal, is kept; so is one whose listing nobody reads.
#[test]
fn a_guest_that_is_left_is_kept() {
    needs(&[QEMU]);
    turn(2, 1);
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let script = "while true; do ls -lR /usr/lib /etc > /dev/null; done";
    let line = |run: &str| -> Vec<String> {
        ["--interval", "200ms", "lab", "run", "-o", run, "--", "sh", "-c", script].map(str::to_owned).to_vec()
    };
    let kept = |run: &str| {
        let rows = json(&["report", "functions", "--json", "-i", run])["rows"].as_array().unwrap().len();
        assert!(rows > 10, "{run}: {rows}");
    };
    for (name, how) in [("ctrl-c", None), ("sigterm", Some(libc::SIGTERM))] {
        let run = folder(name);
        let arguments = line(&run);
        let arguments: Vec<&str> = ["top"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let mut pty = Pty::start(command(&arguments), 24, 80);
        // Until then the command may not have begun.
        let decoded = |text: &str| -> Option<u64> {
            let (before, _) = text.rsplit_once(" bytes decoded")?;
            before.rsplit(' ').next()?.replace(',', "").parse().ok()
        };
        pty.until("code of the command", |text| decoded(text).is_some_and(|bytes| bytes > 2_000_000));
        match how {
            None => pty.keys("\x03"),
            Some(signal) => pty.signal(signal),
        }
        assert_eq!(pty.end().code(), Some(130), "{name}");
        kept(&run);
    }
    // Standard output is closed after the first line.
    let run = folder("pipe");
    let arguments = line(&run);
    let mut batch = command(&["top", "--batch"]);
    let mut child = batch
        .args(&arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut first).unwrap();
    assert!(first.starts_with("--- recording"), "{first}");
    let mut line = String::new();
    while !line.starts_with("getdents64 ") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0, "the command's calls");
    }
    drop(output);
    let begun = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed().as_secs() < 120, "it goes on without a reader");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    kept(&run);
}

kprism_test::main!();
