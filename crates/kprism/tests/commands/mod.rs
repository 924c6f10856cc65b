// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs kprism and compilers in a folder, for the tests of coverage of programs.

use std::path::Path;
use std::process::{Command, Output};

/// Runs a program that must succeed; returns its output.
pub fn run(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs kprism in a folder.
pub fn kprism(folder: &Path, arguments: &[&str]) -> Output {
    let kprism = env!("CARGO_BIN_EXE_kprism");
    Command::new(kprism).args(arguments).current_dir(folder).env("NO_COLOR", "1").output().unwrap()
}

/// Output of kprism, which must succeed.
pub fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = kprism(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
