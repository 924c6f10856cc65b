// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage of a program that clang built: its gcov, and its own profile by way of lcov's tracefile. LLVM's tools are the
//! judges. Needs what `scripts/setup.sh test` installs; clang, llvm and clang's runtime among it.

mod commands;

use std::fs;
use std::path::Path;
use std::process::Command;

use commands::{kprism, run, said};
use kprism_test::{program, skip, test};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flow_cover/lists.c");

fn tool(name: &str) -> String {
    program(&[name, &format!("{name}-19"), &format!("{name}-14")], "clang llvm")
}

/// Builds and runs the program; clang has its runtime library in a package of its own.
fn built(folder: &Path, flags: &[&str]) {
    let clang = tool("clang");
    let output = Command::new(&clang).args(flags).args([SOURCE, "-o", "lists"]).current_dir(folder).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("libclang_rt.profile") {
        skip("needs clang's runtime: install libclang-rt-dev");
    }
    assert!(output.status.success(), "{said}");
    run(folder, "./lists", &[]);
}

/// Lines of a tracefile that count, sorted.
fn counts(text: &str, kinds: &[&str]) -> Vec<String> {
    let mut found: Vec<String> = text
        .lines()
        .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

#[test]
fn a_profile_of_clang_s_comes_by_a_tracefile() {
    let (profdata, cov) = (tool("llvm-profdata"), tool("llvm-cov"));
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    built(dir, &["-O1", "-fprofile-instr-generate", "-fcoverage-mapping"]);
    // What a user has first is refused with the commands that lead on: they do.
    for (name, first) in
        [("default.profraw", "llvm-profdata merge default.profraw"), ("all.profdata", "llvm-cov export")]
    {
        if name == "all.profdata" {
            run(dir, &profdata, &["merge", "default.profraw", "-o", "all.profdata"]);
        }
        let output = kprism(dir, &["report", "cover", "-i", name]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && complaint.contains(first), "{complaint}");
    }
    let profile = "-instr-profile=all.profdata";
    let info = run(dir, &cov, &["export", "-format=lcov", "lists", profile]);
    fs::write(dir.join("all.info"), &info).unwrap();

    let report: serde_json::Value =
        serde_json::from_str(&said(dir, &["report", "cover", "-q", "--json", "-i", "all.info"])).unwrap();
    let judge = run(dir, &cov, &["export", "-summary-only", "lists", profile]);
    let judge: serde_json::Value = serde_json::from_str(&judge).unwrap();
    let judge = &judge["data"][0]["totals"];
    for (ours, theirs) in [("functions", "functions"), ("branches", "branches")] {
        assert_eq!(report["totals"][ours], judge[theirs]["count"], "{ours}: {report}");
    }
    assert_eq!(report["totals"]["functions_hit"], judge["functions"]["covered"]);
    assert_eq!(report["totals"]["branches_taken"], judge["branches"]["covered"]);
    let guessed =
        report["run"]["account"].as_array().unwrap().iter().find(|entry| entry["fate"] == "guessed");
    assert!(guessed.unwrap()["count"].as_u64().unwrap() > 10, "{report}");

    // Written again, it counts the same.
    said(dir, &["export", "-q", "-i", "all.info", "-o", "again.info"]);
    let (info, again) = (info, fs::read_to_string(dir.join("again.info")).unwrap());
    let kinds = ["SF:", "FN:", "FNDA:", "FNF:", "FNH:", "DA:", "BRF:", "BRH:"];
    assert_eq!(counts(&info, &kinds), counts(&again, &kinds));
    // Views of it: lines with counts, and no shares of what it does not tell.
    let shown = said(dir, &["annotate", "-i", "all.info", "lists.c:20-30", "--branches"]);
    assert!(shown.contains("called 1,531\n") && shown.contains("branch 0 taken"), "{shown}");
    said(dir, &["report", "cover", "-i", "all.info", "--html", "page.html"]);
    // 1 is for "nothing to show". How many lines have code depends on the version of LLVM.
    let diff = kprism(dir, &["diff", "all.info", "again.info"]);
    let differs = String::from_utf8_lossy(&diff.stdout);
    let executed = counts(&info, &["DA:"]).iter().filter(|line| !line.ends_with(",0")).count();
    let unchanged = format!("\nlines executed: {executed} before, {executed} after; 0 gained, 0 lost");
    assert!(executed > 80 && diff.status.code() == Some(1) && differs.contains(&unchanged), "{diff:?}");
    // Cut off, it is an error with its place.
    fs::write(dir.join("cut.info"), &info[..info.len() / 2]).unwrap();
    let output = kprism(dir, &["report", "cover", "-i", "cut.info"]);
    assert!(
        output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("line "),
        "{output:?}"
    );
}

#[test]
fn clang_s_gcov_is_read_as_llvm_reads_it() {
    let cov = tool("llvm-cov");
    for level in ["-O0", "-O2"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        built(dir, &[level, "-g", "--coverage"]);
        said(dir, &["export", "-q", "-i", ".", "-o", "ours.info"]);
        let ours = fs::read_to_string(dir.join("ours.info")).unwrap();
        let ours: Vec<(u32, u64)> = ours
            .lines()
            .filter_map(|line| line.strip_prefix("DA:")?.split_once(','))
            .map(|(line, count)| (line.parse().unwrap(), count.parse().unwrap()))
            .collect();
        let mut notes = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
        let data = notes.find(|path| path.extension().is_some_and(|suffix| suffix == "gcda")).unwrap();
        let text = run(dir, &cov, &["gcov", "-t", data.file_name().unwrap().to_str().unwrap()]);
        let theirs: Vec<(u32, u64)> = text
            .lines()
            .filter_map(|line| {
                let mut parts = line.split(':').map(str::trim);
                let (count, number) = (parts.next()?, parts.next()?.parse().ok()?);
                let count = if count == "#####" { Some(0) } else { count.trim_end_matches('*').parse().ok() };
                Some((number, count?)).filter(|(number, _)| *number > 0)
            })
            .collect();
        let ran = |all: &[(u32, u64)]| all.iter().map(|&(line, count)| (line, count > 0)).collect::<Vec<_>>();
        assert!(ours.len() > 80);
        assert_eq!(ran(&ours), ran(&theirs), "{level}");
        let differ: Vec<_> = ours.iter().zip(&theirs).filter(|(a, b)| a != b).collect();
        println!("{level}: {} lines, other counts: {differ:?}", ours.len());
        // The brace at which two ways of leaving a function meet.
        assert!(differ.len() <= usize::from(level == "-O0"), "{level}: {differ:?}");
    }
}

kprism_test::main!();
