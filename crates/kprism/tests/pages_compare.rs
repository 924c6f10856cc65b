// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of `kprism diff` for durations, TLB misses, probes and coverage, in a browser: their numbers are those of `--json`, rows
//! are those that only one run has or both, keys and the address do what they say, hostile names are texts. Pairs that mean
//! different things are refused; a run leads to the page of its instrument.

#[path = "../../view/report/tests/webdriver/mod.rs"]
mod webdriver;

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_test::{APT, BPF, BROWSER, QEMU, ROOT, UPROBES, needs, test};
use serde_json::{Value, json};
use webdriver::Browser;

fn kprism(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn ok(args: &[&str]) -> String {
    let output = kprism(args);
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Writes the page of a comparison of two runs in this folder: names without the folder, as they stand in guides.
fn diff_page(dir: &Path, old: &str, new: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    let output = command.current_dir(dir).args(["diff", old, new, "--html", "page.html"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn refused(args: &[&str]) -> String {
    let output = kprism(args);
    assert!(!output.status.success(), "kprism {args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--json", "--limit", "0"]].concat())).expect("JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn stored(name: &str) -> String {
    format!("{}/tests/cmd/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn open(dir: &Path, page: &Path) -> Browser {
    let browser = Browser::start(&dir.join("browser"), 1500, 1100);
    browser.open(page);
    browser.wait("return document.documentElement.dataset.painted");
    browser
}

/// The page's data: a table's rows as objects of its keys.
fn rows(page: &Path, section: &str) -> Vec<Value> {
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("id=\"kprism-data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let sections = data["sections"].as_array().unwrap();
    let table =
        &sections.iter().find(|s| s["id"] == section).unwrap_or_else(|| panic!("no {section}"))["table"];
    let keys = table["keys"].as_array().unwrap();
    let row = |row: &Value| {
        let cells = keys.iter().zip(row.as_array().unwrap());
        Value::Object(cells.map(|(key, cell)| (key.as_str().unwrap().to_owned(), cell[0].clone())).collect())
    };
    table["rows"].as_array().unwrap().iter().map(row).collect()
}

/// Texts as the page has them: control characters escaped.
fn escaped(value: Value) -> Value {
    match value {
        Value::Array(all) => all.into_iter().map(escaped).collect(),
        Value::Object(all) => {
            Value::Object(all.into_iter().map(|(key, value)| (key, escaped(value))).collect())
        }
        Value::String(text) => {
            let escape =
                |c: char| if c.is_control() { format!("\\u{{{:x}}}", c as u32) } else { c.to_string() };
            Value::String(text.chars().map(escape).collect())
        }
        other => other,
    }
}

fn is_inert(browser: &Browser) {
    let odd = "return [document.images.length, document.querySelectorAll('main b:not(.tip b), main script').length,
         performance.getEntriesByType('resource').length,
         [...document.body.textContent].filter((c) => /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u202a-\\u202e]/.test(c)).length]";
    assert_eq!(browser.run(odd), json!([0, 0, 0, 0]));
    assert_eq!(browser.console(), Vec::<Value>::new());
}

/// Searches for a text in all tables; returns what is said of it.
fn search(browser: &Browser, what: &str) -> String {
    browser.run("document.activeElement.blur()");
    browser.keys("/");
    browser.run("document.querySelector('#search').select()");
    browser.keys(what);
    browser.run("return document.querySelector('.found').textContent").as_str().unwrap().to_owned()
}

#[test]
fn durations_on_a_page() {
    needs(&[BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let (old, new, page) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("page.html"));
    ok(&["import", &stored("func.in/whole.txt"), "-o", text(&old)]);
    ok(&["import", &stored("func.in/long.txt"), "-o", text(&new)]);
    diff_page(dir.path(), "old", "new");
    let shown = rows(&page, "functions");
    // Each run's own report says the same.
    let mut differ = 0;
    for (run, side) in [(&old, "old"), (&new, "new")] {
        let told = json(&["report", "durations", "-i", text(run)]);
        let told = told["rows"].as_array().unwrap();
        for function in told {
            let row = shown
                .iter()
                .find(|r| r["function"] == function["function"] && r["module"] == function["module"]);
            let row = row.unwrap_or_else(|| panic!("no {function}"));
            for (key, of) in [
                ("calls", "count"),
                ("total", "total_ns"),
                ("self", "self_ns"),
                ("p50", "p50_ns"),
                ("p99", "p99_ns"),
            ] {
                let key = if key == "calls" { format!("calls_{side}") } else { format!("{key}_{side}_ns") };
                assert_eq!(row[&key], function[of], "{key} of {row} {function}");
            }
            differ += usize::from(row["calls_old"] != row["calls_new"]);
        }
        // Null where nobody knows: one of the two kept long calls alone.
        let is_called = |row: &&Value| row[format!("calls_{side}")].as_u64().is_some_and(|calls| calls > 0);
        let here = shown.iter().filter(is_called).count();
        assert_eq!(here, told.len());
    }
    assert!(differ > 0);
    let browser = open(dir.path(), &page);
    // The address keeps the choice of a row and the order.
    let second = "#functions tbody tr:nth-child(2) .choose";
    browser.click(second);
    let title = browser.run("return document.querySelector('.compare-figure figcaption').textContent");
    let name = browser.run(&format!("return document.querySelector({second:?}).textContent"));
    assert!(title.as_str().unwrap().starts_with(name.as_str().unwrap()), "{title} {name}");
    browser.click("#functions th:nth-child(1) button");
    let first = "return document.querySelector('#functions tbody tr').textContent";
    let before = browser.run(first);
    browser.run("document.documentElement.dataset.painted = ''; location.reload()");
    browser.wait("return document.readyState === 'complete' && document.documentElement.dataset.painted");
    assert_eq!(browser.run(first), before);
    assert_eq!(browser.run("return document.querySelector('.compare-figure figcaption').textContent"), title);
    browser.screenshot("diff-durations");
    is_inert(&browser);

    // One run against itself differs in nothing.
    ok(&["diff", text(&old), text(&old), "--html", text(&page)]);
    for row in rows(&page, "functions") {
        assert_eq!((&row["total_diff_ns"], &row["only_in"]), (&json!(0), &json!("")), "{row}");
        assert!(row["shift_percent"] == json!(0.0), "{row}");
    }
}

#[test]
fn coverage_on_a_page() {
    needs(&[BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let (empty, run, page) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("page.html"));
    let build = stored("cover.in/build");
    for copy in [&empty, &run] {
        let copied = Command::new("cp").args(["-r", &stored("cover.in/window.data"), text(copy)]).status();
        assert!(copied.unwrap().success());
    }
    // A window that ends as it begins executed nothing: all lines of the other are gained.
    let gcov = empty.join("streams/gcov");
    std::fs::copy(gcov.join("counters.cpio"), gcov.join("before.cpio")).unwrap();
    let both = ["diff", text(&empty), text(&run), "--build-dir", &build];
    let told = json(&both);
    assert_eq!((&told["gained"], &told["lost"]), (&json!(35), &json!(0)), "{told}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.current_dir(dir.path()).args([
        "diff",
        "old",
        "new",
        "--build-dir",
        &build,
        "--html",
        "page.html",
    ]);
    assert!(command.status().unwrap().success());
    // There is no flow, of which a recorder would have left an account.
    assert!(!std::fs::read_to_string(&page).unwrap().contains("ended early"));
    let shown = rows(&page, "files");
    assert_eq!(shown.len(), told["rows"].as_array().unwrap().len());
    for (shown, told) in shown.iter().zip(told["rows"].as_array().unwrap()) {
        for key in ["gained", "lost", "changed", "path"] {
            assert_eq!(shown[key], told[key], "{key}");
        }
    }
    let gained = rows(&page, "functions");
    assert_eq!(gained.len(), 5);
    assert!(gained.iter().all(|row| row["change"] == "gained" && row["calls_old"] == json!(0)), "{gained:?}");
    let browser = open(dir.path(), &page);
    let said = browser.run("return document.querySelector('.facts-line').textContent");
    assert!(said.as_str().unwrap().contains("0 → 35"), "{said}");
    browser.screenshot("diff-cover");
    is_inert(&browser);
}

/// The program of `pages.rs`, whose names are hostile.
fn program(dir: &Path, options: &[&str]) -> PathBuf {
    let made = dir.join("na<b>mes");
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../bench/tlb");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pages/names.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-pthread", include, "-o"]).arg(&made).args(options).arg(source);
    assert!(compiler.status().expect("gcc").success());
    made
}

#[test]
fn probes_on_a_page() {
    needs(&[ROOT, BPF, UPROBES, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), &[]);
    let record = |name: &str, options: &[&str], place: &str| {
        let run = dir.path().join(name);
        let probe = ["-q", "record", "probe", "-o", text(&run), "--exec", text(&program), place];
        ok(&[&probe[..], options, &["--", text(&program), "64"]].concat());
        run
    };
    let by = ["--by", "text", "--hist", "count"];
    let (old, new) = (record("old", &by, "visit"), record("new", &by, "visit if count > 100"));
    let page = dir.path().join("page.html");
    // Places are told apart from conditions: the same place is compared, and the page says why counts differ.
    diff_page(dir.path(), "old", "new");
    let told = json(&["diff", text(&old), text(&new)]);
    // Texts of the page are escaped, those of JSON are as they were.
    let numbers = |rows: Vec<Value>| -> Vec<Value> {
        let rows = rows.into_iter();
        rows.map(|row| {
            json!([
                row["count_old"],
                row["count_new"],
                row["count_diff"],
                row["shift_percent"],
                row["only_in"]
            ])
        })
        .collect()
    };
    assert_eq!(numbers(told["keys"].as_array().unwrap().clone()), numbers(rows(&page, "keys")));
    assert_eq!(told["probes"], Value::from(rows(&page, "probes")));
    let sum = |side: &str| {
        told["keys"]
            .as_array()
            .unwrap()
            .iter()
            // Null where the other condition was recorded: how often such hits would have been there is not known.
            .map(|row| row[format!("count_{side}")].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    for (run, side) in [(&old, "old"), (&new, "new")] {
        let own = json(&["report", "probe", "-i", text(run)]);
        let own = own["totals"][0]["rows"].as_array().unwrap().iter();
        assert_eq!(own.map(|row| row["count"].as_u64().unwrap()).sum::<u64>(), sum(side));
    }
    assert!(sum("old") > sum("new") && sum("new") > 0, "{told}");
    let browser = open(dir.path(), &page);
    let said = browser.run("return document.querySelector('header .warning').textContent");
    assert!(said.as_str().unwrap().contains("conditions of the probes differ"), "{said}");
    assert_eq!(search(&browser, "script"), "1 row");
    browser.screenshot("diff-probe");
    is_inert(&browser);

    // Records: numbers of each value.
    let collect = ["--collect", "count,text"];
    let (old, new) = (record("records", &collect, "visit"), record("others", &collect, "visit"));
    let told = json(&["diff", text(&old), text(&new)]);
    let value = &told["values"][0];
    assert_eq!(
        (&value["value"], &value["count_old"], &value["shift_percent"]),
        (&json!("count"), &json!(300), &json!(0.0))
    );
    // Another place is no pair, and a run without a flow leads to its own page.
    let other = record("elsewhere", &[], "main");
    let why = refused(&["diff", text(&old), text(&other), "--html", text(&page)]);
    assert!(why.contains("no place is in both"), "{why}");
    let why = refused(&["diff", text(&old), &stored("diff.in/plain.data")]);
    assert!(why.contains("they cannot be compared") && why.contains("probes"), "{why}");
    for args in [
        &["report", "-i", text(&old), "--html", text(&page)][..],
        &["export", "-i", text(&old), "-o", text(&page)],
    ] {
        ok(args);
        assert!(
            std::fs::read_to_string(&page).unwrap().contains("\"probes\":[{\"place\":\"visit\""),
            "{args:?}"
        );
    }
}

#[test]
fn misses_on_a_page() {
    needs(&[QEMU, APT, BROWSER]);
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    program(&shared, &["-static"]);
    let share = format!("{}:/bench", text(&shared));
    let record = |name: &str, pages: &str, more: &[&str]| {
        let run = dir.path().join(name);
        let first = ["-q", "record", "tlb", "-o", text(&run), "--share", &share];
        ok(&[&first[..], more, &["--", "/bench/na<b>mes", pages]].concat());
        run
    };
    let (old, new) = (record("old", "512", &[]), record("new", "1024", &[]));
    let page = dir.path().join("page.html");
    diff_page(dir.path(), "old", "new");
    let told = json(&["diff", text(&old), text(&new)]);
    for section in ["objects", "functions", "processes", "distribution"] {
        assert_eq!(escaped(told[section].clone()), Value::from(rows(&page, section)), "{section}");
    }
    for (run, side) in [(&old, "old"), (&new, "new")] {
        let own = json(&["report", "tlb", "objects", "-i", text(run)]);
        let own = own["rows"].as_array().unwrap().iter().map(|o| o["misses"].as_u64().unwrap()).sum::<u64>();
        let key = format!("misses_{side}");
        for section in ["objects", "functions", "processes"] {
            let sum =
                told[section].as_array().unwrap().iter().map(|row| row[&key].as_u64().unwrap()).sum::<u64>();
            assert_eq!(sum, own, "{section} {side}");
        }
        assert_eq!(told["facts"]["misses"][side], json!(own));
    }
    let browser = open(dir.path(), &page);
    assert_eq!(browser.run("return document.querySelectorAll('#distribution .curve.new').length > 0"), true);
    browser.screenshot("diff-tlb");
    browser.click(".theme");
    browser.run("document.querySelector('#distribution').scrollIntoView()");
    browser.screenshot("diff-tlb-dark");
    is_inert(&browser);

    // Misses of another TLB mean something else. The flow beside them can still be compared.
    let other = record("other", "512", &["--geometry", "skylake-sp"]);
    let why = refused(&["diff", text(&old), text(&other), "--html", text(&page)]);
    assert!(why.contains("misses of different TLBs cannot be compared"), "{why}");
    ok(&["diff", text(&old), text(&other), "--syscall", "mmap", "--html", text(&page)]);
    ok(&["report", "-i", text(&old), "--html", text(&page)]);
    assert!(std::fs::read_to_string(&page).unwrap().contains("\"geometries\""));
}

kprism_test::main!();
