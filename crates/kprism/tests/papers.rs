// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/papers.md`, row by row: what it says of the five papers can be typed as it stands there.

mod guest;

use std::path::Path;
use std::process::Command;

use guest::{alone, kprism, ok, text};
use kprism_test::{APT, QEMU, SYSTEMTAP, needs, systemtap, test};

/// A row of the page.
struct Row {
    item: String,
    /// Its command lines; none for a drawing.
    commands: Vec<String>,
    result: String,
    state: String,
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The rows by paper.
fn papers() -> Vec<Vec<Row>> {
    let page = std::fs::read_to_string(root().join("docs/papers.md")).expect("the page is there");
    let mut papers: Vec<Vec<Row>> = Vec::new();
    for line in page.lines() {
        if line.starts_with("## Paper ") {
            papers.push(Vec::new());
        }
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let is_row = line.starts_with("| ") && !line.starts_with("| item");
        if let (true, Some(rows)) = (is_row, papers.last_mut()) {
            let [item, _, command, result, state] = cells[..] else { panic!("not five columns: {line}") };
            let commands = command.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            rows.push(Row { item: item.into(), commands, result: result.into(), state: state.into() });
        }
    }
    papers
}

/// The words of a command line, as a shell takes them.
fn words(command: &str) -> Vec<String> {
    let script = format!("printf '%s\\0' {command}");
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(output.status.success(), "{command}");
    let words = String::from_utf8(output.stdout).unwrap();
    words.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn every_item_has_a_row_and_every_command_is_accepted() {
    let papers = papers();
    let rows: Vec<usize> = papers.iter().map(Vec::len).collect();
    assert_eq!(rows, [14, 7, 10, 22, 16], "rows of each paper: an item was left out, or twice");
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut faults = Vec::new();
    for (paper, row) in (1..).zip(&papers).flat_map(|(n, rows)| rows.iter().map(move |row| (n, row))) {
        let of = format!("paper {paper}, {}", row.item);
        let states = ["reproduced", "in part: ", "not yet: ", "not here: ", "a drawing: "];
        if !states.iter().any(|state| row.state.starts_with(state)) {
            faults.push(format!("{of}: no state: {}", row.state));
        }
        if row.state == "reproduced" && (row.commands.is_empty() || row.result == "–") {
            faults.push(format!("{of}: reproduced, and no command or no result"));
        }
        for command in &row.commands {
            let mut words = words(command);
            let known = match words[0].as_str() {
                "kprism" => {
                    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
                    words.insert(end, "--help".into());
                    let words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
                    kprism(&words).status.success()
                }
                "make" => makefile.contains(&format!("\n{}:", words[1])),
                "sh" => root().join(&words[1]).is_file(),
                _ => false,
            };
            if !known {
                faults.push(format!("{of}: not accepted: {command}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn views_of_a_flow_show_something() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&["lab", "run", "-q", "-o", text(&run), "--", "ls", "/bin"]);
    let papers = papers();
    let commands = papers.iter().flatten().flat_map(|row| &row.commands);
    let views = ["kprism report delta", "kprism script", "kprism annotate vfs_open"];
    let mut shown = 0;
    // What a row records itself, under a name of its own, tests/papers/run.py shows.
    let is_of_the_demo =
        |command: &&String| views.iter().any(|view| command.starts_with(view)) && !command.contains(" -i ");
    for command in commands.filter(is_of_the_demo) {
        let words = words(command);
        let mut words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        words.extend(["-i", text(&run)]);
        assert!(!ok(&words).is_empty(), "{command}");
        shown += 1;
    }
    assert!(shown > 5, "{shown} views");
}

/// `scripts/systemtap.sh` with these arguments.
fn systemtap_script(args: &[&str]) -> (Option<i32>, String, String) {
    let said = Command::new("sh")
        .arg("scripts/systemtap.sh")
        .args(args)
        .current_dir(root())
        .output()
        .expect("a shell");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (said.status.code(), text(said.stdout), text(said.stderr))
}

#[test]
fn systemtap_is_not_fetched_unasked() {
    let (code, folder, usage) = systemtap_script(&["--help"]);
    assert_eq!((code, folder.as_str()), (Some(2), ""));
    assert!(usage.contains("scripts/systemtap.sh --have [RELEASE]"), "{usage}");
    assert_eq!(systemtap_script(&["--have", "6.1.0-0-amd64"]), (Some(1), String::new(), String::new()));
}

/// Figure 15's tracer and kprism's, on one kernel, with one condition: as many records, of one value.
#[test]
fn systemtap_keeps_what_kprism_keeps() {
    needs(&[QEMU, APT, SYSTEMTAP]);
    let _alone = alone();
    let folder = systemtap().expect("it is there");
    let release = std::fs::read_to_string(folder.join("release")).unwrap();
    let kernel = format!("linux-image-{}", release.trim_end());
    let dir = tempfile::tempdir().unwrap();
    let script =
        r#"probe kernel.function("ksys_read") { s = 2*$fd + 3*$count; if (s > 2000) printf("%7d\n", s) }"#;
    let built = Command::new(folder.join("stap"))
        .args(["-p4", "-m", "kept", "-e", script])
        .current_dir(dir.path())
        .output()
        .expect("stap runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // The value tells these reads from those of others, as of staprun: 2*0 + 3*777.
    let command = "dd if=/dev/zero bs=777 count=40 status=none of=/dev/null";
    let guest = ["--kernel", &kernel, "--package", "systemtap-runtime", "--mem", "2G"];
    let run = dir.path().join("run");
    let staprun =
        format!("staprun -o /tmp/kept -c '{command}' /share/kept.ko && grep -c '^ *2331$' /tmp/kept");
    let asked = ["lab", "run", "-q", "--unobserved", "-o", text(&run), "--share", text(dir.path())];
    let kept = ok(&[&asked[..], &guest, &["--", "sh", "-c", &staprun]].concat());
    assert_eq!(String::from_utf8(kept).unwrap().trim(), "40");

    let probe = "ksys_read if 2*fd + 3*count > 2000";
    let asked = ["record", "probe", "-q", probe, "--collect", "2*fd + 3*count", "-o", text(&run), "--guest"];
    let words: Vec<&str> = command.split(' ').collect();
    ok(&[&asked[..], &guest, &["--"], &words].concat());
    let records =
        String::from_utf8(ok(&["report", "probe", "-q", "-i", text(&run), "--limit", "0"])).unwrap();
    assert_eq!(records.matches("= 2331").count(), 40, "{records}");
}

kprism_test::main!();
