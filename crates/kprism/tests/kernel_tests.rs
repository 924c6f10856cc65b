// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lab kunit` and `lab kselftest`, on a kernel with KUnit that `make test-kernel-tests` builds.

mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, kprism, ok, text};
use kprism_test::{QEMU, needs, skip, test};
use serde_json::Value;

fn tree() -> PathBuf {
    match std::env::var_os("KPRISM_KUNIT_TREE") {
        Some(folder) => folder.into(),
        None => skip("no KPRISM_KUNIT_TREE: make test-kernel-tests builds a kernel with KUnit, once"),
    }
}

/// The rows of a report by the tests' names.
fn rows(report: &Value) -> BTreeMap<String, Value> {
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.map(|row| (row["name"].as_str().expect("a name").to_owned(), row.clone())).collect()
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"))
}

/// Builds the module of known tests.
fn known(tree: &Path, folder: &Path) -> PathBuf {
    fs::copy("tests/kernel_tests/known.c", folder.join("known.c")).unwrap();
    fs::write(folder.join("Makefile"), "obj-m := known.o\n").unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(tree).arg(format!("M={}", folder.display())).arg("modules");
    let built = make.output().expect("make");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder.join("known.ko")
}

/// A module's tests, each end that a test can have among them; counts are those that follow from its source.
#[test]
fn tests_of_which_everything_is_known() {
    needs(&[QEMU]);
    let tree = tree();
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let module = known(&tree, dir.path());
    let run = dir.path().join("run");
    let lab = ["lab", "kunit", "--tree", text(&tree), "--module", text(&module), "--json", "-o"];
    let output = kprism(&[&lab[..], &[text(&run), "known"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tests = rows(&report);
    let result = |name: &str| tests[name]["result"].as_str().unwrap().to_owned();
    for name in ["fewer", "many", "more", "sleeps", "with_value/value 1000", "with_value/value 2000"] {
        assert_eq!(result(name), "passed", "{name}");
    }
    for name in ["fails", "gives_up", "faults", "only_once"] {
        assert_eq!(result(name), "failed", "{name}");
    }
    assert_eq!(
        (result("skips").as_str(), &tests["skips"]["reason"]),
        ("skipped", &"no <such> device".into())
    );
    assert_eq!(tests.len(), 11);
    // The second time is this one.
    assert!(
        said.contains("passed in the boot, and failed when they were repeated")
            && said.contains("known: only_once")
    );

    let insns = |name: &str| number(&tests[name], "instructions");
    assert_eq!(insns("many") - insns("fewer"), 3321);
    // Ten instructions and the loop's own: a thousand times more.
    let loops = insns("with_value/value 2000") - insns("with_value/value 1000");
    assert!(loops % 1000 == 0 && (12_000..16_000).contains(&loops), "{loops}");
    // It never comes to its thousand instructions, nor does a sleep count as such.
    assert!(insns("gives_up") > 300);
    let slept = number(&tests["sleeps"], "time_ns");
    assert!((20_000_000..60_000_000).contains(&slept) && insns("sleeps") < 100_000, "{}", tests["sleeps"]);
    for name in ["fails", "gives_up", "faults"] {
        assert!(number(&tests[name], "time_ns") > 0 && insns(name) > 0, "{}", tests[name]);
    }
    // `helper` has five lines with code; the test's own three are beside them.
    assert!(number(&tests["more"], "lines_alone") >= 5, "{}", tests["more"]);
    let printed = report["printed"].as_array().unwrap();
    let of_fails = printed.iter().find(|test| test["name"] == "fails").unwrap();
    assert!(of_fails["lines"].to_string().contains("1 == 2"), "{of_fails}");

    // The same again, instruction by instruction.
    let again = dir.path().join("again");
    let output = kprism(&[&lab[..], &[text(&again), "known"]].concat());
    let second: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(second["rows"], report["rows"]);

    let xml = dir.path().join("tests.xml");
    ok(&["report", "tests", "-q", "-i", text(&run), "--junit", text(&xml)]);
    let xml = fs::read_to_string(xml).unwrap();
    assert!(xml.contains("<testsuite name=\"known\" tests=\"11\" failures=\"4\" errors=\"0\""), "{xml}");
    assert!(xml.contains("<skipped message=\"no &lt;such&gt; device\"/>"), "{xml}");
}

/// Suites by pattern; a suite that is not there, and a kernel without KUnit, are refused.
#[test]
fn suites_of_the_kernel() {
    needs(&[QEMU]);
    let tree = tree();
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let tree = ["lab", "kunit", "-q", "--tree", text(&tree), "-o", text(&run)];
    let report = json(&[&tree[..], &["--json", "bits*", "list*", "kunit-try-catch-test"]].concat());
    let results = report["rows"].as_array().unwrap();
    assert!(results.len() > 30, "{}", results.len());
    for row in results {
        assert_eq!(row["result"], "passed", "{row}");
        assert!(number(row, "instructions") > 50 && number(row, "functions") > 0, "{row}");
    }
    // As many tests as the kernel's own count says.
    let text_of = fs::read_to_string(run.join("stdout")).unwrap();
    let totals = text_of.lines().filter(|line| line.starts_with("# Totals:"));
    let totals = totals.filter_map(|line| line.rsplit("total:").next()?.parse::<usize>().ok());
    assert_eq!(totals.sum::<usize>(), results.len());
    // What is shown follows the options.
    let sorted =
        json(&["report", "tests", "-i", text(&run), "--json", "--sort", "instructions", "--limit", "3"]);
    let most = sorted["rows"].as_array().unwrap();
    assert_eq!(most.len(), 3);
    assert!(most.windows(2).all(|two| number(&two[0], "instructions") >= number(&two[1], "instructions")));

    let output = kprism(&[&tree[..], &["no_such_suite"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no suite no_such_suite; those in this kernel:") && said.contains("bits-test"),
        "{said}"
    );
}

/// Two collections: results, and counts that agree with the tables of the same run.
#[test]
fn programs_of_the_selftests() {
    needs(&[QEMU]);
    let tree = tree();
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let lab = ["lab", "kselftest", "-q", "--tree", text(&tree), "-o", text(&run)];
    let report = json(
        &[&lab[..], &["--json", "size", "sigaltstack", "kcmp", "membarrier:membarrier_test_multi_thread"]]
            .concat(),
    );
    let tests = rows(&report);
    assert_eq!(
        tests.keys().collect::<Vec<_>>(),
        ["get_size", "kcmp_test", "membarrier_test_multi_thread", "sas"]
    );
    // As the listing of the same run has them, line by line.
    let listed = |subject: &str, comm: &str| {
        let list = ["script", subject, "-q", "--limit", "1000000000", "--comm", comm, "-i", text(&run)];
        ok(&list).iter().filter(|byte| **byte == b'\n').count() as u64
    };
    for (name, row) in &tests {
        assert_eq!(row["result"], "passed", "{row}");
        let comm: String = name.chars().take(15).collect();
        let all = number(row, "instructions") + number(row, "interrupt_instructions");
        assert_eq!(all, listed("insns", &comm), "{name}: {row}");
        assert!(number(row, "lines") > 100 && number(row, "functions") > 10, "{row}");
    }
    // The listing has `execve`, which ends in the test and began before it, and the last call, which never ends and has no row.
    for name in ["get_size", "sas"] {
        assert_eq!(number(&tests[name], "syscalls") + 1, listed("syscalls", name), "{name}");
    }
    for (wanted, reason) in
        [("no_such", "no collection"), ("size:no_such", "no test size:no_such; there are:")]
    {
        let output = kprism(&[&lab[..], &[wanted]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

kprism_test::main!();
