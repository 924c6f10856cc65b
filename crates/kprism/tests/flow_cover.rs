// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage from the flow of a program built as always, against gcov's counters of the same program built for them, both
//! run in one recording. Needs what `scripts/setup.sh test` installs.

mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use guest::{alone, json, ok, text};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flow_cover/lists.c");

fn build(folder: &Path, name: &str, flags: &[&str]) {
    let mut cc = Command::new("cc");
    cc.current_dir(folder).args(flags).args(["-g", "-o", name, SOURCE]);
    assert!(cc.status().expect("a C compiler is installed").success());
}

/// Lines of the program's source with their counts.
fn lines(run: &Path, comm: Option<&str>) -> BTreeMap<u32, u64> {
    let mut args = vec!["export", "-q", "-i", text(run), "-o", "-.info"];
    args.extend(comm.into_iter().flat_map(|comm| ["--comm", comm]));
    let info = String::from_utf8(ok(&args)).unwrap();
    let (_, own) = info.split_once(&format!("SF:{SOURCE}\n")).expect("the source is in it");
    own.lines()
        .take_while(|line| *line != "end_of_record")
        .filter_map(|line| line.strip_prefix("DA:")?.split_once(','))
        .map(|(line, count)| (line.parse().unwrap(), count.parse().unwrap()))
        .collect()
}

#[test]
fn lines_of_an_unmodified_program_are_those_of_gcov() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    fs::create_dir(&share).unwrap();
    for level in ["O0", "O2"] {
        build(&share, &format!("plain-{level}"), &[&format!("-{level}")]);
        build(&share, &format!("gcov-{level}"), &[&format!("-{level}"), "--coverage"]);
    }
    let run = dir.path().join("run");
    let script = "export GCOV_PREFIX=/tmp/g GCOV_PREFIX_STRIP=99; cd /share; \
                  for l in O0 O2; do ./plain-$l >/dev/null; ./gcov-$l >/dev/null; done; \
                  for l in O0 O2; do base64 -w0 /tmp/g/gcov-$l-lists.gcda; echo; done";
    let args = ["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "sh", "-c", script];
    let said = String::from_utf8(ok(&args)).unwrap();
    let source = fs::read_to_string(SOURCE).unwrap();
    let source: Vec<&str> = source.lines().map(str::trim).collect();
    for (level, data) in ["O0", "O2"].into_iter().zip(said.lines()) {
        let counters = dir.path().join(level);
        fs::create_dir(&counters).unwrap();
        let name = format!("gcov-{level}-lists");
        fs::copy(share.join(&name).with_extension("gcno"), counters.join(&name).with_extension("gcno"))
            .unwrap();
        fs::write(counters.join("data"), data).unwrap();
        let decoded = Command::new("base64").arg("-d").arg(counters.join("data")).output().unwrap().stdout;
        fs::write(counters.join(&name).with_extension("gcda"), decoded).unwrap();
        let gcov = lines(&counters, None);
        let flow = lines(&run, Some(&format!("plain-{level}")));

        let both: Vec<u32> = gcov.keys().filter(|line| flow.contains_key(line)).copied().collect();
        let executed = both.iter().filter(|line| (gcov[line] > 0) == (flow[line] > 0)).count();
        let equal = both.iter().filter(|line| gcov[line] == flow[line]).count();
        let missing: Vec<&str> = gcov
            .keys()
            .filter(|line| !flow.contains_key(line))
            .map(|&line| source[line as usize - 1])
            .collect();
        println!(
            "-{level}: gcov has {} lines, the flow {}, both {}; executed alike {executed}, equal counts {equal}; only \
             gcov has {missing:?}",
            gcov.len(),
            flow.len(),
            both.len()
        );
        assert!(executed * 100 >= both.len() * 99, "-{level}: {executed} of {}", both.len());
        let more: Vec<&str> = flow
            .keys()
            .filter(|line| !gcov.contains_key(line))
            .map(|&line| source[line as usize - 1])
            .collect();
        println!("only the flow has {more:?}");
        assert!(more.len() <= 6, "-{level}: lines that gcov does not have");
        if level == "O0" {
            let differ: Vec<_> = both.iter().filter(|line| gcov[line] != flow[line]).collect();
            let differ: Vec<_> =
                differ.into_iter().map(|line| (source[*line as usize - 1], gcov[line], flow[line])).collect();
            assert_eq!(differ, [], "-O0: counts of gcov, of the flow");
            // A label is no code, but a line: told by what is behind it.
            assert_eq!(missing, [""; 0]);
        }
    }

    // Functions, and whom it is asked of.
    let of = |comm: &str| {
        let args =
            ["report", "cover", "-q", "--json", "--limit", "0", "--each", "function", "-i", text(&run)];
        json(&[&args[..], &["--comm", comm, SOURCE]].concat())
    };
    let called = |report: &serde_json::Value, name: &str| {
        let rows = report["rows"].as_array().unwrap().iter();
        rows.filter(|row| row["function"] == name).filter_map(|row| row["called"].as_u64()).sum::<u64>()
    };
    let report = of("plain-O0");
    let known = [("main", 1), ("split", 20), ("fib", 465), ("unused", 0), ("mix", 1531), ("classify", 99)];
    for (name, count) in known {
        assert_eq!(called(&report, name), count, "calls of {name}");
    }
    // Instructions of the kernel, and of programs without debug information, are not in it, and are counted.
    let account = report["run"]["account"].as_array().unwrap().clone();
    let count = |fate: &str, unit: &str| {
        let found = account.iter().find(|entry| entry["fate"] == fate && entry["unit"] == unit);
        found.unwrap_or_else(|| panic!("{fate} {unit}: {account:?}"))
    };
    let lost = count("lost", "instructions in files without debug information");
    let number = |entry: &serde_json::Value| entry["count"].as_u64().unwrap();
    let (seen, kept) = (number(count("seen", "instructions")), number(count("kept", "instructions")));
    assert!(kept > 10_000 && number(lost) > 10_000 && seen == kept + number(lost), "{account:?}");
    let places: Vec<&str> = lost["places"].as_array().unwrap().iter().filter_map(|p| p.as_str()).collect();
    assert!(places.iter().any(|place| place.starts_with("[kernel]: ")), "{places:?}");
    let annotate = ["annotate", "-i", text(&run), "--comm", "plain-O0", SOURCE];
    let (shown, value) = (ok(&annotate), json(&[&annotate[..], &["--json"]].concat()));
    let shown = String::from_utf8(shown).unwrap();
    let inferred = value["lines"].as_array().unwrap().iter().filter(|line| line["inferred"] == true).count();
    let marked = shown
        .lines()
        .filter(|l| l.split_whitespace().next().is_some_and(|w| w.len() > 1 && w.ends_with('~')));
    assert!(inferred > 0 && marked.count() == inferred, "{inferred} lines are told from others:\n{shown}");
    assert!(
        shown.starts_with("not whole\n  lost ") && value["run"]["account"] == report["run"]["account"],
        "{shown}"
    );
    assert_eq!(guest::kprism(&[&annotate[..], &["--strict"]].concat()).status.code(), Some(4));
    for option in [&["--build-dir", "/"][..], &["--since-boot"]] {
        assert_eq!(guest::kprism(&[&annotate[..], option].concat()).status.code(), Some(2), "{option:?}");
    }
    let annotated = ok(&["annotate", "-q", "-i", text(&run), "--comm", "plain-O0", "lists.c:25-31"]);
    assert!(String::from_utf8(annotated).unwrap().contains("1,922"), "the loop's condition");
}

/// The ways of a `switch` by a table, also those never taken, are gcov's, and one more: into the table.
#[test]
fn the_ways_of_a_table_are_branches() {
    const CHOOSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flow_cover/choose.c");
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    fs::create_dir(&share).unwrap();
    for (name, flags) in [("plain-O0", "-O0"), ("plain-O2", "-O2"), ("gcov", "--coverage")] {
        let mut cc = Command::new("cc");
        cc.current_dir(&share).args([flags, "-g", "-o", name, CHOOSE]);
        assert!(cc.status().expect("a C compiler is installed").success());
    }
    let run = dir.path().join("run");
    let script = "cd /share; ./plain-O0 >/dev/null; ./plain-O2 >/dev/null";
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "sh", "-c", script]);
    assert!(Command::new("./gcov").current_dir(&share).output().unwrap().status.success());
    let ways = |from: &Path, comm: Option<&str>| -> Vec<u64> {
        let mut args = vec!["export", "-q", "-i", text(from), "-o", "-.info"];
        args.extend(comm.into_iter().flat_map(|comm| ["--comm", comm]));
        let info = String::from_utf8(ok(&args)).unwrap();
        let (_, own) = info.split_once(&format!("SF:{CHOOSE}\n")).expect("the source is in it");
        let own = own.lines().take_while(|line| *line != "end_of_record");
        let on_line = own.filter_map(|line| line.strip_prefix("BRDA:7,"));
        let mut taken: Vec<u64> =
            on_line.map(|way| way.rsplit(',').next().unwrap().parse().unwrap()).collect();
        taken.sort_unstable();
        taken
    };
    let mut gcov = ways(&share, None);
    assert_eq!(gcov.len(), 8, "{gcov:?}");
    // Below 8: nine of eleven kinds, but 3.
    let into: u64 = (0..100).filter(|i| i % 11 < 8 && i % 11 != 3).count() as u64;
    gcov.push(into);
    gcov.sort_unstable();
    for comm in ["plain-O0", "plain-O2"] {
        assert_eq!(ways(&run, Some(comm)), gcov, "{comm}");
    }
}

/// Damaged and missing streams are noted and counted by every view that replays the flow, also before the run was decoded.
#[test]
fn streams_that_are_not_whole_are_told() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share");
    fs::create_dir(&share).unwrap();
    build(&share, "plain", &["-O0"]);
    let run = dir.path().join("run");
    ok(&["lab", "run", "-q", "--smp", "2", "-o", text(&run), "--share", text(&share), "--", "/share/plain"]);
    let whole = json(&["report", "cover", "-q", "--json", "-i", text(&run), "--comm", "plain"]);
    let count = |report: &serde_json::Value, unit: &str| {
        let found = report["run"]["account"].as_array().unwrap().iter().find(|entry| entry["unit"] == unit);
        found.unwrap_or_else(|| panic!("{unit}: {report}"))["count"].as_u64().unwrap()
    };
    for unit in ["decode errors", "bytes of packets skipped", "damaged or missing files"] {
        assert_eq!(count(&whole, unit), 0, "{unit}");
    }
    // As a recorder leaves it that nobody has decoded.
    let _ = fs::remove_dir_all(run.join("tables"));
    assert_eq!(count(&whole, "bytes cut off the streams"), 0);
    // The program ran on one of the two CPUs, and the other may have been idle: its stream is short.
    let size = |cpu: &str| fs::metadata(run.join("streams").join(cpu).with_extension("pt")).unwrap().len();
    let (busy, idle) = if size("cpu0") > size("cpu1") { ("cpu0", "cpu1") } else { ("cpu1", "cpu0") };
    let stream = run.join("streams").join(busy).with_extension("pt");
    let mut packets = fs::read(&stream).unwrap();
    let middle = packets.len() / 2;
    packets[middle..middle + 4096].fill(0xff);
    fs::write(&stream, packets).unwrap();
    for ending in ["pt", "map"] {
        fs::remove_file(run.join("streams").join(idle).with_extension(ending)).unwrap();
    }
    let cover = ["report", "cover", "--json", "-i", text(&run), "--comm", "plain"];
    let output = guest::kprism(&[&cover[..], &["--strict"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    let damaged: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        count(&damaged, "decode errors") > 0 && count(&damaged, "bytes of packets skipped") > 0,
        "{damaged}"
    );
    assert_eq!(count(&damaged, "damaged or missing files"), 2);
    assert!(count(&damaged, "bytes cut off the streams") > 0, "{damaged}");
    let views = [
        &["script", "--limit", "100000000", "--comm", "plain", "--func", "main"][..],
        &["annotate", "main"],
        &["report", "durations"],
    ];
    for view in views {
        let output = guest::kprism(&[view, &["-i", text(&run)]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains(&format!("{idle}.pt: missing")) && said.contains("not all is decoded"),
            "{view:?}: {said}"
        );
        assert!(said.contains(&format!("{idle}.pt is ")) && said.contains("shorter than recorded"), "{said}");
    }
    for view in
        [&["script", "--limit", "1"][..], &["script", "packets", "--limit", "1"], &["annotate", "main"]]
    {
        let output = guest::kprism(&[view, &["--strict", "-i", text(&run)]].concat());
        assert_eq!(output.status.code(), Some(4), "{view:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // A copy that was cut off: its tables are of the whole stream, and what is decoded now is not.
    let cut = dir.path().join("cut");
    ok(&["lab", "run", "-q", "-o", text(&cut), "--share", text(&share), "--", "/share/plain"]);
    ok(&["report", "functions", "--strict", "-i", text(&cut)]);
    let stream = cut.join("streams/cpu0.pt");
    let half = fs::metadata(&stream).unwrap().len() / 2;
    fs::File::options().write(true).open(&stream).unwrap().set_len(half).unwrap();
    for view in [&["script", "--limit", "1"][..], &["annotate", "vfs_read"]] {
        let output = guest::kprism(&[view, &["-i", text(&cut)]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("shorter than recorded"), "{view:?}: {said}");
        let output = guest::kprism(&[view, &["--strict", "-i", text(&cut)]].concat());
        assert_eq!(output.status.code(), Some(4), "{view:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = guest::kprism(&["report", "functions", "--strict", "-i", text(&run)]);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
}
