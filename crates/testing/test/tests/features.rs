// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo build --workspace` and `cargo test --workspace` compile the same crates with the same features, so that a run of the suite
//! compiles each once. Tests' libraries that switch on more belong into crates/testing/test-libraries.

use std::collections::BTreeSet;
use std::process::Command;

/// Each crate with its features, as cargo resolves them for dependencies of these kinds.
fn resolved(kinds: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--workspace", "--prefix", "none", "-f", "{p} [{f}]", "-e", kinds]);
    let output = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../..")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    // Crates that were shown before are marked.
    lines.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

#[test]
fn builds_and_tests_have_the_same_features() {
    let (built, tested) = (resolved("normal,build"), resolved("normal,build,dev"));
    assert!(built.len() > 100 && tested.len() > built.len(), "{} and {} crates", built.len(), tested.len());
    let twice: Vec<_> = built.difference(&tested).collect();
    assert!(
        twice.is_empty(),
        "tests compile these, and all that depends on them, with other features: {twice:#?}"
    );
}
