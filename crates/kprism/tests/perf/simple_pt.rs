// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same recording in the form that simple-pt leaves: the packets, and lines about the code that was mapped. All
//! but what such a folder cannot tell of must come back.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::guest::{json, ok, text};

pub fn check(run: &Path, data: &Path, dir: &Path) {
    let (folder, back) = (dir.join("simple-pt"), dir.join("simple-pt.data"));
    fs::create_dir_all(&folder).unwrap();
    for cpu in 0..2 {
        fs::copy(run.join(format!("streams/cpu{cpu}.pt")), folder.join(format!("ptout.{cpu}"))).unwrap();
    }
    let mut sideband = "meta nom_freq 10\nmeta tsc_ratio 1 40\nmeta mtc_freq 4\n".to_owned();
    for line in fs::read_to_string(run.join("streams/sideband.jsonl")).unwrap().lines() {
        let m: Value = serde_json::from_str(line).unwrap();
        let path = m["path"].as_str().unwrap_or_default();
        if m["k"] == "mmap" && m["exec"] == true && path.starts_with('/') {
            let n = |field: &str| m[field].as_u64().unwrap();
            let (seconds, len) = (n("t") as f64 / 1e9, n("end") - n("start"));
            let (pid, cr3, start, pgoff) = (n("pid"), n("asid"), n("start"), n("pgoff"));
            writeln!(sideband, "{seconds:.6} {pid} {cr3:x} {start:x} {pgoff} {len:x}\t{path}").unwrap();
        }
    }
    fs::write(folder.join("ptout.sideband"), sideband).unwrap();
    let kcore = data.join("kcore_dir");
    ok(&[
        "import",
        "-q",
        text(&folder),
        "--symfs",
        text(&data.join("symfs")),
        "--kcore",
        text(&kcore.join("kcore")),
        "--kallsyms",
        text(&kcore.join("kallsyms")),
        "-o",
        text(&back),
    ]);
    let instructions =
        |run: &Path| json(&["info", "--json", "-i", text(run)])["instructions"].as_u64().unwrap();
    let (before, after) = (instructions(run), instructions(&back));
    println!("simple-pt: {after} of {before} instructions");
    // Of a process between fork and exec no line tells, nor of the program that started the command.
    assert!(after <= before && after > before - before / 100, "{after} of {before}");
    let functions = |run: &Path| -> BTreeMap<String, u64> {
        let report = json(&["report", "functions", "--json", "--limit", "0", "-i", text(run)]);
        let rows = report["rows"].as_array().unwrap().iter();
        let programs = ["/ls", "/sed", "/wc", "/date"];
        let of_programs =
            rows.filter(|r| r["module"].as_str().is_some_and(|m| programs.iter().any(|p| m.ends_with(p))));
        let name = |r: &Value| format!("{} {}", r["module"], r["function"]);
        of_programs.map(|r| (name(r), r["self_instructions"].as_u64().unwrap())).collect()
    };
    let (before, after) = (functions(run), functions(&back));
    assert!(before.len() > 50, "{} functions", before.len());
    let more = after.iter().find(|(name, n)| before.get(*name).is_none_or(|before| before < n));
    assert_eq!(more, None, "a function with more instructions than in the run");
    // No line tells where the vDSO is. After a call of it (`date` makes one on any system, other programs on some), the flow
    // is not known until the next PSB.
    let same = before.iter().filter(|(name, n)| after.get(*name) == Some(n)).count();
    println!("simple-pt: {same} of {} functions have all their instructions", before.len());
    assert!(
        same * 10 >= before.len() * 9,
        "{same} of {} functions have all their instructions",
        before.len()
    );
}
