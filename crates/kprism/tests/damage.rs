// SPDX-License-Identifier: MIT OR Apache-2.0
//! No view is silent about a damaged run: stored runs of every instrument are damaged in many ways, and each command, subject,
//! format and page either says that the run is not whole, or refuses it. With `--strict`, the exit code says it.
//!
//! The commands, the subjects of `report` and `script` and the formats of `export` are those that `--help` lists: one that is
//! added without a word here fails the test. A view that says the same of a whole run would say nothing: of whole runs, each
//! must be silent.

mod guest;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{kprism, ok, text};
use kprism_test::{MOUNTS, ROOT, USER_PLUGINS, needs, skip, test};
use serde_json::{Value, json};

/// Commands that show no run, or have no result that lacks anything, each with the reason.
const OTHERS: [(&str, &str); 21] = [
    ("lab", "records"),
    ("observe", "records"),
    ("mark", "records"),
    ("record", "records"),
    ("top", "records"),
    ("impact", "records"),
    ("bisect", "records"),
    ("flow-cost", "tried below, of a run"),
    ("gdbserver", "records"),
    ("import", "makes a run"),
    ("view", "serves the pages that `export` writes"),
    ("tui", "needs a terminal; shows the account as a screen"),
    ("explain", "reads code, not what ran"),
    ("compile", "reads code, not what ran"),
    ("info", "tried below, in two forms"),
    ("list", "lists runs without their results"),
    ("check", "is about the machine"),
    ("completions", "is about the program"),
    ("man", "is about the program"),
    ("help", "is about the program"),
    ("lake", "tried below"),
];

/// A stored run of an instrument, whole or with faults of its own.
struct Stored {
    name: &'static str,
    run: PathBuf,
    /// Options that its views of coverage need.
    cover: Vec<String>,
}

fn files(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, name) = (entry.as_ref().unwrap().path(), entry.as_ref().unwrap().file_name());
        match entry.is_dir() {
            true => copy(&entry, &to.join(name)),
            false => drop(fs::copy(&entry, to.join(name)).unwrap()),
        }
    }
}

/// The runs, read once, so that they have their tables.
fn stored(dir: &Path) -> Vec<Stored> {
    let at = |name: &str| dir.join(name);
    let input = |name: &str| files("cmd").join(name);
    let code = format!("{}@401000", text(&input("import.in/code.bin")));
    ok(&["import", text(&input("import.in/loop.pt")), "--code", &code, "-o", text(&at("flow"))]);
    ok(&["import", text(&input("func.in/whole.txt")), "-o", text(&at("durations"))]);
    ok(&["report", "durations", "-i", text(&at("durations"))]);
    ok(&["import", text(&files("boot_texts/initcalls.log")), "-o", text(&at("boot"))]);
    copy(&input("cover.in/window.data"), &at("cover"));
    // A checkout below a closed folder, such as root's own, is one that other users cannot read.
    copy(&input("cover.in/build"), &at("build"));
    let mut all = Vec::new();
    for name in ["flow", "durations", "boot", "cover"] {
        let build = ["--build-dir".to_owned(), text(&at("build")).to_owned()];
        let cover = if name == "cover" { build.to_vec() } else { vec![] };
        all.push(Stored { name, run: at(name), cover });
    }
    for entry in fs::read_dir(files("damage")).into_iter().flatten().flatten() {
        let name: &str = entry.file_name().into_string().unwrap().leak();
        copy(&entry.path(), &at(name));
        all.push(Stored { name, run: at(name), cover: vec![] });
    }
    all
}

/// Changes the manifest.
fn manifest(run: &Path, change: impl FnOnce(&mut Value)) -> bool {
    let path = run.join("manifest.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let before = value.clone();
    change(&mut value);
    fs::write(&path, serde_json::to_vec(&value).unwrap()).unwrap();
    value != before
}

/// The largest file below the folder, by path.
fn largest(folder: &Path) -> Option<PathBuf> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => folders.push(entry.path()),
                false => all.push((entry.metadata().unwrap().len(), entry.path())),
            }
        }
    }
    all.into_iter().max().map(|(_, path)| path)
}

/// Damage to what the manifest keeps of an account. Views that draw up an account of their own from the streams do not see it,
/// and need not: what they show is read anew.
const KEPT: [&str; 3] = ["something was lost", "the account is missing", "the account is empty"];

/// Whether a view shows the account that the manifest keeps.
fn keeps_account(name: &str, view: &[String]) -> bool {
    let own = [
        "vms",
        "flow-cost",
        "annotate",
        "insns",
        "branches",
        "calls",
        "syscalls",
        "events",
        "packets",
        "all",
        "script",
    ];
    // Durations of a flow are measured from its streams, each time.
    let measured = name == "flow" && view.get(1).is_some_and(|word| word == "durations");
    ["flow", "durations"].contains(&name)
        && !measured
        && !view.iter().take(2).any(|word| own.contains(&word.as_str()))
}

/// A way to damage a run; returns false if the run has nothing that could be damaged so.
type Damage = fn(&Path) -> bool;

const DAMAGES: [(&str, Damage); 11] = [
    ("a stream is cut", |run| {
        let Some(stream) = largest(&run.join("streams")) else { return false };
        let bytes = fs::read(&stream).unwrap();
        fs::write(&stream, &bytes[..bytes.len() / 2]).unwrap();
        !bytes.is_empty()
    }),
    ("a stream is missing", |run| {
        largest(&run.join("streams")).is_some_and(|stream| fs::remove_file(stream).is_ok())
    }),
    ("all streams are missing", |run| fs::remove_dir_all(run.join("streams")).is_ok()),
    ("streams and a table are missing", |run| {
        let table = run.join("tables/functions.parquet");
        fs::remove_file(table).is_ok() && fs::remove_dir_all(run.join("streams")).is_ok()
    }),
    ("a file of symbols is missing", |run| {
        largest(&run.join("symbols")).is_some_and(|file| fs::remove_file(file).is_ok())
    }),
    ("the recorder was killed", |run| {
        manifest(run, |value| value["stopped"] = "the recording did not end".into())
    }),
    ("something was lost", |run| {
        manifest(run, |value| {
            for account in value["accounts"].as_object_mut().into_iter().flat_map(|all| all.values_mut()) {
                let lost = json!({"fate": "lost", "unit": "sleeps beyond a limit", "count": 3});
                account.as_array_mut().unwrap().push(lost);
            }
        })
    }),
    ("the account is missing", |run| {
        manifest(run, |value| drop(value.as_object_mut().unwrap().remove("accounts")))
    }),
    ("the account is empty", |run| {
        manifest(run, |value| {
            let accounts = value["accounts"].as_object_mut().into_iter().flat_map(|all| all.values_mut());
            accounts.for_each(|account| *account = json!([]));
        })
    }),
    ("a stream is longer than recorded", |run| {
        let text = fs::read_to_string(run.join("manifest.json")).unwrap();
        let Some(stream) = largest(&run.join("streams")).filter(|_| text.contains("\"files\"")) else {
            return false;
        };
        let bytes = fs::read(&stream).unwrap();
        fs::write(&stream, [&bytes[..], &[0; 7]].concat()).is_ok()
    }),
    ("the list of files is missing", |run| {
        manifest(run, |value| drop(value.as_object_mut().unwrap().remove("files")))
    }),
];

/// Whether a JSON value has a fault: a count of an account that is not zero, or a manifest that says it is not whole.
fn has_fault(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(has_fault),
        Value::Object(all) => {
            let fault = matches!(
                all.get("fate").and_then(Value::as_str),
                Some("lost" | "not_understood" | "guessed")
            );
            let unknown = all.get("account").is_some_and(Value::is_null);
            // What a comparison says of two runs that did not record the same.
            let parts = all.get("recorded").and_then(Value::as_array);
            let differ = parts.is_some_and(|parts| !parts.is_empty());
            fault && all["count"] != 0
                || unknown
                || differ
                || all.get("whole") == Some(&false.into())
                || all.contains_key("tables_unreadable")
                || all.values().any(has_fault)
        }
        _ => false,
    }
}

/// What is said of a run, in any form.
fn tells(said: &str) -> bool {
    // The script of a page has these words, whatever it shows.
    let said = if said.starts_with("<!DOCTYPE html>") {
        said.split("<script").next().unwrap_or_default()
    } else {
        said
    };
    let words = [
        "not whole",
        "not known whether whole",
        "recording ended early",
        "has no account",
        "left out, the first",
        "left out, first line",
        "not the same was recorded",
        "cannot be read, and what depends on calls is not known",
    ];
    words.iter().any(|word| said.contains(word))
        || serde_json::from_str(said).is_ok_and(|value| has_fault(&value))
        || said.lines().any(|line| {
            line.starts_with('{') && serde_json::from_str(line).is_ok_and(|value| has_fault(&value))
        })
}

/// What became of a view.
#[derive(Debug, PartialEq)]
enum Seen {
    /// It said that the run is not whole.
    Told,
    /// It refused.
    Refused,
    /// Neither.
    Silent,
}

fn seen(line: &[String], file: &Path) -> (Seen, Option<i32>) {
    let (seen, code, _) = shown(line, file);
    (seen, code)
}

/// The same, with all that was said: standard output, standard error, the written file.
fn shown(line: &[String], file: &Path) -> (Seen, Option<i32>, [String; 3]) {
    shown_by(&[env!("CARGO_BIN_EXE_kprism")], line, file)
}

/// The same by this program with its arguments.
fn shown_by(program: &[&str], line: &[String], file: &Path) -> (Seen, Option<i32>, [String; 3]) {
    let _ = fs::remove_dir_all(file);
    let _ = fs::remove_file(file);
    let output = Command::new(program[0]).args(&program[1..]).args(line).output().unwrap();
    let code = output.status.code();
    if !matches!(code, Some(0 | 1 | 3 | 4)) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(code == Some(2) && !said.contains("panicked"), "{line:?}: {code:?} {said}");
        return (Seen::Refused, code, [String::new(), said, String::new()]);
    }
    let written = fs::read(file).unwrap_or_default();
    let all =
        [output.stdout, output.stderr, written].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let told = all.iter().any(|text| tells(text));
    (if told { Seen::Told } else { Seen::Silent }, code, all)
}

/// The words of a list in a command's help, below `heading`.
fn listed(command: &[&str], heading: &str) -> BTreeSet<String> {
    let help = String::from_utf8(ok(&[command, &["--help"]].concat())).unwrap();
    let (_, list) = help.split_once(heading).unwrap_or_else(|| panic!("{command:?}: no {heading}"));
    let lines = list.lines().skip(1).take_while(|line| line.starts_with("  "));
    let words = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    words.filter_map(|line| Some(line.split_whitespace().next()?.trim_end_matches(':').to_owned())).collect()
}

/// Every view of a run: command lines without the run. `FILE` stands for a file to write.
fn views() -> Vec<Vec<String>> {
    let mut lines: Vec<String> = vec!["info".into(), "info --json".into()];
    let mut commands = listed(&[], "Commands:");
    for (other, _) in OTHERS {
        assert!(commands.remove(other), "{other}: no such command any more");
    }
    let known = ["report", "export", "script", "annotate", "diff", "gate"].map(str::to_owned);
    assert_eq!(commands, BTreeSet::from(known), "say in tests/damage.rs how a new command is tried");
    lines.extend(["report", "report --json", "report --html FILE"].map(str::to_owned));
    for subject in listed(&["report"], "Subjects:").iter().filter(|subject| *subject != "help") {
        for form in ["", " --json", " --csv", " --html FILE"] {
            lines.push(format!("report {subject}{form}"));
        }
    }
    for name in ["objects", "pages", "advice"] {
        lines.extend([format!("report tlb {name}"), format!("report tlb {name} --json")]);
    }
    lines.extend(
        ["report durations --tree", "report durations --ftd", "report delta irqs --json"].map(str::to_owned),
    );
    for suffix in listed(&["export"], "Formats by suffix of FILE:") {
        for suffix in suffix.split(',').filter(|suffix| suffix.starts_with('.')) {
            lines.push(format!("export -o FILE{suffix}"));
            lines.push(format!("export cover -o FILE{suffix}"));
            lines.push(format!("export tlb -o FILE{suffix}"));
        }
    }
    for subject in ["insns", "branches", "calls", "syscalls", "events", "packets", "all", "probe", ""] {
        lines.extend([format!("script {subject}"), format!("script {subject} --json")]);
    }
    lines.extend(["annotate loops.c", "annotate loops.c --json", "annotate * --json"].map(str::to_owned));
    lines.extend(["gate --fail-if insns<0", "gate --fail-if insns<0 --json"].map(str::to_owned));
    lines.extend(["diff", "diff --json", "diff --html FILE"].map(str::to_owned));
    lines.extend(["flow-cost", "flow-cost --json", "flow-cost --csv FILE"].map(str::to_owned));
    lines.push("lake add --suite s --to FILE".into());
    lines.iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// The command line of a view.
fn line_of(view: &[String], stored: &Stored, run: &Path, file: &Path) -> Vec<String> {
    let mut line: Vec<String> = view.iter().map(|word| word.replace("FILE", text(file))).collect();
    let run = text(run).to_owned();
    match view[0].as_str() {
        "gate" => line.insert(1, run),
        "lake" => line.insert(2, run),
        "diff" => line.splice(1..1, [text(&stored.run).to_owned(), run]).for_each(drop),
        _ => line.extend(["-i".to_owned(), run]),
    }
    let reads_cover = view.iter().any(|word| word == "cover" || word == "loops.c") || view[0] == "diff";
    if reads_cover {
        line.extend(stored.cover.clone());
    }
    line
}

#[test]
fn no_view_of_a_damaged_run_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let (views, mut faults) = (views(), Vec::new());
    let (damaged, mut whole, mut tried) = (dir.path().join("damaged"), 0, 0);
    for stored in &stored(dir.path()) {
        let is_whole = !tells(&String::from_utf8(ok(&["info", "--json", "-i", text(&stored.run)])).unwrap());
        whole += usize::from(is_whole);
        // Views that this run has.
        let mut held = Vec::new();
        for view in &views {
            let suffix = view.iter().find_map(|word| word.strip_prefix("FILE")).unwrap_or_default();
            let file = dir.path().join(format!("file{suffix}"));
            let base = dir.path().join("file");
            copy(&stored.run, &damaged);
            let (seen, code) = seen(&line_of(view, stored, &damaged, &base), &file);
            if is_whole && seen == Seen::Told {
                faults.push(format!("{}: {view:?}: says that a whole run is not", stored.name));
            }
            // What shows nothing of the whole run has nothing to tell of a damaged one.
            if seen != Seen::Refused && code != Some(1) {
                held.push((view, file, base));
            }
        }
        assert!(held.len() > 5, "{}: {held:?}", stored.name);
        for (damage, change) in DAMAGES {
            for (number, (view, file, base)) in held.iter().enumerate() {
                if KEPT.contains(&damage) && !keeps_account(stored.name, view) {
                    continue;
                }
                copy(&stored.run, &damaged);
                if !change(&damaged) {
                    break;
                }
                tried += 1;
                let line = line_of(view, stored, &damaged, base);
                if seen(&line, file).0 == Seen::Silent {
                    faults.push(format!("{}: {damage}: {view:?} is silent", stored.name));
                }
                // The exit code of some of them, so that each is tried with some damage.
                if number % 3 == tried % 3 {
                    let strict = [line, vec!["--strict".to_owned()]].concat();
                    let (_, code) = seen(&strict, file);
                    if !matches!(code, Some(2..=4)) {
                        faults
                            .push(format!("{}: {damage}: {view:?} --strict ends with {code:?}", stored.name));
                    }
                }
            }
        }
    }
    assert!(whole >= 2 && tried > 300, "{whole} whole runs, {tried} views of damaged ones");
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
}

/// Files below the folder whose names end so, by path.
fn ending(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => found.extend(ends.iter().any(|end| text(&path).ends_with(end)).then_some(path)),
            }
        }
    }
    found.sort();
    found
}

/// The values of a file of JSON, one or one a line.
fn values(path: &Path) -> Vec<Value> {
    let bytes = fs::read(path).unwrap();
    let all = serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<Result<Vec<_>, _>>();
    all.unwrap_or_default()
}

/// The paths of all keys; those of each element of a list are one.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(all) => all.iter().for_each(|value| keys(value, at, found)),
        Value::Object(all) => {
            for (key, value) in all {
                let at = format!("{at}/{key}");
                keys(value, &at, found);
                found.insert(at);
            }
        }
        _ => {}
    }
}

/// Gives the keys at the path another name.
fn rename(value: &mut Value, path: &[&str]) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| rename(value, path)),
        Value::Object(all) => match path {
            [key] => {
                if let Some(value) = all.remove(*key) {
                    all.insert(format!("{key}_of_another"), value);
                }
            }
            [key, more @ ..] => all.get_mut(*key).into_iter().for_each(|value| rename(value, more)),
            [] => {}
        },
        _ => {}
    }
}

/// The names of a table's columns: in the footer of a Parquet file each stands behind its length.
fn columns(bytes: &[u8]) -> BTreeSet<Vec<u8>> {
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let footer = &bytes[bytes.len() - 8 - length..bytes.len() - 8];
    let is_name = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_';
    let at = |at: usize| {
        let name = footer.get(at + 1..at + 1 + usize::from(footer[at]))?;
        (name.len() > 1 && name.iter().all(is_name)).then(|| name.to_vec())
    };
    (0..footer.len()).filter_map(at).collect()
}

/// A run that another version wrote has other names of keys and columns. What is not found by its name is not known: each
/// view says so or refuses, unless it shows the same as before.
#[test]
fn no_view_of_a_run_of_another_version_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let (views, mut faults, mut tried) = (views(), Vec::new(), 0);
    let damaged = dir.path().join("damaged");
    for stored in &stored(dir.path()) {
        // With its tables, and to be read anew.
        for has_tables in [true, false] {
            let base = dir.path().join(format!("base-{}-{has_tables}", stored.name));
            copy(&stored.run, &base);
            if !has_tables {
                fs::remove_dir_all(base.join("tables")).ok();
            }
            let mut held = Vec::new();
            for view in &views {
                let suffix = view.iter().find_map(|word| word.strip_prefix("FILE")).unwrap_or_default();
                let (file, out) = (dir.path().join(format!("file{suffix}")), dir.path().join("file"));
                copy(&base, &damaged);
                let line = line_of(view, stored, &damaged, &out);
                let (seen, code, [out, _, written]) = shown(&line, &file);
                let said = [out, written];
                if seen == Seen::Silent && code != Some(1) {
                    held.push((view, line, file, said));
                }
            }
            let mut attempt = |name: &str, change: &dyn Fn()| {
                for of in 0..held.len().min(2) {
                    let (view, line, file, before) = &held[(tried * 2 + of) % held.len()];
                    // It shows the manifest's options and tables as they are written, and there may be any.
                    let as_written = ["/options/", "/tables/"].map(|of| format!("manifest.json: {of}"));
                    if view[0] == "info" && as_written.iter().any(|of| name.starts_with(of)) {
                        continue;
                    }
                    copy(&base, &damaged);
                    change();
                    // What is read anew is told on standard error, and is the same.
                    let (seen, _, [out, _, written]) = shown(line, file);
                    if seen == Seen::Silent && [out, written] != *before {
                        faults.push(format!("{}, tables {has_tables}: {name}: {view:?}", stored.name));
                    }
                }
                tried += 1;
            };
            attempt("a newer version", &|| {
                manifest(&damaged, |value| value["version"] = 2.into());
            });
            for path in ending(&base, &[".json", ".jsonl"]) {
                let all = values(&path);
                let mut found = BTreeSet::new();
                all.iter().for_each(|value| keys(value, "", &mut found));
                let name = path.strip_prefix(&base).unwrap();
                for key in &found {
                    let parts: Vec<&str> = key.split('/').skip(1).collect();
                    attempt(&format!("{}: {key}", name.display()), &|| {
                        let mut all = all.clone();
                        all.iter_mut().for_each(|value| rename(value, &parts));
                        let lines: Vec<String> = all.iter().map(Value::to_string).collect();
                        fs::write(damaged.join(name), lines.join("\n") + "\n").unwrap();
                    });
                }
            }
            for path in ending(&base.join("tables"), &[".parquet"]) {
                let bytes = fs::read(&path).unwrap();
                let name = path.strip_prefix(&base).unwrap();
                for column in columns(&bytes) {
                    let counted = [&[column.len() as u8][..], &column].concat();
                    attempt(&format!("{}: {}", name.display(), String::from_utf8_lossy(&column)), &|| {
                        let mut bytes = bytes.clone();
                        for at in 0..bytes.len() - counted.len() {
                            if bytes[at..].starts_with(&counted) {
                                bytes[at + 1] = b'_';
                            }
                        }
                        fs::write(damaged.join(name), bytes).unwrap();
                    });
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
}

/// Misses are complete if each is there: a condition that cannot be read may have left out any.
#[test]
fn misses_beside_what_is_not_understood_are_not_complete() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    copy(&files("damage/tlb.data"), &run);
    let report = || guest::json(&["report", "tlb", "--json", "-i", text(&run)]);
    let whole = report();
    assert_eq!((&whole["complete"], &whole["source"]), (&true.into(), &"model".into()));
    manifest(&run, |value| value["options"]["condition"] = 7.into());
    let report_of = report();
    assert_eq!((&report_of["complete"], &report_of["condition"]), (&false.into(), &Value::Null));
    let said = String::from_utf8(ok(&["report", "tlb", "-i", text(&run)])).unwrap();
    assert!(said.contains("a condition, which is not understood"), "{said}");
    copy(&files("damage/tlb.data"), &run);
    fs::remove_file(run.join("streams/tlb/counts.json")).unwrap();
    let report_of = report();
    assert_eq!(report_of["complete"], false);
    // References were not counted: there is no number, and not a zero.
    assert_eq!(report_of["geometries"][0]["references"], Value::Null, "{report_of}");
}

/// What is damaged after a recording is in no account that the recorder left: --strict asks what was read now.
#[test]
fn misses_are_strictly_those_that_were_read_now() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    copy(&files("damage/tlb.data"), &run);
    let file = dir.path().join("misses.csv");
    let code = |command: &[&str]| {
        let output = kprism(&[command, &["-i", text(&run), "--strict"]].concat());
        output.status.code()
    };
    let export = ["export", "tlb", "-o", text(&file)];
    assert_eq!((code(&["report", "tlb"]), code(&export)), (Some(0), Some(0)));
    let sideband = run.join("streams/sideband.jsonl");
    let renamed = fs::read_to_string(&sideband).unwrap().replace("\"end\"", "\"end_of_another\"");
    fs::write(&sideband, renamed).unwrap();
    assert_eq!((code(&["report", "tlb"]), code(&export)), (Some(4), Some(4)));
}

/// A table that was copied from another run is named, and never taken: it is made again, or refused where nothing is there to
/// make it of.
#[test]
fn no_table_of_another_run_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let all = stored(dir.path());
    let of = |name: &str| &all.iter().find(|stored| stored.name == name).unwrap().run;
    let (flow, other) = (of("flow"), of("durations"));
    let report = ["report", "functions", "--json", "-i", text(flow)];
    let before = ok(&report);
    let put = || {
        fs::copy(other.join("tables/functions.parquet"), flow.join("tables/functions.parquet")).unwrap();
    };
    put();
    let output = kprism(&report);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("functions.parquet: not this run's table"), "{said}");
    assert_eq!((output.status.code(), output.stdout), (Some(0), before));
    assert!(kprism(&report).stderr.is_empty(), "it was made again");
    put();
    let info = String::from_utf8(ok(&["info", "-i", text(flow)])).unwrap();
    assert!(info.contains("functions.parquet: not this run's table"), "{info}");
    let facts = guest::json(&["info", "--json", "-i", text(flow)]);
    assert!(
        facts["tables_unreadable"].as_str().is_some_and(|why| why.contains("functions.parquet")),
        "{facts}"
    );
    fs::remove_dir_all(flow.join("streams")).unwrap();
    assert_eq!(kprism(&report).status.code(), Some(2));
    // Of a run of an older version nobody knows.
    put();
    manifest(flow, |value| drop(value.as_object_mut().unwrap().remove("tables")));
    let info = String::from_utf8(ok(&["info", "-i", text(flow)])).unwrap();
    assert!(info.contains("tables without a mark"), "{info}");
}

/// What replays the streams goes by what is in them now, whatever the account of the earlier decode says.
#[test]
fn a_replay_is_judged_by_what_it_read() {
    let dir = tempfile::tempdir().unwrap();
    let run = &stored(dir.path()).into_iter().find(|stored| stored.name == "flow").unwrap().run;
    let report = ["report", "durations", "-i", text(run), "--strict"];
    // Its one function does not end, so that there is nothing to show.
    let output = kprism(&report);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    // As many bytes as before, and no packets.
    let stream = run.join("streams/cpu0.pt");
    let mut bytes = fs::read(&stream).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0xff);
    fs::write(&stream, bytes).unwrap();
    assert_eq!(
        kprism(&["report", "functions", "-i", text(run), "--strict"]).status.code(),
        Some(0),
        "as decoded"
    );
    let output = kprism(&report);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    let output = kprism(&report[..4]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("not whole, as read now"), "{output:?}");
    for view in [["script", "insns"], ["script", "calls"], ["annotate", "*"]] {
        let output = kprism(&[&view[..], &["-i", text(run), "--strict"]].concat());
        assert_eq!(output.status.code(), Some(4), "{view:?}");
    }
}

/// A file that cannot be read is another thing than one that is not there: each view names it, unless it needs none of it.
#[test]
fn no_view_takes_a_closed_file_for_no_data() {
    needs(&[ROOT]);
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    open(dir.path());
    let program = dir.path().join("kprism");
    fs::copy(env!("CARGO_BIN_EXE_kprism"), &program).unwrap();
    open(&program);
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", text(&program)];
    let started = Command::new(nobody[0]).args(&nobody[1..]).arg("--version").output();
    if !started.is_ok_and(|output| output.status.success()) {
        skip("no program can be run as nobody here: setpriv, of Debian's util-linux");
    }
    let (views, mut faults, mut tried) = (views(), Vec::new(), 0);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
    let damaged = dir.path().join("damaged");
    let give = || {
        let mut paths = vec![damaged.clone()];
        while let Some(path) = paths.pop() {
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            if path.is_dir() {
                paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    };
    for stored in &stored(dir.path()) {
        let mut held = Vec::new();
        for view in &views {
            let suffix = view.iter().find_map(|word| word.strip_prefix("FILE")).unwrap_or_default();
            let (file, base) = (out.join(format!("file{suffix}")), out.join("file"));
            copy(&stored.run, &damaged);
            give();
            let line = line_of(view, stored, &damaged, &base);
            // Of what a diff reads, one is the run as it was.
            if view[0] == "diff" {
                continue;
            }
            let (seen, code, [out, _, written]) = shown_by(&nobody, &line, &file);
            if seen != Seen::Refused && code != Some(1) {
                held.push((view, line, file, [out, written]));
            }
        }
        assert!(held.len() > 4, "{}: {held:?}", stored.name);
        for path in ending(&stored.run, &[""]) {
            for _ in 0..2 {
                let (view, line, file, before) = &held[tried % held.len()];
                tried += 1;
                copy(&stored.run, &damaged);
                give();
                let name = path.strip_prefix(&stored.run).unwrap();
                fs::set_permissions(damaged.join(name), fs::Permissions::from_mode(0o000)).unwrap();
                let (seen, _, said) = shown_by(&nobody, line, file);
                let same = [&said[0], &said[2]] == [&before[0], &before[1]];
                let names = said.iter().any(|said| said.contains(text(Path::new(name.file_name().unwrap()))));
                if !names && !same {
                    let name = name.display();
                    faults
                        .push(format!("{}: {name} is closed: {view:?}: {seen:?}: {}", stored.name, said[1]));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
}

/// A recorder that meets a full disk keeps what it wrote, and each view says that there was more.
#[test]
fn no_view_of_a_run_from_a_full_disk_is_silent() {
    needs(&[MOUNTS, USER_PLUGINS]);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("touch.c");
    fs::write(&source, TOUCHES).unwrap();
    let program = dir.path().join("touch");
    let options = ["-O1", "-static", "-nostdlib", "-fno-stack-protector", "-o"];
    assert!(Command::new("cc").args(options).arg(&program).arg(&source).status().unwrap().success());
    let (full, run) = (dir.path().join("full"), dir.path().join("run"));
    fs::create_dir(&full).unwrap();
    let script = r#"mount -t tmpfs -o size=300k none "$1"
        "$2" -q record tlb --method user -o "$1/run" -- "$3"
        test $? = 125 && cp -r "$1/run" "$4""#;
    let words = [script, "sh", text(&full), env!("CARGO_BIN_EXE_kprism"), text(&program), text(&run)];
    let output = Command::new("unshare").args(["-m", "sh", "-c"]).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("No space left on device"), "{said}");
    let stored = Stored { name: "full", run, cover: vec![] };
    let (mut told, mut silent) = (0, Vec::new());
    for view in views() {
        let suffix = view.iter().find_map(|word| word.strip_prefix("FILE")).unwrap_or_default();
        let (file, base) = (dir.path().join(format!("file{suffix}")), dir.path().join("file"));
        match seen(&line_of(&view, &stored, &stored.run, &base), &file) {
            (Seen::Told, _) => told += 1,
            (Seen::Silent, code) if code != Some(1) => silent.push(view),
            _ => {}
        }
    }
    assert!(told > 10 && silent.is_empty(), "{told} tell; silent: {silent:?}");
}

/// Touches 4,000 pages forty times: more misses than a small disk has room for.
const TOUCHES: &str = "static char pages[4000][4096] __attribute__((aligned(4096)));
void _start(void) {
    for (int n = 0; n < 40; n++) for (int i = 0; i < 4000; i++) ((volatile char *)pages[i])[0]++;
    asm volatile(\"syscall\" :: \"a\"(60), \"D\"(0));
}
";

/// Sums by `jq` are right: as JSON and CSV a report has all rows unless a limit was typed, and tells how many it leaves out.
#[test]
fn json_is_whole_unless_a_limit_was_typed() {
    let dir = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    let mut more_than_one = BTreeSet::new();
    let mut runs = stored(dir.path());
    runs.push(Stored { name: "tables", run: dir.path().join("tables"), cover: vec![] });
    copy(&files("cmd/report.in/true.data"), &dir.path().join("tables"));
    for stored in &runs {
        for view in
            views().iter().filter(|view| view[0] == "report" && view.last().is_some_and(|w| w == "--json"))
        {
            let line = line_of(view, stored, &stored.run, dir.path());
            let get = |more: &[&str]| -> Option<Value> {
                let words = line.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>();
                let output = kprism(&words);
                let shown = matches!(output.status.code(), Some(0 | 1)) && !output.stdout.is_empty();
                shown.then(|| serde_json::from_slice(&output.stdout).unwrap())
            };
            let Some(all) = get(&[]) else { continue };
            let name = format!("{}: {}", stored.name, view.join(" "));
            if all["hidden"] != 0 {
                faults.push(format!("{name}: hidden is {}", all["hidden"]));
            }
            if all["run"].get("account").is_none() && all["run"].get("counters").is_none() {
                faults.push(format!("{name}: no .run.account"));
            }
            let Some(one) = get(&["--limit", "1"]) else {
                faults.push(format!("{name}: refuses --limit"));
                continue;
            };
            assert_eq!(get(&["--limit", "0"]).as_ref(), Some(&all), "{name}: --limit 0 is all");
            if let (Some(rows), Some(kept)) = (all["rows"].as_array(), one["rows"].as_array()) {
                let keys = |value: &Value| {
                    let totals = value["totals"].as_array().into_iter().flatten();
                    totals.filter_map(|probe| probe["rows"].as_array()).map(Vec::len).sum::<usize>()
                };
                let left_out = rows.len() - kept.len() + keys(&all) - keys(&one);
                if rows.len() > 1 {
                    more_than_one.insert(name.clone());
                }
                if kept.len() > 1 || one["hidden"] != left_out {
                    faults.push(format!(
                        "{name} --limit 1: {} rows of {}, hidden {}",
                        kept.len(),
                        rows.len(),
                        one["hidden"]
                    ));
                }
            }
        }
    }
    assert!(more_than_one.len() > 4, "{more_than_one:?}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

kprism_test::main!();
