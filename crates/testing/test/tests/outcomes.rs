// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the runner as cargo does, and compares its output with the example's tests.

use std::path::Path;
use std::process::Command;

use kprism_test::test;

/// The output of a run of the example, and whether it succeeds.
fn run(arguments: &[&str]) -> (String, bool) {
    let this = std::env::current_exe().unwrap();
    let example = this.parent().and_then(Path::parent).unwrap().join("examples/outcomes");
    let output = Command::new(&example).args(arguments).env_remove("KPRISM_TEST_DATA").output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

fn says(text: &str, name: &str, outcome: &str) {
    let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in {text}"));
    assert_eq!(line.split_once(" ... ").map(|(_, outcome)| outcome), Some(outcome));
}

#[test]
fn what_cannot_run_is_ignored_with_the_reason() {
    let (text, good) = run(&[]);
    assert!(!good);
    says(&text, "passes", "ok");
    says(&text, "fails", "FAILED");
    says(&text, "returns_an_error", "FAILED");
    says(&text, "skips_in_the_middle", "ignored (no such thing: buy one)");
    let remedy = "KPRISM_TEST_DATA=FOLDER names where they are";
    says(
        &text,
        "needs_captures",
        &format!("ignored (needs captures of real processors and kernels: {remedy})"),
    );
    says(&text, "inside::is_long", "ignored (an hour)");
    assert!(text.contains("test result: FAILED. 1 passed; 2 failed; 3 ignored;"), "{text}");
    assert!(text.contains("on purpose") && text.contains("an error of its own"), "{text}");
}

#[test]
fn arguments_are_those_of_the_builtin_runner() {
    let (text, good) = run(&["passes", "--exact", "--nocapture", "--test-threads", "1"]);
    assert!(good && text.contains("test result: ok. 1 passed; 0 failed; 0 ignored;"), "{text}");
    let (text, _) = run(&["is_", "--ignored"]);
    assert!(text.contains("test result: ok. 1 passed; 0 failed; 0 ignored;"), "{text}");
    says(&text, "inside::is_long", "ok");
    let (text, good) = run(&["--list"]);
    assert!(good && text.lines().count() == 6 && text.contains("inside::is_long: test"), "{text}");
    let (text, good) = run(&["--skip", "fails", "--skip", "returns"]);
    assert!(good && text.contains("test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured;"), "{text}");
}

/// A test that cannot run must report that to the runner, or it counts as passed. If a file of this runner still uses
/// the compiler's own `#[test]`, its tests are silently lost.
/// word.
#[test]
fn files_with_this_runner_use_its_attribute() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = |of: &Path| std::fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut seen = 0;
    // `crates/GROUP/CRATE`, and `crates/kprism`.
    for folder in folders(&crates).flat_map(|group| folders(&group).chain([group])) {
        let Ok(tests) = std::fs::read_dir(folder.join("tests")) else { continue };
        let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        for path in tests.flatten().map(|entry| entry.path()) {
            let file = if path.is_dir() { path.join("main.rs") } else { path.clone() };
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            let name = path.file_stem().unwrap().to_str().unwrap();
            let runs = text.contains("\nkprism_test::main!();");
            let listed = manifest.contains(&format!("[[test]]\nname = \"{name}\"\nharness = false\n"));
            assert_eq!(runs, listed, "{}: `main!` goes with `harness = false`", file.display());
            let lists = text.split("use kprism_test::").skip(1).filter_map(|rest| rest.split(';').next());
            let mut words = lists.flat_map(|list| list.split(['{', ',', '}']));
            let imported = words.any(|word| word.trim() == "test");
            assert_eq!(runs, imported, "{}: `main!` goes with `use kprism_test::test`", file.display());
            let returns = ["println!(\"skipped", "geteuid()"].iter().find(|words| text.contains(**words));
            let own = file.ends_with("testing/test/tests/outcomes.rs");
            assert!(
                own || returns.is_none(),
                "{}: {returns:?}: a test that returns early counts as passed: use needs() or skip()",
                file.display()
            );
            seen += usize::from(runs);
        }
    }
    assert!(seen > 0);
}

kprism_test::main!();
