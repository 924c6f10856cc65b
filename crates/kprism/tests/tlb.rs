// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record tlb` and `report tlb` in a guest, against what is known in advance: a program that touches pages in order
//! misses in a computed sequence (PTAT paper, 5.2), and no observer changes what the guest does. Needs what
//! `scripts/setup.sh test` installs, and the observer and agent built beside the tests.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_tlb::Access;
use kprism_tlb::geometry::PageSize;
use kprism_tlb::stream::{Event, Miss, Reader};
use serde_json::Value;

fn ok(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs");
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn build(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb/stride.c");
    let program = dir.join("stride");
    let status = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("a C compiler").success());
    program
}

fn events(run: &Path) -> Vec<Event> {
    let bytes = std::fs::read(run.join("streams/tlb/cpu0.miss")).expect("the stream");
    Reader::new(&bytes).expect("a header").map(|event| event.expect("an event")).collect()
}

/// Distinct pages of data that came into the page's set, from the store that faulted it in up to the first load of it,
/// as far as known: up to its own miss, or that of a page behind it, or the last miss of them all.
fn pushed_out_by(events: &[Event], page: u64, size: PageSize, sets: u64) -> usize {
    let set = |va: u64| (va >> size.shift()) % sets;
    let mut others = HashSet::new();
    let mut inside = false;
    for event in events {
        match event {
            // The instruction that loads is one, and runs over the pages in order.
            Event::Miss(m)
                if inside
                    && m.access == Access::Load
                    && m.va >= page
                    && m.va >> 47 == 0
                    && m.va & 0xfff == 0 =>
            {
                break;
            }
            Event::Miss(m) if m.last & 1 == 0 || m.size != size || m.access == Access::Fetch => {}
            Event::Miss(m) if m.va == page => inside = true,
            Event::Miss(m) if inside && set(m.va) == set(page) => {
                others.insert(m.va >> size.shift());
            }
            // All is dropped: as if many came.
            Event::Space(_) | Event::Flush if inside => others.extend(0..4),
            _ => {}
        }
    }
    others.len()
}

/// Misses of the array that the program printed, and where it begins.
fn recorded(dir: &Path, program: &Path, words: &[&str]) -> (u64, Vec<Miss>) {
    let run = dir.join(words.join("-"));
    let share = format!("{}:/bench/stride", program.display());
    let mut args = vec!["-q", "record", "tlb", "-g", "ivybridge-ep", "-o", run.to_str().expect("UTF-8")];
    args.extend(["--share", &share, "--", "/bench/stride"]);
    args.extend(words);
    let printed = ok(&args);
    let mut bounds = printed.split(' ').map(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16));
    let (Some(Ok(begin)), Some(Ok(end))) = (bounds.next(), bounds.next()) else { panic!("{printed}") };
    let bytes = std::fs::read(run.join("streams/tlb/cpu0.miss")).expect("the stream");
    let misses = Reader::new(&bytes)
        .expect("a header")
        .filter_map(|event| match event.expect("an event") {
            Event::Miss(m) if m.last & 1 == 1 && (begin..end).contains(&m.va) => Some(m),
            _ => None,
        })
        .collect();
    (begin, misses)
}

#[test]
fn strides_miss_in_the_predicted_sequence() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = build(dir.path());
    // Ivy Bridge has 512 entries for 4K pages and 32 for 2M pages: what is touched in order comes back after all of it
    // has been replaced.
    for (words, size, pages, rounds) in
        [(["2048", "3", "4K"], PageSize::K4, 2048, 3), (["64", "4", "2M"], PageSize::M2, 64, 4)]
    {
        let (begin, misses) = recorded(dir.path(), &program, &words);
        let got: Vec<_> = misses.iter().map(|m| (m.va, m.access, m.size)).collect();
        let round = |access| (0..pages).map(move |i| (begin + i * size.bytes(), access, size));
        let mut expected: Vec<_> = round(Access::Store).collect();
        (0..rounds).for_each(|_| expected.extend(round(Access::Load)));
        assert_eq!(got.len(), expected.len(), "{words:?}");
        assert!(got == expected, "{words:?}: another order");
        assert!(misses.is_sorted_by_key(|m| m.ns), "times run on");
    }
    // What fits misses once, of 4K and 2M pages, but for what others push out in between: the kernel clears each huge
    // page through its own 2M map of it, and its own data are on 2M pages too. Ivy Bridge: 512 entries in 4 ways, 32 in 4.
    for (words, size, pages, sets) in
        [(["256", "3", "4K"], PageSize::K4, 256, 128), (["24", "3", "2M"], PageSize::M2, 24, 8)]
    {
        let (begin, misses) = recorded(dir.path(), &program, &words);
        let stores: Vec<_> = misses.iter().filter(|m| m.access == Access::Store).map(|m| m.va).collect();
        let all: Vec<u64> = (0..pages).map(|i| begin + i * size.bytes()).collect();
        assert_eq!(stores, all, "{words:?}: every page is faulted in once");
        let loads: Vec<_> = misses.iter().filter(|m| m.access == Access::Load).map(|m| m.va).collect();
        assert!(loads.is_sorted_by(|a, b| a < b), "{words:?}: missed in the first round only: {loads:x?}");
        let mut events = events(&dir.path().join(words.join("-")));
        let last = loads.last().copied();
        let end = events.iter().rposition(|e| {
            matches!(e, Event::Miss(m) if m.last & 1 == 1 && m.access == Access::Load && Some(m.va) == last)
        });
        events.truncate(end.map_or(0, |at| at + 1));
        for page in all {
            let others = pushed_out_by(&events, page, size, sets);
            let missed = loads.contains(&page);
            // Others must have come into its set; four, and nothing could have kept it.
            assert!(!missed || others > 0, "{words:?}: {page:#x} missed, and nothing came into its set");
            assert!(
                missed || others < 4,
                "{words:?}: {page:#x} hit, after {others} others came into its set"
            );
        }
    }

    // Reports name the array, and say the same however they are asked.
    let run = dir.path().join("2048-3-4K");
    let run = run.to_str().expect("UTF-8");
    let json: Value =
        serde_json::from_str(&ok(&["report", "tlb", "objects", "-i", run, "--json"])).expect("JSON");
    let top = &json["rows"][0];
    assert_eq!((top["misses"].as_u64(), top["kind"].as_str()), (Some(2048 * 4), Some("mmap")), "{top}");
    assert_eq!(top["bytes"].as_u64(), Some(2048 * 4096), "{top}");
    let csv = ok(&["report", "tlb", "objects", "-i", run, "--csv", "--limit", "1"]);
    assert!(csv.lines().nth(1).is_some_and(|line| line.contains(",8192,")), "{csv}");
    let advice: Value =
        serde_json::from_str(&ok(&["report", "tlb", "advice", "-i", run, "--json"])).expect("JSON");
    let top = &advice["rows"][0];
    // 8 MiB are four huge pages, which miss once each, and again where the kernel's own 2M pages push them out.
    assert_eq!(top["huge_mib"].as_u64(), Some(8), "{top}");
    assert!(top["object_after"].as_u64().is_some_and(|n| (4..=8).contains(&n)), "{top}");
    assert!(Path::new(run).join("tables/tlb_misses.parquet").exists());
}

/// A workload's command, and the lines of source that allocate its data.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// The line of a workload's source that holds `text`, from 1.
fn line_of(source: &str, text: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb").join(source);
    let all = std::fs::read_to_string(path).expect("the source");
    1 + all.lines().position(|line| line.contains(text)).expect(text)
}

#[test]
fn misses_are_named_by_arrays_and_by_where_they_were_allocated() {
    let dir = tempfile::tempdir().expect("a folder");
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb/build.sh");
    assert!(Command::new("sh").arg(build).arg(dir.path().join("bench")).status().expect("sh").success());
    let share = format!("{}:/bench", dir.path().join("bench").display());
    // Where each workload's misses are, by lines of its source.
    let cases: [Case<'_>; 5] = [
        (&["stride", "4096", "4"], &[("stride.c", "volatile char *a =")]),
        (&["gups", "16M", "200K"], &[("gups.c", "uint64_t *table =")]),
        (
            &["bfs", "16", "8"],
            &[
                ("bfs.c", "uint32_t *column ="),
                ("bfs.c", "uint64_t *rowstarts ="),
                ("bfs.c", "int64_t *pred ="),
                ("bfs.c", "uint32_t *from ="),
                ("bfs.c", "uint32_t *queue ="),
            ],
        ),
        (
            &["chase", "16M", "200K"],
            &[
                ("chase.c", "struct node *arena ="),
                ("chase.c", "struct node **all ="),
                ("chase.c", "uint32_t *order ="),
            ],
        ),
        (
            &["chase", "16M", "200K", "malloc"],
            &[
                ("chase.c", "malloc(sizeof"),
                ("chase.c", "struct node **all ="),
                ("chase.c", "uint32_t *order ="),
            ],
        ),
    ];
    for (words, sites) in cases {
        let run = dir.path().join(words.join("-"));
        let run = run.to_str().expect("UTF-8");
        let program = format!("/bench/{}", words[0]);
        let mut args = vec!["-q", "record", "tlb", "-o", run, "--share", &share, "--", &program];
        args.extend(&words[1..]);
        let printed = ok(&args);
        let json: Value =
            serde_json::from_str(&ok(&["report", "tlb", "objects", "-i", run, "--json", "--limit", "0"]))
                .expect("JSON");
        let objects = json["rows"].as_array().expect("objects");
        let misses = |o: &Value| o["misses"].as_u64().expect("a number");
        let all: u64 = objects.iter().map(misses).sum();
        let unknown: u64 = objects.iter().filter(|o| o["kind"] == "unknown").map(misses).sum();
        assert!(unknown * 100 <= all, "{words:?}: {unknown} of {all} are nobody's");
        let mut named = 0;
        for (source, text) in sites {
            let place = format!("main ({source}:{})", line_of(source, text));
            let found: Vec<_> =
                objects.iter().filter(|o| o["object"].as_str().is_some_and(|n| n.contains(&place))).collect();
            assert!(!found.is_empty(), "{words:?}: nothing is named {place}: {objects:?}");
            named += found.iter().map(|o| misses(o)).sum::<u64>();
            // What the program said of it.
            let name = text.trim_end_matches(" =").rsplit(['*', ' ']).next().expect("a name");
            if let Some((_, rest)) = printed.split_once(&format!("{name} 0x")) {
                let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next().expect("digits");
                let start = u64::from_str_radix(digits, 16).expect("an address");
                assert!(
                    found.iter().any(|o| o["start"].as_u64() == Some(start)),
                    "{name} at {start:#x}: {found:?}"
                );
            }
        }
        // Of the program's own misses, not the kernel's or the init's.
        let tgid = objects[0]["tgid"].as_u64();
        let own: u64 = objects.iter().filter(|o| o["tgid"].as_u64() == tgid).map(misses).sum();
        println!(
            "{words:?}: {unknown} of {all} misses are nobody's; {named} of the program's {own} are of its data"
        );
        assert!(named * 100 >= own * 98, "{words:?}: only {named} of {own} misses are of known sites");
    }
}

/// The PTAT paper's 6.2: a search whose array `column` is put on huge pages then misses in `rowstarts` and `pred`. What
/// if tells it from the run on 4K pages alone; then it is measured.
#[test]
#[ignore = "two searches in the guest and ten replays, minutes: make test-tlb"]
fn a_search_with_huge_pages_is_predicted() {
    let dir = tempfile::tempdir().expect("a folder");
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/tlb/build.sh");
    assert!(Command::new("sh").arg(build).arg(dir.path().join("bench")).status().expect("sh").success());
    let share = format!("{}:/bench", dir.path().join("bench").display());
    let record = |pages: &str| {
        let run = dir.path().join(pages).to_str().expect("UTF-8").to_owned();
        ok(&[
            "-q",
            "record",
            "tlb",
            "-g",
            "ivybridge-ep",
            "-o",
            &run,
            "--share",
            &share,
            "--",
            "/bench/bfs",
            "18",
            "4",
            pages,
        ]);
        run
    };
    let rows = |run: &str, view: &str| -> Vec<Value> {
        let json: Value =
            serde_json::from_str(&ok(&["report", "tlb", view, "-i", run, "--json", "--limit", "0"]))
                .expect("JSON");
        json[view].as_array().expect("rows").clone()
    };
    let names = ["uint32_t *column =", "uint64_t *rowstarts =", "int64_t *pred ="]
        .map(|text| format!("main (bfs.c:{})", line_of("bfs.c", text)));
    let is = |row: &Value, name: &str| row["object"].as_str().is_some_and(|object| object.contains(name));
    let small = record("4K");
    let misses = |rows: &[Value], name: &str| -> u64 {
        rows.iter().filter(|row| is(row, name)).map(|row| row["misses"].as_u64().expect("a number")).sum()
    };
    let before = rows(&small, "objects");
    let advice = rows(&small, "advice");
    let predicted = advice
        .iter()
        .find(|row| row["page_size"] == "2M" && is(row, &names[0]))
        .and_then(|row| row["after"].as_u64())
        .expect("advice for `column`");

    let after = rows(&record("2M"), "objects");
    let measured: u64 = after.iter().map(|row| row["misses"].as_u64().expect("a number")).sum();
    let off = 100.0 * (predicted as f64 - measured as f64) / measured as f64;
    let [column, rest] = [&before, &after].map(|rows| {
        let of_rest = misses(rows, &names[1]) + misses(rows, &names[2]);
        (misses(rows, &names[0]), of_rest)
    });
    println!(
        "predicted {predicted}, measured {measured}: {off:+.1} %; column, rowstarts and pred: {column:?}, {rest:?}"
    );
    assert!(off.abs() <= 5.0, "predicted {predicted}, measured {measured}");
    let all: u64 = before.iter().map(|row| row["misses"].as_u64().expect("a number")).sum();
    assert!(column.0 * 2 > all, "`column` misses most on 4K pages: {} of {all}", column.0);
    assert!(
        rest.0 * 20 < measured && rest.1 * 10 > measured * 8,
        "then the others do: {rest:?} of {measured}"
    );
}

/// The guest is deterministic, so that a second run has the same misses: those that it keeps by a condition are those of the
/// first run that a filter here finds.
#[test]
fn a_condition_keeps_what_a_filter_of_all_misses_finds() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = build(dir.path());
    let share = format!("{}:/bench/stride", program.display());
    let record = |name: &str, condition: Option<&str>| {
        let run = dir.path().join(name);
        let mut args = vec!["-q", "record", "tlb", "-g", "ivybridge-ep", "-o", run.to_str().expect("UTF-8")];
        args.extend(condition.into_iter().flat_map(|text| ["--if", text]));
        args.extend(["--share", &share, "--", "/bench/stride", "256", "2", "4K"]);
        ok(&args);
        run
    };
    let misses = |run: &Path| {
        let mut place = kprism_tlb::stream::Context::default();
        let mut all = Vec::new();
        for event in events(run) {
            place.follow(&event);
            if let Event::Miss(miss) = event {
                all.push((place.pid, miss));
            }
        }
        all
    };
    let all = misses(&record("all", None));
    // The program is the task that misses most in its own memory.
    let processes: Value = serde_json::from_str(&ok(&[
        "report",
        "tlb",
        "processes",
        "--json",
        "-i",
        dir.path().join("all").to_str().unwrap(),
    ]))
    .expect("JSON");
    let stride = processes["rows"].as_array().unwrap().iter().find(|row| row["comm"] == "stride").unwrap();
    let stride = stride["tgid"].as_u64().unwrap() as u32;
    type Judge = fn(u32, u32, &Miss) -> bool;
    let conditions: [(&str, Judge); 3] = [
        ("access == store && va >> 47 == 0 && $comm == \"stride\"", |stride, pid, m| {
            pid == stride && m.access == Access::Store && m.va >> 47 == 0
        }),
        ("page_bytes > 4096 || access == fetch", |_, _, m| {
            m.size != PageSize::K4 || m.access == Access::Fetch
        }),
        ("ip < 0x800000000000 && (va & 0xfff) == 0 && $cpu == 0", |_, _, m| {
            m.ip >> 47 == 0 && m.va & 0xfff == 0
        }),
    ];
    for (number, (condition, judge)) in conditions.into_iter().enumerate() {
        let run = record(&format!("some{number}"), Some(condition));
        let path = run.to_str().unwrap();
        let kept = misses(&run);
        let expected: Vec<_> = all.iter().filter(|(pid, m)| judge(stride, *pid, m)).copied().collect();
        let last = |misses: &[(u32, Miss)]| misses.iter().filter(|(_, m)| m.last & 1 == 1).count() as u64;
        let report: Value =
            serde_json::from_str(&ok(&["report", "tlb", "--json", "-i", path])).expect("JSON");
        let of = |fate: &str, unit: &str| {
            let entries = report["run"]["account"].as_array().unwrap();
            let entry = entries.iter().find(|e| e["fate"] == fate && e["unit"] == unit);
            entry.unwrap_or_else(|| panic!("{fate} {unit}: {}", report["run"]["account"]))["count"]
                .as_u64()
                .unwrap()
        };
        let unknown = of("lost", "misses whose condition could not be computed");
        if condition.contains("$comm") {
            // The name of the task is not known up to its first execve.
            assert!(expected.iter().zip(&kept).all(|(a, b)| a == b), "{condition}");
        }
        assert!(!kept.is_empty() && kept.len() < all.len(), "{condition}: {} of {}", kept.len(), all.len());
        assert_eq!(kept, expected, "{condition}");
        assert_eq!(of("seen", "misses"), last(&all), "{condition}");
        assert_eq!(of("kept", "misses"), last(&kept), "{condition}");
        assert_eq!(of("lost", "misses"), 0, "{condition}");
        let left_out = of("seen", "misses that do not meet the condition, left out");
        assert_eq!(left_out + unknown + last(&kept), last(&all), "{condition}");
        assert!(!events(&run).iter().any(|event| matches!(event, Event::Touch { .. })));
        assert_eq!((&report["condition"], &report["complete"]), (&condition.into(), &false.into()));
        assert!(ok(&["report", "tlb", "-i", path]).contains(&format!("for which `{condition}`")));
        // What needs every miss says so.
        for words in [vec!["advice"], vec!["counters", "--counters", "/dev/null"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
            let output = command.args(["report", "tlb", "-i", path]).args(&words).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains("record without --if"), "{words:?}: {said}");
        }
        ok(&["report", "tlb", "-q", "-i", path, "--html", dir.path().join("page.html").to_str().unwrap()]);
    }
    // A comparison says which misses each side has.
    let (all, some) = (dir.path().join("all"), dir.path().join("some1"));
    let told = ok(&["diff", all.to_str().unwrap(), some.to_str().unwrap()]);
    assert!(
        told.contains("for which `page_bytes > 4096") && told.contains("not the same misses were recorded"),
        "{told}"
    );
    // What is wrong is said before the guest boots.
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    let output = command.args(["record", "tlb", "--if", "adr == 1", "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no `adr` at a TLB miss"), "{said}");
}
