// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lake of real runs: added once, by several at once, killed in the middle, on a full disk; merged while others read; and
//! what the views answer, computed by hand.

mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest::{alone, json, kprism, ok, planted, text};
use kprism_test::{APT, BPF, GCC, QEMU, ROOT, SQL, UPROBES, needs, skip, test};

/// All files below a folder; links in place of copies, as nobody writes into them.
fn link_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.as_ref().unwrap().file_name()));
        if path.is_dir() {
            link_all(&path, &to)
        } else {
            fs::hard_link(&path, &to).or_else(|_| fs::copy(&path, &to).map(drop)).unwrap()
        }
    }
}

/// A run, as if it had been made at another time: a run of its own.
fn copy(from: &Path, to: &Path, number: usize) -> PathBuf {
    link_all(from, to);
    fs::remove_file(to.join("manifest.json")).unwrap();
    let manifest = fs::read_to_string(from.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["run_id"] = format!("{number:032x}").into();
    manifest["created"] = format!("2026-11-{:02}T00:00:{:02}Z", 1 + number % 28, number / 28).into();
    fs::write(to.join("manifest.json"), manifest.to_string()).unwrap();
    to.to_path_buf()
}

fn stored() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/report.in/true.data")
}

fn copies(dir: &Path, count: usize) -> Vec<PathBuf> {
    (0..count).map(|number| copy(&stored(), &dir.join(format!("run{number}")), number)).collect()
}

/// Every file below a folder whose name ends so, without those that are kept for the lake itself.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.file_name().is_some_and(|name| name == "_lake") => {}
            true => found.extend(files(&path, end)),
            false if text(&path).ends_with(end) => found.push(path),
            false => {}
        }
    }
    found
}

fn runs_of(lake: &Path) -> usize {
    files(&lake.join("manifest"), ".parquet").len()
}

fn staged(lake: &Path) -> usize {
    fs::read_dir(lake.join("_lake/staging")).map_or(0, Iterator::count)
}

fn add(lake: &Path, run: &Path, more: &[&str]) -> std::process::Output {
    kprism(&[&["lake", "add", "-q", text(run), "--to", text(lake), "--suite", "s"], more].concat())
}

/// Rows of an answer.
fn ask(lake: &Path, query: &str) -> Vec<serde_json::Value> {
    json(&["lake", "sql", text(lake), query, "--json"]).as_array().unwrap().clone()
}

#[test]
fn a_run_is_added_once() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let run = &copies(dir.path(), 1)[0];
    let first = add(&lake, run, &["--label", "commit=a"]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(String::from_utf8_lossy(&first.stdout).ends_with(": added\n"));
    let before = files(&lake, ".parquet");
    assert!(
        before.iter().any(|file| text(file).contains("/functions/schema=2/suite=s/day=2026-11-01/")),
        "{before:?}"
    );
    let again = add(&lake, run, &["--label", "commit=a"]);
    assert!(again.status.success() && String::from_utf8_lossy(&again.stdout).ends_with(": already there\n"));
    assert_eq!(files(&lake, ".parquet"), before);
    let other = add(&lake, run, &["--label", "commit=b"]);
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(
        other.status.code() == Some(2) && said.contains("--replace") && said.contains("commit=a"),
        "{said}"
    );
    assert!(add(&lake, run, &["--label", "commit=b", "--replace"]).status.success());
    let again = add(&lake, run, &["--label", "commit=b"]);
    assert!(String::from_utf8_lossy(&again.stdout).ends_with(": already there\n"));
    assert_eq!((files(&lake, ".parquet"), staged(&lake)), (before, 0));
}

#[test]
fn a_killed_writer_leaves_nothing_that_counts() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let runs = copies(dir.path(), 20);
    assert!(add(&lake, &runs[0], &[]).status.success());
    let lock = fs::File::options().write(true).open(lake.join("_lake/commit.lock")).unwrap();
    for (number, run) in runs.iter().enumerate().skip(1) {
        // Between the two times that it holds the lock, the writer writes its tables.
        lock.lock().unwrap();
        let mut writer = Command::new(env!("CARGO_BIN_EXE_kprism"))
            .args(["lake", "add", "-q", text(run), "--to", text(&lake), "--suite", "s"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let id = format!(" {} ", writer.id());
        let is_writer = |line: &str| line.contains("FLOCK") && line.contains("->") && line.contains(&id);
        while !fs::read_to_string("/proc/locks").unwrap().lines().any(is_writer) {
            assert!(writer.try_wait().unwrap().is_none(), "the writer did not wait for the lock");
        }
        lock.unlock().unwrap();
        // It is at work once it has a folder to write in; the second time it needs the lock is after that.
        while staged(&lake) == 0 && writer.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        lock.lock().unwrap();
        let between = runs_of(&lake) == number && staged(&lake) == 1;
        if between {
            writer.kill().unwrap();
        }
        lock.unlock().unwrap();
        writer.wait().unwrap();
        if between {
            assert_eq!((runs_of(&lake), staged(&lake)), (number, 1));
            let again = add(&lake, run, &[]);
            assert!(String::from_utf8_lossy(&again.stdout).ends_with(": added\n"));
            assert_eq!((runs_of(&lake), staged(&lake)), (number + 1, 0));
            return;
        }
    }
    panic!("none of 19 writers was met between its two looks");
}

#[test]
fn a_full_disk_leaves_nothing() {
    needs(&[ROOT]);
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=48k", "tmpfs", text(&small)]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip("a file system in memory cannot be mounted here");
    }
    let lake = small.join("lake");
    let output = add(&lake, &copies(dir.path(), 1)[0], &[]);
    let (left, staged) = (files(&lake, ".parquet"), staged(&lake));
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("No space left on device"), "{said}");
    assert_eq!((left, staged), (Vec::new(), 0));
}

#[test]
fn workers_share_a_list_and_a_lake() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let runs = copies(dir.path(), 7);
    let list = dir.path().join("list");
    fs::write(&list, runs.iter().map(|run| format!("{}\n", run.display())).collect::<String>()).unwrap();
    // Shard 0 twice: two writers of the same runs.
    let workers = ["0/2", "1/2", "0/2"].map(|shard| {
        let args = [
            "lake",
            "add",
            "-q",
            "--to",
            text(&lake),
            "--suite",
            "s",
            "--list",
            text(&list),
            "--shard",
            shard,
            "--json",
        ];
        Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success());
        let added: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for run in added.as_array().unwrap() {
            *ends.entry(run["outcome"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    assert_eq!(ends, BTreeMap::from([("added".into(), 7), ("present".into(), 4)]));
    assert_eq!((runs_of(&lake), staged(&lake)), (7, 0));
}

#[test]
fn readers_see_each_row_once_while_files_are_merged() {
    needs(&[SQL]);
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let runs = copies(dir.path(), 6);
    let query = "SELECT COUNT(*) AS n, SUM(insns) AS insns, COUNT(DISTINCT run_id) AS runs FROM nodes";
    for run in &runs {
        assert!(add(&lake, run, &[]).status.success());
    }
    let before = ask(&lake, query);
    let mut merging = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["lake", "compact", "-q", text(&lake), "--grace", "1"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut looks = 0;
    while merging.try_wait().unwrap().is_none() {
        assert_eq!(ask(&lake, query), before);
        looks += 1;
    }
    assert!(merging.wait().unwrap().success() && looks > 0);
    assert_eq!(ask(&lake, query), before);
    assert_eq!(files(&lake.join("nodes"), ".parquet").len(), 1);
    // A run that stands in a merged file is known, and can be replaced; a file of runs is merged with later ones.
    assert!(String::from_utf8_lossy(&add(&lake, &runs[0], &[]).stdout).ends_with(": already there\n"));
    assert!(add(&lake, &runs[0], &["--label", "commit=b", "--replace"]).status.success());
    assert_eq!(ask(&lake, query), before);
    assert_eq!(ask(&lake, "SELECT label_value FROM labels").len(), 1);
    ok(&["lake", "compact", "-q", text(&lake), "--grace", "0"]);
    assert_eq!(ask(&lake, query), before);
    assert_eq!(files(&lake.join("nodes"), ".parquet").len(), 1);
    assert_eq!(ok(&["lake", "compact", "-q", text(&lake), "--grace", "0"]), b"nothing to merge\n");
}

#[test]
fn views_answer_as_computed_by_hand() {
    needs(&[SQL]);
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    for run in copies(dir.path(), 2) {
        assert!(add(&lake, &run, &[]).status.success());
    }
    let calls =
        ask(&lake, "SELECT f.name, s.wall_ns FROM syscalls s JOIN functions f USING (run_id, func_id)");
    let mut times: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for call in calls {
        let name = call["name"].as_str().unwrap().to_owned();
        times.entry(name).or_default().push(call["wall_ns"].as_u64().unwrap());
    }
    let rows = ask(&lake, "SELECT * FROM syscall_percentiles");
    assert!(rows.len() == times.len() && rows.len() > 3);
    for row in rows {
        let times = times.get_mut(row["name"].as_str().unwrap()).unwrap();
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100) - 1];
        let shown = ["calls", "p50_ns", "p90_ns", "p99_ns", "max_ns"].map(|name| row[name].as_u64().unwrap());
        assert_eq!(shown, [times.len() as u64, at(50), at(90), at(99), at(100)], "{row}");
    }
    // Every instruction of both runs belongs to a function, but those of the roots.
    let top = ask(&lake, "SELECT SUM(insns) AS insns, MAX(run_count) AS runs FROM fleet_top");
    let nodes = ask(&lake, "SELECT SUM(insns) AS insns FROM nodes WHERE func_id IS NOT NULL");
    assert_eq!((&top[0]["insns"], &top[0]["runs"]), (&nodes[0]["insns"], &2.into()));

    let refused = kprism(&["lake", "sql", text(&lake), "COPY nodes TO '/tmp/x.parquet'"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only a SELECT is answered"));
    let none = kprism(&["lake", "sql", text(&lake), "SELECT * FROM nodes WHERE insns < 0"]);
    assert_eq!(none.status.code(), Some(1));
    let foreign = kprism(&["lake", "sql", text(&lake), "SELECT * FROM 's3://bucket/x.parquet'"]);
    assert!(String::from_utf8_lossy(&foreign.stderr).contains("mount the object storage"));
}

/// A window, or another clock, is not added up with a whole run.
#[test]
fn runs_that_recorded_other_things_are_told_apart() {
    needs(&[SQL]);
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let runs = copies(dir.path(), 4);
    for (run, place, value) in [(&runs[2], "/options/from", "vfs_read"), (&runs[3], "/clock/name", "tsc")] {
        let file = run.join("manifest.json");
        let mut manifest: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let (object, key) = place.rsplit_once('/').unwrap();
        manifest.pointer_mut(object).unwrap()[key] = value.into();
        fs::write(&file, manifest.to_string()).unwrap();
    }
    for run in &runs {
        let added = add(&lake, run, &[]);
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    for view in ["fleet_top", "syscall_percentiles"] {
        let kinds = "COUNT(DISTINCT recorded_id) AS recorded, COUNT(DISTINCT clock) AS clocks";
        let counts = ask(&lake, &format!("SELECT {kinds} FROM {view}"));
        assert_eq!(counts[0], serde_json::json!({"recorded": 2, "clocks": 2}), "{view}");
    }
    let groups = "SELECT clock, MAX(run_count) AS runs FROM fleet_top GROUP BY recorded_id, clock ORDER BY runs, clock";
    let expected = serde_json::json!([
        {"clock": "guest-virtual", "runs": 1}, {"clock": "tsc", "runs": 1}, {"clock": "guest-virtual", "runs": 2},
    ]);
    assert_eq!(serde_json::Value::Array(ask(&lake, groups)), expected);
}

/// A label that would make a view wrong, or end it, is refused when it is added.
#[test]
fn what_views_cannot_use_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let runs = copies(dir.path(), 3);
    for position in ["position=v1.2", "position=", "position=1.5", "position=99999999999999999999"] {
        let refused = add(&lake, &runs[0], &["--label", position]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && said.contains("expected a whole number"), "{said}");
    }
    let refused = add(&lake, &runs[0], &["--shard", "0/2"]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    let refused = kprism(&["lake", "add", text(&runs[0]), "--to", text(&lake), "--suite", "007"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("expected a letter"), "{said}");
    assert!(!lake.exists());
    // One that is missing keeps out none of the others.
    let list = dir.path().join("list");
    fs::write(&list, format!("{}\nmissing\n{}\n", text(&runs[0]), text(&runs[1]))).unwrap();
    let list_of = |more: &[&str]| {
        let words = ["lake", "add", "--list", text(&list), "--to", text(&lake), "--suite", "s"];
        kprism(&[&words[..], more].concat())
    };
    let some = list_of(&[]);
    let said = String::from_utf8_lossy(&some.stderr);
    assert!(some.status.code() == Some(2) && said.contains("1 of 3 runs were not added"), "{said}");
    assert_eq!(runs_of(&lake), 2);
    let none = list_of(&["--shard", "4/5"]);
    assert!(none.status.success() && String::from_utf8_lossy(&none.stderr).contains("of this shard"));
    assert_eq!(fs::metadata(&lake).unwrap().permissions().mode() & 0o777, 0o700);
    // Rows of a run that was replaced after a merge go with the next.
    ok(&["lake", "compact", "-q", text(&lake), "--grace", "0"]);
    assert!(add(&lake, &runs[0], &["--label", "position=1", "--replace"]).status.success());
    ok(&["lake", "compact", "-q", text(&lake), "--grace", "0"]);
    needs(&[SQL]);
    assert_eq!(ask(&lake, "SELECT COUNT(*) AS n FROM manifest_files")[0]["n"], 2);
    let odd = ask(&lake, "SELECT 1/0 AS x, 'nan'::DOUBLE AS n, 0.5::DOUBLE AS y");
    assert_eq!(odd[0], serde_json::json!({"x": null, "n": null, "y": 0.5}));
    // Into a file, as by a shell: the device stays what it is.
    let (device, file) = (fs::read_link("/dev/stdout").unwrap(), dir.path().join("rows.csv"));
    for (form, rows) in [("--csv", "x\n7\n"), ("--json", "[\n\t{\"x\":7}\n]\n")] {
        let mut query = Command::new(env!("CARGO_BIN_EXE_kprism"));
        query.args(["lake", "sql", text(&lake), "SELECT 7 AS x", form]);
        assert!(query.stdout(fs::File::create(&file).unwrap()).status().unwrap().success());
        assert_eq!(fs::read_to_string(&file).unwrap(), rows);
        assert_eq!(fs::read_link("/dev/stdout").unwrap(), device);
    }
    let many = ok(&["lake", "sql", text(&lake), "-- all pairs\nSELECT a.insns FROM nodes a, nodes b"]);
    assert!(
        String::from_utf8_lossy(&many)
            .ends_with("… more than 10000 rows: --csv, --json and --parquet give all\n")
    );
}

/// Values that probes collected are rows, as the report has them.
#[test]
fn values_of_probes_are_rows() {
    needs(&[ROOT, BPF, UPROBES, GCC]);
    needs(&[SQL]);
    let dir = tempfile::tempdir().unwrap();
    let (lake, run, source) = (dir.path().join("lake"), dir.path().join("run"), dir.path().join("w.c"));
    let program = "__attribute__((noinline)) int work(int n, const char *s) { __asm__ volatile(\"\"); return n + s[0]; }\n\
                   int main(void) { int t = 0; for (int i = 0; i < 5; i++) t += work(i, \"hello\"); return t == 0; }\n";
    fs::write(&source, program).unwrap();
    let built = Command::new("cc").args(["-g", "-O1", "-o", "w", "w.c"]).current_dir(dir.path()).status();
    assert!(built.unwrap().success());
    let work = dir.path().join("w");
    ok(&["record", "probe", "-q", "-o", text(&run), "work", "--collect", "n,s", "--", text(&work)]);
    assert!(add(&lake, &run, &[]).status.success());
    let rows = ask(&lake, "SELECT item, int_value, text_value FROM probe_values ORDER BY record_id, item");
    let row = |n: i64| {
        [
            serde_json::json!({"item": "n", "int_value": n, "text_value": null}),
            serde_json::json!({"item": "s", "int_value": null, "text_value": "hello"}),
        ]
    };
    assert_eq!(rows, (0..5).flat_map(row).collect::<Vec<_>>());
}

#[test]
fn a_gate_takes_its_baseline_from_a_lake() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    let runs = copies(dir.path(), 3);
    let gate = |more: &[&str]| {
        let output = kprism(
            &[
                &[
                    "gate",
                    text(&runs[2]),
                    "--baseline",
                    text(&lake),
                    "--fail-if",
                    "insns > +0",
                    "--allow-loss",
                ],
                more,
            ]
            .concat(),
        );
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(add(&lake, &runs[2], &[]).status.success());
    let (code, said) = gate(&[]);
    assert!(code == Some(2) && said.contains("has no other run of `true`"), "{said}");
    for run in &runs[..2] {
        assert!(add(&lake, run, &[]).status.success());
    }
    // The newest but the one that is judged.
    let newest = format!("baseline: run {:032x} of 2026-11-02", 1);
    for _ in 0..2 {
        let (code, said) = gate(&[]);
        assert!(code == Some(0) && said.contains(&newest) && said.matches("baseline").count() == 1, "{said}");
        let (code, said) = gate(&["--last", "5"]);
        assert!(code == Some(2) && said.matches("baseline: run").count() == 2, "{said}");
        // They state no environment, so that their counts may vary.
        assert!(
            said.contains("2 runs of the baseline and 1 to judge can never differ significantly"),
            "{said}"
        );
        ok(&["lake", "compact", "-q", text(&lake), "--grace", "0"]);
    }
    let other =
        kprism(&["lake", "add", "-q", text(&runs[0]), "--to", text(&lake), "--suite", "t", "--replace"]);
    assert!(other.status.success());
    let (code, said) = gate(&[]);
    assert!(code == Some(2) && said.contains("in the suites s, t: name one by --suite"), "{said}");
    let (code, said) = gate(&["--suite", "t"]);
    assert!(code == Some(0) && said.contains(&format!("baseline: run {:032x}", 0)), "{said}");
    let refused = kprism(&[
        "gate",
        text(&runs[2]),
        "--baseline",
        text(&runs[0]),
        "--suite",
        "t",
        "--fail-if",
        "insns > +0",
    ]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no --baseline is one"));
}

#[test]
fn one_instruction_more_is_found_among_forty_runs() {
    needs(&[QEMU, APT, GCC]);
    needs(&[SQL]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (planted(dir.path(), "old", "", 1), planted(dir.path(), "new", "nop", 1));
    let lake = dir.path().join("lake");
    let before = dir.path().join("before");
    assert!(add(&before, &old, &[]).status.success());
    let gate = kprism(&[
        "gate",
        text(&new),
        "--baseline",
        text(&before),
        "--fail-if",
        "self_insns[work] > +0",
        "--json",
    ]);
    assert_eq!(gate.status.code(), Some(3), "{}", String::from_utf8_lossy(&gate.stderr));
    let verdict: serde_json::Value = serde_json::from_slice(&gate.stdout).unwrap();
    assert_eq!(verdict["rules"][0]["change"], 1.0, "{verdict:#}");
    for number in 0..40 {
        let run = copy(if number < 23 { &old } else { &new }, &dir.path().join(format!("r{number}")), number);
        let (commit, position) = (format!("commit=c{number}"), format!("position={number}"));
        assert!(add(&lake, &run, &["--label", &commit, "--label", &position]).status.success());
    }
    // One whose recording was cut off, before it: the run after a run that lacks something is no regression to trust.
    let cut = copy(&new, &dir.path().join("cut"), 40);
    let manifest = fs::read_to_string(cut.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["stopped"] = "a test".into();
    fs::write(cut.join("manifest.json"), manifest.to_string()).unwrap();
    assert!(add(&lake, &cut, &["--label", "position=9"]).status.success());
    // And one that recorded a window: it is compared with none, and the runs around it are compared all the same.
    let window = copy(&new, &dir.path().join("window"), 41);
    let manifest = fs::read_to_string(window.join("manifest.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["options"]["from"] = "vfs_read".into();
    fs::write(window.join("manifest.json"), manifest.to_string()).unwrap();
    assert!(add(&lake, &window, &["--label", "position=15"]).status.success());
    for _ in 0..2 {
        for view in ["regressions", "first_bad_commit"] {
            let left_out = format!("SELECT run_position, left_out FROM {view} WHERE left_out IS NOT NULL");
            let reason = "not the same was recorded: from: none → vfs_read";
            let expected = serde_json::json!([{"run_position": 15, "left_out": reason}]);
            assert_eq!(serde_json::Value::Array(ask(&lake, &left_out)), expected, "{view}");
        }
        let bad = ask(
            &lake,
            "SELECT commit_id, run_position, insns_change, fault FROM first_bad_commit WHERE name = 'work'",
        );
        let expected =
            serde_json::json!([{"commit_id": "c23", "run_position": 23, "insns_change": 1, "fault": null}]);
        let all = "SELECT run_position, insns_change, fault, left_out FROM regressions WHERE name = 'work'";
        assert_eq!(serde_json::Value::Array(bad), expected, "{:?}", ask(&lake, all));
        let changed = ask(
            &lake,
            "SELECT insns_change AS change, fault FROM regressions WHERE name = 'work' ORDER BY run_position",
        );
        let stopped = "recording ended early: a test";
        let expected = [(1, Some(stopped)), (-1, Some(stopped)), (1, None)];
        let changed: Vec<_> =
            changed.iter().map(|row| (row["change"].as_i64().unwrap(), row["fault"].as_str())).collect();
        assert_eq!(changed, expected);
        ok(&["lake", "compact", "-q", text(&lake), "--grace", "0"]);
    }
}

kprism_test::main!();
