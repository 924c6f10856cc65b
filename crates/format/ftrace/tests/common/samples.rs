// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unpacks ftrace's sample traces from the folder in `KPRISM_TEST_DATA`, for the tests of several crates.

use std::process::Command;

use kprism_test::captures;

/// Returns the unpacked samples in a temporary folder. Without them the test is ignored.
pub fn samples() -> tempfile::TempDir {
    let archive = captures("ftrace/ftrace-samples.tar.xz");
    let dir = tempfile::tempdir().expect("a folder");
    let status =
        Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()).status().expect("tar");
    assert!(status.success());
    dir
}
