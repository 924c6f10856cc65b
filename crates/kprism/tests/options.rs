// SPDX-License-Identifier: MIT OR Apache-2.0
//! No option is taken and ignored: each option of each view of the commands that read runs changes what is shown, or the
//! command refuses it with exit code 2.
//!
//! The options are those that `--help` lists, so an option that is added without a word here fails the test.

mod guest;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use guest::{alone, kprism, ok, text};

/// A view: a command line without options.
type View<'a> = &'a [&'a str];

/// How an option is tried.
enum Try<'a> {
    /// Alone, with this value, if it takes one.
    With(&'a [&'a str]),
    /// The same beside these others, compared with these others alone: it says something about them.
    Beside(&'a [&'a str], &'a [&'a str]),
    /// It is about something that runs of this kind cannot show: elsewhere tested, here only refused.
    Foreign(&'a [&'a str]),
    /// It changes how the program runs, not what it shows.
    Always,
}
use Try::{Always, Beside, Foreign, With};

/// Long names of the options that a command lists.
fn listed(command: &[&str]) -> BTreeSet<String> {
    let help = String::from_utf8(ok(&[command, &["--help"]].concat())).unwrap();
    let option = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix('-')?;
        let long = match line.strip_prefix('-') {
            Some(long) => long,
            None => line.split_once("--")?.1,
        };
        let end = long.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
        Some(long[..end.unwrap_or(long.len())].to_owned())
    };
    // Descriptions are indented further.
    let is_option =
        |line: &&str| line.trim_start().starts_with('-') && line.find('-').is_some_and(|at| at <= 6);
    help.lines().filter(is_option).filter_map(option).collect()
}

/// What a command line shows: its exit code, what it prints, the file that it was told to write.
fn shown(arguments: &[&str], file: &Path) -> (Option<i32>, Vec<u8>, Option<Vec<u8>>, String) {
    if file.is_dir() {
        std::fs::remove_dir_all(file).unwrap();
    } else {
        let _ = std::fs::remove_file(file);
    }
    let output = kprism(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), output.stdout, std::fs::read(file).ok(), said)
}

/// A time with system calls before and after it, in a run of a flow.
fn middle(run: &Path) -> String {
    let output = kprism(&["script", "syscalls", "--json", "-i", text(run)]);
    let times: Vec<u64> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["time_ns"].as_u64())
        .collect();
    format!("{}ns", times.get(times.len() / 2).copied().unwrap_or_default())
}

/// Tries every option that `command` lists on every view. Gives what was ignored.
fn ignored(
    command: &str,
    views: &[View<'_>],
    run: &Path,
    file: &Path,
    how: &dyn Fn(&str, View<'_>) -> Option<Try<'static>>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let middle = middle(run);
    for view in views {
        // Views of `report` are subcommands, each with its own options: clap refuses the others.
        let options = match (command, view) {
            ("report", [subject, ..]) => listed(&[command, subject]),
            _ => listed(&[command]),
        };
        assert!(options.len() > 3, "{command}: {options:?}");
        let line = |more: &[&str]| {
            let mut line = vec![command];
            line.extend(*view);
            // `diff` takes its runs as arguments: they are part of the view.
            if command != "diff" {
                line.extend(["-i", text(run)]);
            }
            line.extend(more);
            line.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let show = |more: &[&str]| {
            let line = line(more);
            shown(&line.iter().map(String::as_str).collect::<Vec<_>>(), file)
        };
        // Most options are compared with the view alone, which is shown once.
        let mut plain = BTreeMap::new();
        for option in &options {
            let Some(tried) = how(option, view) else {
                faults.push(format!("--{option} of `{command}`: say in tests/options.rs how it is tried"));
                continue;
            };
            let (beside, values, foreign) = match tried {
                Always => continue,
                With(values) => (&[][..], values, false),
                Beside(others, values) => (others, values, false),
                Foreign(values) => (&[][..], values, true),
            };
            let long = format!("--{option}");
            let mut more = beside.to_vec();
            more.push(&long);
            more.extend(values);
            let place = file.display().to_string();
            let given = |word| match word {
                "FILE" => &place,
                "MIDDLE" => &*middle,
                word => word,
            };
            let more: Vec<&str> = more.into_iter().map(given).collect();
            let with = show(&more);
            let refused = with.0 == Some(2);
            let named = more.iter().any(|word| word.starts_with("--") && with.3.contains(word));
            if refused && !named {
                faults.push(format!("{:?}: refused without a word about {long}: {}", line(&more), with.3));
            }
            if refused || foreign {
                if !refused {
                    faults.push(format!("{:?}: not refused", line(&more)));
                }
                continue;
            }
            let without = plain.entry(beside).or_insert_with(|| show(beside));
            if (&with.0, &with.1, &with.2) == (&without.0, &without.1, &without.2) {
                faults.push(format!("{:?}: the same with and without {long}", line(&more)));
            }
        }
    }
    faults
}

/// Lists all intervals of a kind, whose number in an ordinary run is larger than that of the rows shown.
const ALL_INTERVALS: &[&str] = &["irqs", "--list", "--limit", "0"];

fn of_report(option: &str, view: View<'_>) -> Option<Try<'static>> {
    let sort: &[&str] = match view {
        ["syscalls"] => &["-count"],
        ["tasks"] => &["-pid"],
        ["durations"] => &["-count"],
        ["delta"] => &["ns"],
        _ => &["-calls"],
    };
    Some(match option {
        "help" | "verbose" | "quiet" | "color" | "options-file" | "no-options-file" | "profile" | "input"
        | "strict" => Always,
        "html" => With(&["FILE"]),
        // A run without errors has nothing to sort or to limit.
        "sort" | "limit" | "json" if view == ["errors"] => Always,
        "sort" if view == ["delta"] => Beside(ALL_INTERVALS, sort),
        "task" if view == ["delta"] => Beside(ALL_INTERVALS, &["1"]),
        "comm" if view == ["delta"] => Beside(ALL_INTERVALS, &["ls"]),
        "cpu" => Beside(ALL_INTERVALS, &["7"]),
        "since" | "until" => Beside(ALL_INTERVALS, &["MIDDLE"]),
        "list" => Beside(&["irqs"], &[]),
        "sort" => With(sort),
        "limit" => With(&["1"]),
        "task" => With(&["1"]),
        "comm" => With(&["ls"]),
        "syscall" => With(&["mmap"]),
        "func" => With(&["vfs_open"]),
        "call" => Beside(&["--syscall", "mmap"], &["fastest"]),
        "counters" => Foreign(&["/nonexistent"]),
        "parts" | "json" | "tree" | "by-task" => With(&[]),
        "by" => With(&["time"]),
        "min-percent" if view == ["durations"] => Beside(&["--tree"], &["20"]),
        "depth" if view == ["durations"] => Beside(&["--tree"], &["2"]),
        "min-percent" => With(&["20"]),
        "depth" => With(&["2"]),
        "from" => Beside(&[], &["cli", "--to", "sti"]),
        "to" => Foreign(&["sti"]),
        "per" => Beside(&["--from", "cli", "--to", "sti"], &["task"]),
        "nested" => Beside(&["--from", "call", "--to", "ret"], &[]),
        "count" => With(&["call"]),
        "csv" if view == ["delta"] => Beside(&["--from", "cli", "--to", "sti"], &[]),
        "csv" => With(&[]),
        "ftd" => With(&[]),
        "callees" | "callers" => With(&["vfs_open"]),
        // Of a run of `record durations --remeasure`.
        "remeasured" if view == ["durations"] => Always,
        "remeasured" => Foreign(&[]),
        "build-dir" | "debug-dir" | "source-dir" | "merge" => Foreign(&["/nonexistent"]),
        "source-prefix" => Foreign(&["/old=/new"]),
        // With --html, where tests/view.rs tries them.
        "source" => Foreign(&["2"]),
        "annotate" => Foreign(&["vfs_open"]),
        "vmlinux" => Foreign(&["/nonexistent"]),
        "module-file" => Foreign(&["/nonexistent"]),
        "since-boot" | "by-flow" | "compare" => Foreign(&[]),
        "each" => Foreign(&["file"]),
        _ => return None,
    })
}

fn of_export(option: &str, view: View<'_>) -> Option<Try<'static>> {
    let _ = view;
    Some(match option {
        "help" | "verbose" | "quiet" | "color" | "options-file" | "no-options-file" | "profile" | "input"
        | "strict" | "output" => Always,
        "task" => With(&["1"]),
        "comm" => With(&["ls"]),
        "syscall" => With(&["mmap"]),
        "func" => With(&["vfs_open"]),
        "call" => Beside(&["--syscall", "mmap"], &["fastest"]),
        "by" => With(&["time"]),
        "build-dir" | "debug-dir" | "merge" | "vmlinux" | "module-file" | "source-dir" => {
            Foreign(&["/nonexistent"])
        }
        "source-prefix" => Foreign(&["/old=/new"]),
        "since-boot" | "by-flow" | "relative" => Foreign(&[]),
        _ => return None,
    })
}

fn of_script(option: &str, view: View<'_>) -> Option<Try<'static>> {
    Some(match option {
        "help" | "verbose" | "quiet" | "color" | "options-file" | "no-options-file" | "profile" | "input"
        | "strict" => Always,
        "cpu" => With(&["7"]),
        "task" => With(&["1"]),
        // A stream of the lab has one event, the core's clock at its beginning, when the command runs.
        "comm" if view == ["events"] => With(&["nobody"]),
        "comm" => With(&["ls"]),
        "func" if view == ["syscalls"] => With(&["mmap"]),
        "func" => With(&["vfs_open"]),
        "self" => Beside(&["--func", "path_openat"], &[]),
        "call" => Beside(&["--func", "vfs_open"], &["fastest"]),
        "to" if view == ["events"] => With(&["1ns"]),
        "from" | "to" => With(&["MIDDLE"]),
        "offset" => With(&["0x10..0x20"]),
        "event" => With(&["pwre"]),
        "only" => With(&["mark"]),
        "tlb-interval" => Foreign(&["1us"]),
        "limit" if view == ["events"] => With(&["0"]),
        "kernel" | "user" | "json" => With(&[]),
        "limit" => With(&["3"]),
        "depth" => With(&["2"]),
        "fields" => With(&["comm"]),
        "syntax" => With(&["intel"]),
        _ => return None,
    })
}

#[test]
fn every_option_changes_what_is_shown_or_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("file"));
    ok(&["lab", "run", "-q", "-o", text(&run), "--", "ls", "/"]);
    let views: [View<'_>; 8] =
        [&[], &["functions"], &["syscalls"], &["tree"], &["tasks"], &["errors"], &["delta"], &["durations"]];
    let mut faults = ignored("report", &views, &run, &file, &of_report);
    let views: [View<'_>; 5] = [
        &["-o", "-.folded"],
        &["-o", "-.csv"],
        &["-o", "-.pprof"],
        &["tree", "-o", "-.json"],
        &["-o", "-.html"],
    ];
    faults.extend(ignored("export", &views, &run, &file, &of_export));
    let views: [View<'_>; 7] =
        [&["insns"], &["branches"], &["calls"], &["syscalls"], &["events"], &["packets"], &["all"]];
    faults.extend(ignored("script", &views, &run, &file, &of_script));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn options_of_durations_too() {
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("file"));
    let input = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cmd/func.in/whole.txt");
    ok(&["import", "-q", input, "-o", text(&run)]);
    let views: [View<'_>; 2] = [&[], &["durations"]];
    let mut faults = ignored("report", &views, &run, &file, &|option, _| match option {
        "task" => Some(With(&["1"])),
        "comm" => Some(With(&["nobody"])),
        "syscall" | "func" | "call" | "parts" | "by" => Some(Foreign(match option {
            "syscall" => &["mmap"],
            "func" => &["vfs_open"],
            "call" => &["fastest", "--syscall", "mmap"],
            "by" => &["time"],
            _ => &[],
        })),
        "from" | "to" | "per" | "nested" | "count" => Some(Foreign(match option {
            "from" => &["cli", "--to", "sti"],
            "to" => &["sti"],
            "per" => &["task"],
            "count" => &["call"],
            _ => &[],
        })),
        "remeasured" => Some(Always),
        "callees" | "callers" => Some(With(&["vfs_*"])),
        "by-task" => Some(With(&[])),
        "html" => Some(With(&["FILE"])),
        other => of_report(other, &["durations"]),
    });
    faults.extend(ignored("script", &[&["calls"]], &run, &file, &|option, view| match option {
        "from" | "to" => Some(With(&["7.67869"])),
        "comm" => Some(With(&["nobody"])),
        "func" => Some(With(&["lru_add"])),
        "self" => Some(Beside(&["--func", "lru_add"], &[])),
        other => of_script(other, view),
    }));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn of_diff(option: &str, view: View<'_>) -> Option<Try<'static>> {
    let is_coverage = view.len() < 2 || view.contains(&"--cover") || view.contains(&"--patch");
    Some(match option {
        "help" | "verbose" | "quiet" | "color" | "options-file" | "no-options-file" | "profile"
        | "strict" | "cover" | "patch" => Always,
        "html" if is_coverage => Foreign(&["/nonexistent"]),
        "html" => With(&["FILE"]),
        "syscall" | "function" if is_coverage => Foreign(&["mmap"]),
        "call" if is_coverage => Foreign(&["fastest", "--syscall", "mmap"]),
        // The stored runs have tables alone, of which no call can be taken: tests/truth.rs tries it.
        "call" => Always,
        "syscall" => With(&["mmap"]),
        "function" => With(&["vfs_read"]),
        "sums" if is_coverage => Foreign(&[]),
        "sums" => Beside(&["--syscall", "mmap"], &[]),
        "by" if is_coverage => Foreign(&["time"]),
        "by" => With(&["time"]),
        "sort" if is_coverage => With(&["-path"]),
        "sort" => With(&["-calls_old"]),
        "limit" => With(&["1"]),
        "json" => With(&[]),
        "task" => With(&["1"]),
        "comm" => With(&["true"]),
        "under" if is_coverage => With(&["b.c"]),
        "under" => Foreign(&["b.c"]),
        "source-prefix" => Foreign(&["/old=/new"]),
        "since-boot" | "by-flow" => Foreign(&[]),
        "build-dir" | "debug-dir" | "merge" | "vmlinux" | "module-file" | "source-dir" => {
            Foreign(&["/nonexistent"])
        }
        _ => return None,
    })
}

/// Of stored flows, and of counters in folders.
#[test]
fn options_of_comparisons_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let stored = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cmd/diff.in");
    let copy = |name: &str| {
        let to = dir.path().join(name);
        let from = format!("{stored}/{name}.data");
        assert!(Command::new("cp").args(["-r", &from, text(&to)]).status().unwrap().success());
        to
    };
    let (plain, traced) = (copy("plain"), copy("traced"));
    let views: [View<'_>; 1] = [&[text(&plain), text(&traced)]];
    let faults = ignored("diff", &views, &plain, &file, &of_diff);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let folder = |name: &str, arguments: &[&str]| {
        let to = dir.path().join(name);
        std::fs::create_dir(&to).unwrap();
        let main = "int other(int);\nint main(int argc, char **argv) {\n  if (argc > 1)\n    return other(argc);\n  return 0;\n}\n";
        std::fs::write(to.join("a.c"), main).unwrap();
        std::fs::write(to.join("b.c"), "int other(int a) {\n  return a == 0;\n}\n").unwrap();
        let built =
            Command::new("gcc").args(["--coverage", "-o", "a", "a.c", "b.c"]).current_dir(&to).status();
        assert!(
            built.unwrap().success() && Command::new("./a").args(arguments).current_dir(&to).status().is_ok()
        );
        to
    };
    let (old, new) = (folder("old", &[]), folder("new", &["1"]));
    let patch = dir.path().join("change.patch");
    std::fs::write(
        &patch,
        "--- a/a.c\n+++ b/a.c\n@@ -3 +3,2 @@\n x\n+y\n--- a/b.c\n+++ b/b.c\n@@ -1 +1,2 @@\n x\n+y\n",
    )
    .unwrap();
    let views: [View<'_>; 2] =
        [&[text(&old), text(&new), "--under", "."], &[text(&new), "--patch", text(&patch)]];
    let faults = ignored("diff", &views, &old, &file, &|option, view| match option {
        // Counters are of all tasks.
        "task" => Some(Foreign(&["1"])),
        "comm" => Some(Foreign(&["a"])),
        "under" if view.contains(&"--under") => Some(Always),
        // A folder that no source is below is noted.
        "source-prefix" => Some(Always),
        "html" if view.contains(&"--under") => Some(With(&["FILE"])),
        "html" | "syscall" | "function" | "call" | "sums" | "by" | "sort" => of_diff(option, &[]),
        other => of_diff(other, view),
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Views of TLB misses, and their exports.
#[test]
fn options_of_misses_too() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (run, file) = (dir.path().join("run"), dir.path().join("file"));
    ok(&["record", "tlb", "-q", "-o", text(&run), "--", "ls", "/"]);
    let process = guest::json(&["report", "tlb", "processes", "--json", "-i", text(&run)]);
    let process = process["rows"][0]["tgid"].as_u64().unwrap().to_string();
    let process: &'static str = process.leak();
    let of = |option: &str, view: View<'_>| {
        Some(match (option, view) {
            ("sort", [_, "heat"]) => With(&["-start"]),
            ("sort", [_, "distribution"]) => With(&["pages_percent"]),
            ("sort", [_, "advice"]) => With(&["-after"]),
            ("sort", _) => With(&["-misses"]),
            ("limit", _) => With(&["1"]),
            ("task", [_, "distribution"]) => With(Vec::leak(vec![process])),
            ("task", _) => Foreign(&["1"]),
            ("comm", _) => Foreign(&["ls"]),
            ("csv", ["tlb"]) => Foreign(&[]),
            ("html", ["tlb"]) => With(&["FILE"]),
            ("html", _) => Foreign(&["/nonexistent"]),
            (
                "by" | "depth" | "min-percent" | "parts" | "syscall" | "call" | "tree" | "by-task" | "ftd",
                _,
            ) => Foreign(match option {
                "by" => &["time"],
                "depth" | "min-percent" => &["2"],
                "syscall" => &["mmap"],
                "call" => &["fastest", "--syscall", "mmap"],
                _ => &[],
            }),
            ("from" | "to" | "per" | "nested" | "count", _) => Foreign(match option {
                "from" => &["cli", "--to", "sti"],
                "to" => &["sti"],
                "per" => &["task"],
                "count" => &["call"],
                _ => &[],
            }),
            ("callees" | "callers", _) => Foreign(&["vfs_open"]),
            ("remeasured", _) => Foreign(&[]),
            _ => return of_report(option, view),
        })
    };
    let views: [View<'_>; 9] = [
        &["tlb"],
        &["tlb", "objects"],
        &["tlb", "functions"],
        &["tlb", "processes"],
        &["tlb", "threads"],
        &["tlb", "pages"],
        &["tlb", "heat"],
        &["tlb", "distribution"],
        &["tlb", "advice"],
    ];
    let mut faults = ignored("report", &views, &run, &file, &of);
    let views: [View<'_>; 3] = [
        &["tlb", "-o", "-.csv"],
        &["tlb", "processes", "-o", "-.json"],
        &["tlb", "distribution", "-o", "-.csv"],
    ];
    faults.extend(ignored("export", &views, &run, &file, &|option, view| match option {
        "task" if view.contains(&"distribution") => Some(With(Vec::leak(vec![process]))),
        "task" | "comm" | "syscall" | "func" | "call" | "by" => Some(Foreign(match option {
            "task" => &["1"],
            "comm" => &["ls"],
            "syscall" => &["mmap"],
            "func" => &["vfs_open"],
            "call" => &["fastest", "--syscall", "mmap"],
            _ => &["time"],
        })),
        _ => of_export(option, view),
    }));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Options of `record tlb` that a method would ignore are refused before anything is run.
#[test]
fn a_method_of_recording_misses_refuses_what_it_would_ignore() {
    let dir = tempfile::tempdir().unwrap();
    let (run, here) = (dir.path().join("run"), dir.path().join("here"));
    let guest: [&[&str]; 9] = [
        &["--share", "/tmp"],
        &["--before", "true"],
        &["--like-host"],
        &["--warm", "1"],
        &["--max-size", "1G"],
        &["--smp", "2"],
        &["--fast"],
        &["--mem", "2G"],
        &["--package", "sl"],
    ];
    let ptat: [&[&str]; 2] = [&["--pmd"], &["--room", "7"]];
    let perf: [&[&str]; 2] = [&["--event", "page-faults"], &["--period", "7"]];
    let geometry: [&[&str]; 1] = [&["-g", "zen4"]];
    let warm: [&[&str]; 1] = [&["--warm", "1"]];
    let cases = [
        ("model", [ptat.as_slice(), &perf].concat()),
        ("user", [guest.as_slice(), &ptat, &perf].concat()),
        ("perf", [guest.as_slice(), &ptat, &geometry].concat()),
        ("ptat", [perf.as_slice(), &geometry, &warm].concat()),
    ];
    for (method, options) in cases {
        for option in options {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
            command.args(["record", "tlb", "--method", method, "-o"]).arg(&run).args(option);
            if method == "ptat" {
                command.args(["--ptat", "/nonexistent"]);
            }
            let output = command.args(["--", "touch"]).arg(&here).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{method} {option:?}: {said}");
            let named = if option[0] == "-g" { "--geometry" } else { option[0] };
            assert!(said.contains(named) && said.contains(method), "{method} {option:?}: {said}");
            assert!(!here.exists() && !run.exists(), "{method} {option:?}");
        }
    }
}
